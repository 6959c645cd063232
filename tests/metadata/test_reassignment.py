"""Moving replicas (KIP-455), and the two changes a leader makes to its ISR."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sexton.metadata.incarnations import marked_as_missing
from sexton.metadata.isr import expand, shrink
from sexton.metadata.reassignment import cancel, is_in_progress, progress, start
from sexton.ports.metastore import PartitionRow
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.types import NO_LEADER
from tests.metadata.rows import brokers, partition, told

ALL = brokers("AAAAAA")


def begun(row: PartitionRow, target: Sequence[int]) -> PartitionRow:
    started = start(row, target, ALL)
    assert started is not None
    return started


def test_a_reassignment_starts_with_old_and_new_replicas_together() -> None:
    row = begun(partition((1, 2, 3)), (4, 2, 5))
    assert row.replicas == (4, 2, 5, 1, 3)
    assert (row.adding, row.removing) == ((4, 5), (1, 3))
    assert told(row) == told(partition((1, 2, 3)))
    assert is_in_progress(row)
    assert not is_in_progress(partition())


def test_it_does_not_end_before_all_that_stay_are_in_sync() -> None:
    row = begun(partition((1, 2, 3)), (4, 2, 5))
    for isr in [(1, 2, 3), (1, 2, 3, 4), (4, 5), (1, 3)]:
        assert progress(replace(row, isr=isr, leader=isr[0]), ALL) is None


def test_it_does_not_end_while_nobody_who_stays_is_there() -> None:
    """Who goes throws its log away, and whether those who stay still have theirs, nobody can be asked."""
    row = replace(begun(partition((1,)), (2,)), isr=(1, 2), leader=NO_LEADER)
    assert progress(row, brokers("FF")) is None
    assert progress(replace(row, leader=1), brokers("SF")) is None


def test_it_does_not_end_with_a_leader_that_has_not_looked_at_its_disk_yet() -> None:
    """Its disk may have been replaced, and the one that goes may be the only one that has everything."""
    row = replace(begun(partition((1,)), (2,)), isr=(1, 2), leader=2)
    assert progress(row, brokers("FS")) is None
    ended = progress(row, brokers("FA"))
    assert ended is not None
    assert (ended.leader, ended.replicas, ended.isr) == (2, (2,), (2,))


def with_log_missing(row: PartitionRow, broker_id: int) -> PartitionRow:
    missing = marked_as_missing(uuid.UUID(int=broker_id, version=4))
    return replace(row, incarnations={**row.incarnations, broker_id: missing})


def test_it_does_not_end_with_replicas_whose_logs_are_missing_although_the_isr_names_them() -> None:
    """Who is removed throws its log away: it may be the only one."""
    row = begun(with_log_missing(partition((1, 2)), 2), (2,))
    assert (row.replicas, row.isr, row.removing) == ((2, 1), (1, 2), (1,))
    row = begun(with_log_missing(partition((1, 2)), 2), (2, 3))
    assert progress(replace(row, isr=(1, 2, 3)), ALL) is None


def test_it_does_not_go_back_to_replicas_whose_logs_are_missing() -> None:
    row = replace(begun(with_log_missing(partition((1,)), 1), (4,)), isr=(1, 4), leader=4)
    with pytest.raises(KafkaError, match="unclean"):
        cancel(row, ALL)
    replaced = begun(row, (5,))
    assert 4 in replaced.replicas, "what only it has must be copied first"
    assert 4 in replaced.isr


def test_it_ends_when_all_that_stay_are_in_sync_and_elects_if_the_leader_goes() -> None:
    row = progress(replace(begun(partition((1, 2, 3)), (4, 2, 5)), isr=(1, 2, 3, 4, 5)), ALL)
    assert row is not None
    assert (row.replicas, row.adding, row.removing) == ((4, 2, 5), (), ())
    assert told(row) == (4, 6, (2, 4, 5))
    assert set(row.incarnations) == {2}
    assert progress(row, ALL) is None


def test_a_leader_that_stays_goes_on_in_its_epoch() -> None:
    row = progress(replace(begun(partition((1, 2, 3)), (4, 1)), isr=(1, 2, 3, 4)), ALL)
    assert told(row) == (1, 5, (1, 4))


def test_a_new_leader_is_one_that_is_active() -> None:
    row = replace(begun(partition((1, 2, 3)), (4, 5)), isr=(1, 4, 5))
    assert told(progress(row, brokers("AAAFA"))) == (5, 6, (5,))


def test_fewer_replicas_or_another_order_need_no_waiting() -> None:
    assert begun(partition((1, 2, 3)), (3, 1)) == replace(
        partition((3, 1), (1, 3), incarnations=partition((1, 3)).incarnations), leader=1
    )
    reordered = begun(partition((1, 2, 3)), (2, 3, 1))
    assert (reordered.replicas, is_in_progress(reordered)) == ((2, 3, 1), False)
    assert told(reordered) == (1, 5, (1, 2, 3))


def test_fewer_replicas_wait_while_those_that_stay_are_not_in_sync() -> None:
    row = begun(partition((1, 2, 3), isr=(1, 2)), (3, 1))
    assert (row.replicas, row.adding, row.removing) == ((3, 1, 2), (), (2,))


def test_what_is_there_already_needs_no_change() -> None:
    assert start(partition((1, 2, 3)), (1, 2, 3), ALL) is None
    row = begun(partition((1, 2, 3)), (4, 5))
    assert start(row, (4, 5), ALL) is None


def test_a_second_reassignment_replaces_the_first() -> None:
    first = begun(partition((1, 2, 3)), (4, 2, 3))
    row = begun(replace(first, isr=(1, 2, 3, 4)), (5, 2, 3))
    assert (row.replicas, row.adding, row.removing) == ((5, 2, 3, 1), (5,), (1,))
    assert told(row) == (1, 5, (1, 2, 3))


def test_going_back_to_the_start_by_a_second_reassignment_is_done_at_once() -> None:
    row = begun(begun(partition((1, 2, 3)), (4, 5, 6)), (1, 2, 3))
    assert row == partition((1, 2, 3))


def test_a_second_reassignment_keeps_a_replica_that_alone_has_the_log_until_another_has_it() -> None:
    first = replace(begun(partition((1, 2)), (3, 4)), isr=(3,), leader=3)
    row = begun(first, (5, 6))
    assert row.replicas == (5, 6, 1, 2, 3)
    assert (row.adding, row.removing) == ((5, 6), (1, 2, 3))
    assert told(row) == (3, 5, (3,))
    done = progress(replace(row, isr=(3, 5, 6)), ALL)
    assert done is not None
    assert (done.replicas, told(done)) == ((5, 6), (5, 6, (5, 6)))


def test_a_reassignment_that_is_cancelled_leaves_the_replicas_from_before() -> None:
    row = replace(begun(partition((1, 2, 3)), (4, 2, 5)), isr=(1, 2, 3, 4), leader=4)
    back = cancel(row, ALL)
    assert set(back.replicas) == {1, 2, 3}
    assert (back.adding, back.removing) == ((), ())
    assert told(back) == (2, 6, (1, 2, 3))
    assert set(back.incarnations) == {1, 2, 3}


def test_cancelling_when_only_new_replicas_are_in_sync_needs_leave_to_lose_records() -> None:
    row = replace(begun(partition((1, 2)), (3, 4)), isr=(3,), leader=3)
    with pytest.raises(KafkaError) as raised:
        cancel(row, brokers("AAFA"))
    assert raised.value.code is ErrorCode.invalid_replica_assignment
    assert told(cancel(row, brokers("AAFA"), unclean=True)) == (1, 6, (1,))


def test_nothing_is_lost_by_going_back_while_an_in_sync_replica_runs() -> None:
    """Seed 569: the leader that was deposed acknowledged one more record before it heard of that."""
    row = replace(begun(partition((1, 2)), (3, 4)), isr=(3, 4), leader=3)
    for running in ("AAAA", "AAFA", "AAFD", "AASF"):
        with pytest.raises(KafkaError, match="stop these first") as raised:
            cancel(row, brokers(running), unclean=True)
        assert raised.value.code is ErrorCode.invalid_replica_assignment
    lost = replace(row, incarnations={**row.incarnations, 3: marked_as_missing(uuid.UUID(int=3, version=4))})
    assert told(cancel(lost, brokers("AAAF"), unclean=True)) == (1, 6, (1,)), "an empty log has nothing to lose"


def test_going_back_uncleanly_elects_a_replica_that_runs() -> None:
    row = replace(begun(partition((1, 2)), (3, 4)), isr=(3,), leader=3)
    back = cancel(row, brokers("FAFA"), unclean=True)
    assert told(back) == (2, 6, (2,))
    assert set(back.incarnations) == {1, 2}
    with pytest.raises(KafkaError, match="nobody to lead") as raised:
        cancel(row, brokers("FFFA"), unclean=True)
    assert raised.value.code is ErrorCode.invalid_replica_assignment


def test_there_must_be_something_to_cancel() -> None:
    with pytest.raises(KafkaError) as raised:
        cancel(partition(), ALL)
    assert raised.value.code is ErrorCode.no_reassignment_in_progress


@pytest.mark.parametrize("target", [[], [1, 1], [1, 9]])
def test_a_target_that_makes_no_sense_is_refused(target: list[int]) -> None:
    with pytest.raises(KafkaError) as raised:
        start(partition(), target, ALL)
    assert raised.value.code is ErrorCode.invalid_replica_assignment


def test_a_partition_without_leader_can_be_reassigned_and_stays_so_until_somebody_is_back() -> None:
    row = start(partition((1, 2), leader=NO_LEADER), (3, 2), brokers("FFAA"))
    assert row is not None
    assert told(row) == (NO_LEADER, 5, (1, 2))


@given(st.data())
def test_whatever_is_asked_for_in_the_end_it_is_there(data: st.DataObject) -> None:
    """Any sequence of requests, with followers catching up and falling behind in between, then a while of peace."""
    ids = st.lists(st.integers(1, 6), min_size=1, max_size=4, unique=True)
    row = partition(data.draw(ids))
    target: Sequence[int] = row.replicas
    for _ in range(data.draw(st.integers(1, 4))):
        target = data.draw(ids)
        row = start(row, target, ALL) or row
        assert row.isr
        assert row.leader in row.isr
        caught_up = data.draw(st.sets(st.sampled_from(row.replicas)))
        row = expand(row, caught_up) or row
        row = shrink(row, data.draw(st.sets(st.sampled_from(row.isr)))) or row
        row = progress(row, ALL) or row
        assert set(row.isr) <= set(row.replicas)
        assert row.leader in row.isr
    row = expand(row, row.replicas) or row
    row = progress(row, ALL) or row
    assert row.replicas == tuple(target)
    assert not is_in_progress(row)
    assert set(row.isr) == set(target)


def test_lagging_followers_leave_and_the_leader_never_does() -> None:
    assert told(shrink(partition(), {2, 3})) == (1, 5, (1,))
    assert told(shrink(partition(), {1, 2})) == (1, 5, (1, 3))
    assert shrink(partition(), set()) is None
    assert shrink(partition(isr=(1, 2)), {3}) is None
    assert shrink(partition(isr=(2,), leader=NO_LEADER), {2}) is None


def test_followers_that_caught_up_join_if_they_are_replicas() -> None:
    assert told(expand(partition(isr=(2,)), {1, 3, 9})) == (2, 5, (2, 1, 3))
    assert expand(partition(), {1, 2, 3}) is None
    assert expand(partition(isr=(1,)), {9}) is None
