"""A topic that is deleted and made again is another topic: no group goes on in it where it was in the former one."""

from __future__ import annotations

import pytest

from sexton.coordinators.groups.messages import CommittedOffset, FetchedOffset, OffsetCommitRequest, OffsetFetchRequest
from sexton.coordinators.groups.offset_operations import EXPIRED_COUNT_MAX, TIME_MS_MAX
from sexton.coordinators.groups.records import OffsetKey, OffsetValue
from sexton.protocol.errors import ErrorCode
from sexton.types import ProducerIdAndEpoch
from tests.coordinators.groups.harness import GROUP, START_MS, Harness, partitions, topic_id
from tests.producers import producer_at

KEY = OffsetKey(GROUP, "t", 0)
NOTHING = FetchedOffset(0)
A, B = producer_at(1000, 0), producer_at(2000, 0)


class Deletions(Harness):
    def offset(self) -> FetchedOffset:
        """What a client is told, whichever way it asks."""
        one = self.offset_of_t()
        everything = self.coordinator.fetch_offsets(OffsetFetchRequest(GROUP))
        assert everything == ([] if one == NOTHING else [("t", [one])])
        return one

    def offset_of_t(self) -> FetchedOffset:
        ((_, (one,)),) = self.coordinator.fetch_offsets(OffsetFetchRequest(GROUP, topics=[("t", [0])]))
        return one

    def forget(self, *names: str) -> int:
        """As the service does when it hears of deleted topics, or has loaded. Returns how many records that took."""
        before = len(self.records)
        self.coordinator.topics_deleted(dict.fromkeys(names, TIME_MS_MAX))
        while (effects := self.coordinator.forget_deleted(names or None, self.now)).records:
            assert len(effects.records) <= EXPIRED_COUNT_MAX
            self.take(effects)
        return len(self.records) - before

    def commit_pending(self, owner: ProducerIdAndEpoch, offset: int) -> ErrorCode:
        request = OffsetCommitRequest(GROUP, "", None, -1, [("t", [CommittedOffset(0, offset)])], 9)
        results, _ = self.coordinator.commit_in_transaction(request, owner, self.now)
        return results[0][1][0][1]

    def end(self, owner: ProducerIdAndEpoch, is_commit: bool = True) -> None:
        self.take(self.coordinator.end_transaction(owner.producer_id, is_commit, self.now))


def test_a_topic_made_again_has_no_offsets_though_the_coordinator_has_heard_of_no_deletion() -> None:
    h = Deletions(t=1)
    h.commit(100)
    h.topics.make_again("t")
    assert h.offset() == NOTHING
    h.fail_over()
    assert h.offset() == NOTHING
    h.commit(5)
    assert h.offset() == FetchedOffset(0, 5)


def test_a_topic_that_is_gone_has_no_offsets() -> None:
    h = Deletions(t=1)
    h.commit(100)
    h.topics.delete("t")
    assert h.offset() == NOTHING


def test_offsets_of_a_deleted_topic_are_taken_back_and_no_others() -> None:
    h = Deletions(t=1, u=1)
    h.commit(100)
    h.commit(7, topic="u")
    h.commit(9, group="another")
    h.topics.make_again("t")
    assert h.forget("t") == 2
    assert h.records[-2:] == [(KEY, None), (OffsetKey("another", "t", 0), None)]
    assert h.forget("t") == 0
    found = h.replayed().fetch_offsets(OffsetFetchRequest(GROUP))
    assert found == [("u", [FetchedOffset(0, 7)])]


def test_what_was_committed_to_the_new_topic_before_the_old_offsets_were_taken_back_stays() -> None:
    h = Deletions(t=2)
    h.commit(100)
    h.commit(101, partition=1)
    h.topics.make_again("t")
    h.commit(3)
    assert h.forget("t") == 1
    assert h.records[-1] == (OffsetKey(GROUP, "t", 1), None)
    assert h.offset() == FetchedOffset(0, 3)


def test_a_deletion_that_no_coordinator_saw_is_made_up_for_after_loading() -> None:
    h = Deletions(t=1)
    h.commit(100)
    h.topics.make_again("t")
    h.fail_over()
    assert h.forget() == 1
    assert h.records[-1] == (KEY, None)


def test_many_offsets_are_taken_back_in_pieces() -> None:
    h = Deletions(t=1)
    for partition in range(EXPIRED_COUNT_MAX + 10):
        h.commit(1, partition=partition)
    h.topics.delete("t")
    assert h.forget("t") == EXPIRED_COUNT_MAX + 10


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_what_was_pending_when_the_topic_was_deleted_never_counts(is_forgotten: bool) -> None:
    h = Deletions(t=1)
    assert h.commit_pending(A, 100) is ErrorCode.none
    h.topics.make_again("t")
    if is_forgotten:
        assert h.forget("t") == 1
    h.end(A)
    assert h.offset() == NOTHING


def test_forgetting_a_deleted_topic_undoes_no_transaction_on_the_new_one() -> None:
    h = Deletions(t=1)
    h.commit(100)
    assert h.commit_pending(A, 101) is ErrorCode.none
    h.topics.make_again("t")
    assert h.commit_pending(B, 5) is ErrorCode.none
    assert h.forget("t") == 0
    h.end(A)
    assert h.offset() == NOTHING
    h.end(B)
    assert h.offset() == FetchedOffset(0, 5)


def test_an_offset_that_names_no_topic_goes_with_the_name_and_not_before() -> None:
    """As Kafka wrote them before 4.1: which topic was meant, only a deletion that is seen can tell."""
    h = Deletions(t=1)
    h.records = [(KEY, OffsetValue(100, "", START_MS)), (OffsetKey(GROUP, "later", 0), OffsetValue(1, "", START_MS))]
    h.fail_over()
    assert h.forget() == 0
    assert h.offset_of_t() == FetchedOffset(0, 100)
    h.topics.make_again("t")
    assert h.forget("t") == 1
    assert h.records[-1] == (KEY, None)


def test_nothing_is_committed_to_a_topic_that_is_gone() -> None:
    h = Deletions(t=1)
    h.topics.delete("t")
    assert h.commit(1) is ErrorCode.unknown_topic_or_partition
    assert h.commit_pending(A, 1) is ErrorCode.unknown_topic_or_partition
    assert h.records == []


def test_a_member_that_lets_go_of_a_deleted_topic_does_not_commit_to_the_one_that_bears_its_name() -> None:
    """Clients commit by name before they let go, and go on where the group is: they would go on at the old place."""
    h = Deletions(t=1, u=1)
    h.enter("a", "t", "u")
    assert h.commit(100, member_id="a", generation=1) is ErrorCode.none
    h.topics.make_again("t")
    told = h.beat("a", 1)
    assert told.assignment == partitions(u=[0])
    assert h.commit(100, member_id="a", generation=1) is ErrorCode.unknown_topic_or_partition
    assert h.commit(7, topic="u", member_id="a", generation=1) is ErrorCode.none
    assert h.offset_of_t() == NOTHING
    told = h.beat("a", 1, owned=partitions(u=[0]))
    assert told.assignment == {**partitions(u=[0]), topic_id("t", 1): frozenset({0})}
    assert h.commit(3, member_id="a", generation=told.member_epoch) is ErrorCode.none
    assert h.offset_of_t() == FetchedOffset(0, 3)
