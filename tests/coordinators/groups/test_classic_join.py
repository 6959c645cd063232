"""JoinGroup of the classic protocol: new members, returning ones, protocols, sizes, the first wait."""

from __future__ import annotations

from sexton.coordinators.groups.states import ClassicState
from sexton.protocol.errors import ErrorCode
from sexton.settings.broker import GroupSettings
from tests.coordinators.groups.harness import Harness, subscription


def test_a_first_member_waits_for_the_initial_delay_and_leads() -> None:
    h = Harness()
    token = h.join_parked()
    h.advance(2_999)
    assert h.join_answer(token) is None
    h.advance(1)
    answer = h.joined(token)
    assert (answer.generation, answer.leader, answer.protocol_name) == (1, answer.member_id, "range")
    assert [member.member_id for member in answer.members] == [answer.member_id]
    assert h.classic().state is ClassicState.COMPLETING


def test_each_new_member_extends_the_initial_delay_up_to_the_rebalance_timeout() -> None:
    h = Harness()
    tokens = [h.join_parked(rebalance_timeout_ms=7_000)]
    for _ in range(5):
        h.advance(1_500)
        if h.classic().state is ClassicState.PREPARING:
            tokens.append(h.join_parked(rebalance_timeout_ms=7_000))
    h.advance(0)
    # 3 s, 3 s more because someone joined, then what was left of 7 s.
    assert all(h.join_answer(token) is not None for token in tokens[:4])
    assert h.now_ms <= 7_500


def test_a_new_dynamic_member_is_given_an_id_first() -> None:
    h = Harness()
    answer = h.join_answer(h.join_parked(requires_member_id=True))
    assert answer is not None
    assert answer.error is ErrorCode.member_id_required
    assert answer.member_id.startswith("app-")
    token = h.join_parked(answer.member_id, requires_member_id=True)
    h.advance(3_000)
    assert h.joined(token).member_id == answer.member_id


def test_an_id_that_is_never_used_is_forgotten_after_the_session_timeout() -> None:
    h = Harness()
    answer = h.join_answer(h.join_parked(requires_member_id=True, session_timeout_ms=6_000))
    assert answer is not None
    h.advance(6_000)
    late = h.join_answer(h.join_parked(answer.member_id))
    assert late is not None
    assert late.error is ErrorCode.unknown_member_id


def test_a_rebalance_waits_for_a_member_that_was_given_an_id() -> None:
    h = Harness()
    first, second = h.stable_group()
    given = h.join_answer(h.join_parked(requires_member_id=True))
    assert given is not None
    tokens = [h.join_parked(first), h.join_parked(second)]
    assert h.join_answer(tokens[0]) is None
    h.join_parked(given.member_id)
    assert len(h.joined(tokens[0]).members) == 3


def test_an_unknown_member_id_is_refused() -> None:
    h = Harness()
    for _ in range(2):  # without a group, and with one
        answer = h.join_answer(h.join_parked("nobody"))
        assert answer is not None
        assert (answer.error, answer.member_id) == (ErrorCode.unknown_member_id, "nobody")
        h.stable_group() if h.coordinator.describe_classic("g") is None else None


def test_session_timeouts_out_of_bounds_are_refused() -> None:
    h = Harness()
    for session_timeout_ms in (5_999, 1_800_001):
        answer = h.join_answer(h.join_parked(session_timeout_ms=session_timeout_ms))
        assert answer is not None
        assert answer.error is ErrorCode.invalid_session_timeout
    assert h.coordinator.describe_classic("g") is None


def test_an_empty_group_id_is_refused() -> None:
    h = Harness()
    answer = h.join_answer(h.join_parked(group=""))
    assert answer is not None
    assert answer.error is ErrorCode.invalid_group_id


def test_members_without_a_common_protocol_are_refused() -> None:
    h = Harness()
    h.stable_group()
    for protocols, protocol_type in (
        ((("roundrobin", b""),), "consumer"),
        ((("range", b""),), "connect"),
        ((), "consumer"),
        ((("range", b""),), ""),
    ):
        answer = h.join_answer(h.join_parked(protocols=protocols, protocol_type=protocol_type))
        assert answer is not None
        assert answer.error is ErrorCode.inconsistent_group_protocol


def test_the_protocol_is_one_that_all_speak_and_most_prefer() -> None:
    h = Harness()
    topics = subscription("t")
    tokens = [
        h.join_parked(protocols=(("a", topics), ("b", topics), ("c", topics))),
        h.join_parked(protocols=(("b", topics), ("a", topics))),
        h.join_parked(protocols=(("b", topics), ("x", topics), ("a", topics))),
    ]
    h.advance(12_000)
    assert {h.joined(token).protocol_name for token in tokens} == {"b"}


def test_only_the_leader_is_told_the_members() -> None:
    h = Harness()
    tokens = [h.join_parked(), h.join_parked(protocols=(("range", subscription("u")),))]
    h.advance(9_000)
    leader, follower = (h.joined(token) for token in tokens)
    assert follower.members == ()
    assert follower.leader == leader.member_id
    assert [m.metadata for m in leader.members] == [subscription("t"), subscription("u")]


def test_a_follower_that_rejoins_unchanged_gets_the_current_generation() -> None:
    h = Harness()
    _, follower = h.stable_group()
    answer = h.joined(h.join_parked(follower))
    assert (answer.generation, answer.members) == (1, ())
    assert h.classic().state is ClassicState.STABLE


def test_a_leader_that_rejoins_makes_a_rebalance() -> None:
    h = Harness()
    leader, follower = h.stable_group()
    token = h.join_parked(leader)
    assert h.join_answer(token) is None
    assert h.heartbeat(follower, 1) is ErrorCode.rebalance_in_progress
    h.join_parked(follower)
    assert h.joined(token).generation == 2


def test_a_follower_with_other_topics_makes_a_rebalance() -> None:
    h = Harness()
    leader, follower = h.stable_group()
    token = h.join_parked(follower, protocols=(("range", subscription("t", "u")),))
    assert h.join_answer(token) is None
    h.join_parked(leader)
    assert h.joined(token).generation == 2
    assert h.classic().subscribed_topics == frozenset({"t", "u"})


def test_a_lost_join_answer_is_given_again_while_the_leader_assigns() -> None:
    h = Harness()
    tokens = [h.join_parked(), h.join_parked()]
    h.advance(9_000)
    first, second = (h.joined(token) for token in tokens)
    assert h.joined(h.join_parked(first.member_id)) == first
    assert h.joined(h.join_parked(second.member_id)) == second
    assert h.classic().state is ClassicState.COMPLETING


def test_members_that_do_not_rejoin_in_time_are_removed() -> None:
    h = Harness()
    leader, follower = h.stable_group(session_timeout_ms=1_000_000, rebalance_timeout_ms=60_000)
    token = h.join_parked(follower, protocols=(("range", subscription("u")),))
    h.advance(59_999)
    assert h.join_answer(token) is None
    h.advance(1)
    answer = h.joined(token)
    assert answer.leader == follower
    assert leader not in h.classic().members


def test_a_member_that_asks_twice_is_answered_once_and_the_first_call_is_released() -> None:
    h = Harness()
    leader, _ = h.stable_group()
    first = h.join_parked(leader)
    second = h.join_parked(leader)
    released = h.join_answer(first)
    assert released is not None
    assert released.error is ErrorCode.rebalance_in_progress
    assert h.join_answer(second) is None


def test_a_full_group_refuses_new_members_and_keeps_its_own() -> None:
    h = Harness(GroupSettings(group_max_size=2))
    leader, follower = h.stable_group(2)
    answer = h.join_answer(h.join_parked())
    assert answer is not None
    assert (answer.error, answer.member_id) == (ErrorCode.group_max_size_reached, "")
    assert h.heartbeat(follower, 1) is ErrorCode.none
    h.join_parked(leader)
    assert h.classic().state is ClassicState.PREPARING


def test_a_group_that_is_loaded_larger_than_allowed_sheds_the_last_to_rejoin() -> None:
    h = Harness()
    ids = h.stable_group(3)
    h.settings = GroupSettings(group_max_size=2)
    h.fail_over()
    assert h.classic().state is ClassicState.PREPARING
    tokens = [h.join_parked(member_id) for member_id in ids]
    assert [h.joined(token).generation for token in tokens[:2]] == [2, 2]
    refused = h.join_answer(tokens[2])
    assert refused is not None
    assert refused.error is ErrorCode.group_max_size_reached
    assert len(h.classic().members) == 2
