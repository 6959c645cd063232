"""Committing, fetching, deleting and expiring offsets; describing, listing and deleting groups."""

from __future__ import annotations

from sexton.coordinators.groups.messages import LEAVE_EPOCH, FetchedOffset, OffsetFetchRequest
from sexton.coordinators.groups.offset_operations import EXPIRED_COUNT_MAX
from sexton.coordinators.groups.records import ClassicGroupKey, OffsetKey, OffsetValue
from sexton.protocol.errors import ErrorCode
from sexton.settings.broker import GroupSettings
from tests.coordinators.groups.harness import GROUP, START_MS, Harness, refused, subscription, topic_id

WEEK_MS = 7 * 24 * 60 * 60_000
CHECK_MS = 600_000


def fetch(h: Harness, *partitions: int, topic: str = "t", **options: object) -> list[FetchedOffset]:
    request = OffsetFetchRequest(GROUP, topics=[(topic, partitions)], **options)  # type: ignore[arg-type]
    ((_, fetched),) = h.coordinator.fetch_offsets(request)
    return fetched


def fetch_all(h: Harness, group: str = GROUP) -> dict[str, list[FetchedOffset]]:
    return dict(h.coordinator.fetch_offsets(OffsetFetchRequest(group)))


def delete_offsets(h: Harness, topic: str, *partitions: int) -> list[ErrorCode]:
    results, effects = h.coordinator.delete_offsets(GROUP, [(topic, partitions)], h.now)
    h.take(effects)
    return [code for _, code in results[0][1]]


def test_an_offset_is_fetched_with_its_metadata_and_leader_epoch() -> None:
    h = Harness(t=4, u=4)
    assert h.commit(42, metadata="note", leader_epoch=3) is ErrorCode.none
    assert fetch(h, 0, 1) == [FetchedOffset(0, 42, 3, "note"), FetchedOffset(1, -1, -1, "")]
    assert h.records == [(OffsetKey(GROUP, "t", 0), OffsetValue(42, "note", START_MS, 3, topic_id=topic_id("t")))]


def test_all_offsets_of_a_group_are_fetched_and_none_of_a_group_that_is_not_there() -> None:
    h = Harness(t=4, u=4)
    h.commit(1, topic="t")
    h.commit(2, topic="u", partition=3)
    assert fetch_all(h) == {"t": [FetchedOffset(0, 1)], "u": [FetchedOffset(3, 2)]}
    assert fetch_all(h, "other") == {}


def test_metadata_that_is_too_long_is_refused_for_its_partition() -> None:
    h = Harness(t=4, u=4)
    assert h.commit(1, metadata="x" * 4_097) is ErrorCode.offset_metadata_too_large
    assert h.commit(1, metadata="x" * 4_096) is ErrorCode.none


def test_a_commit_with_a_generation_needs_its_group() -> None:
    h = Harness(t=4, u=4)
    assert h.commit(1, member_id="a", generation=1, version=9) is ErrorCode.group_id_not_found
    assert h.commit(1, member_id="a", generation=1, version=8) is ErrorCode.illegal_generation


def test_only_members_of_the_current_generation_commit_to_a_classic_group() -> None:
    h = Harness(t=4, u=4)
    leader, _ = h.stable_group()
    assert h.commit(1, member_id=leader, generation=1) is ErrorCode.none
    assert h.commit(1, member_id=leader, generation=0) is ErrorCode.illegal_generation
    assert h.commit(1, member_id="nobody", generation=1) is ErrorCode.unknown_member_id
    assert h.commit(1) is ErrorCode.unknown_member_id


def test_members_may_commit_while_they_are_to_rejoin_but_not_before_they_are_assigned() -> None:
    h = Harness(t=4, u=4)
    leader, follower = h.stable_group()
    h.join_parked(leader)
    assert h.commit(1, member_id=follower, generation=1) is ErrorCode.none
    h.join_parked(follower)
    assert h.commit(1, member_id=follower, generation=2) is ErrorCode.rebalance_in_progress


def test_only_members_at_their_epoch_commit_to_and_fetch_from_a_consumer_group() -> None:
    h = Harness(t=1)
    h.enter("a", "t")
    assert h.commit(1, member_id="a", generation=1) is ErrorCode.none
    assert h.commit(1, member_id="a", generation=0) is ErrorCode.stale_member_epoch
    assert h.commit(1, member_id="b", generation=1) is ErrorCode.unknown_member_id
    assert h.commit(1, member_id="a", generation=1, version=8) is ErrorCode.unsupported_version
    assert h.commit(1) is ErrorCode.unknown_member_id
    assert fetch(h, 0, member_id="a", member_epoch=1) == [FetchedOffset(0, 1)]
    assert fetch(h, 0) == [FetchedOffset(0, 1)]
    with refused(ErrorCode.stale_member_epoch):
        fetch(h, 0, member_id="a", member_epoch=0)
    with refused(ErrorCode.unknown_member_id):
        fetch(h, 0, member_id="b", member_epoch=1)


def test_anybody_commits_to_an_empty_group() -> None:
    h = Harness(t=1)
    h.enter("a", "t")
    h.beat("a", LEAVE_EPOCH)
    assert h.commit(1) is ErrorCode.none


def test_offsets_survive_a_failover() -> None:
    h = Harness(t=4, u=4)
    h.commit(1)
    h.commit(2)
    h.commit(3, partition=1, retention_ms=5_000)
    h.fail_over()
    assert fetch(h, 0, 1) == [FetchedOffset(0, 2), FetchedOffset(1, 3)]


def test_offsets_of_topics_that_the_group_reads_cannot_be_deleted() -> None:
    h = Harness(t=1, u=1)
    leader, _ = h.stable_group(protocols=(("range", subscription("t")),))
    h.commit(1, topic="t", member_id=leader, generation=1)
    h.commit(2, topic="u", member_id=leader, generation=1)
    assert delete_offsets(h, "t", 0) == [ErrorCode.group_subscribed_to_topic]
    assert delete_offsets(h, "u", 0, 1) == [ErrorCode.none, ErrorCode.none]
    assert list(fetch_all(h)) == ["t"]


def test_offsets_of_a_consumer_group_are_deleted_likewise() -> None:
    h = Harness(t=1, u=1)
    h.enter("a", "t")
    h.commit(1, topic="t", member_id="a", generation=1)
    h.commit(2, topic="u", member_id="a", generation=1)
    assert delete_offsets(h, "t", 0) == [ErrorCode.group_subscribed_to_topic]
    assert delete_offsets(h, "u", 0) == [ErrorCode.none]
    assert list(fetch_all(h)) == ["t"]


def test_offsets_of_a_group_that_is_not_there_or_of_another_protocol_are_not_deleted() -> None:
    h = Harness(t=4, u=4)
    with refused(ErrorCode.group_id_not_found):
        delete_offsets(h, "t", 0)
    h.stable_group(1, protocol_type="connect", protocols=(("x", b""),))
    with refused(ErrorCode.non_empty_group):
        delete_offsets(h, "t", 0)


def test_offsets_without_a_group_expire_after_their_commit() -> None:
    h = Harness(t=4, u=4)
    h.commit(1)
    h.advance(WEEK_MS - CHECK_MS)
    h.commit(2, partition=1)
    h.advance(2 * CHECK_MS)
    assert fetch_all(h) == {"t": [FetchedOffset(1, 2)]}
    h.advance(WEEK_MS)
    assert h.coordinator.list_groups((), ()) == []


def test_offsets_of_a_group_are_kept_while_it_has_members_and_then_from_when_it_became_empty() -> None:
    h = Harness(GroupSettings(group_max_session_timeout_ms=2**31 - 1), t=4, old=4)
    (leader,) = h.stable_group(1, session_timeout_ms=2**31 - 1)
    h.commit(1, member_id=leader, generation=1)
    h.advance(2 * WEEK_MS)
    assert fetch(h, 0) == [FetchedOffset(0, 1)]
    h.leave((leader, None))
    h.fail_over()
    h.advance(WEEK_MS - CHECK_MS)
    assert fetch(h, 0) == [FetchedOffset(0, 1)]
    h.advance(2 * CHECK_MS)
    assert fetch_all(h) == {}
    assert (ClassicGroupKey(GROUP), None) in h.records


def test_offsets_of_topics_that_members_do_not_read_any_more_expire() -> None:
    h = Harness(GroupSettings(group_max_session_timeout_ms=2**31 - 1), t=4, old=4)
    (leader,) = h.stable_group(1, session_timeout_ms=2**31 - 1)
    h.commit(1, topic="t", member_id=leader, generation=1)
    h.commit(2, topic="old", member_id=leader, generation=1)
    h.advance(WEEK_MS + CHECK_MS)
    assert list(fetch_all(h)) == ["t"]


def test_offsets_of_a_consumer_group_expire_unless_the_topic_is_read() -> None:
    settings = GroupSettings(group_consumer_session_timeout_ms=2 * WEEK_MS)
    h = Harness(settings, t=1, old=1)
    h.enter("a", "t")
    h.commit(1, topic="t", member_id="a", generation=1)
    h.commit(2, topic="old", member_id="a", generation=1)
    h.advance(WEEK_MS + CHECK_MS)
    assert list(fetch_all(h)) == ["t"]
    h.beat("a", LEAVE_EPOCH)
    h.advance(CHECK_MS)
    assert fetch_all(h) == {}
    assert h.replayed().list_groups((), ()) == []


def test_a_retention_that_the_client_asked_for_counts_instead() -> None:
    h = Harness(t=4, u=4)
    h.commit(1, retention_ms=CHECK_MS)
    h.commit(2, partition=1)
    h.advance(2 * CHECK_MS)
    assert fetch_all(h) == {"t": [FetchedOffset(1, 2)]}


def test_many_offsets_expire_in_pieces() -> None:
    h = Harness(GroupSettings(offsets_retention_minutes=1), t=4)
    for partition in range(EXPIRED_COUNT_MAX + 10):
        h.commit(1, partition=partition)
    h.now_ms = CHECK_MS
    first = h.coordinator.tick(h.now)
    assert len(first.records) == EXPIRED_COUNT_MAX
    second = h.coordinator.tick(h.now)
    assert len(second.records) == 10


def test_a_group_that_was_never_joined_is_forgotten() -> None:
    h = Harness(t=4, u=4)
    h.join_parked(requires_member_id=True)
    assert len(h.coordinator.list_groups((), ())) == 1
    h.advance(2 * CHECK_MS)
    assert h.coordinator.list_groups((), ()) == []
    assert h.records == []


def test_a_group_without_members_is_deleted_with_its_offsets() -> None:
    h = Harness(t=1)
    h.enter("a", "t")
    h.commit(1, member_id="a", generation=1)
    with refused(ErrorCode.non_empty_group):
        h.coordinator.delete_group(GROUP, h.now)
    h.beat("a", LEAVE_EPOCH)
    h.take(h.coordinator.delete_group(GROUP, h.now))
    assert (OffsetKey(GROUP, "t", 0), None) in h.records
    for coordinator in (h.coordinator, h.replayed()):
        assert coordinator.list_groups((), ()) == []
        assert coordinator.fetch_offsets(OffsetFetchRequest(GROUP)) == []
    with refused(ErrorCode.group_id_not_found):
        h.coordinator.delete_group(GROUP, h.now)


def test_a_classic_group_is_deleted_when_it_is_empty() -> None:
    h = Harness(t=4, u=4)
    (leader,) = h.stable_group(1)
    with refused(ErrorCode.non_empty_group):
        h.coordinator.delete_group(GROUP, h.now)
    h.leave((leader, None))
    h.take(h.coordinator.delete_group(GROUP, h.now))
    assert h.coordinator.describe_classic(GROUP) is None
    assert h.replayed().describe_classic(GROUP) is None


def test_groups_are_listed_by_state_and_type() -> None:
    h = Harness(t=1)
    h.stable_group(1)
    h.commit(1, group="simple")
    h.enter("a", "t", group="modern")
    everything = {(one.group, one.protocol_type, one.state, one.type) for one in h.coordinator.list_groups((), ())}
    assert everything == {
        ("g", "consumer", "Stable", "classic"),
        ("simple", "", "Empty", "classic"),
        ("modern", "consumer", "Stable", "consumer"),
    }
    assert [one.group for one in h.coordinator.list_groups(("stable ",), ("CLASSIC",))] == ["g"]
    assert h.coordinator.list_groups((), ("share",)) == []
    assert [one.group for one in h.coordinator.list_groups(("empty", "dead"), ())] == ["simple"]


def test_a_classic_group_is_described_with_its_members() -> None:
    h = Harness(t=4, u=4)
    leader, follower = h.stable_group()
    found = h.coordinator.describe_classic(GROUP)
    assert found is not None
    assert (found.state, found.protocol_type, found.protocol) == ("Stable", "consumer", "range")
    assert [m.assignment for m in found.members] == [leader.encode(), follower.encode()]
    assert found.members[0].metadata == subscription("t")
    h.join_parked(leader)
    found = h.coordinator.describe_classic(GROUP)
    assert found is not None
    assert (found.state, found.protocol, found.members[0].metadata) == ("PreparingRebalance", "", b"")
    assert h.coordinator.describe_consumer(GROUP) is None


def test_a_consumer_group_is_described_with_what_its_members_have_and_should_have() -> None:
    h = Harness(t=2)
    h.enter("a", "t")
    h.enter("b", "t")
    found = h.coordinator.describe_consumer(GROUP)
    assert found is not None
    assert (found.state, found.group_epoch, found.assignment_epoch, found.assignor) == ("Reconciling", 2, 2, "uniform")
    (a, b) = found.members
    assert (len(a.assigned), len(b.assigned)) == (1, 0)
    assert {len(numbers) for one in (a, b) for numbers in one.target.values()} == {1}
    assert list(found.topic_names.values()) == ["t"]
    assert h.coordinator.describe_classic(GROUP) is None


def test_a_refused_commit_writes_nothing() -> None:
    h = Harness(t=4, u=4)
    h.stable_group()
    before = len(h.records)
    assert h.commit(1, member_id="nobody", generation=1) is ErrorCode.unknown_member_id
    assert len(h.records) == before


def test_a_million_offsets_are_searched_for_expired_ones_in_pieces() -> None:
    h = Harness(GroupSettings(offsets_retention_check_interval_ms=1_000), t=1)
    for number in range(30):
        for partition in range(500):
            h.commit(1, partition=partition, group=f"g{number}")
    h.now_ms += 1_000
    for _ in range(2):
        assert not h.coordinator.tick(h.now).records
        assert h.coordinator.next_deadline_ms() == h.now_ms, "there is more to do"
    h.advance(1)
    assert h.coordinator.next_deadline_ms() == h.now_ms - 1 + 1_000
