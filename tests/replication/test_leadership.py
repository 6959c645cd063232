"""When a record is committed, who lags, who may join."""

from __future__ import annotations

import uuid
from dataclasses import replace

from sexton.metadata.incarnations import marked_as_missing
from sexton.ports.metastore import PartitionRow
from sexton.replication.leadership import UNKNOWN_OFFSET, IsrChange, Leadership
from sexton.types import LeaderEpoch

ROW = PartitionRow(
    uuid.UUID(int=1), 0, replicas=(1, 2, 3), isr=(1, 2, 3), leader=1, leader_epoch=LeaderEpoch(4), partition_epoch=7
)


def test_nothing_is_committed_before_every_in_sync_replica_was_heard_of() -> None:
    leadership = Leadership(ROW, 1, start_offset=10, now_ms=0)
    leadership.fetched(2, 1, 12, leader_end=12, now_ms=1)
    assert leadership.committed_end(12) == UNKNOWN_OFFSET
    leadership.fetched(3, 1, 11, leader_end=12, now_ms=1)
    assert leadership.committed_end(12) == 11


def test_the_leaders_own_disk_counts_too() -> None:
    leadership = Leadership(replace(ROW, isr=(1,)), 1, start_offset=0, now_ms=0)
    assert leadership.committed_end(5) == 5


def test_a_replica_that_may_be_joining_is_counted_until_the_row_has_moved_on() -> None:
    row = replace(ROW, isr=(1, 2))
    leadership = Leadership(row, 1, start_offset=0, now_ms=0)
    leadership.fetched(2, 1, 20, leader_end=20, now_ms=1)
    leadership.fetched(3, 1, 15, leader_end=20, now_ms=1)
    assert leadership.committed_end(20) == 20
    leadership.pending = IsrChange((1, 2, 3))
    assert leadership.committed_end(20) == 15
    leadership.follow_row(row, now_ms=2)
    assert leadership.committed_end(20) == 15, "the row is the old one: the change may still arrive"
    leadership.follow_row(replace(row, partition_epoch=8), now_ms=2)
    assert leadership.committed_end(20) == 20


def test_a_shrink_in_flight_still_counts_the_one_that_leaves() -> None:
    leadership = Leadership(ROW, 1, start_offset=0, now_ms=0)
    leadership.fetched(2, 1, 20, leader_end=20, now_ms=1)
    leadership.fetched(3, 1, 15, leader_end=20, now_ms=1)
    leadership.pending = IsrChange((1, 2))
    assert leadership.committed_end(20) == 15


def test_a_follower_that_keeps_up_with_a_moving_end_does_not_lag() -> None:
    leadership = Leadership(ROW, 1, start_offset=0, now_ms=0)
    for step in range(1, 100):
        leadership.fetched(2, 1, 10 * (step - 1), leader_end=10 * step, now_ms=1000 * step)
        leadership.fetched(3, 1, 0, leader_end=10 * step, now_ms=1000 * step)
    assert leadership.lagging(1000, now_ms=100_000, lag_max_ms=30_000) == [3]


def test_a_silent_follower_that_holds_everything_does_not_lag() -> None:
    leadership = Leadership(ROW, 1, start_offset=0, now_ms=0)
    leadership.fetched(2, 1, 10, leader_end=10, now_ms=0)
    leadership.fetched(3, 1, 10, leader_end=10, now_ms=0)
    assert leadership.lagging(10, now_ms=100_000, lag_max_ms=30_000) == []


def test_a_follower_joins_only_with_everything_committed_and_the_leaders_epoch_start() -> None:
    leadership = Leadership(replace(ROW, isr=(1,)), 1, start_offset=10, now_ms=0)
    leadership.fetched(2, 1, 9, leader_end=12, now_ms=1)
    assert not leadership.caught_up(2, high_watermark=8)
    leadership.fetched(2, 1, 10, leader_end=12, now_ms=1)
    assert leadership.caught_up(2, high_watermark=8)
    assert not leadership.caught_up(2, high_watermark=11)


def test_a_follower_that_left_joins_only_when_it_follows_again() -> None:
    leadership = Leadership(replace(ROW, isr=(1,)), 1, start_offset=0, now_ms=0)
    leadership.fetched(2, 1, 10, leader_end=10, now_ms=1)
    leadership.left(2, broker_epoch=1)
    assert not leadership.caught_up(2, high_watermark=0)
    leadership.fetched(2, 1, 10, leader_end=10, now_ms=2)
    assert leadership.caught_up(2, high_watermark=10)


def test_the_last_words_of_a_replaced_process_do_not_count() -> None:
    leadership = Leadership(ROW, 1, start_offset=0, now_ms=0)
    leadership.fetched(2, broker_epoch=6, end_offset=0, leader_end=20, now_ms=1)
    leadership.fetched(2, broker_epoch=5, end_offset=20, leader_end=20, now_ms=2)
    leadership.fetched(3, broker_epoch=5, end_offset=20, leader_end=20, now_ms=2)
    assert leadership.committed_end(20) == 0


def test_what_a_followers_former_log_held_does_not_count_for_its_new_one() -> None:
    """Removed and added again, seen as one change."""
    first, second = uuid.UUID(int=5, version=4), uuid.UUID(int=6, version=4)
    row = replace(ROW, replicas=(1, 2), isr=(1,), incarnations={2: first})
    leadership = Leadership(row, 1, start_offset=0, now_ms=0)
    leadership.fetched(2, 1, 20, leader_end=20, now_ms=1, incarnation=first)
    assert leadership.caught_up(2, high_watermark=20)
    leadership.follow_row(replace(row, partition_epoch=9, incarnations={2: second}), now_ms=2)
    leadership.check_invariants()
    assert not leadership.caught_up(2, high_watermark=20)
    leadership.fetched(2, 1, 20, leader_end=20, now_ms=3, incarnation=second)
    assert leadership.caught_up(2, high_watermark=20)


def test_a_log_that_gets_its_id_after_it_was_heard_of_is_the_same_one() -> None:
    """A follower is silent once it has said everything: what it said must not be forgotten without reason."""
    own_id = uuid.UUID(int=5, version=4)
    leadership = Leadership(replace(ROW, isr=(1,)), 1, start_offset=0, now_ms=0)
    leadership.fetched(2, 1, 20, leader_end=20, now_ms=1, incarnation=own_id)
    for seen in (own_id, marked_as_missing(own_id), own_id):
        epoch = leadership.row.partition_epoch + 1
        leadership.follow_row(replace(ROW, isr=(1,), partition_epoch=epoch, incarnations={2: seen}), now_ms=2)
        assert leadership.caught_up(2, high_watermark=20)


def test_a_process_that_was_replaced_cannot_take_back_what_its_successor_said() -> None:
    leadership = Leadership(replace(ROW, isr=(1,)), 1, start_offset=0, now_ms=0)
    leadership.fetched(2, broker_epoch=6, end_offset=10, leader_end=10, now_ms=1)
    leadership.left(2, broker_epoch=5)
    assert leadership.caught_up(2, high_watermark=10)
    leadership.left(2, broker_epoch=6)
    assert not leadership.caught_up(2, high_watermark=10)
