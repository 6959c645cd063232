"""What a leader makes of reports: every row of the table in `leader.py`."""

from __future__ import annotations

import uuid

from hypothesis import given
from hypothesis import strategies as st

from sexton.compaction.watermarks.leader import LeaderWatermarks, Report
from sexton.compaction.watermarks.replica import NOTHING, Pair, ReplicaWatermarks

IDS = {broker: uuid.UUID(int=broker) for broker in range(6)}
OTHER = uuid.UUID(int=99)


def at(offset: int) -> Pair:
    return Pair(offset, offset)


def leading(
    compacted: Pair = NOTHING, removable: Pair = NOTHING, replicas: int = 3, generation: int = 0, fence_below: int = 0
) -> LeaderWatermarks:
    own = ReplicaWatermarks(IDS[0], generation, compacted, removable, fence_below=fence_below)
    return LeaderWatermarks(0, own, {broker: IDS[broker] for broker in range(replicas)})


def report(broker: int, compacted: Pair, generation: int = 0, process: int = 0) -> Report:
    return Report(IDS[broker], generation, compacted, process)


def test_it_starts_from_what_it_was_last_told_and_has_heard_of_nobody() -> None:
    leader = leading(at(9), at(4))
    assert leader.computed() == at(4)
    assert leader.last_known.get(1) is None
    assert leader.holding_back() == {1: None, 2: None}


def test_the_smallest_progress_counts_for_keys_and_for_transactions() -> None:
    leader = leading(at(9))
    leader.take_report(1, report(1, Pair(7, 3)))
    leader.take_report(2, report(2, Pair(5, 8)))
    assert leader.computed() == Pair(5, 3)
    assert leader.holding_back() == {1: Pair(7, 3), 2: Pair(5, 8)}


def test_its_own_progress_counts_like_any_other() -> None:
    leader = leading(at(2))
    leader.take_report(1, report(1, at(7)))
    leader.take_report(2, report(2, at(8)))
    assert leader.computed() == at(2)
    assert leader.holding_back() == {}


def test_a_silent_replica_counts_at_its_last_report() -> None:
    leader = leading(at(9))
    leader.take_report(1, report(1, at(3)))
    leader.take_report(2, report(2, at(9)))
    leader.take_report(2, report(2, at(9)))
    assert leader.computed() == at(3)


def test_a_replica_never_heard_of_lets_nothing_rise() -> None:
    leader = leading(at(9), at(4))
    leader.take_report(1, report(1, at(9)))
    assert leader.computed() == at(4)


def test_an_added_replica_counts_as_never_heard_of() -> None:
    leader = leading(at(9), replicas=2)
    leader.take_report(1, report(1, at(9)))
    assert leader.computed() == at(9)
    leader.own = leader.own.with_received(0, at(9))
    leader.set_replicas({broker: IDS[broker] for broker in range(3)})
    assert leader.computed() == at(9), "and nothing goes back for it"
    assert leader.last_known.get(2) is None


def test_a_new_incarnation_counts_as_never_heard_of() -> None:
    leader = leading(at(9), replicas=2)
    leader.take_report(1, report(1, at(9)))
    leader.set_replicas({0: IDS[0], 1: OTHER})
    assert leader.computed() == NOTHING
    assert not leader.take_report(1, report(1, at(9))), "a late report of the log that was wiped"
    assert leader.computed() == NOTHING


def test_values_may_rise_when_the_slowest_is_removed() -> None:
    leader = leading(at(9))
    leader.take_report(1, report(1, at(9)))
    leader.take_report(2, report(2, at(1)))
    assert leader.computed() == at(1)
    leader.set_replicas({0: IDS[0], 1: IDS[1]})
    assert leader.computed() == at(9)
    assert not leader.take_report(2, report(2, at(5))), "it is none of ours any more"


def test_a_removed_replica_that_comes_back_under_another_id_is_new() -> None:
    leader = leading(at(9))
    leader.take_report(1, report(1, at(9)))
    leader.take_report(2, report(2, at(9)))
    leader.set_replicas({0: IDS[0], 1: IDS[1]})
    leader.set_replicas({0: IDS[0], 1: IDS[1], 2: OTHER})
    assert leader.computed() == NOTHING


def test_a_leader_alone_needs_nobody() -> None:
    assert leading(at(6), replicas=1).computed() == at(6)


def test_a_report_of_another_generation_is_refused() -> None:
    leader = leading(at(9), generation=1)
    assert not leader.take_report(1, report(1, at(9), generation=0))
    assert not leader.take_report(1, report(1, at(9), generation=2))
    assert leader.take_report(1, report(1, at(9), generation=1))


def test_a_late_report_of_the_same_process_lowers_nothing() -> None:
    leader = leading(at(9), replicas=2)
    leader.take_report(1, report(1, at(8)))
    assert leader.take_report(1, report(1, at(3)))
    assert leader.last_known.get(1) == at(8)


def test_after_a_restart_less_counts_because_the_disk_may_be_an_old_one() -> None:
    leader = leading(at(9), replicas=2)
    leader.take_report(1, report(1, at(8), process=1))
    leader.take_report(1, report(1, at(3), process=2))
    assert leader.last_known.get(1) == at(3)
    assert not leader.take_report(1, report(1, at(8), process=1)), "what the former process said is void"
    assert leader.last_known.get(1) == at(3)


def test_what_was_computed_before_a_restart_stays() -> None:
    leader = leading(at(9), replicas=2)
    leader.take_report(1, report(1, at(8), process=1))
    leader.own = leader.own.with_received(0, leader.computed())
    leader.take_report(1, report(1, at(3), process=2))
    assert leader.computed() == at(8)


offsets = st.integers(0, 12)
pairs = st.builds(Pair, offsets, offsets)
reports = st.tuples(
    st.integers(1, 3),
    st.builds(
        Report, st.sampled_from([IDS[1], IDS[2], IDS[3], OTHER]), st.integers(0, 1), pairs, process=st.integers(0, 2)
    ),
)


@given(pairs, pairs, st.lists(reports, max_size=15))
def test_what_is_computed_never_goes_back_and_never_passes_anybody(
    own: Pair, removable: Pair, heard: list[tuple[int, Report]]
) -> None:
    leader = leading(own, removable.meet(own), replicas=4)
    for broker, one in heard:
        taken = leader.take_report(broker, one)
        assert not taken or (one.incarnation == IDS[broker] and one.generation == 0)
        before = leader.own.removable
        computed = leader.computed()
        assert computed.covers(before), "rule 7"
        assert leader.own.compacted.covers(computed)
        for other in (1, 2, 3):
            known = leader.last_known.get(other)
            limit = before if known is None else known.join(before)
            assert limit.covers(computed), f"rule 5: {computed} is above what broker {other} has reported"
        leader.own = leader.own.with_received(0, computed)


@given(st.lists(st.tuples(st.integers(1, 2), pairs), max_size=8), st.randoms())
def test_reports_of_one_process_may_be_repeated_and_reordered(said: list[tuple[int, Pair]], rng: object) -> None:
    shuffled = [*said, *said]
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    one, other = leading(at(12)), leading(at(12))
    for broker, pair in said:
        one.take_report(broker, report(broker, pair))
    for broker, pair in shuffled:
        other.take_report(broker, report(broker, pair))
    assert one.computed() == other.computed()
    assert one.holding_back() == other.holding_back()
