"""Static members (KIP-345) of classic groups."""

from __future__ import annotations

from sexton.coordinators.groups.records import ClassicGroupValue
from sexton.coordinators.groups.states import ClassicState
from sexton.protocol.errors import ErrorCode
from tests.coordinators.groups.harness import Harness, subscription


def static_group(h: Harness, *instance_ids: str, session_timeout_ms: int = 10_000) -> list[str]:
    tokens = [h.join_parked(instance_id=one, session_timeout_ms=session_timeout_ms) for one in instance_ids]
    h.advance(3_000 * (len(tokens) + 1))
    ids = [h.joined(token).member_id for token in tokens]
    for member_id, instance_id in reversed(list(zip(ids, instance_ids, strict=True))):
        h.sync_parked(member_id, 1, {one: one.encode() for one in ids}, instance_id=instance_id)
    assert h.classic().state is ClassicState.STABLE
    return ids


def test_a_static_member_need_not_ask_for_an_id_first() -> None:
    h = Harness()
    token = h.join_parked(instance_id="one", requires_member_id=True)
    h.advance(3_000)
    assert h.joined(token).member_id.startswith("one-")


def test_a_static_follower_that_restarts_keeps_its_assignment_without_a_rebalance() -> None:
    h = Harness()
    leader, follower = static_group(h, "one", "two")
    answer = h.joined(h.join_parked(instance_id="two"))
    assert answer.member_id != follower
    assert (answer.generation, answer.leader, answer.members, answer.skip_assignment) == (1, leader, (), False)
    assert h.classic().state is ClassicState.STABLE
    assert h.synced(h.sync_parked(answer.member_id, 1, instance_id="two")).assignment == follower.encode()


def test_a_static_leader_that_restarts_leads_but_need_not_assign() -> None:
    h = Harness()
    static_group(h, "one", "two")
    answer = h.joined(h.join_parked(instance_id="one"))
    assert answer.leader == answer.member_id
    assert answer.skip_assignment
    assert len(answer.members) == 2


def test_a_static_leader_of_an_old_client_is_told_that_it_follows() -> None:
    h = Harness()
    leader, _ = static_group(h, "one", "two")
    answer = h.joined(h.join_parked(instance_id="one", can_skip_assignment=False))
    assert (answer.leader, answer.skip_assignment, answer.members) == (leader, False, ())


def test_the_new_id_of_a_static_member_is_recorded() -> None:
    h = Harness()
    static_group(h, "one", "two")
    answer = h.joined(h.join_parked(instance_id="two"))
    value = h.records[-1][1]
    assert isinstance(value, ClassicGroupValue)
    assert answer.member_id in {member.member_id for member in value.members}
    h.fail_over()
    assert h.heartbeat(answer.member_id, 1, "two") is ErrorCode.none


def test_the_old_id_of_a_static_member_is_fenced_everywhere() -> None:
    h = Harness()
    _, old = static_group(h, "one", "two")
    h.join_parked(instance_id="two")
    fenced = ErrorCode.fenced_instance_id
    assert h.heartbeat(old, 1, "two") is fenced
    assert h.synced(h.sync_parked(old, 1, instance_id="two")).error is fenced
    assert h.leave((old, "two")) == [fenced]
    assert h.commit(1, member_id=old, generation=1, instance_id="two") is fenced
    answer = h.join_answer(h.join_parked(old, instance_id="two"))
    assert answer is not None
    assert answer.error is fenced


def test_a_parked_join_of_the_old_id_is_fenced() -> None:
    h = Harness()
    leader, _ = static_group(h, "one", "two")
    parked = h.join_parked(leader, instance_id="one")
    h.join_parked(instance_id="one")
    answer = h.join_answer(parked)
    assert answer is not None
    assert answer.error is ErrorCode.fenced_instance_id


def test_a_static_member_with_another_favourite_protocol_makes_a_rebalance() -> None:
    h = Harness()
    topics = subscription("t")
    token = h.join_parked(instance_id="one", protocols=(("a", topics), ("b", topics)))
    h.advance(3_000)
    h.sync_parked(h.joined(token).member_id, 1, instance_id="one")
    token = h.join_parked(instance_id="one", protocols=(("b", topics), ("a", topics)))
    assert (h.joined(token).generation, h.joined(token).protocol_name) == (2, "b")


def test_a_static_member_that_returns_while_the_leader_assigns_makes_a_rebalance() -> None:
    h = Harness()
    tokens = [h.join_parked(instance_id=one) for one in ("one", "two")]
    h.advance(9_000)
    leader = h.joined(tokens[0]).member_id
    waiting = h.sync_parked(h.joined(tokens[1]).member_id, 1, instance_id="two")
    token = h.join_parked(instance_id="two")
    assert h.synced(waiting).error is ErrorCode.fenced_instance_id
    assert h.classic().state is ClassicState.PREPARING
    h.join_parked(leader, instance_id="one")
    assert h.joined(token).generation == 2


def test_static_members_that_are_away_stay_through_a_rebalance() -> None:
    h = Harness()
    leader, _ = static_group(h, "one", "two", session_timeout_ms=100_000)
    token = h.join_parked(leader, instance_id="one", rebalance_timeout_ms=20_000)
    h.advance(60_000)
    assert [m.instance_id for m in h.joined(token).members] == ["one", "two"]


def test_a_rebalance_that_no_static_member_joins_waits_for_one() -> None:
    h = Harness()
    static_group(h, "one", "two", session_timeout_ms=1_000_000)
    h.leave(("", "one"))
    h.advance(200_000)
    assert h.classic().state is ClassicState.PREPARING
    token = h.join_parked(instance_id="two")
    assert h.joined(token).generation == 2


def test_a_static_member_is_removed_by_an_admin_and_after_its_session() -> None:
    h = Harness()
    static_group(h, "one", "two")
    assert h.leave(("", "one"), ("", "three"), ("", None)) == [
        ErrorCode.none,
        ErrorCode.unknown_member_id,
        ErrorCode.unknown_member_id,
    ]
    h.advance(200_000)
    assert h.classic().state is ClassicState.EMPTY


def test_an_unknown_instance_id_with_a_member_id_is_refused() -> None:
    h = Harness()
    leader, _ = static_group(h, "one", "two")
    answer = h.join_answer(h.join_parked(leader, instance_id="three"))
    assert answer is not None
    assert answer.error is ErrorCode.unknown_member_id
