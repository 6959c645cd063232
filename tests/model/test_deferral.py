"""Deferral on one log, without a cluster; what is handed back to Kafka; and what MCCO does not promise any more."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from sexton.compaction.watermarks.replica import Pair
from tests.model import logs
from tests.model.deferral import ALL, NONE, Pass, choices, left_by
from tests.model.deferral_traps import DEFERRAL, FORCED, HALF_OF_EACH, TWO_VALUES
from tests.model.logs import DATA, PASSED, TOMBSTONES, Records, below, horizon_of, key_of, kind_of, offset_of, record
from tests.model.machine import Machine
from tests.model.rest import bring_to_rest
from tests.model.switches import SEXTON


@st.composite
def overwritten(draw: st.DrawFn) -> Records:
    """A log in which one key is written again and again, and sometimes deleted, in a transaction or not."""
    records: list[int] = []
    is_open = False
    for offset in range(draw(st.integers(3, 10))):
        kinds = [*[logs.VALUE] * 3, *[logs.TOMBSTONE] * 2, logs.T_VALUE, logs.T_TOMBSTONE]
        kind = draw(st.sampled_from([*kinds, *[logs.COMMIT, logs.ABORT] * 3] if is_open else kinds))
        is_open = kind in logs.TRANSACTIONAL or (is_open and kind not in logs.MARKERS)
        key = 0 if kind in logs.MARKERS else draw(st.sampled_from([0, 0, 0, 1]))
        records.append(record(offset, 0, kind, key))
    return tuple(records)


def compacted_now_and_then(data: st.DataObject, history: Records) -> tuple[Records, int]:
    """A log that is compacted while it grows, by passes that leave what they like of what they may, each long after the
    one before. The log, and how far it is clean."""
    held: Records = ()
    clean = 0
    ends = sorted(data.draw(st.sets(st.integers(1, len(history)), min_size=2, max_size=10)))
    for start, end in zip([0, *ends], ends, strict=False):
        so_far = history[:end]
        held += history[start:end]
        stable = logs.view(held, 0, end).stable
        bound = data.draw(st.sampled_from([*range(clean, stable + 1), *[stable] * stable]))
        task = Pass(held, bound, Pair(clean, clean), True, -1, clean)
        deferred = data.draw(st.sampled_from([*choices(task, SEXTON), *[ALL] * 4]))
        held = logs.after_time(left_by(task, SEXTON, deferred))
        clean = bound
        assert logs.view(held, 0, end) == logs.view(so_far, 0, end)
        assert logs.is_clean_but_for_values(held, clean, so_far, end)
        assert logs.is_transaction_free(held, clean)
    return held + history[ends[-1] :], clean


@given(overwritten(), st.data())
@settings(max_examples=150, deadline=None)
def test_the_fold_is_the_same_whatever_passes_leave(history: Records, data: st.DataObject) -> None:
    compacted_now_and_then(data, history)


@given(overwritten(), st.data())
@settings(max_examples=100, deadline=None)
def test_a_pass_that_leaves_nothing_leaves_one_record_of_a_key(history: Records, data: st.DataObject) -> None:
    """The setting that gives what there was before: one pass over everything."""
    held, clean = compacted_now_and_then(data, history)
    bound = logs.view(held, 0, len(history)).stable
    full = left_by(Pass(held, bound, Pair(clean, clean), True, -1, clean), SEXTON, NONE)
    assert logs.is_clean(full, bound)
    assert logs.view(full, 0, len(history)) == logs.view(history, 0, len(history))


def kafkas_cleaner(records: Records, checkpoint: int, bound: int) -> Records:
    """What Kafka's cleaner keeps (`Cleaner.shouldRetainRecord`): the newest offset of each key in the dirty section is
    its map; what has a lower offset than its key has there goes, wherever it is, and so does a tombstone whose time is
    over. It takes nobody's word that a key is once in the clean section. Markers stay here."""
    aborted = logs.transactions(records).aborted
    in_reach = [one for one in below(records, bound) if kind_of(one) in DATA]
    newest = {
        key_of(one): offset_of(one)
        for one in in_reach
        if offset_of(one) >= checkpoint and offset_of(one) not in aborted
    }
    gone = {
        offset_of(one)
        for one in in_reach
        if offset_of(one) in aborted
        or offset_of(one) < newest.get(key_of(one), -1)
        or (kind_of(one) in TOMBSTONES and horizon_of(one) == PASSED)
    }
    return tuple(one for one in records if offset_of(one) not in gone)


@given(overwritten(), st.data())
@settings(max_examples=150, deadline=None)
def test_kafkas_cleaner_goes_on_from_the_checkpoint_with_what_was_left(history: Records, data: st.DataObject) -> None:
    held, clean = compacted_now_and_then(data, history)
    end = len(history)
    bound = data.draw(st.integers(clean, logs.view(held, 0, end).stable))
    cleaned = kafkas_cleaner(held, clean, bound)
    assert logs.view(cleaned, 0, end) == logs.view(history, 0, end)
    assert logs.is_clean_but_for_values(cleaned, bound, history, end)


def test_a_tombstone_may_lie_above_what_it_deletes_while_a_newer_value_hides_both() -> None:
    """So "for every tombstone below MCCO nothing that it deletes is left" would promise too much: a replica that copies
    from two others may get the value from one and the tombstone from the other, both below MTRO."""
    machine = Machine(FORCED._replace(prefix=HALF_OF_EACH))
    state = machine.apply(machine.start(), ("fetch", 0, 0))
    assert state is not None
    copy = state[1]
    assert [kind_of(one) for one in copy.log.records] == [logs.VALUE, logs.TOMBSTONE, logs.VALUE]
    assert offset_of(copy.log.records[1]) < copy.marks.mcco == copy.marks.mtro
    assert logs.is_clean_but_for_values(copy.log.records, copy.marks.mcco, state[0].truth, copy.marks.planned)
    rest = bring_to_rest(machine, state)
    assert not any(kind_of(one) in TOMBSTONES for broker in rest[1:] for one in broker.log.records)


def test_what_is_left_stays_until_its_key_is_written_again_or_a_pass_looks_at_everything() -> None:
    arena = DEFERRAL["a pass removes one older record of a key, where there are two"].arena
    machine = Machine(arena._replace(prefix=TWO_VALUES))
    rest = bring_to_rest(machine, machine.start())
    assert any(not logs.is_clean(broker.log.records, broker.marks.mcco) for broker in rest[1:])
    full = machine.apply(rest, ("compact_all",))
    assert full is not None
    assert all(logs.is_clean(broker.log.records, broker.marks.mcco) for broker in full[1:])
