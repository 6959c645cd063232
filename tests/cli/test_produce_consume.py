"""`sexton produce` and `sexton consume` on real brokers."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Sexton

pytestmark = pytest.mark.cluster


def consumed(sexton: Sexton, topic: str, *options: object) -> list[str]:
    done = sexton.process("consume", topic, *options)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().splitlines()


def test_lines_come_back_as_they_were_written(sexton: Sexton, topic: str) -> None:
    lines = ["first", "", "dritte Zeile: ümläut", "x" * 100_000]
    sexton.produce(topic, *lines, options=("--partition", "0"))
    assert consumed(sexton, topic, "--from-beginning", "--exit-at-end") == lines


def test_records_of_one_key_stay_in_order_and_in_one_partition(sexton: Sexton, topic: str) -> None:
    lines = [f"key-{number % 7}:{number}" for number in range(5000)]
    sexton.produce(topic, *lines, options=("--key-separator", ":", "--compression", "zstd"))
    documents = [json.loads(line) for line in consumed(sexton, topic, "--from-beginning", "-e", "--json")]
    assert len(documents) == 5000
    for key in range(7):
        own = [each for each in documents if each["key"] == {"utf8": f"key-{key}"}]
        assert len({each["partition"] for each in own}) == 1
        assert [int(each["value"]["utf8"]) for each in own] == list(range(key, 5000, 7))


def test_a_tombstone_and_a_header_are_written_and_shown(sexton: Sexton, topic: str) -> None:
    sexton.produce(topic, "k=gone", options=("--key-separator", "=", "--tombstone", "gone", "-H", "who=me"))
    (line,) = consumed(sexton, topic, "--from-beginning", "--max", 1, "--format", "json")
    document = json.loads(line)
    assert document["value"] is None
    assert document["headers"] == [{"name": "who", "value": {"utf8": "me"}}]
    assert consumed(sexton, topic, "--from-beginning", "--max", 1, "--key-separator", "=") == ["k=null"]


def test_reading_starts_where_it_is_told_to(sexton: Sexton, topic: str) -> None:
    sexton.produce(topic, *map(str, range(10)), options=("--partition", "1"))
    assert consumed(sexton, topic, "--partition", 1, "--offset", 7, "-e") == ["7", "8", "9"]
    assert consumed(sexton, topic, "--from-time", "2020-01-01", "--max", 2) == ["0", "1"]
    assert consumed(sexton, topic, "-e") == []
    late = sexton.process("consume", topic, "--partition", 1, "--offset", 99)
    assert late.returncode == 1
    assert b"sexton topic offsets" in late.stderr


def test_a_group_goes_on_where_it_left_off_and_commits_only_what_was_printed(sexton: Sexton, topic: str) -> None:
    sexton.produce(topic, *map(str, range(10)), options=("--partition", "0"))
    group = ("--group", f"of-{topic}")
    assert consumed(sexton, topic, *group, "--from-beginning", "--max", 4) == list("0123")
    assert consumed(sexton, topic, *group, "--exit-at-end") == list("456789")
    assert consumed(sexton, topic, *group, "--exit-at-end") == []


def test_a_line_without_a_key_is_an_error_that_names_the_line(sexton: Sexton, topic: str) -> None:
    done = sexton.process("produce", topic, "--key-separator", ":", stdin=b"a:1\nno key\n")
    assert done.returncode == 64
    assert b"line 2" in done.stderr


def test_records_that_are_refused_make_the_command_fail(sexton: Sexton, topic: str) -> None:
    sexton("config", "set", "--topic", topic, "cleanup.policy=compact")
    done = sexton.process("produce", topic, stdin=b"without a key\n")
    assert done.returncode == 1
    assert b"not written" in done.stderr


def test_a_topic_that_is_not_there_is_not_made_by_accident(sexton: Sexton) -> None:
    for command in ("produce", "consume"):
        done = sexton.process(command, "nobody-made-this", stdin=b"x\n")
        assert done.returncode == 1
        assert b"sexton topic create" in done.stderr


@pytest.mark.parametrize("acks", ["all", "1", "0"])
def test_every_kind_of_acknowledgement_writes(sexton: Sexton, topic: str, acks: str) -> None:
    sexton.produce(topic, "a", "b", options=("--acks", acks, "--partition", "0"))
    assert consumed(sexton, topic, "--from-beginning", "--max", 2) == ["a", "b"]
