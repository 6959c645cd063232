"""Offsets that are committed in transactions: pending until the marker, and the log's order decides who wins."""

from __future__ import annotations

import pytest

from sexton.coordinators.groups.coordinator import GroupCoordinator
from sexton.coordinators.groups.messages import CommittedOffset, OffsetCommitRequest, OffsetFetchRequest
from sexton.coordinators.groups.records import encode
from sexton.protocol.errors import ErrorCode
from sexton.types import ProducerIdAndEpoch
from tests.coordinators.groups.harness import GROUP, Harness, refused
from tests.producers import producer_at

A, B = producer_at(1000, 0), producer_at(2000, 0)


def commit(offset: int, generation: int = -1, member_id: str = "") -> OffsetCommitRequest:
    return OffsetCommitRequest(GROUP, member_id, None, generation, [("t", [CommittedOffset(0, offset)])], 9)


class Transactions(Harness):
    """Keeps what was written in its order, so that it can be read again."""

    def __init__(self) -> None:
        super().__init__(t=1)
        self.log: list[tuple[object, ...]] = []

    def plain(self, offset: int) -> None:
        results, effects = self.coordinator.commit_offsets(commit(offset), self.now)
        assert results == [("t", [(0, ErrorCode.none)])]
        self.take(effects)
        self.log += [("plain", *encode(record)) for record in effects.records]

    def pending(self, owner: ProducerIdAndEpoch, offset: int) -> None:
        results, effects = self.coordinator.commit_in_transaction(commit(offset), owner, self.now)
        assert results == [("t", [(0, ErrorCode.none)])]
        assert effects.owner == owner
        self.log += [("pending", owner, *encode(record)) for record in effects.records]

    def end(self, owner: ProducerIdAndEpoch, is_commit: bool) -> None:
        self.take(self.coordinator.end_transaction(owner.producer_id, is_commit, self.now))
        self.log.append(("end", owner.producer_id, is_commit))

    def offset(self, require_stable: bool = False) -> tuple[int, ErrorCode]:
        found = self._fetch(self.coordinator, require_stable)
        assert found == self._fetch(self.reread(), require_stable), "a coordinator that loads the log says the same"
        return found

    def reread(self) -> GroupCoordinator:
        fresh = GroupCoordinator(self.settings, self.topics, self.rng)
        for kind, *rest in self.log:
            if kind == "plain":
                key, value = rest
                fresh.replay(key, value)  # type: ignore[arg-type]
            elif kind == "pending":
                owner, key, value = rest
                fresh.replay(key, value, owner)  # type: ignore[arg-type]
            else:
                fresh.replay_end(*rest)  # type: ignore[arg-type]
        return fresh

    @staticmethod
    def _fetch(coordinator: GroupCoordinator, require_stable: bool) -> tuple[int, ErrorCode]:
        request = OffsetFetchRequest(GROUP, topics=[("t", [0])], require_stable=require_stable)
        [(_, [one])] = coordinator.fetch_offsets(request)
        return one.offset, one.error


@pytest.mark.parametrize(("is_commit", "expected"), [(True, 7), (False, 3)])
def test_offsets_count_from_the_commit_on_and_never_after_an_abort(is_commit: bool, expected: int) -> None:
    t = Transactions()
    t.plain(3)
    t.pending(A, 7)
    assert t.offset() == (3, ErrorCode.none)
    assert t.offset(require_stable=True) == (-1, ErrorCode.unstable_offset_commit)
    t.end(A, is_commit)
    assert t.offset(require_stable=True) == (expected, ErrorCode.none)


def test_a_plain_commit_that_came_later_wins_over_a_transaction_that_ends_after_it() -> None:
    t = Transactions()
    t.pending(A, 7)
    t.plain(9)
    assert t.offset(require_stable=True) == (9, ErrorCode.none), "nothing can change it any more"
    t.end(A, True)
    assert t.offset() == (9, ErrorCode.none)


@pytest.mark.parametrize("order", [(A, B), (B, A)])
def test_of_two_transactions_the_one_that_wrote_later_wins_in_whatever_order_they_end(
    order: tuple[ProducerIdAndEpoch, ProducerIdAndEpoch],
) -> None:
    t = Transactions()
    t.pending(A, 7)
    t.pending(B, 9)
    for owner in order:
        t.end(owner, True)
    assert t.offset(require_stable=True) == (9, ErrorCode.none)


def test_the_last_of_several_commits_in_one_transaction_counts() -> None:
    t = Transactions()
    t.pending(A, 7)
    t.pending(A, 8)
    t.end(A, True)
    assert t.offset() == (8, ErrorCode.none)


def test_a_marker_without_offsets_changes_nothing() -> None:
    t = Transactions()
    t.plain(3)
    t.end(A, True)
    t.end(A, False)
    assert t.offset() == (3, ErrorCode.none)


def test_a_transaction_is_open_in_its_own_epoch_until_its_marker() -> None:
    t = Transactions()
    t.pending(A, 7)
    assert t.coordinator.is_in_transaction(A)
    assert not t.coordinator.is_in_transaction(producer_at(A.producer_id, 1))
    t.end(A, False)
    assert not t.coordinator.is_in_transaction(A)


def test_deleting_the_group_deletes_what_is_pending_too() -> None:
    t = Transactions()
    t.pending(A, 7)
    effects = t.coordinator.delete_group(GROUP, t.now)
    t.take(effects)
    t.log += [("plain", *encode(record)) for record in effects.records]
    t.end(A, True)
    assert t.offset() == (-1, ErrorCode.none)


def test_a_group_with_pending_offsets_is_not_taken_for_empty() -> None:
    t = Transactions()
    t.pending(A, 7)
    t.advance(t.settings.offsets_retention_check_interval_ms + 1)
    t.end(A, True)
    assert t.offset() == (7, ErrorCode.none)


def test_who_is_no_member_cannot_commit_for_one() -> None:
    t = Transactions()
    with refused(ErrorCode.illegal_generation):
        t.coordinator.commit_in_transaction(commit(1, generation=3, member_id="m"), A, t.now)
    t.plain(1)
    with refused(ErrorCode.unknown_member_id):
        t.coordinator.commit_in_transaction(commit(1, generation=3, member_id="m"), A, t.now)


def test_metadata_that_is_too_long_is_refused() -> None:
    t = Transactions()
    long = OffsetCommitRequest(GROUP, "", None, -1, [("t", [CommittedOffset(0, 1, -1, "x" * 5000)])], 9)
    results, effects = t.coordinator.commit_in_transaction(long, A, t.now)
    assert results == [("t", [(0, ErrorCode.offset_metadata_too_large)])]
    assert not effects.records
