"""SyncGroup, heartbeats, sessions and leaving in the classic protocol."""

from __future__ import annotations

from sexton.coordinators.groups.records import ClassicGroupKey, ClassicGroupValue
from sexton.coordinators.groups.states import ClassicState
from sexton.protocol.errors import ErrorCode
from tests.coordinators.groups.harness import GROUP, Harness, subscription


def joined_pair(h: Harness) -> tuple[str, str]:
    tokens = [h.join_parked(), h.join_parked()]
    h.advance(9_000)
    return h.joined(tokens[0]).member_id, h.joined(tokens[1]).member_id


def test_followers_wait_for_the_leaders_assignment() -> None:
    h = Harness()
    leader, follower = joined_pair(h)
    waiting = h.sync_parked(follower, 1)
    assert h.sync_answer(waiting) is None
    own = h.sync_parked(leader, 1, {leader: b"L", follower: b"F"})
    assert h.synced(own).assignment == b"L"
    assert h.synced(waiting).assignment == b"F"
    assert (h.synced(own).protocol_type, h.synced(own).protocol_name) == ("consumer", "range")
    assert h.classic().state is ClassicState.STABLE


def test_the_assignment_is_recorded_before_it_is_told() -> None:
    h = Harness()
    leader, follower = joined_pair(h)
    assert h.records == []
    h.sync_parked(leader, 1, {leader: b"L"})
    ((key, value),) = h.records
    assert key == ClassicGroupKey(GROUP)
    assert isinstance(value, ClassicGroupValue)
    assert {member.member_id: member.assignment for member in value.members} == {leader: b"L", follower: b""}


def test_a_late_follower_of_a_stable_group_gets_its_assignment_at_once() -> None:
    h = Harness()
    leader, follower = joined_pair(h)
    h.sync_parked(leader, 1, {follower: b"F"})
    assert h.synced(h.sync_parked(follower, 1)).assignment == b"F"
    assert h.synced(h.sync_parked(follower, 1)).assignment == b"F"


def test_a_sync_of_another_generation_member_or_protocol_is_refused() -> None:
    h = Harness()
    leader, _ = joined_pair(h)
    assert h.synced(h.sync_parked(leader, 0)).error is ErrorCode.illegal_generation
    assert h.synced(h.sync_parked("nobody", 1)).error is ErrorCode.unknown_member_id
    assert h.synced(h.sync_parked(leader, 1, group="other")).error is ErrorCode.unknown_member_id
    assert h.synced(h.sync_parked(leader, 1, group="")).error is ErrorCode.invalid_group_id
    for options in ({"protocol_type": "connect"}, {"protocol_name": "roundrobin"}):
        answer = h.synced(h.sync_parked(leader, 1, **options))  # type: ignore[arg-type]
        assert answer.error is ErrorCode.inconsistent_group_protocol
    assert h.classic().state is ClassicState.COMPLETING


def test_a_sync_during_a_rebalance_is_told_to_join() -> None:
    h = Harness()
    leader, follower = h.stable_group()
    h.join_parked(leader)
    assert h.synced(h.sync_parked(follower, 1)).error is ErrorCode.rebalance_in_progress


def test_those_who_wait_for_an_assignment_are_told_when_a_rebalance_begins() -> None:
    h = Harness()
    _, follower = joined_pair(h)
    waiting = h.sync_parked(follower, 1)
    h.join_parked()  # a third member
    assert h.synced(waiting).error is ErrorCode.rebalance_in_progress
    assert h.classic().state is ClassicState.PREPARING


def test_members_that_do_not_sync_in_time_are_removed() -> None:
    h = Harness()
    tokens = [h.join_parked(session_timeout_ms=1_000_000, rebalance_timeout_ms=10_000) for _ in range(2)]
    h.advance(9_000)
    leader, follower = (h.joined(token).member_id for token in tokens)
    h.sync_parked(leader, 1)
    h.advance(10_000)
    assert list(h.classic().members) == [leader]
    assert h.classic().state is ClassicState.PREPARING
    assert h.heartbeat(follower, 1) is ErrorCode.unknown_member_id


def test_a_heartbeat_keeps_the_session_and_checks_who_sends_it() -> None:
    h = Harness()
    leader, follower = h.stable_group(session_timeout_ms=10_000)
    for _ in range(5):
        h.advance(9_000)
        assert h.heartbeat(leader, 1) is ErrorCode.none
        assert h.heartbeat(follower, 1) is ErrorCode.none
    assert h.heartbeat(leader, 2) is ErrorCode.illegal_generation
    assert h.heartbeat("nobody", 1) is ErrorCode.unknown_member_id


def test_a_silent_member_is_removed_after_its_session_timeout() -> None:
    h = Harness()
    leader, follower = h.stable_group(session_timeout_ms=10_000)
    h.advance(9_999)
    assert h.heartbeat(leader, 1) is ErrorCode.none
    h.advance(1)
    assert h.heartbeat(leader, 1) is ErrorCode.rebalance_in_progress
    assert h.heartbeat(follower, 1) is ErrorCode.unknown_member_id


def test_a_member_whose_join_is_parked_needs_no_heartbeat() -> None:
    h = Harness()
    leader, follower = h.stable_group(session_timeout_ms=10_000, rebalance_timeout_ms=60_000)
    token = h.join_parked(leader)
    for _ in range(5):
        h.advance(8_000)
        h.heartbeat(follower, 1)
    assert h.join_answer(token) is None
    assert leader in h.classic().members
    h.join_parked(follower)
    assert h.joined(token).generation == 2


def test_a_new_member_that_gave_up_waiting_is_forgotten_in_time() -> None:
    h = Harness()
    leader, _ = h.stable_group(rebalance_timeout_ms=1_000_000, session_timeout_ms=1_000_000)
    token = h.join_parked(rebalance_timeout_ms=1_000_000)
    assert h.join_answer(token) is None
    h.advance(300_000)
    answer = h.join_answer(token)
    assert answer is not None
    assert answer.error is ErrorCode.unknown_member_id
    assert leader in h.classic().members


def test_the_last_silent_member_leaves_an_empty_group_with_a_new_generation() -> None:
    h = Harness()
    h.stable_group(1, session_timeout_ms=10_000)
    h.advance(10_000)
    assert (h.classic().state, h.classic().generation) == (ClassicState.EMPTY, 2)
    value = h.records[-1][1]
    assert isinstance(value, ClassicGroupValue)
    assert (value.members, value.generation, value.protocol_type) == ((), 2, "consumer")


def test_leaving_makes_a_rebalance_at_once() -> None:
    h = Harness()
    leader, follower = h.stable_group()
    assert h.leave((leader, None)) == [ErrorCode.none]
    token = h.join_parked(follower)
    assert (h.joined(token).generation, h.joined(token).leader) == (2, follower)


def test_each_of_many_that_leave_has_its_own_result() -> None:
    h = Harness()
    ids = h.stable_group(3)
    pending = h.join_answer(h.join_parked(requires_member_id=True))
    assert pending is not None
    results = h.leave((ids[1], None), ("nobody", None), (pending.member_id, None), ("", "no instance"))
    unknown = ErrorCode.unknown_member_id
    assert results == [ErrorCode.none, unknown, ErrorCode.none, unknown]
    assert list(h.classic().members) == [ids[0], ids[2]]


def test_a_pending_member_that_leaves_disturbs_nobody() -> None:
    h = Harness()
    leader, _ = h.stable_group()
    pending = h.join_answer(h.join_parked(requires_member_id=True))
    assert pending is not None
    assert h.leave((pending.member_id, None)) == [ErrorCode.none]
    assert h.heartbeat(leader, 1) is ErrorCode.none


def test_a_parked_join_is_answered_when_its_member_leaves() -> None:
    h = Harness()
    leader, follower = h.stable_group()
    token = h.join_parked(leader)
    h.leave((leader, None))
    answer = h.join_answer(token)
    assert answer is not None
    assert answer.error is ErrorCode.unknown_member_id
    assert h.joined(h.join_parked(follower)).generation == 2


def test_a_parked_sync_is_answered_when_its_member_leaves() -> None:
    h = Harness()
    _, follower = joined_pair(h)
    waiting = h.sync_parked(follower, 1)
    h.leave((follower, None))
    assert h.synced(waiting).error is ErrorCode.unknown_member_id


def test_the_last_of_those_awaited_leaves_and_the_rebalance_completes() -> None:
    h = Harness()
    leader, follower = h.stable_group()
    token = h.join_parked(leader)
    h.leave((follower, None))
    assert [member.member_id for member in h.joined(token).members] == [leader]


def test_leaving_a_group_that_is_not_there() -> None:
    h = Harness()
    assert h.leave(("somebody", None)) == [ErrorCode.unknown_member_id]


def test_offsets_committed_by_a_member_keep_its_session() -> None:
    h = Harness(t=1)
    (leader,) = h.stable_group(1, session_timeout_ms=10_000)
    for _ in range(3):
        h.advance(9_000)
        assert h.commit(5, member_id=leader, generation=1) is ErrorCode.none
    assert h.heartbeat(leader, 1) is ErrorCode.none


def test_after_a_failover_members_go_on_with_a_fresh_session() -> None:
    h = Harness()
    leader, follower = h.stable_group(session_timeout_ms=10_000)
    h.advance(9_000)
    h.fail_over()
    h.advance(9_000)
    assert h.heartbeat(leader, 1) is ErrorCode.none
    assert h.synced(h.sync_parked(follower, 1)).assignment == follower.encode()
    h.advance(9_999)
    assert h.heartbeat(leader, 1) is ErrorCode.none
    h.advance(1)
    assert h.heartbeat(follower, 1) is ErrorCode.unknown_member_id  # its sync was the last sign of life


def test_a_generation_that_was_not_recorded_is_gone_after_a_failover() -> None:
    h = Harness()
    leader, follower = joined_pair(h)
    h.fail_over()
    assert h.heartbeat(leader, 1) is ErrorCode.unknown_member_id
    assert h.synced(h.sync_parked(follower, 1)).error is ErrorCode.unknown_member_id


def test_a_group_of_another_protocol_works_alike() -> None:
    h = Harness()
    options = {"protocol_type": "connect", "protocols": (("sessioned", b"opaque"),)}
    (leader,) = h.stable_group(1, **options)
    assert h.classic().subscribed_topics is None
    assert h.heartbeat(leader, 1) is ErrorCode.none


def test_bytes_that_are_no_subscription_do_not_disturb_a_group() -> None:
    h = Harness()
    h.stable_group(2, protocols=(("range", b"\xff"),))
    assert h.classic().subscribed_topics is None
    assert h.classic().is_subscribed("anything")


def test_topics_are_known_from_the_subscriptions() -> None:
    h = Harness()
    h.stable_group(2, protocols=(("range", subscription("a", "b", version=3)),))
    assert h.classic().subscribed_topics == frozenset({"a", "b"})
