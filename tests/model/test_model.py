"""The model itself: that it means what it says, and that it decides with the real code."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sexton.compaction.watermarks.replica import Pair
from tests.model import logs, real
from tests.model.arenas import ABORTS, COMMITS, DELETE_A, PUT_A, PUT_B, T_PUT_A, T_PUT_B, Arena, script
from tests.model.errors import Violation
from tests.model.logs import Records, kind_of, record
from tests.model.machine import Machine
from tests.model.rest import bring_to_rest
from tests.model.state import State, canonical
from tests.model.switches import SEXTON
from tests.model.traps import SYNC_ALL, put


def apply(machine: Machine, *actions: tuple[object, ...]) -> State:
    state = machine.start()
    for action in actions:
        after = machine.apply(state, action)
        assert after is not None, action
        state = after
    return state


@st.composite
def written(draw: st.DrawFn) -> Records:
    """A log as clients write it: plain records, and transactions of one producer."""
    records: list[int] = []
    is_open = False
    for offset in range(draw(st.integers(1, 8))):
        kinds = [logs.VALUE, logs.TOMBSTONE, logs.T_VALUE, logs.T_TOMBSTONE]
        kind = draw(st.sampled_from([*kinds, logs.COMMIT, logs.ABORT] if is_open else kinds))
        is_open = kind in logs.TRANSACTIONAL or (is_open and kind not in logs.MARKERS)
        records.append(record(offset, 0, kind, 0 if kind in logs.MARKERS else draw(st.integers(0, 1))))
    return tuple(records)


@given(written(), st.integers(0, 8), st.integers(0, 8), st.integers(1, 8))
@settings(max_examples=150)
def test_what_the_reference_leaves_has_the_same_fold(records: Records, mtro: int, mxro: int, rounds: int) -> None:
    """Rule 3, with the real compactor: and again with horizons passed."""
    end = logs.offset_of(records[-1]) + 1
    before = logs.view(records, 0, end)
    for _ in range(rounds):
        bound = logs.view(records, 0, end).stable
        records = logs.after_time(real.compacted(records, bound, Pair(min(mtro, bound), min(mxro, bound)), True))
        assert logs.view(records, 0, end) == before
        assert logs.is_clean(records, bound)
        assert logs.is_transaction_free(records, bound)


def test_records_survive_the_way_to_the_reference_compactor_and_back() -> None:
    """Every kind, with every horizon that it can have."""
    everything = [
        record(offset, 3, kind, key, horizon)
        for offset, (kind, key, horizon) in enumerate(
            (kind, key, horizon)
            for kind in range(12)
            for key in ((0, 1) if kind in logs.DATA else (0,))
            for horizon in (range(3) if kind in logs.TOMBSTONES | logs.MARKERS else (0,))
        )
    ]
    for one in everything:
        assert real.compacted((one,), 0, Pair(0, 0), True) == (one,)


def test_followers_are_told_apart_by_what_they_hold_and_not_by_number() -> None:
    machine = Machine(Arena(script(PUT_A)))
    one = apply(machine, *put(PUT_A), ("fetch", 1, 0))
    other = apply(machine, *put(PUT_A), ("fetch", 2, 0))
    assert one != other
    assert canonical(one) == canonical(other)


def test_a_record_is_committed_when_all_in_sync_hold_it() -> None:
    machine = Machine(Arena(script(PUT_A)))
    state = apply(machine, *put(PUT_A), ("fetch", 1, 0), ("fetch", 1, 0))
    assert state[0].truth_end == 0
    state = apply(machine, *put(PUT_A), ("fetch", 1, 0), ("fetch", 1, 0), ("fetch", 2, 0), ("fetch", 2, 0))
    assert state[0].truth_end == 1


def test_a_crash_loses_what_was_not_flushed() -> None:
    machine = Machine(Arena(script(PUT_A, PUT_B), lazy_flush=True))
    state = apply(machine, *put(PUT_A), ("flush", 0), *put(PUT_B), ("crash", 0))
    assert state[1].log.end == 1
    assert not state[1].leads


def test_a_tombstone_waits_for_the_replica_that_is_behind() -> None:
    machine = Machine(Arena(script(PUT_A, DELETE_A)))
    behind = (*put(PUT_A), SYNC_ALL, ("shrink", 2), *put(DELETE_A), ("sync", 1))
    state = apply(machine, *behind, ("compact", 0, 2), ("compact", 1, 2), ("sync", 1))
    assert state[1].marks.mtro == 0
    assert machine.apply(state, ("wait",)) is None, "no horizon has started"
    assert [kind_of(one) for one in state[1].log.records] == [logs.TOMBSTONE]


def test_at_rest_tombstones_and_markers_are_gone_and_all_replicas_equal() -> None:
    machine = Machine(Arena(script(PUT_A, DELETE_A, T_PUT_A, ABORTS, T_PUT_B, COMMITS, PUT_B)))
    state = apply(machine, *put(PUT_A, DELETE_A, T_PUT_A, ABORTS, T_PUT_B, COMMITS, PUT_B), ("shrink", 2))
    rest = bring_to_rest(machine, state)
    assert len({broker.log for broker in rest[1:]}) == 1
    assert [logs.offset_of(one) for one in rest[1].log.records] == [6]


def test_a_replica_that_contradicts_the_truth_is_noticed() -> None:
    machine = Machine(Arena(script(PUT_A)))
    state = apply(machine, *put(PUT_A), SYNC_ALL)
    shared, leader, *others = state
    forged: State = (shared, leader._replace(log=leader.log._replace(records=())), *others)  # type: ignore[assignment]
    with pytest.raises(Violation, match="value lost"):
        machine.apply(forged, ("crash", 1))


def test_every_switch_is_on_for_sexton() -> None:
    assert all(SEXTON)
