"""New topics as rows."""

from __future__ import annotations

import random

import pytest

from sexton.metadata.topics import (
    PARTITIONS_PER_REQUEST_MAX,
    assigned_partition_rows,
    check_topic_name,
    new_partition_rows,
    new_topic_rows,
)
from sexton.protocol.errors import ErrorCode, KafkaError
from tests.metadata.rows import TOPIC, brokers


def rng() -> random.Random:
    return random.Random(11)


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "__consumer_offsets", "x" * 249, "...", "-"])
def test_kafkas_names_are_names(name: str) -> None:
    check_topic_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a b", "a/b", "ä", "a\0", "a,b", "漢", "a\n", "a:b", "a*"])
def test_other_names_are_not(name: str) -> None:
    with pytest.raises(KafkaError) as raised:
        check_topic_name(name)
    assert raised.value.code is ErrorCode.invalid_topic_exception


@pytest.mark.parametrize(("name", "other"), [("a.b", "a_b"), ("a_b", "a.b"), ("a._", "a.."), ("_a_", "._a."[1:])])
def test_names_that_differ_only_in_dots_and_underscores_collide(name: str, other: str) -> None:
    with pytest.raises(KafkaError, match="collides") as raised:
        check_topic_name(name, existing=["unrelated", other])
    assert raised.value.code is ErrorCode.invalid_topic_exception


def test_a_name_does_not_collide_with_itself_or_with_other_names() -> None:
    check_topic_name("a.b", existing=["a.b", "ab", "a-b", "A_b"])


def test_a_topic_has_all_its_partitions_in_sync_and_led_by_the_first_replica() -> None:
    topic, rows = new_topic_rows("orders", 6, 3, brokers("AAA"), rng(), is_internal=True)
    assert (topic.name, topic.is_internal) == ("orders", True)
    assert [row.partition for row in rows] == list(range(6))
    for row in rows:
        assert row.topic_id == topic.topic_id
        assert row.isr == row.replicas
        assert row.leader == row.replicas[0]
        assert (row.leader_epoch, row.partition_epoch, row.adding, row.removing) == (0, 0, (), ())
        assert set(row.incarnations) == set(row.replicas)


def test_replicas_on_brokers_that_are_away_are_not_in_sync() -> None:
    _, rows = new_topic_rows("orders", 4, 3, brokers("AFA"), rng())
    for row in rows:
        assert set(row.isr) == {1, 3}
        assert row.leader in row.isr


def test_ids_are_random_differ_from_each_other_and_follow_from_the_seed() -> None:
    topic, rows = new_topic_rows("orders", 8, 3, brokers("AAA"), rng())
    ids = [topic.topic_id, *(id_ for row in rows for id_ in row.incarnations.values())]
    assert len(set(ids)) == 25
    assert {id_.version for id_ in ids} == {4}
    assert new_topic_rows("orders", 8, 3, brokers("AAA"), rng()) == (topic, rows)


def test_an_operators_assignment_is_taken_as_it_is() -> None:
    topic, rows = new_topic_rows("t", -1, -1, brokers("AFA"), rng(), assignments={1: [2, 1], 0: [3, 2]})
    assert [(row.partition, row.replicas, row.isr, row.leader) for row in rows] == [
        (0, (3, 2), (3,), 3),
        (1, (2, 1), (1,), 1),
    ]
    assert {row.topic_id for row in rows} == {topic.topic_id}


def test_partitions_are_added_from_a_number_on() -> None:
    rows = new_partition_rows(TOPIC.topic_id, 4, 3, 2, brokers("AAA"), rng())
    assert [row.partition for row in rows] == [4, 5, 6]
    rows = assigned_partition_rows(TOPIC.topic_id, 4, {4: [1, 2], 5: [2, 3]}, brokers("AAA"), rng())
    assert [row.replicas for row in rows] == [(1, 2), (2, 3)]


def test_what_cannot_be_made_is_refused_with_kafkas_codes() -> None:
    wrong: list[tuple[ErrorCode, str, int, int]] = [
        (ErrorCode.invalid_topic_exception, "a b", 1, 1),
        (ErrorCode.invalid_replication_factor, "t", 1, 4),
        (ErrorCode.invalid_replication_factor, "t", 1, 0),
        (ErrorCode.invalid_partitions, "t", 0, 1),
        (ErrorCode.policy_violation, "t", PARTITIONS_PER_REQUEST_MAX + 1, 1),
    ]
    for code, name, partitions, factor in wrong:
        with pytest.raises(KafkaError) as raised:
            new_topic_rows(name, partitions, factor, brokers("AAA"), rng())
        assert raised.value.code is code
