"""Who leads a cloud partition: every broker can, and none holds anything."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from sexton.metadata.cloud_elections import decline_cloud, elect_cloud, hand_over_cloud, restart_cloud
from sexton.ports.metastore import BrokerStatus, PartitionRow
from sexton.types import NO_LEADER
from tests.metadata.rows import brokers, partition, told


def replicas_of(row: PartitionRow | None) -> tuple[int, ...]:
    assert row is not None
    return row.replicas


def test_a_leader_that_is_active_stays() -> None:
    assert elect_cloud(partition(), brokers("AFF")) is None


def test_the_first_active_replica_takes_over_and_all_stay_in_sync() -> None:
    assert told(elect_cloud(partition((1, 3, 2)), brokers("FAA"))) == (3, 6, (1, 3, 2))


def test_any_active_broker_takes_over_where_no_replica_is() -> None:
    row = elect_cloud(partition((1,), isr=(1,)), brokers("FFA"))
    assert told(row) == (3, 6, (3,))
    assert replicas_of(row) == (3,)
    row = elect_cloud(partition((1, 2), isr=(1, 2)), brokers("FFA"))
    assert told(row) == (3, 6, (1, 3))


def test_a_broker_that_stops_leads_until_another_can() -> None:
    assert elect_cloud(partition(), brokers("DFF")) is None
    assert told(elect_cloud(partition(), brokers("DAF"))) == (2, 6, (1, 2, 3))


def test_nobody_leads_when_nobody_is_there_and_the_first_one_back_does() -> None:
    row = elect_cloud(partition(), brokers("FFF"))
    assert told(row) == (NO_LEADER, 6, (1, 2, 3))
    assert row is not None
    assert told(elect_cloud(row, brokers("FFA"))) == (3, 7, (1, 2, 3))


def test_a_broker_that_declines_is_asked_last_and_any_other_may_be_drawn() -> None:
    rng = random.Random(1)
    drawn = {told(decline_cloud(partition((1, 2), isr=(1, 2)), 1, brokers("AAA"), rng)) for _ in range(50)}
    assert drawn == {(2, 6, (2, 1)), (3, 6, (3, 2))}
    assert told(decline_cloud(partition((1,), isr=(1,)), 1, brokers("AAF"), rng)) == (2, 6, (2,))
    assert decline_cloud(partition(), 1, brokers("AFF"), rng) is None
    assert decline_cloud(partition(), 2, brokers("AAA"), rng) is None


def test_a_reassignment_is_done_at_once() -> None:
    moving = replace(partition((3, 2, 1), isr=(1,)), adding=(3,), removing=(1,))
    row = elect_cloud(moving, brokers("AAA"))
    assert told(row) == (3, 6, (3, 2))
    assert row is not None
    assert (row.replicas, row.adding, row.removing) == ((3, 2), (), ())


def test_a_member_that_left_the_isr_is_back_in_it() -> None:
    assert told(elect_cloud(partition(isr=(1,)), brokers("AAA"))) == (1, 5, (1, 2, 3))


def test_a_stopping_broker_leaves_what_it_leads_to_one_that_answers() -> None:
    row = partition()
    assert told(hand_over_cloud(row, 1, brokers("DAA"), {3})) == (3, 6, (1, 2, 3))
    assert hand_over_cloud(row, 1, brokers("DAA"), set()) is None
    assert hand_over_cloud(row, 2, brokers("ADA"), {1, 3}) is None


def test_what_a_former_process_led_is_led_in_another_epoch() -> None:
    assert told(restart_cloud(partition(), 1)) == (1, 6, (1, 2, 3))
    assert restart_cloud(partition(), 2) is None
    assert told(restart_cloud(partition(leader=NO_LEADER), 2)) == (2, 6, (1, 2, 3))


@given(st.text("ADSF-", min_size=3, max_size=5), st.permutations([1, 2, 3]), st.integers(1, 3))
def test_whoever_is_active_leads_and_a_second_look_changes_nothing(statuses: str, order: list[int], count: int) -> None:
    there = brokers(statuses)
    row = partition(tuple(order[:count]), isr=tuple(order[:count]), leader=order[0])
    elected = elect_cloud(row, there) or row
    active = {id_ for id_, broker in there.items() if broker.status is BrokerStatus.ACTIVE}
    assert elected.leader in active or not active
    assert elected.leader == NO_LEADER or elected.leader in elected.replicas
    assert len(elected.replicas) == count
    assert (elected.leader_epoch > row.leader_epoch) == (elected.leader != row.leader)
    assert elect_cloud(elected, there) is None
