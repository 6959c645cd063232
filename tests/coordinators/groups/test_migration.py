"""Classic and KIP-848 members in one group: upgrade, life together, downgrade."""

from __future__ import annotations

import pytest

from sexton.coordinators.groups.messages import LEAVE_EPOCH, LEAVE_STATIC_EPOCH
from sexton.coordinators.groups.records import ClassicGroupKey, EpochKey
from sexton.coordinators.groups.states import ClassicState, ConsumerState
from sexton.protocol import embedded
from sexton.protocol.errors import ErrorCode
from sexton.settings.broker import GroupSettings
from tests.coordinators.groups.harness import GROUP, Harness, partitions, refused, subscription


def classic_consumers(h: Harness, *assigned: dict[str, list[int]], topics: tuple[str, ...] = ("t",)) -> list[str]:
    """A stable classic group whose members have these partitions, as real consumers' assignors write them."""
    protocols = (("range", subscription(*topics, version=1)),)
    tokens = [h.join_parked(protocols=protocols) for _ in assigned]
    h.advance(3_000 * (len(tokens) + 1))
    ids = [h.joined(token).member_id for token in tokens]
    written = {one: embedded.write_assignment(parts, 1) for one, parts in zip(ids, assigned, strict=True)}
    for member_id in reversed(ids):
        h.sync_parked(member_id, 1, written)
    return ids


def rejoin(h: Harness, member_id: str, owned: dict[str, list[int]], topics: tuple[str, ...] = ("t",)) -> int:
    """A cooperative classic consumer rejoins; returns its new generation."""
    protocols = (("range", subscription(*topics, version=1, owned=owned)),)
    return h.joined(h.join_parked(member_id, protocols=protocols)).generation


def assignment(h: Harness, member_id: str, generation: int) -> dict[str, list[int]]:
    answer = h.synced(h.sync_parked(member_id, generation))
    assert answer.error is ErrorCode.none
    return embedded.read_assignment(answer.assignment)


def test_the_first_new_member_turns_a_classic_group_into_a_consumer_group() -> None:
    h = Harness(t=4)
    one, two = classic_consumers(h, {"t": [0, 1]}, {"t": [2, 3]})
    answer = h.enter("new", "t")
    assert (answer.member_epoch, answer.assignment) == (2, {})
    assert (ClassicGroupKey(GROUP), None) in h.records
    group = h.consumer()
    assert group.members[one].assigned == partitions(t=[0, 1])
    assert group.members[two].classic is not None
    assert group.state is ConsumerState.RECONCILING


def test_an_upgraded_group_survives_a_failover() -> None:
    h = Harness(t=4)
    one, _ = classic_consumers(h, {"t": [0, 1]}, {"t": [2, 3]})
    h.enter("new", "t")
    h.fail_over()
    assert h.heartbeat(one, 1) is ErrorCode.rebalance_in_progress
    assert h.beat("new", 2).member_epoch == 2


def test_classic_members_learn_their_new_assignment_by_rejoining() -> None:
    h = Harness(t=4)
    one, two = classic_consumers(h, {"t": [0, 1]}, {"t": [2, 3]})
    h.enter("new", "t")
    for member_id, had in ((one, [0, 1]), (two, [2, 3])):
        assert h.heartbeat(member_id, 1) is ErrorCode.rebalance_in_progress
        generation = rejoin(h, member_id, {"t": had})
        kept = assignment(h, member_id, generation)
        if kept != {"t": had}:  # it must let go, and say so
            assert generation == 1
            assert h.heartbeat(member_id, generation) is ErrorCode.rebalance_in_progress
            generation = rejoin(h, member_id, kept)
        assert generation == 2
        assert assignment(h, member_id, generation) == kept
    assert sum(len(numbers) for numbers in (h.beat("new", 2).assignment or {}).values()) == 1
    assert h.consumer().state is ConsumerState.STABLE
    assert h.heartbeat(one, 2) is ErrorCode.none


def test_a_classic_member_is_told_when_what_it_waits_for_is_free() -> None:
    h = Harness(t=2)
    h.enter("new", "t")
    given = h.join_answer(h.join_parked(requires_member_id=True))
    assert given is not None
    assert given.error is ErrorCode.member_id_required
    generation = rejoin(h, given.member_id, {})
    assert generation == 2
    assert assignment(h, given.member_id, 2) == {}
    assert h.heartbeat(given.member_id, 2) is ErrorCode.none
    h.beat("new", 1, owned=partitions(t=[0, 1]))
    h.beat("new", 1, owned=partitions(t=[0]))
    assert h.heartbeat(given.member_id, 2) is ErrorCode.rebalance_in_progress
    assert assignment(h, given.member_id, rejoin(h, given.member_id, {})) == {"t": [1]}
    assert h.heartbeat(given.member_id, 2) is ErrorCode.none


def test_a_classic_member_that_does_not_rejoin_in_time_is_removed() -> None:
    h = Harness(t=2)
    (one,) = classic_consumers(h, {"t": [0, 1]})
    h.enter("new", "t")
    for _ in range(8):
        h.heartbeat(one, 1)
        h.beat("new", 2)
        h.advance(7_000)
    h.heartbeat(one, 1)
    h.advance(4_000)
    assert h.heartbeat(one, 1) is ErrorCode.unknown_member_id
    assert h.beat("new", 2).assignment == partitions(t=[0, 1])


def test_a_classic_member_that_does_not_sync_in_time_is_removed() -> None:
    h = Harness(t=2)
    h.enter("new", "t")
    h.join_parked(session_timeout_ms=100_000)
    assert len(h.consumer().members) == 2
    h.beat("new", 1, owned=partitions(t=[0, 1]))
    h.beat("new", 1, owned=partitions(t=[0]))
    for _ in range(10):
        h.beat("new", 2)
        h.advance(6_000)
    assert list(h.consumer().members) == ["new"]


def test_a_silent_classic_member_is_removed_after_its_own_session() -> None:
    h = Harness(t=2)
    classic_consumers(h, {"t": [0, 1]})
    h.enter("new", "t")
    h.advance(10_000)
    assert h.beat("new", 2).assignment == partitions(t=[0, 1])


def test_classic_members_of_a_consumer_group_are_checked_like_others() -> None:
    h = Harness(t=2)
    (one,) = classic_consumers(h, {"t": [0, 1]})
    h.enter("new", "t")
    assert h.heartbeat(one, 7) is ErrorCode.illegal_generation
    assert h.heartbeat("nobody", 1) is ErrorCode.unknown_member_id
    assert h.heartbeat("new", 2) is ErrorCode.unknown_member_id
    assert h.synced(h.sync_parked(one, 1)).error is ErrorCode.rebalance_in_progress
    assert h.synced(h.sync_parked(one, 7)).error is ErrorCode.illegal_generation
    assert h.commit(1, member_id=one, generation=1, version=8) is ErrorCode.none
    assert h.commit(1, member_id=one, generation=2, version=8) is ErrorCode.illegal_generation
    answer = h.join_answer(h.join_parked(protocols=(("other", subscription("t")),)))
    assert answer is not None
    assert answer.error is ErrorCode.inconsistent_group_protocol
    answer = h.join_answer(h.join_parked(protocols=(("range", b"\xff"),)))
    assert answer is not None
    assert answer.error is ErrorCode.inconsistent_group_protocol


def test_classic_members_leave_a_consumer_group_one_by_one_or_together() -> None:
    h = Harness(t=2)
    one, two = classic_consumers(h, {"t": [0]}, {"t": [1]})
    h.enter("new", "t")
    unknown = ErrorCode.unknown_member_id
    results = h.leave((one, None), (one, None), ("new", None), (two, None), ("", "nobody"))
    assert results == [ErrorCode.none, unknown, unknown, ErrorCode.none, unknown]
    assert h.beat("new", 2).assignment == partitions(t=[0, 1])


def test_members_that_wait_in_a_rebalance_are_told_of_the_upgrade() -> None:
    h = Harness(t=2)
    one, two = classic_consumers(h, {"t": [0]}, {"t": [1]})
    token = h.join_parked(one, protocols=(("range", subscription("t", version=1)),))
    assert h.join_answer(token) is None
    h.enter("new", "t")
    answer = h.join_answer(token)
    assert answer is not None
    assert answer.error is ErrorCode.rebalance_in_progress
    h.advance(5_000)
    assert two in h.consumer().members


def test_when_the_last_new_member_goes_the_group_is_classic_again() -> None:
    h = Harness(t=2)
    (one,) = classic_consumers(h, {"t": [0, 1]})
    h.enter("new", "t")
    generation = rejoin(h, one, {"t": [0]})
    assignment(h, one, generation)
    h.beat("new", 2)
    h.beat("new", LEAVE_EPOCH)
    assert h.classic().state is ClassicState.PREPARING
    assert (EpochKey(GROUP), None) in h.records
    assert h.heartbeat(one, generation) is ErrorCode.rebalance_in_progress
    token = h.join_parked(one, protocols=(("range", subscription("t", version=1)),))
    assert h.joined(token).leader == one
    assert h.joined(token).generation == generation + 1


@pytest.mark.parametrize("failovers_count", [1, 2])
def test_a_downgraded_group_goes_on_with_its_rebalance_after_a_failover(failovers_count: int) -> None:
    """Its member has a part; what the one that left had is read by nobody before they have rebalanced."""
    h = Harness(t=2)
    (one,) = classic_consumers(h, {"t": [0, 1]})
    h.enter("new", "t")
    generation = rejoin(h, one, {"t": [0]})
    h.beat("new", LEAVE_EPOCH)
    for _ in range(failovers_count):
        h.fail_over()
    assert h.classic().generation == generation
    assert h.heartbeat(one, generation) is ErrorCode.rebalance_in_progress
    token = h.join_parked(one, protocols=(("range", subscription("t", version=1, owned={"t": [0]})),))
    assert (h.joined(token).leader, h.joined(token).generation) == (one, generation + 1)
    h.sync_parked(one, generation + 1, {one: embedded.write_assignment({"t": [0, 1]}, 1)})
    h.fail_over()
    assert h.classic().state is ClassicState.STABLE
    assert h.heartbeat(one, generation + 1) is ErrorCode.none


def test_a_downgraded_group_rebalances_if_a_member_waits_for_what_it_should_have() -> None:
    h = Harness(t=2)
    h.enter("new", "t", instance_id="i")
    waiting = h.joined(h.join_parked(protocols=(("range", subscription("t", version=1)),))).member_id
    assert assignment(h, waiting, 2) == {}
    h.beat("new", LEAVE_STATIC_EPOCH, instance_id="i")
    h.join_parked(instance_id="i", protocols=(("range", subscription("t", version=1)),))
    assert h.classic().generation == 2
    assert h.heartbeat(waiting, 2) is ErrorCode.rebalance_in_progress


def test_who_waits_for_a_rebalance_that_was_begun_again_still_has_what_it_had() -> None:
    """A cooperative member reads on while others join; a second rebalance throws the assignments of the first away."""
    h = Harness(t=2)
    (one,) = classic_consumers(h, {"t": [0, 1]})
    cooperative = (("range", subscription("t", version=1, owned={"t": [0, 1]})),)
    none_yet = (("range", subscription("t", version=1)),)
    h.join_parked(protocols=none_yet)
    h.join_parked(one, protocols=cooperative)
    assert h.classic().state is ClassicState.COMPLETING
    h.join_parked(protocols=none_yet)
    assert h.classic().state is ClassicState.PREPARING
    assert h.enter("new", "t").assignment == {}
    assert h.consumer().members[one].assigned == partitions(t=[0, 1])


def test_who_is_letting_go_of_a_partition_still_has_it() -> None:
    """A cooperative member has heard that it keeps one of two, and reads the other until its callback is done."""
    h = Harness(t=2)
    (one,) = classic_consumers(h, {"t": [0, 1]})
    joined = h.join_parked(protocols=(("range", subscription("t", version=1)),))
    h.join_parked(one, protocols=(("range", subscription("t", version=1, owned={"t": [0, 1]})),))
    two = h.joined(joined).member_id
    written = {one: embedded.write_assignment({"t": [0]}, 1), two: embedded.write_assignment({}, 1)}
    for member_id in (two, one):
        h.sync_parked(member_id, 2, written)
    assert h.enter("new", "t").assignment == {}
    assert h.consumer().members[one].assigned == partitions(t=[0, 1])


def test_the_group_is_downgraded_when_the_last_new_member_times_out() -> None:
    h = Harness(t=2)
    (one,) = classic_consumers(h, {"t": [0, 1]})
    h.enter("new", "t")
    generation = rejoin(h, one, {"t": [0]})
    assignment(h, one, generation)
    for _ in range(6):
        h.heartbeat(one, generation)
        h.advance(9_000)
    assert h.classic().state is ClassicState.PREPARING


def test_a_static_member_goes_back_to_the_classic_protocol_and_takes_the_group_along() -> None:
    h = Harness(t=1)
    h.enter("new", "t", instance_id="i")
    h.beat("new", LEAVE_STATIC_EPOCH, instance_id="i")
    token = h.join_parked(instance_id="i", protocols=(("range", subscription("t", version=1)),))
    answer = h.joined(token)
    assert h.classic().state is ClassicState.STABLE
    synced = h.synced(h.sync_parked(answer.member_id, answer.generation, instance_id="i"))
    assert embedded.read_assignment(synced.assignment) == {"t": [0]}


def test_a_static_classic_member_moves_to_the_new_protocol() -> None:
    h = Harness(t=2)
    token = h.join_parked(instance_id="i", protocols=(("range", subscription("t", version=1)),))
    h.advance(3_000)
    old = h.joined(token).member_id
    h.sync_parked(old, 1, {old: embedded.write_assignment({"t": [0, 1]}, 1)}, instance_id="i")
    answer = h.enter("new", "t", instance_id="i")
    assert answer.assignment == partitions(t=[0, 1])
    assert list(h.consumer().members) == ["new"]
    assert h.heartbeat(old, 1, "i") is ErrorCode.fenced_instance_id


@pytest.mark.parametrize("policy", ["disabled", "downgrade"])
def test_a_group_with_members_is_not_upgraded_where_that_is_not_allowed(policy: str) -> None:
    h = Harness(GroupSettings(group_consumer_migration_policy=policy), t=1)
    (one,) = classic_consumers(h, {"t": [0]})
    with refused(ErrorCode.group_id_not_found):
        h.enter("new", "t")
    assert h.heartbeat(one, 1) is ErrorCode.none


@pytest.mark.parametrize("policy", ["disabled", "upgrade"])
def test_a_group_of_classic_members_stays_a_consumer_group_where_downgrades_are_not_allowed(
    policy: str,
) -> None:
    h = Harness(GroupSettings(group_consumer_migration_policy=policy), t=1)
    h.enter("new", "t")
    h.join_parked()
    h.beat("new", LEAVE_EPOCH)
    assert h.consumer().classic_members_count() == 1


def test_groups_that_are_no_consumers_are_not_upgraded() -> None:
    h = Harness(t=1)
    h.stable_group(1, protocol_type="connect", protocols=(("x", b""),))
    with refused(ErrorCode.group_id_not_found):
        h.enter("new", "t")


def test_a_group_whose_subscriptions_cannot_be_read_is_not_upgraded() -> None:
    h = Harness(t=1)
    ids = h.stable_group(1, protocols=(("range", b"\xff"),))
    with refused(ErrorCode.group_id_not_found):
        h.enter("new", "t")
    assert h.heartbeat(ids[0], 1) is ErrorCode.none


def test_a_partition_that_clients_assigned_twice_has_one_holder() -> None:
    h = Harness(t=2)
    one, two = classic_consumers(h, {"t": [0, 1]}, {"t": [1]})
    h.enter("new", "t")
    assert h.consumer().members[one].assigned == partitions(t=[0, 1])
    assert h.consumer().members[two].assigned == {}


def test_what_was_refused_has_written_nothing() -> None:
    h = Harness(GroupSettings(group_consumer_max_size=1), t=1)
    classic_consumers(h, {"t": [0]})
    written = len(h.records)
    with refused(ErrorCode.group_max_size_reached):
        h.enter("new", "t")
    assert len(h.records) == written
    assert h.classic().state is ClassicState.STABLE
