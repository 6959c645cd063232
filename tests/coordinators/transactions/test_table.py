"""Every state meets every event and every request: what is not in the tables raises, and changes nothing."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from sexton.coordinators.transactions.ending import Verdict, judge
from sexton.coordinators.transactions.messages import AddRequest, EndRequest, InitRequest
from sexton.coordinators.transactions.states import (
    BY_LABEL,
    TRANSITIONS,
    Event,
    IllegalTransitionError,
    State,
    after,
)
from sexton.coordinators.transactions.transaction import Transaction
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.types import ProducerEpoch, ProducerId
from tests.coordinators.transactions.harness import ID, NEW, OLD, P0, P1, START_MS, TIMEOUT_MS, Harness
from tests.producers import producer_at

RECORDED = [state for state in State if state not in (State.DEAD, State.PREPARE_EPOCH_FENCE)]
EPOCH = 5

FENCED = ErrorCode.producer_fenced
INVALID = ErrorCode.invalid_txn_state
UNKNOWN = ErrorCode.unknown_producer_id
WAIT = EARLY = ErrorCode.concurrent_transactions
END = Verdict.END
DONE = Verdict.DONE


@pytest.mark.parametrize(("state", "event"), list(product(State, Event)))
def test_what_the_table_does_not_have_cannot_be(state: State, event: Event) -> None:
    if (state, event) in TRANSITIONS:
        assert after(state, event) is TRANSITIONS[state, event]
    else:
        with pytest.raises(IllegalTransitionError):
            after(state, event)


def test_every_state_can_be_reached_and_only_dead_is_an_end() -> None:
    assert set(TRANSITIONS.values()) == set(State)
    assert {state for state, _ in TRANSITIONS} == set(State) - {State.DEAD}


def test_the_names_are_kafkas() -> None:
    assert BY_LABEL == {
        "Empty": 0,
        "Ongoing": 1,
        "PrepareCommit": 2,
        "PrepareAbort": 3,
        "CompleteCommit": 4,
        "CompleteAbort": 5,
        "Dead": 6,
        "PrepareEpochFence": 7,
    }


def transaction_in(state: State) -> Transaction:
    has_partitions = not state.is_at_rest
    return Transaction(
        ID,
        ProducerId(1000),
        ProducerEpoch(EPOCH),
        timeout_ms=TIMEOUT_MS,
        state=state,
        partitions=frozenset({P0}) if has_partitions else frozenset(),
        start_ms=-1 if state is State.EMPTY else START_MS,
        update_ms=START_MS,
        client_version=NEW,
    )


NEW_CLIENTS = {
    # state: (abort with the epoch before, abort, commit with the epoch before, commit)
    State.EMPTY: (FENCED, END, FENCED, EARLY),
    State.ONGOING: (FENCED, END, FENCED, END),
    State.PREPARE_ABORT: (WAIT, WAIT, INVALID, EARLY),
    State.PREPARE_COMMIT: (INVALID, WAIT, WAIT, EARLY),
    State.COMPLETE_ABORT: (DONE, END, INVALID, EARLY),
    State.COMPLETE_COMMIT: (INVALID, END, DONE, EARLY),
}
OLD_CLIENTS = {
    # state: (abort, commit)
    State.EMPTY: (DONE, INVALID),
    State.ONGOING: (END, END),
    State.PREPARE_ABORT: (WAIT, INVALID),
    State.PREPARE_COMMIT: (WAIT, WAIT),
    State.COMPLETE_ABORT: (DONE, INVALID),
    State.COMPLETE_COMMIT: (UNKNOWN, DONE),
}


def judged(state: State, epoch: int, is_commit: bool, client_version: int) -> Verdict | ErrorCode:
    try:
        return judge(transaction_in(state), producer_at(1000, epoch), is_commit, client_version)
    except KafkaError as error:
        return error.code


@pytest.mark.parametrize("state", RECORDED)
def test_an_end_by_a_new_client_is_judged_by_its_epoch(state: State) -> None:
    assert NEW_CLIENTS[state] == (
        judged(state, EPOCH - 1, False, NEW),
        judged(state, EPOCH, False, NEW),
        judged(state, EPOCH - 1, True, NEW),
        judged(state, EPOCH, True, NEW),
    )
    for epoch, is_commit in product((EPOCH - 2, EPOCH + 1, -1), (False, True)):
        assert judged(state, epoch, is_commit, NEW) is FENCED


@pytest.mark.parametrize("state", RECORDED)
def test_an_end_by_an_old_client_is_judged_by_the_state(state: State) -> None:
    assert OLD_CLIENTS[state] == (judged(state, EPOCH, False, OLD), judged(state, EPOCH, True, OLD))
    for epoch, is_commit in product((EPOCH - 1, EPOCH + 1, -1), (False, True)):
        assert judged(state, epoch, is_commit, OLD) is FENCED


@pytest.mark.parametrize(("state", "client_version"), list(product(RECORDED, (OLD, NEW))))
def test_another_producer_id_is_never_right(state: State, client_version: int) -> None:
    for is_commit in (False, True):
        with pytest.raises(KafkaError) as caught:
            judge(transaction_in(state), producer_at(7, EPOCH), is_commit, client_version)
        assert caught.value.code is ErrorCode.invalid_producer_id_mapping


def requests(h: Harness) -> list[object]:
    """Each raises KafkaError, or has effects."""
    coordinator, now = h.coordinator, h.now
    made: list[object] = []
    for epoch, client_version in product((EPOCH - 1, EPOCH, EPOCH + 1), (OLD, NEW)):
        producer = producer_at(1000, epoch)
        add = AddRequest(ID, producer, [P1], client_version)
        made.append(lambda add=add: coordinator.add(add, now))
        made.append(lambda add=add: coordinator.verify(add))
        for is_commit in (False, True):
            end = EndRequest(ID, producer, is_commit, client_version)
            made.append(lambda end=end: coordinator.end(end, ProducerId(2000), now))
        init = InitRequest(ID, TIMEOUT_MS, producer)
        made.append(lambda init=init: coordinator.init(init, ProducerId(2000), now))
    made.append(lambda: coordinator.init(InitRequest(ID, TIMEOUT_MS), ProducerId(2000), now))
    return made


def loaded(state: State, **changes: object) -> Harness:
    h = Harness()
    h.world.records.append((ID, replace(transaction_in(state), **changes)))  # type: ignore[arg-type]
    h.fail_over()
    return h


@pytest.mark.parametrize("state", RECORDED)
@pytest.mark.parametrize("number", range(len(requests(Harness()))))
def test_a_request_that_is_refused_changes_nothing_and_one_that_is_not_is_recorded(state: State, number: int) -> None:
    h = loaded(state)
    before, deadline_ms = h.transaction, h.coordinator.next_deadline_ms()
    try:
        requests(h)[number]()  # type: ignore[operator]
    except KafkaError:
        assert h.transaction == before
        assert h.coordinator.next_deadline_ms() == deadline_ms
    h.coordinator.check_invariants()


@pytest.mark.parametrize("state", RECORDED)
def test_whatever_state_is_loaded_goes_on(state: State) -> None:
    """Prepared ones send their markers, open ones end in time, the others wait."""
    h = loaded(state)
    assert bool(h.world.outstanding) == state.is_prepared
    h.advance(TIMEOUT_MS)
    h.deliver()
    assert h.state().is_at_rest
    h.init()
    h.coordinator.check_invariants()
