"""KIP-848: joining, epochs, subscriptions, regular expressions, sessions, leaving."""

from __future__ import annotations

import pytest

from sexton.coordinators import patterns
from sexton.coordinators.groups.consumer import ConsumerGroup
from sexton.coordinators.groups.messages import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    ConsumerHeartbeatAnswer,
    ConsumerHeartbeatRequest,
)
from sexton.coordinators.groups.records import EpochKey, Partitions, RegexKey
from sexton.coordinators.groups.states import ConsumerState
from sexton.protocol.errors import ErrorCode
from sexton.settings.broker import GroupSettings
from sexton.settings.group import GroupConfig
from tests.coordinators.groups.harness import CLIENT, GROUP, Harness, partitions, refused


def test_the_first_member_gets_everything() -> None:
    h = Harness(t=3, u=2)
    answer = h.enter("a", "t", "u")
    assert (answer.member_id, answer.member_epoch, answer.heartbeat_interval_ms) == ("a", 1, 5_000)
    assert answer.assignment == partitions(t=range(3), u=range(2))
    assert h.consumer().state is ConsumerState.STABLE


def test_an_old_client_is_given_an_id_and_a_new_one_must_bring_its_own() -> None:
    h = Harness(t=1)
    assert len(h.enter("", "t", requires_member_id=False).member_id) == 22
    with refused(ErrorCode.invalid_request):
        h.enter("", "t")


def test_a_heartbeat_without_news_is_answered_without_an_assignment() -> None:
    h = Harness(t=1)
    h.enter("a", "t")
    written = len(h.records)
    answer = h.beat("a", 1)
    assert (answer.member_epoch, answer.assignment) == (1, None)
    assert len(h.records) == written


def test_another_assignment_is_told_until_it_was_named() -> None:
    """After a request that timed out librdkafka goes on as if it had had an answer."""
    h = Harness(t=2)
    h.enter("a", "t")
    h.enter("b", "t")
    for owned in (partitions(t=range(2)), None, partitions(t=range(2)), None):
        assert h.beat("a", 1, owned=owned).assignment == partitions(t=[0])
    assert h.beat("a", 1, owned=partitions(t=[0])).assignment is None
    assert h.beat("a", 2).assignment is None
    assert h.beat("b", 2).assignment == partitions(t=[1])  # lost
    assert h.beat("b", 2).assignment == partitions(t=[1])
    assert h.beat("b", 2, owned=partitions(t=[1])).assignment is None
    assert h.beat("b", 2).assignment is None


def test_another_coordinator_too_tells_an_assignment_until_it_was_named() -> None:
    """The answer of the one before may be lost, and its client goes on as if it had had it."""
    h = Harness(t=2)
    h.enter("a", "t")
    h.enter("b", "t")
    h.beat("a", 1, owned=partitions(t=[0, 1]))
    h.beat("a", 1, owned=partitions(t=[0]))
    assert h.beat("b", 2).assignment == partitions(t=[1])  # lost
    h.fail_over()
    for _ in range(2):
        assert h.beat("b", 2).assignment == partitions(t=[1])
    assert h.beat("b", 2, owned=partitions(t=[1])).assignment is None
    assert h.beat("b", 2).assignment is None


def test_a_confirmation_that_comes_again_is_answered_again() -> None:
    h = Harness(GroupSettings(group_consumer_assignors=("range",)), t=1, u=1)
    h.enter("a", "t")
    h.beat("a", 1, owned=partitions(t=[0]))
    h.beat("a", 1, topics=("u",))
    for _ in range(2):  # the first answer is lost
        told = h.beat("a", 1, owned={})
        assert (told.member_epoch, told.assignment) == (2, partitions(u=[0]))


def test_who_confirms_with_the_epoch_before_is_not_to_let_go_of_what_it_has_not_heard_of() -> None:
    """It would find nothing to do, and never confirm: nobody would read that for a whole rebalance timeout."""
    h = Harness(GroupSettings(group_consumer_assignors=("range",)), t=1, u=1)
    h.enter("b", "t")
    h.beat("b", 1, owned=partitions(t=[0]))
    h.beat("b", 1, topics=("u",))
    assert h.beat("b", 1, owned={}).assignment == partitions(u=[0])  # lost
    h.enter("a", "u")
    told = h.beat("b", 1, owned={})
    assert (told.member_epoch, told.assignment) == (2, partitions(u=[0]))
    assert h.beat("b", 2, owned=partitions(u=[0])).assignment == {}
    assert h.beat("b", 2, owned={}).member_epoch == 3
    assert h.beat("a", 3).assignment == partitions(u=[0])


@pytest.mark.parametrize("says", [None, {}])
def test_who_has_not_named_what_it_was_given_is_not_to_let_go_of_just_that(says: Partitions | None) -> None:
    """librdkafka may not have heard of it, or not begun to take it on: what it has would be all that it is told."""
    h = Harness(GroupSettings(group_consumer_assignors=("range",)), t=1)
    h.enter("b", "t")
    h.enter("a", "t")
    for _ in range(2):
        told = h.beat("b", 1, owned=says)
        assert (told.member_epoch, told.assignment) == (1, partitions(t=[0]))
    assert h.beat("b", 1, owned=partitions(t=[0])).assignment == {}
    assert h.beat("b", 1, owned={}).member_epoch == 2
    assert h.beat("a", 2).assignment == partitions(t=[0])
    assert h.consumer().state is ConsumerState.STABLE


def test_who_never_names_what_it_was_given_loses_it_after_its_rebalance_timeout() -> None:
    h = Harness(GroupSettings(group_consumer_assignors=("range",)), t=1)
    h.enter("b", "t", rebalance_timeout_ms=60_000)
    h.enter("a", "t")
    for _ in range(12):
        assert h.beat("b", 1).assignment == partitions(t=[0])
        h.beat("a", 2)
        h.advance(5_000)
    with refused(ErrorCode.unknown_member_id):
        h.beat("b", 1)
    assert h.beat("a", 2).assignment == partitions(t=[0])


def test_who_cannot_take_it_on_any_more_lets_go_of_it_unnamed() -> None:
    """It may never be able to name that: clients look for the topics that they subscribe to."""
    for is_deleted in (True, False):
        h = Harness(t=1, u=1)
        h.enter("b", "t")
        if is_deleted:
            h.topics.delete("t")
        told = h.beat("b", 1) if is_deleted else h.beat("b", 1, topics=("u",))
        assert told.assignment == {}


def test_a_full_heartbeat_is_answered_with_the_assignment() -> None:
    h = Harness(t=1)
    h.enter("a", "t")
    answer = h.beat("a", 1, topics=("t",), owned=partitions(t=[0]), rebalance_timeout_ms=60_000)
    assert answer.assignment == partitions(t=[0])


def test_a_second_member_gets_its_part_only_when_the_first_has_let_go() -> None:
    h = Harness(t=4)
    h.enter("a", "t")
    second = h.enter("b", "t")
    assert (second.member_epoch, second.assignment) == (2, {})
    assert h.consumer().state is ConsumerState.RECONCILING
    told = h.beat("a", 1, owned=partitions(t=range(4)))
    assert told.member_epoch == 1  # not before it has let go
    assert told.assignment == partitions(t=[0, 1])
    assert h.beat("b", 2).assignment is None
    confirmed = h.beat("a", 1, owned=partitions(t=[0, 1]))
    assert confirmed.member_epoch == 2
    assert h.beat("b", 2).assignment == partitions(t=[2, 3])
    assert h.consumer().state is ConsumerState.STABLE


def test_a_member_that_does_not_say_what_it_owns_may_own_everything() -> None:
    h = Harness(t=2)
    h.enter("a", "t")
    h.enter("b", "t")
    h.beat("a", 1)
    assert h.beat("a", 1).member_epoch == 1
    assert h.beat("b", 2).assignment is None


def test_a_member_that_does_not_let_go_in_time_is_removed() -> None:
    h = Harness(t=2)
    h.enter("a", "t", rebalance_timeout_ms=20_000)
    h.enter("b", "t")
    h.beat("a", 1, owned=partitions(t=[0, 1]))
    for _ in range(4):
        h.advance(4_999)
        h.beat("a", 1, owned=partitions(t=[0, 1]))
        h.beat("b", 2)
    h.advance(4)
    with refused(ErrorCode.unknown_member_id):
        h.beat("a", 1)
    assert h.beat("b", 2).assignment == partitions(t=[0, 1])


def test_a_silent_member_loses_its_partitions_after_the_session_timeout() -> None:
    h = Harness(t=2)
    h.enter("a", "t")
    h.enter("b", "t")
    h.advance(44_999)
    h.beat("b", 2)
    h.advance(1)
    with refused(ErrorCode.unknown_member_id):
        h.beat("a", 1)
    assert h.beat("b", 2).assignment == partitions(t=[0, 1])


def test_a_member_that_leaves_frees_its_partitions_at_once() -> None:
    h = Harness(t=2)
    h.enter("a", "t")
    h.enter("b", "t")
    h.beat("a", 1, owned=partitions(t=[0, 1]))
    h.beat("a", 1, owned=partitions(t=[0]))
    answer = h.beat("a", LEAVE_EPOCH)
    assert (answer.member_id, answer.member_epoch) == ("a", LEAVE_EPOCH)
    assert h.beat("b", 2).assignment == partitions(t=[0, 1])
    with refused(ErrorCode.unknown_member_id):
        h.beat("a", LEAVE_EPOCH)


def test_an_empty_group_stays_with_its_epoch() -> None:
    h = Harness(t=2)
    h.enter("a", "t")
    h.beat("a", LEAVE_EPOCH)
    assert (h.consumer().state, h.consumer().epoch) == (ConsumerState.EMPTY, 2)
    assert h.enter("b", "t").member_epoch == 3


def test_the_answer_that_told_the_epoch_may_have_been_lost() -> None:
    h = Harness(t=2)
    h.enter("a", "t")
    assert h.enter("a", "t").member_epoch == 1
    h.beat("a", 1, topics=("t", "u"), owned=partitions(t=[0, 1]))
    assert h.consumer().epoch == 2
    assert h.beat("a", 1, owned=partitions(t=[0, 1])).member_epoch == 2  # one epoch behind, and owns no more
    with refused(ErrorCode.fenced_member_epoch):
        h.beat("a", 1)  # does not say what it owns
    with refused(ErrorCode.fenced_member_epoch):
        h.beat("a", 1, owned=partitions(t=[0, 1, 2]))


def test_a_member_with_another_epoch_is_fenced() -> None:
    h = Harness()
    h.enter("a", "t")
    with refused(ErrorCode.fenced_member_epoch):
        h.beat("a", 2)
    h.beat("a", 1, topics=("u",), owned={})
    h.beat("a", 2, topics=("t",), owned={})
    with refused(ErrorCode.fenced_member_epoch):
        h.beat("a", 1, owned={})


@pytest.mark.parametrize("beats_count", [0, 1, 2])
def test_a_fenced_member_joins_again_under_its_id_and_hears_all_that_it_holds(beats_count: int) -> None:
    """Java's client and librdkafka keep their id. Nothing is free by that: the request may be a late one, of a client
    that has long joined, and reads."""
    h = Harness(t=3)
    h.enter("a", "t")
    h.beat("a", 1, owned=partitions(t=range(3)))
    h.enter("b", "t")
    for owned in ((range(3)), (range(2)))[:beats_count]:
        h.beat("a", 1, owned=partitions(t=owned))
    held = partitions(t=range(3) if beats_count < 2 else range(2))
    epoch = 1 if beats_count < 2 else 2
    told = h.enter("a", "t")
    assert (told.member_epoch, told.assignment) == (epoch, held)
    if beats_count < 2:
        assert h.beat("b", 2).assignment is None
        assert h.beat("a", 1, owned=held).assignment == partitions(t=range(2))
    told = h.beat("a", epoch, owned=partitions(t=range(2)))
    assert told.member_epoch == 2
    assert h.beat("b", 2).assignment == partitions(t=[2])
    assert h.consumer().state is ConsumerState.STABLE


def test_what_a_member_does_not_name_is_not_free_before_it_was_told() -> None:
    """It was given everything and has not begun to read it: it might, while another gets a part."""
    h = Harness(t=2)
    h.enter("a", "t")
    h.enter("b", "t")
    told = h.beat("a", 1, owned={})
    assert told.member_epoch == 1
    assert h.beat("b", 2).assignment is None
    assert h.beat("a", 1, owned={}).member_epoch == 2
    assert h.beat("b", 2).assignment == partitions(t=[1])


def missed_answer() -> Harness:
    """`c` was given the only partition at epoch 3 and has not heard of it; `a` is to have it now."""
    h = Harness(GroupSettings(group_consumer_assignors=("range",)), t=1)
    h.enter("b", "t")
    assert h.enter("c", "t").assignment == {}
    h.beat("b", LEAVE_EPOCH)
    assert h.beat("c", 2).assignment == partitions(t=[0])  # lost
    assert h.enter("a", "t").assignment == {}
    return h


def full(h: Harness, member_id: str, epoch: int, owned: Partitions) -> ConsumerHeartbeatAnswer:
    return h.beat(member_id, epoch, topics=("t",), owned=owned, rebalance_timeout_ms=60_000)


def again(h: Harness, owned: Partitions) -> ConsumerHeartbeatAnswer:
    return full(h, "c", 2, owned)


def test_a_member_that_missed_what_it_was_given_hears_it_again_before_it_must_let_go() -> None:
    """It says what it owns only after a failed request and when that has changed, as Java's and librdkafka do. Told at
    once that it has nothing, it would have nothing to say, and nobody would read the partition until its time to let
    go is over."""
    h = missed_answer()
    told = again(h, {})
    assert (told.member_epoch, told.assignment) == (3, partitions(t=[0]))
    told = h.beat("c", 3, owned=partitions(t=[0]))
    assert (told.member_epoch, told.assignment) == (3, {})
    assert h.beat("a", 4).assignment is None
    assert h.beat("c", 3, owned={}).member_epoch == 4
    assert h.beat("a", 4).assignment == partitions(t=[0])
    h.beat("c", 4)
    h.advance(40_000)
    assert "c" in h.consumer().members


def test_a_member_that_misses_every_answer_does_not_keep_others_waiting_for_ever() -> None:
    h = missed_answer()
    for _ in range(6):
        assert again(h, {}).member_epoch == 3
        last = h.beat("a", 4)
        h.advance(10_000)
    assert last.assignment is None
    assert "c" not in h.consumer().members
    assert h.beat("a", 4).assignment == partitions(t=[0])


def test_a_member_that_has_heard_at_last_is_not_removed_for_having_been_late() -> None:
    """What it still waits for belongs to another that is slow: nothing is asked of it."""
    h = Harness(GroupSettings(group_consumer_assignors=("range",)), u=1, v=1)
    h.enter("a", "u")
    h.enter("b", "v")
    h.enter("c", "u", "v")
    h.beat("a", 1, topics=("t",), owned=partitions(u=[0]))
    h.beat("b", 2, topics=("t",), owned=partitions(v=[0]))
    assert h.beat("c", 3).assignment is None
    h.beat("a", 1, owned={})
    assert h.beat("c", 5).assignment == partitions(u=[0])  # lost
    told = h.beat("c", 5, topics=("u", "v"), owned={}, rebalance_timeout_ms=60_000)
    assert told.assignment == partitions(u=[0])
    assert h.beat("c", 5, owned=partitions(u=[0])).assignment is None
    for _ in range(5):
        h.advance(20_000)
        h.beat("c", h.consumer().members["c"].epoch)
    assert h.consumer().members["c"].assigned == partitions(u=[0], v=[0]), "the slow one was removed"


def test_a_member_that_repeats_everything_when_it_lets_go_is_believed() -> None:
    """franz-go says what it owns in full requests only. Taken for a member that had missed an answer, it was given
    again and again what it had let go of, and its group never came to rest."""
    h = Harness(t=2)
    h.enter("a", "t")
    full(h, "a", 1, partitions(t=[0, 1]))
    h.enter("b", "t")
    assert h.beat("a", 1).assignment == partitions(t=[0])
    told = full(h, "a", 1, partitions(t=[0]))
    assert (told.member_epoch, told.assignment) == (2, partitions(t=[0]))
    assert h.beat("b", 2).assignment == partitions(t=[1])


def test_after_a_failover_a_member_that_repeats_everything_is_believed_the_second_time() -> None:
    """Who has received what is not recorded."""
    h = Harness(t=2)
    h.enter("a", "t")
    full(h, "a", 1, partitions(t=[0, 1]))
    h.enter("b", "t")
    assert h.beat("a", 1).assignment == partitions(t=[0])
    h.fail_over()
    told = full(h, "a", 1, partitions(t=[0]))
    assert (told.member_epoch, told.assignment) == (1, partitions(t=[0, 1]))
    assert not h.beat("b", 2).assignment
    assert full(h, "a", 1, partitions(t=[0, 1])).assignment == partitions(t=[0])
    assert full(h, "a", 1, partitions(t=[0])).member_epoch == 2
    assert h.beat("b", 2).assignment == partitions(t=[1])


def test_unknown_groups_and_members_are_refused() -> None:
    h = Harness(t=1)
    for epoch in (1, LEAVE_EPOCH):
        with refused(ErrorCode.group_id_not_found):
            h.beat("a", epoch)
    h.enter("a", "t")
    for epoch in (1, LEAVE_EPOCH):
        with refused(ErrorCode.unknown_member_id):
            h.beat("b", epoch)


@pytest.mark.parametrize(
    "wrong",
    [
        {"group": ""},
        {"instance_id": ""},
        {"rebalance_timeout_ms": -1},
        {"owned": None},
        {"owned": partitions(t=[0])},
        {"topics": None},
    ],
)
def test_a_join_must_say_everything(wrong: dict[str, object]) -> None:
    h = Harness(t=1)
    with refused(ErrorCode.invalid_request):
        h.enter("a", "t", **wrong)
    assert h.records == []


def test_requests_that_make_no_sense_are_refused() -> None:
    h = Harness(t=1)
    with refused(ErrorCode.invalid_request):
        h.beat("a", -3)
    with refused(ErrorCode.invalid_request):
        h.beat("", 1)
    with refused(ErrorCode.invalid_request):
        h.beat("a", LEAVE_STATIC_EPOCH)
    with refused(ErrorCode.unsupported_assignor):
        h.enter("a", "t", server_assignor="lucky")


def test_a_full_group_refuses_new_members_and_keeps_its_own() -> None:
    h = Harness(GroupSettings(group_consumer_max_size=1), t=1)
    h.enter("a", "t")
    with refused(ErrorCode.group_max_size_reached):
        h.enter("b", "t")
    assert h.beat("a", 1).member_epoch == 1


def test_a_changed_subscription_makes_a_new_epoch() -> None:
    h = Harness(t=1, u=1)
    h.enter("a", "t")
    answer = h.beat("a", 1, topics=("u",), owned=partitions(t=[0]))
    assert (h.consumer().epoch, answer.assignment) == (2, {})
    assert h.beat("a", 1, owned={}).assignment == partitions(u=[0])
    h.beat("a", 2, topics=("u",), owned=partitions(u=[0]))
    assert h.consumer().epoch == 2


def test_a_topic_that_does_not_exist_yet_is_assigned_when_it_does() -> None:
    h = Harness()
    assert h.enter("a", "t").assignment == {}
    h.topics.set("t", 2)
    answer = h.beat("a", 1)
    assert (answer.member_epoch, answer.assignment) == (2, partitions(t=[0, 1]))


def test_new_partitions_are_assigned_and_those_of_a_deleted_topic_taken_away() -> None:
    h = Harness(t=1, u=1)
    h.enter("a", "t", "u")
    h.topics.set("t", 2)
    assert h.beat("a", 1).assignment == partitions(t=[0, 1], u=[0])
    h.topics.delete("u")
    assert h.beat("a", 2, owned=partitions(t=[0, 1], u=[0])).assignment == partitions(t=[0, 1])


def test_other_topics_do_not_disturb_a_group() -> None:
    h = Harness(t=1)
    h.enter("a", "t")
    h.topics.set("other", 5)
    assert h.beat("a", 1).member_epoch == 1


def test_topics_that_changed_during_a_failover_are_noticed() -> None:
    h = Harness(t=1)
    h.enter("a", "t")
    h.topics.counts["t"] = 3
    h.fail_over()
    assert h.beat("a", 1).assignment == partitions(t=[0, 1, 2])


def test_a_failover_alone_changes_nothing() -> None:
    h = Harness(t=3)
    h.enter("a", "t")
    written = len(h.records)
    h.fail_over()
    assert h.beat("a", 1, owned=partitions(t=range(3))).assignment is None
    assert len(h.records) == written


def test_after_a_failover_members_have_a_whole_session_and_a_whole_time_to_let_go() -> None:
    h = Harness(t=2)
    h.enter("a", "t", rebalance_timeout_ms=30_000)
    h.enter("b", "t")
    h.beat("a", 1, owned=partitions(t=[0, 1]))
    h.advance(29_000)
    h.fail_over()
    h.advance(29_999)
    h.beat("a", 1)
    h.advance(1)
    with refused(ErrorCode.unknown_member_id):
        h.beat("a", 1)


def test_a_regular_expression_subscribes_to_the_topics_that_match() -> None:
    h = Harness(orders_eu=1, orders_us=1, other=1)
    answer = h.beat("a", JOIN_EPOCH, regex="orders_.*", owned={}, rebalance_timeout_ms=1_000)
    assert answer.assignment == partitions(orders_eu=[0], orders_us=[0])
    h.topics.set("orders_asia", 1)
    assert h.beat("a", 1).assignment == partitions(orders_eu=[0], orders_us=[0], orders_asia=[0])


def test_names_and_a_regular_expression_add_up() -> None:
    h = Harness(a=1, b=1, c=1)
    answer = h.beat("m", JOIN_EPOCH, regex="b|d", topics=("a",), owned={}, rebalance_timeout_ms=1_000)
    assert answer.assignment == partitions(a=[0], b=[0])


def test_an_invalid_regular_expression_is_refused_and_changes_nothing() -> None:
    h = Harness(a=1)
    with refused(ErrorCode.invalid_regular_expression):
        h.beat("m", JOIN_EPOCH, regex="(", owned={}, rebalance_timeout_ms=1_000)
    assert h.records == []


def test_a_regular_expression_that_nobody_uses_is_forgotten() -> None:
    h = Harness(a=1)
    h.beat("m", JOIN_EPOCH, regex="a", owned={}, rebalance_timeout_ms=1_000)
    h.beat("n", JOIN_EPOCH, regex="a", owned={}, rebalance_timeout_ms=1_000)
    h.beat("m", LEAVE_EPOCH)
    assert list(h.consumer().regexes) == ["a"]
    h.beat("n", 2, regex="b", owned={})
    assert (RegexKey(GROUP, "a"), None) in h.records
    h.beat("n", 4, regex="", topics=("a",), owned={})
    assert h.consumer().regexes == {}


def test_who_cannot_confirm_because_nothing_can_be_recorded_has_its_whole_rebalance_timeout_afterwards() -> None:
    h = Harness(t=2)
    h.enter("a", "t", rebalance_timeout_ms=20_000)
    h.beat("a", 1, owned=partitions(t=[0, 1]))
    h.enter("b", "t", rebalance_timeout_ms=20_000)
    left = h.beat("a", 1).assignment
    assert left is not None
    confirming = ConsumerHeartbeatRequest(GROUP, "a", 1, CLIENT, owned=left)
    for _ in range(5):
        h.now_ms += 5_000  # timers are not looked at meanwhile
        with refused(ErrorCode.coordinator_not_available):
            h.coordinator.consumer_heartbeat(confirming, h.now, can_write=False)
        h.coordinator.consumer_heartbeat(ConsumerHeartbeatRequest(GROUP, "b", 2, CLIENT), h.now, can_write=False)
    h.advance(1_000)
    assert h.beat("a", 1, owned=left).member_epoch == 2
    assert h.beat("b", 2).assignment is not None


def test_an_expression_that_is_taken_no_longer_keeps_its_topics_and_harms_no_other_member(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A version that allowed more has recorded it."""
    h = Harness(a=1, b=1)
    h.beat("m", JOIN_EPOCH, regex="[ab]", owned={}, rebalance_timeout_ms=1_000)
    h.beat("n", JOIN_EPOCH, topics=("a",), owned={}, rebalance_timeout_ms=1_000)
    monkeypatch.setattr(patterns, "LENGTH_MAX", 3)
    patterns.compile_pattern.cache_clear()
    h.fail_over()
    h.topics.set("c", 1)
    h.beat("n", 2)
    h.beat("k", JOIN_EPOCH, topics=("c",), owned={}, rebalance_timeout_ms=1_000)
    assert h.consumer().regexes["[ab]"].topics == ("a", "b")
    with refused(ErrorCode.invalid_regular_expression):
        h.beat("l", JOIN_EPOCH, regex="[ab]", owned={}, rebalance_timeout_ms=1_000)


def test_the_assignor_is_the_one_that_most_members_ask_for() -> None:
    h = Harness(t=3, u=3)
    h.enter("a", "t", "u", server_assignor="range")
    h.enter("b", "t", "u")
    target = h.consumer().target
    assert target["a"] == partitions(t=[0, 1], u=[0, 1])
    assert target["b"] == partitions(t=[2], u=[2])


def test_settings_of_one_group_win_over_the_brokers() -> None:
    h = Harness(t=1)
    h.coordinator.core.own_config_of = lambda group: GroupConfig(consumer_heartbeat_interval_ms=7)
    assert h.enter("a", "t").heartbeat_interval_ms == 7


def test_a_static_member_that_restarts_takes_over_what_it_had() -> None:
    h = Harness(t=2)
    h.enter("a", "t", instance_id="one")
    h.enter("b", "t", instance_id="two")
    h.beat("a", 1, owned=partitions(t=[0, 1]), instance_id="one")
    h.beat("a", 1, owned=partitions(t=[0]), instance_id="one")
    h.beat("b", 2, instance_id="two")
    assert h.beat("b", LEAVE_STATIC_EPOCH, instance_id="two").member_epoch == LEAVE_STATIC_EPOCH
    answer = h.enter("c", "t", instance_id="two")
    assert (answer.member_epoch, answer.assignment) == (2, partitions(t=[1]))
    assert h.consumer().epoch == 2
    with refused(ErrorCode.fenced_instance_id):
        h.beat("b", 2, instance_id="two")


def test_a_static_member_that_does_not_come_back_is_removed_after_its_session() -> None:
    h = Harness(t=1)
    h.enter("a", "t", instance_id="one")
    h.beat("a", LEAVE_STATIC_EPOCH, instance_id="one")
    h.enter("b", "t")
    h.advance(44_999)
    h.beat("b", 2)
    assert "a" in h.consumer().members
    h.advance(1)
    assert h.beat("b", 2).assignment == partitions(t=[0])


def test_an_instance_id_that_is_in_use_cannot_be_taken() -> None:
    h = Harness(t=1)
    h.enter("a", "t", instance_id="one")
    with refused(ErrorCode.unreleased_instance_id):
        h.enter("b", "t", instance_id="one")
    with refused(ErrorCode.unknown_member_id):
        h.beat("b", 1, instance_id="two")


def test_a_static_member_that_missed_the_answer_to_its_join_joins_again() -> None:
    h = Harness(t=1)
    h.enter("a", "t", instance_id="one")
    answer = h.enter("a", "t", instance_id="one")
    assert (answer.member_epoch, answer.assignment) == (1, partitions(t=[0]))
    with refused(ErrorCode.unreleased_instance_id):
        h.enter("b", "t", instance_id="one")


def test_a_static_member_comes_back_under_the_id_that_it_had() -> None:
    h = Harness(t=1)
    h.enter("a", "t", instance_id="one")
    h.beat("a", LEAVE_STATIC_EPOCH, instance_id="one")
    answer = h.enter("a", "t", instance_id="one")
    assert (answer.member_epoch, answer.assignment) == (1, partitions(t=[0]))


def test_a_member_may_leave_with_any_rebalance_timeout() -> None:
    """@platformatic/kafka says 0, which nobody may join with: it would keep its partitions until its session ends."""
    h = Harness(t=2)
    h.enter("a", "t")
    h.beat("a", LEAVE_EPOCH, rebalance_timeout_ms=0, topics=(), owned={})
    assert h.consumer().state is ConsumerState.EMPTY


def test_a_static_member_can_leave_for_good() -> None:
    h = Harness(t=1)
    h.enter("a", "t", instance_id="one")
    h.beat("a", LEAVE_EPOCH, instance_id="one")
    assert h.enter("b", "t", instance_id="one").assignment == partitions(t=[0])


def test_an_empty_classic_group_gives_way_and_keeps_its_offsets() -> None:
    h = Harness(t=1)
    h.stable_group(1, session_timeout_ms=10_000)
    h.advance(10_000)
    h.commit(7)
    assert h.enter("a", "t").assignment == partitions(t=[0])
    h.fail_over()
    assert h.beat("a", 1).member_epoch == 1
    assert h.coordinator.core.offsets.get(GROUP, "t", 0) is not None


def test_an_empty_consumer_group_gives_way_to_a_classic_one() -> None:
    h = Harness(t=1)
    h.enter("a", "t")
    h.beat("a", LEAVE_EPOCH)
    h.stable_group(1)
    assert (EpochKey(GROUP), None) in h.records
    h.fail_over()
    assert len(h.classic().members) == 1


def test_a_member_that_takes_another_instance_id_leaves_nothing_behind_under_the_old_one() -> None:
    h = Harness(t=1)
    h.enter("a", "t", instance_id="i1")
    h.enter("a", "t", instance_id="i2")
    epoch = h.enter("b", "t", instance_id="i1").member_epoch
    assert epoch > 0
    h.beat("a", -1, instance_id="i2")
    assert h.consumer().static_members == {"i1": "b"}
    read = h.replayed().core.groups[GROUP]
    assert isinstance(read, ConsumerGroup)
    assert (read.members, read.static_members) == (h.consumer().members, {"i1": "b"})
