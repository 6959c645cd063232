"""Every state transition of a transactional id, in one table.

    Empty ──add──> Ongoing ──commit──> PrepareCommit ──written──> CompleteCommit ──┐
      ^ ^             │  └────abort──> PrepareAbort ──written──> CompleteAbort ───┤
      │ │           fence                  ^                                       │
      │ │             v                    │                                       │
      │ │      PrepareEpochFence ──abort───┘          add: to Ongoing, init: to Empty, expire: to Dead
      │ └───────────────────────────────────────────────────────────────────────────┘
     init

The names and numbers are Kafka's, for they are in its records and in the output of its tools. A replayed record is
applied without a check of the transition: compaction has removed the steps in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, StrEnum


class IllegalTransitionError(Exception):
    """A bug: the table does not have this transition. Nothing was changed."""


class State(IntEnum):
    EMPTY = 0
    """It has a producer and no transaction."""
    ONGOING = 1
    """Some partition, or some group's offsets, may have records of the transaction."""
    PREPARE_COMMIT = 2
    """Decided: once this is on all in-sync replicas, nothing can undo it. Markers are being written."""
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    """Every partition has its marker."""
    COMPLETE_ABORT = 5
    DEAD = 6
    """Deleted, after it had not been used for transactional.id.expiration.ms. Its record is a tombstone."""
    PREPARE_EPOCH_FENCE = 7
    """Between the decision to fence a producer and the abort of its transaction. It is never recorded: both happen in
    one step."""

    @property
    def label(self) -> str:
        """The name in Kafka's tools."""
        return _LABELS[self]

    @property
    def is_prepared(self) -> bool:
        return self in (State.PREPARE_COMMIT, State.PREPARE_ABORT)

    @property
    def is_at_rest(self) -> bool:
        """Whether no transaction is open in any partition."""
        return self in (State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT)


_LABELS = {
    State.EMPTY: "Empty",
    State.ONGOING: "Ongoing",
    State.PREPARE_COMMIT: "PrepareCommit",
    State.PREPARE_ABORT: "PrepareAbort",
    State.COMPLETE_COMMIT: "CompleteCommit",
    State.COMPLETE_ABORT: "CompleteAbort",
    State.DEAD: "Dead",
    State.PREPARE_EPOCH_FENCE: "PrepareEpochFence",
}

BY_LABEL: Mapping[str, State] = {label: state for state, label in _LABELS.items()}


class Event(StrEnum):
    INIT = "a producer was given its id and epoch"
    ADD = "a partition was added"
    COMMIT = "the producer commits"
    ABORT = "the producer, or the coordinator in its place, aborts"
    FENCE = "the epoch is raised to lock the producer out of its transaction"
    WRITTEN = "every partition has its marker"
    EXPIRE = "it has not been used for too long"


TRANSITIONS: Mapping[tuple[State, Event], State] = {
    (State.EMPTY, Event.INIT): State.EMPTY,
    (State.EMPTY, Event.ADD): State.ONGOING,
    # With transaction version 2 a producer may abort a transaction that the coordinator does not know: the Produce that
    # should have added the partition may be lost, or still be in flight. The abort raises the epoch, which fences that
    # Produce.
    (State.EMPTY, Event.ABORT): State.PREPARE_ABORT,
    (State.EMPTY, Event.EXPIRE): State.DEAD,
    (State.ONGOING, Event.ADD): State.ONGOING,
    (State.ONGOING, Event.COMMIT): State.PREPARE_COMMIT,
    (State.ONGOING, Event.ABORT): State.PREPARE_ABORT,
    (State.ONGOING, Event.FENCE): State.PREPARE_EPOCH_FENCE,
    (State.PREPARE_EPOCH_FENCE, Event.ABORT): State.PREPARE_ABORT,
    (State.PREPARE_COMMIT, Event.WRITTEN): State.COMPLETE_COMMIT,
    (State.PREPARE_ABORT, Event.WRITTEN): State.COMPLETE_ABORT,
    (State.COMPLETE_COMMIT, Event.INIT): State.EMPTY,
    (State.COMPLETE_COMMIT, Event.ADD): State.ONGOING,
    (State.COMPLETE_COMMIT, Event.ABORT): State.PREPARE_ABORT,
    (State.COMPLETE_COMMIT, Event.EXPIRE): State.DEAD,
    (State.COMPLETE_ABORT, Event.INIT): State.EMPTY,
    (State.COMPLETE_ABORT, Event.ADD): State.ONGOING,
    (State.COMPLETE_ABORT, Event.ABORT): State.PREPARE_ABORT,
    (State.COMPLETE_ABORT, Event.EXPIRE): State.DEAD,
}


def after(state: State, event: Event) -> State:
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise IllegalTransitionError(f"in {state.label}, {event.value} cannot be") from None
