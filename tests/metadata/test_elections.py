"""Who leads: each rule, as a small picture of the brokers and what follows from it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sexton.metadata.elections import (
    LogState,
    begin_anew,
    elect,
    elect_on_request,
    elect_preferred,
    give_up,
    hand_over,
    is_needed,
    restart,
)
from sexton.metadata.incarnations import is_missing, known_incarnation, marked_as_missing
from sexton.ports.metastore import BrokerRow, BrokerStatus, PartitionRow
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.types import NO_LEADER, LeaderEpoch
from tests.metadata.rows import STATUSES, broker, brokers, log_id, partition, told

FRESH = log_id(999)
OWN_LOG = log_id(1)


@pytest.mark.parametrize("statuses", ["AAA", "AAD", "AAS", "ADS", "ASS"])
def test_a_leader_that_can_lead_stays(statuses: str) -> None:
    assert elect(partition(), brokers(statuses)) is None


def test_the_first_active_replica_in_order_of_preference_takes_over() -> None:
    assert told(elect(partition((1, 3, 2)), brokers("FAA"))) == (3, 6, (3, 2))
    assert told(elect(partition((1, 3, 2)), brokers("FAS"))) == (2, 6, (3, 2))


def test_a_replica_that_is_not_in_sync_is_not_elected() -> None:
    assert told(elect(partition(isr=(1, 3)), brokers("FAA"))) == (3, 6, (3,))


def test_a_fenced_follower_leaves_the_isr_and_the_leader_epoch_stays() -> None:
    assert told(elect(partition(), brokers("AFA"))) == (1, 5, (1, 3))


def test_a_broker_that_is_not_known_counts_as_fenced() -> None:
    assert told(elect(partition(), brokers("A-A"))) == (1, 5, (1, 3))


def test_the_last_member_stays_in_sync_and_the_partition_is_without_leader_until_it_is_back() -> None:
    row = elect(partition(isr=(1,)), brokers("FAA"))
    assert told(row) == (NO_LEADER, 6, (1,))
    assert row is not None
    assert elect(row, brokers("FAA")) is None
    assert elect(row, brokers("SAA")) is None
    assert told(elect(row, brokers("AAA"))) == (1, 7, (1,))


def test_members_that_are_all_away_all_stay_and_the_first_to_come_back_leads() -> None:
    row = elect(partition(isr=(1, 2)), brokers("FFA"))
    assert told(row) == (NO_LEADER, 6, (1, 2))
    assert row is not None
    assert told(elect(row, brokers("FAA"))) == (2, 7, (2,))


def test_a_fenced_member_stays_while_the_others_have_not_shown_that_their_logs_are_whole() -> None:
    """Were 1 dropped now, and 2 found its disk empty, nobody in sync would have the records."""
    assert told(elect(partition(isr=(1, 2)), brokers("FSA"))) == (NO_LEADER, 6, (1, 2))


def test_a_draining_broker_leads_only_if_there_is_nobody_else() -> None:
    assert told(elect(partition(), brokers("FDA"))) == (3, 6, (2, 3))
    assert told(elect(partition(), brokers("FDS"))) == (2, 6, (2, 3))
    assert told(elect(partition(), brokers("DAA"))) == (2, 6, (1, 2, 3))
    assert elect(partition(), brokers("DDS")) is None


def test_a_starting_leader_keeps_its_place_only_if_nobody_else_can_take_it() -> None:
    assert told(elect(partition(), brokers("SAA"))) == (2, 6, (1, 2, 3))
    assert elect(partition(isr=(1,)), brokers("SAA")) is None
    assert elect(partition(isr=(1, 2)), brokers("SFA")) is None


def test_a_starting_broker_is_not_elected() -> None:
    assert told(elect(partition(isr=(1, 2)), brokers("FSF"))) == (NO_LEADER, 6, (1, 2))


def test_an_unclean_election_happens_only_if_allowed_and_leaves_one_in_sync() -> None:
    row = partition(isr=(1,))
    assert told(elect(row, brokers("FAA"), unclean=True)) == (2, 6, (2,))
    assert told(elect(row, brokers("FFF"), unclean=True)) == (NO_LEADER, 6, (1,))


def test_an_unclean_election_is_not_unclean_while_a_member_is_alive() -> None:
    assert told(elect(partition(), brokers("FAA"), unclean=True)) == (2, 6, (2, 3))


def test_the_preferred_leader_is_elected_if_it_is_in_sync_and_active() -> None:
    assert told(elect_preferred(partition(leader=2), brokers("AAA"))) == (1, 6, (1, 2, 3))
    assert elect_preferred(partition(leader=1), brokers("AAA")) is None
    assert elect_preferred(partition(isr=(2, 3), leader=2), brokers("AAA")) is None
    for statuses in ("SAA", "DAA", "FAA"):
        assert elect_preferred(partition(leader=2), brokers(statuses)) is None


@pytest.mark.parametrize(
    ("row", "statuses", "unclean", "code"),
    [
        (partition(), "AAA", False, ErrorCode.election_not_needed),
        (partition(leader=2), "FAA", False, ErrorCode.preferred_leader_not_available),
        (partition(leader=2), "AAA", True, ErrorCode.election_not_needed),
        (partition(isr=(1,), leader=NO_LEADER), "FSF", True, ErrorCode.eligible_leaders_not_available),
    ],
)
def test_an_election_that_an_operator_asks_for_in_vain_says_why(
    row: PartitionRow, statuses: str, unclean: bool, code: ErrorCode
) -> None:
    with pytest.raises(KafkaError) as refused:
        elect_on_request(row, brokers(statuses), unclean=unclean)
    assert refused.value.code is code


def test_an_operator_gets_the_election_he_asks_for() -> None:
    assert told(elect_on_request(partition(leader=2), brokers("AAA"), unclean=False)) == (1, 6, (1, 2, 3))
    leaderless = partition(isr=(1,), leader=NO_LEADER)
    assert told(elect_on_request(leaderless, brokers("FAA"), unclean=True)) == (2, 6, (2,))


def test_a_broker_that_shuts_down_hands_its_leaderships_over_and_leaves_the_isr() -> None:
    assert told(hand_over(partition(), 1, brokers("DAA"))) == (2, 6, (2, 3))
    assert told(hand_over(partition(), 3, brokers("AAD"))) == (1, 5, (1, 2))


def test_a_broker_that_shuts_down_goes_on_where_nobody_can_take_over() -> None:
    assert hand_over(partition(isr=(1,)), 1, brokers("DAA")) is None
    assert hand_over(partition(isr=(1, 2)), 1, brokers("DSA")) is None
    assert hand_over(partition(isr=(2, 3), leader=2), 1, brokers("DAA")) is None


def test_a_partition_is_handed_over_only_to_one_that_answers() -> None:
    assert told(hand_over(partition(), 1, brokers("DAA"), answering={3})) == (3, 6, (2, 3))
    assert told(hand_over(partition(leader=2), 1, brokers("DAA"), answering={3})) == (2, 5, (2, 3))
    assert hand_over(partition(isr=(1, 2)), 1, brokers("DAA"), answering={3}) is None
    assert hand_over(partition(), 1, brokers("DDD"), answering={2, 3}) is None


@pytest.mark.parametrize(
    ("isr", "statuses", "answering", "expected"),
    [
        ((1, 2), "DAA", {3}, True),
        ((1, 2), "DAA", {2}, False),
        ((1, 2), "DDA", {2}, False),
        ((1, 2), "DFA", set(), False),
        ((1, 2), "DSA", set(), False),
        ((1,), "DAA", set(), False),
        ((2, 3), "DAA", set(), False),
    ],
)
def test_a_broker_that_stops_is_needed_while_others_in_sync_only_seem_to_live(
    isr: tuple[int, ...], statuses: str, answering: set[int], expected: bool
) -> None:
    assert is_needed(partition(isr=isr), 1, brokers(statuses), answering) is expected


# A broker that cannot keep a log


@pytest.mark.parametrize("is_readable", [True, False])
def test_a_broker_whose_disk_failed_leaves_the_partition_to_others(is_readable: bool) -> None:
    assert told(give_up(partition(), 1, brokers("AAA"), is_readable=is_readable)) == (2, 6, (2, 3))
    assert told(give_up(partition(), 3, brokers("AAA"), is_readable=is_readable)) == (1, 5, (1, 2))
    assert give_up(partition(isr=(2, 3)), 1, brokers("AAA"), is_readable=is_readable) is None


def test_a_log_that_nobody_else_has_goes_on_being_read() -> None:
    assert give_up(partition(isr=(1,)), 1, brokers("AAA"), is_readable=True) is None
    assert give_up(partition(isr=(1, 2)), 1, brokers("AFA"), is_readable=True) is None


def test_a_damaged_log_that_nobody_else_has_is_marked_and_leads_again_once_it_is_repaired() -> None:
    row = give_up(partition(isr=(1,)), 1, brokers("AAA"), is_readable=False)
    assert told(row) == (NO_LEADER, 6, (1,))
    assert row is not None
    assert is_missing(row, 1)
    assert give_up(row, 1, brokers("AAA"), is_readable=False) is None
    assert elect(row, brokers("AAA")) is None
    repaired = restart(row, 1, brokers("SAA"), log=LogState.COMPLETE, on_disk=log_id(1), fresh=FRESH)
    assert told(repaired) == (1, 7, (1,))


# A broker that starts


def started(
    row: PartitionRow, statuses: str, log: LogState = LogState.COMPLETE, on_disk: uuid.UUID | None = OWN_LOG
) -> PartitionRow | None:
    return restart(row, 1, brokers(statuses), log=log, on_disk=on_disk, fresh=FRESH)


def test_what_a_broker_led_gets_another_leader_who_is_active() -> None:
    assert told(started(partition(), "SAA")) == (2, 6, (1, 2, 3))


def test_what_only_it_can_lead_it_leads_again_in_a_new_epoch() -> None:
    assert told(started(partition(isr=(1,)), "SAA")) == (1, 6, (1,))
    assert told(started(partition(), "SFS")) == (1, 6, (1, 2, 3))


def test_a_partition_without_leader_gets_one_when_its_in_sync_replica_starts() -> None:
    assert told(started(partition(isr=(1,), leader=NO_LEADER), "SAA")) == (1, 6, (1,))
    assert told(started(partition(isr=(2,), leader=NO_LEADER), "SFA")) is None


def test_a_follower_with_a_whole_log_changes_nothing() -> None:
    assert started(partition(leader=2), "SAA") is None
    assert started(partition(isr=(2, 3), leader=2), "SAA") is None


def test_a_log_that_may_lack_its_end_leaves_the_isr_unless_it_is_the_last() -> None:
    assert told(started(partition(leader=2), "SAA", LogState.UNCERTAIN)) == (2, 5, (2, 3))
    assert told(started(partition(), "SFA", LogState.UNCERTAIN)) == (3, 6, (2, 3))
    assert told(started(partition(isr=(1,)), "SAA", LogState.UNCERTAIN)) == (1, 6, (1,))


def test_a_lost_log_leaves_the_isr_and_becomes_a_new_incarnation() -> None:
    row = started(partition(leader=2), "SAA", LogState.LOST, on_disk=None)
    assert told(row) == (2, 5, (2, 3))
    assert row is not None
    assert row.incarnations == {1: FRESH, 2: log_id(2), 3: log_id(3)}


def test_a_lost_log_that_others_have_is_led_by_one_of_them_or_by_nobody() -> None:
    assert told(started(partition(), "SAA", LogState.LOST, None)) == (2, 6, (2, 3))
    assert told(started(partition(isr=(1, 2)), "SFA", LogState.LOST, None)) == (NO_LEADER, 6, (2,))


def test_a_lost_log_out_of_sync_is_only_a_new_incarnation() -> None:
    row = started(partition(isr=(2,), leader=2), "SAA", LogState.LOST, None)
    assert row == replace(partition(isr=(2,), leader=2), incarnations={1: FRESH, 2: log_id(2), 3: log_id(3)})


def lost_for_good() -> PartitionRow:
    row = started(partition(isr=(1,)), "SAA", LogState.LOST, on_disk=None)
    assert row is not None
    return row


def test_the_last_in_sync_log_that_is_lost_leaves_the_partition_without_leader_until_an_operator_decides() -> None:
    row = lost_for_good()
    assert told(row) == (NO_LEADER, 6, (1,))
    assert is_missing(row, 1)
    for statuses in ("AAA", "AFF", "DAA"):
        assert elect(row, brokers(statuses)) is None
        assert elect_preferred(row, brokers(statuses)) is None
    # Another start, with an empty disk or with some other log, changes nothing: not even if all seems well there.
    for on_disk in (None, FRESH, marked_as_missing(log_id(1))):
        assert started(row, "SAA", LogState.COMPLETE, on_disk) is None


def test_a_log_that_turns_up_again_is_recognized_and_leads() -> None:
    row = started(lost_for_good(), "SAA", LogState.LOST, on_disk=log_id(1))
    assert told(row) == (1, 7, (1,))
    assert row is not None
    assert row.incarnations[1] == log_id(1) == known_incarnation(row, 1)


def test_a_forced_election_prefers_a_replica_that_has_something() -> None:
    assert told(elect(lost_for_good(), brokers("AAA"), unclean=True)) == (2, 7, (2,))


def test_a_forced_election_of_the_lost_log_lets_it_start_from_nothing() -> None:
    row = elect(lost_for_good(), brokers("AFF"), unclean=True)
    assert told(row) == (1, 7, (1,))
    assert row is not None
    assert not is_missing(row, 1)
    assert row.incarnations[1] != log_id(1), "what it had is forgotten, even if it turns up again"
    assert row == elect(lost_for_good(), brokers("AFF"), unclean=True), "two who decide the same write the same"
    assert started(row, "SFF", LogState.COMPLETE, on_disk=row.incarnations[1]) == replace(
        row, leader_epoch=LeaderEpoch(8)
    )


def test_a_replica_that_never_started_learns_nothing_new_and_stays_in_sync() -> None:
    row = partition(leader=2, incarnations={})
    assert started(row, "SAA", LogState.COMPLETE, on_disk=None) is None


# What holds for all of them

BROKER_IDS = (1, 2, 3, 4)


@st.composite
def situations(draw: st.DrawFn) -> tuple[PartitionRow, Mapping[int, BrokerRow]]:
    replicas = draw(st.permutations(BROKER_IDS).map(lambda ids: ids[:3]))
    isr = draw(st.lists(st.sampled_from(replicas), min_size=1, unique=True))
    leader = draw(st.sampled_from([*isr, NO_LEADER]))
    row = partition(replicas, isr, leader)
    for id_ in draw(st.sets(st.sampled_from(replicas), max_size=1)):
        row = replace(row, incarnations={**row.incarnations, id_: marked_as_missing(log_id(id_))})
    known = {id_: broker(id_, draw(st.sampled_from([*STATUSES.values()]))) for id_ in BROKER_IDS}
    return row, known


def check_change(before: PartitionRow, after: PartitionRow | None, known: Mapping[int, BrokerRow]) -> None:
    if after is None:
        return
    assert after != before
    assert after.isr
    assert set(after.isr) <= set(after.replicas)
    assert after.leader == NO_LEADER or after.leader in after.isr
    assert after.partition_epoch == before.partition_epoch
    assert after.leader_epoch in (before.leader_epoch, before.leader_epoch + 1)
    if after.leader != before.leader:
        assert after.leader_epoch == before.leader_epoch + 1
        assert after.leader == NO_LEADER or known[after.leader].status is not BrokerStatus.FENCED


@given(situations())
def test_an_election_keeps_the_leader_in_sync_and_grows_the_epoch_when_it_changes(
    situation: tuple[PartitionRow, Mapping[int, BrokerRow]],
) -> None:
    row, known = situation
    elected = elect(row, known)
    check_change(row, elected, known)
    if elected is not None:
        assert set(elected.isr) <= set(row.isr)
        assert elect(elected, known) is None  # once is enough


@given(situations(), st.sampled_from(LogState), st.sampled_from([None, 1, 2, 3, 4]))
def test_a_start_keeps_the_leader_in_sync_and_is_settled_after_one_step(
    situation: tuple[PartitionRow, Mapping[int, BrokerRow]], log: LogState, on_disk: int | None
) -> None:
    row, known = situation
    own = row.replicas[0]
    known = {**known, own: broker(own, BrokerStatus.STARTING)}
    found = None if on_disk is None else log_id(on_disk)
    after = restart(row, own, known, log=log, on_disk=found, fresh=FRESH)
    check_change(row, after, known)
    if log is LogState.LOST and found != log_id(own):
        assert (after or row).leader != own
    assert after is None or elect(after, known) is None or (after.leader != own)


@given(situations())
def test_handing_over_leaves_the_broker_nothing_to_do(
    situation: tuple[PartitionRow, Mapping[int, BrokerRow]],
) -> None:
    row, known = situation
    own = row.replicas[0]
    after = hand_over(row, own, known)
    check_change(row, after, known)
    if after is not None:
        assert own not in after.isr
        assert after.leader != own


def test_a_forced_election_on_a_compacted_topic_starts_a_generation_in_which_all_others_are_empty() -> None:
    topic = uuid.UUID(int=1)
    ids = {id_: uuid.UUID(int=10 + id_, version=4) for id_ in (1, 2, 3)}
    lost = PartitionRow(topic, 0, (1, 2, 3), (1,), NO_LEADER, LeaderEpoch(5), 7, incarnations=ids)
    all_brokers = {
        id_: BrokerRow(id_, 1, "h", 1, None, uuid.UUID(int=id_), 1000, 0, status)
        for id_, status in ((1, BrokerStatus.FENCED), (2, BrokerStatus.ACTIVE), (3, BrokerStatus.ACTIVE))
    }
    forced = elect_on_request(lost, all_brokers, unclean=True, is_compacted=True)
    assert (forced.leader, forced.isr, forced.generation) == (2, (2,), 1)
    assert forced.incarnations[2] == ids[2], "the leader keeps what it has"
    assert forced.incarnations[1] != ids[1]
    assert forced.incarnations[3] != ids[3]
    assert forced == elect_on_request(lost, all_brokers, unclean=True, is_compacted=True)
    plain = elect_on_request(lost, all_brokers, unclean=True)
    assert (plain.generation, plain.incarnations) == (0, ids)


def test_a_log_that_ends_below_its_watermarks_begins_a_generation_only_if_nobody_else_is_in_sync() -> None:
    ids = {id_: uuid.UUID(int=10 + id_, version=4) for id_ in (1, 2)}
    row = PartitionRow(uuid.UUID(int=1), 0, (1, 2), (1, 2), 1, LeaderEpoch(5), 7, incarnations=ids)
    fresh = uuid.UUID(int=99, version=4)
    left = begin_anew(row, 1, brokers("S-"), fresh=fresh)
    assert (left.leader, left.isr, left.generation) == (NO_LEADER, (2,), 0)
    assert left.incarnations == {1: fresh, 2: ids[2]}
    alone = begin_anew(replace(row, isr=(1,)), 1, brokers("S-"), fresh=fresh)
    assert (alone.leader, alone.isr, alone.leader_epoch, alone.generation) == (1, (1,), 6, 1)
    assert alone.incarnations[1] == ids[1]
    assert alone.incarnations[2] != ids[2]
    other_is_missing = replace(row, incarnations={**ids, 2: marked_as_missing(ids[2])})
    assert begin_anew(other_is_missing, 1, brokers("S-"), fresh=fresh).isr == (1,), "the other has nothing"
    assert begin_anew(other_is_missing, 1, brokers("S-"), fresh=fresh).incarnations[1] == ids[1]


@pytest.mark.parametrize("log", [LogState.UNCERTAIN, LogState.LOST])
def test_nobody_leaves_the_isr_to_a_member_whose_log_is_missing(log: LogState) -> None:
    ids = {1: uuid.UUID(int=11, version=4), 2: marked_as_missing(uuid.UUID(int=12, version=4))}
    row = PartitionRow(uuid.UUID(int=1), 0, (1, 2), (1, 2), NO_LEADER, LeaderEpoch(5), 7, incarnations=ids)
    on_disk, fresh = (ids[1] if log is LogState.UNCERTAIN else None), uuid.UUID(int=99, version=4)
    told = restart(row, 1, brokers("SA"), log=log, on_disk=on_disk, fresh=fresh) or row
    assert told.isr == (1, 2)
    assert told.leader == (1 if log is LogState.UNCERTAIN else NO_LEADER)
    assert is_missing(told, 1) == (log is LogState.LOST)
