"""No freeze: from every state the partition can be brought to rest.

Nothing fails any more, everybody talks and compacts, time goes by. Then all replicas must be in sync and equal, all
must be committed and stable, and what could be removed must be gone. A trap that loses nothing but blocks a replica, a
watermark or a consumer for ever shows itself here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.model.deferral import ALL, NONE
from tests.model.errors import Violation
from tests.model.logs import ABORT, EMPTIES, MARKERS, TOMBSTONES, kind_of, offset_of, transactions
from tests.model.state import Action, State, World

if TYPE_CHECKING:
    from tests.model.machine import Machine

ROUNDS_MAX = 12
EPOCHS_MAX = 15
INCARNATIONS_MAX = 100


def bring_to_rest(machine: Machine, state: State) -> State:
    """The state at rest. Raises a Violation if there is none."""
    arena = machine.arena
    room = ((ABORT, 0),)
    unbounded = arena._replace(
        epochs_max=EPOCHS_MAX, incarnations_max=INCARNATIONS_MAX, script=(*arena.script, room, room), without=()
    )
    calm = type(machine)(unbounded, machine.rules, definitions=False)
    state = _end_transactions(calm, _with_leader(calm, state))
    state = calm.apply(state, ("flush", World(state).leader)) or state
    deferred = ALL if arena.defers else NONE
    for _ in range(ROUNDS_MAX):
        before = state
        for action in (("sync_all",), ("compact_all", deferred), ("sync_all",), ("coordinate",), ("wait",)):
            state = calm.apply(state, action) or state
        if state == before:
            check_rest(calm, state)
            return state
    raise Violation("restless", f"the partition goes on changing after {ROUNDS_MAX} rounds")


def _with_leader(machine: Machine, state: State) -> State:
    candidates: list[Action] = [("elect", index) for index, broker in enumerate(state[1:]) if broker.in_sync]
    if any(broker.leads for broker in state[1:]):
        return state
    for action in candidates:
        elected = machine.apply(state, action)
        if elected is not None:
            return elected
    raise Violation("no leader", "nobody in sync can lead")


def _end_transactions(machine: Machine, state: State) -> State:
    leader = World(state).brokers[World(state).leader]
    if transactions(leader.log.records).first_open < 0 and leader.phantom < 0:
        return state
    return machine.apply(state, ("append", ABORT, 0)) or state


def check_rest(machine: Machine, state: State) -> None:
    world = World(state)
    end = world.brokers[world.leader].log.end
    for index, broker in enumerate(world.brokers):
        if not broker.member:
            continue
        if not broker.in_sync:
            raise Violation("left out", f"broker {index} never comes back into sync")
        reached = (broker.log.end, broker.high_watermark, machine.stable(broker))
        if reached != (end, end, end):
            raise Violation("stuck", f"broker {index} ends, commits and is stable at {reached}, the log ends at {end}")
        marks = broker.marks
        if (marks.mcco, marks.mxfo, marks.mtro, marks.mxro) != (end,) * 4:
            raise Violation("stuck", f"the watermarks of broker {index} are {marks}, the log ends at {end}")
        for one in broker.log.records[:-1]:
            if kind_of(one) in TOMBSTONES | MARKERS or (kind_of(one) in EMPTIES and not machine.arena.live_producer):
                raise Violation("never removed", f"broker {index} keeps what lies at {offset_of(one)}")
