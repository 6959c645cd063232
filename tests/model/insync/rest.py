"""No freeze: from every state the partition comes to rest with all its replicas in sync, by itself.

Nothing fails any more: brokers start, requests arrive, rows are seen, followers copy, leaders ask for what they would.
A change that is never given up, or a replica that never joins, shows itself here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.model.errors import Violation
from tests.model.insync.state import BROKERS, STARTING, Action, State, Store

if TYPE_CHECKING:
    from tests.model.insync.machine import Machine

ROUNDS_MAX = 10
ROOM = 100


def bring_to_rest(machine: Machine, state: State) -> State:
    """The state at rest. Raises a Violation if there is none."""
    unbounded = machine.arena._replace(
        epochs_max=ROOM, processes_max=ROOM, incarnations_max=ROOM, requests_max=ROOM, without=()
    )
    calm = type(machine)(unbounded, machine.rules)
    for _ in range(ROUNDS_MAX):
        before = state
        for action in _round(state):
            state = calm.apply(state, action) or state
        while state[0].requests:
            state = calm.apply(state, ("carry_out", 0)) or state
        for index in BROKERS:
            state = calm.apply(state, ("poll", index)) or state
        state = calm.canonical(state)
        if state == before:
            _check(state)
            return state
    raise Violation("restless", f"in-sync sets go on changing after {ROUNDS_MAX} rounds")


def _round(state: State) -> list[Action]:
    actions: list[Action] = [("register", index) for index in BROKERS]
    actions += [("reconcile", index) for index in BROKERS]
    actions += [("elect",), ("progress",)]
    actions += [("poll", index) for index in BROKERS]
    pairs = [(follower, leader) for leader in BROKERS for follower in BROKERS if follower != leader]
    actions += [("fetch", follower, leader, 0) for _ in range(3) for follower, leader in pairs]
    actions += [("ask_again", index) for index in BROKERS]
    actions += [("join", leader, follower) for follower, leader in pairs]
    return actions


def _check(state: State) -> None:
    store: Store = state[0]
    row = store.row
    if any(process.status == STARTING for process in store.processes):
        raise Violation("stuck", "a broker never becomes active")
    if any(log < 0 for log in row.logs):
        return  # a log is missing that only one broker had: an operator decides
    if sorted(row.isr) != sorted(row.replicas) or row.leader not in row.isr:
        raise Violation("left out", f"in sync are {row.isr} of {row.replicas}, broker {row.leader} leads")
    lead = state[1 + row.leader].lead
    if not lead or lead.pending:
        raise Violation("stuck", f"broker {row.leader} leads and waits for a change that nobody makes")
    logs = {state[1 + index].log for index in row.replicas}
    if len(logs) > 1 or lead.high_watermark != len(state[1 + row.leader].log):
        raise Violation("stuck", f"not all is committed: {logs}, high watermark {lead.high_watermark}")
