"""`sexton topic` on real brokers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sexton.cli.broker import UsageError
from sexton.client.errors import NotConnectedError, RefusedError
from tests.cli.conftest import Sexton, eventually

pytestmark = pytest.mark.cluster


def described(sexton: Sexton, topic: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(sexton("topic", "describe", topic, "--json").stdout)
    return document


def partitions(sexton: Sexton, topic: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = described(sexton, topic)["partitions"]
    return found


def test_a_topic_is_made_shown_grown_and_deleted(sexton: Sexton, new_name: str) -> None:
    options = ("--partitions", 3, "--replication-factor", 2, "--config", "retention.ms=1000")
    made = sexton("topic", "create", new_name, *options)
    assert "3 partitions, 2 replicas" in made.stdout
    assert new_name in sexton("topic", "list").stdout
    document = described(sexton, new_name)
    assert document["settings"] == {"retention.ms": "1000"}
    assert [len(part["replicas"]) for part in partitions(sexton, new_name)] == [2, 2, 2]
    sexton("topic", "alter", new_name, "--partitions", 5)
    eventually(lambda: len(partitions(sexton, new_name)) == 5)
    sexton("topic", "delete", new_name, "--yes")
    eventually(lambda: new_name not in [each["topic"] for each in json.loads(sexton("topic", "list", "--json").stdout)])


def test_a_second_topic_of_the_same_name_is_refused_unless_that_is_fine(sexton: Sexton, topic: str) -> None:
    with pytest.raises(RefusedError, match="already exists"):
        sexton("topic", "create", topic)
    assert "exists already" in sexton("topic", "create", topic, "--if-not-exists").stdout


def test_a_mistyped_setting_is_named(sexton: Sexton) -> None:
    with pytest.raises(RefusedError, match=r"retention\.mss"):
        sexton("topic", "create", "typo", "--config", "retention.mss=1")


def test_a_topic_that_is_not_there_is_told_with_what_to_do(sexton: Sexton) -> None:
    with pytest.raises(RefusedError) as refused:
        sexton("topic", "describe", "nobody-made-it")
    assert "no such topic" in refused.value.what
    assert "sexton topic create" in refused.value.remedy


def test_deleting_without_anybody_to_ask_needs_yes(sexton: Sexton, topic: str) -> None:
    with pytest.raises(UsageError) as refused:
        sexton("topic", "delete", topic)
    assert "--yes" in refused.value.remedy


def test_offsets_and_deleted_records(sexton: Sexton, topic: str) -> None:
    sexton.produce(topic, *"abcde", options=("--partition", "1"))
    rows = json.loads(sexton("topic", "offsets", topic, "--at", "2020-01-01", "--json").stdout)
    assert rows == [
        {"partition": 0, "start": 0, "end": 0, "at": -1},
        {"partition": 1, "start": 0, "end": 5, "at": 0},
    ]
    told = sexton("topic", "delete-records", topic, "--partition", 1, "--before", 3, "--yes")
    assert "begins at offset 3" in told.stdout
    (row,) = json.loads(sexton("topic", "offsets", topic, "--partition", 1, "--json").stdout)
    assert (row["start"], row["end"]) == (3, 5)


def test_partitions_move_and_leadership_follows_the_first_replica(sexton: Sexton, topic: str) -> None:
    sexton.produce(topic, *map(str, range(100)))
    before = {part["partition"]: part["replicas"] for part in partitions(sexton, topic)}
    assert sorted(before) == [0, 1]
    sexton("topic", "reassign", topic, "0=2", "1=3,1", "--wait")

    def are_moved() -> bool:
        after = {part["partition"]: part["replicas"] for part in partitions(sexton, topic)}
        return after == {0: [2], 1: [3, 1]}

    eventually(are_moved)
    sexton("topic", "reassign", topic, "--brokers", "1,2,3", "--wait")
    sexton("topic", "elect", topic)

    def are_led_by_the_first() -> bool:
        return all(part["leader"] == part["replicas"][0] for part in partitions(sexton, topic))

    eventually(are_led_by_the_first)  # each command asks another broker, and those learn of it one after the other
    found = sexton.process("consume", topic, "--from-beginning", "--exit-at-end").stdout.split()
    assert sorted(map(int, found)) == list(range(100))


def test_a_move_to_a_broker_that_does_not_exist_is_refused(sexton: Sexton, topic: str) -> None:
    with pytest.raises(RefusedError):
        sexton("topic", "reassign", topic, "0=1,9")
    with pytest.raises(UsageError):
        sexton("topic", "reassign", topic, "nonsense")


def test_nobody_listening_is_told_with_how_to_start_a_cluster(sexton: Sexton) -> None:
    with pytest.raises(NotConnectedError) as refused:
        sexton("topic", "list", "--bootstrap-server", "127.0.0.1:1")
    assert "refused" in refused.value.what
    assert "sexton up" in refused.value.remedy
