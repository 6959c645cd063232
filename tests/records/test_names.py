"""File and directory names: what a broker writes is read back, what it would not write is refused."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sexton.errors import NotALogError
from sexton.records import names
from sexton.records.names import DirState, PartitionDir, SegmentFile
from sexton.types import OFFSET_MAX

KINDS = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
STATES = ("", ".cleaned", ".swap", ".deleted")

offsets = st.integers(0, OFFSET_MAX)
topics = st.from_regex(r"[a-zA-Z0-9._-]{1,100}", fullmatch=True).filter(names.is_topic_name)
partitions = st.integers(0, names.PARTITION_MAX)
unique_ids = st.from_regex(r"[0-9a-f]{32}", fullmatch=True)


def test_a_log_file_is_named_by_twenty_digits() -> None:
    assert names.log_file_name(0) == "00000000000000000000.log"
    assert names.log_file_name(4242, names.SWAP_SUFFIX) == "00000000000000004242.log.swap"
    assert names.segment_file_name(7, names.TIME_INDEX_SUFFIX) == "00000000000000000007.timeindex"
    assert names.transaction_index_file_name(7) == "00000000000000000007.txnindex"
    assert names.producer_snapshot_file_name(7) == "00000000000000000007.snapshot"


@pytest.mark.parametrize("offset", [-1, 2**63])
def test_an_offset_that_kafka_cannot_hold_gets_no_file(offset: int) -> None:
    with pytest.raises(ValueError, match="not between"):
        names.log_file_name(offset)


@given(offset=offsets, kind=st.sampled_from(KINDS), state=st.sampled_from(STATES))
def test_a_segment_file_name_says_what_it_was_made_of(offset: int, kind: str, state: str) -> None:
    name = names.segment_file_name(offset, kind, state)
    assert names.parse_segment_file(name) == SegmentFile(offset, kind, state)
    assert names.parse_base_offset(name) == offset


@given(offsets, offsets)
def test_names_sort_as_offsets_do(left: int, right: int) -> None:
    assert (names.log_file_name(left) < names.log_file_name(right)) == (left < right)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "0.log",
        "leader-epoch-checkpoint",
        "partition.metadata",
        "00000000000000000000.log\n",
        "00000000000000000000.log.tmp",
        "00000000000000000000.log.swap.deleted",
        "99999999999999999999.log",
        "\u0660" * 20 + ".log",
        "00000000000000000000-0000000000.checkpoint",
    ],
)
def test_other_files_are_not_taken_for_segments(name: str) -> None:
    assert names.parse_segment_file(name) is None
    with pytest.raises(NotALogError, match="segment file"):
        names.parse_base_offset(name)


@pytest.mark.parametrize(
    ("name", "topic", "partition"),
    [
        ("orders-0", "orders", 0),
        ("orders-eu-west-12", "orders-eu-west", 12),
        ("a--3", "a-", 3),
        ("--3", "-", 3),
        ("v1.2-7", "v1.2", 7),
        ("my-delete-0", "my-delete", 0),
        ("my.x-future-0", "my.x-future", 0),
        ("__consumer_offsets-49", "__consumer_offsets", 49),
    ],
)
def test_the_partition_follows_the_last_dash(name: str, topic: str, partition: int) -> None:
    assert names.parse_partition_dir(name) == PartitionDir(topic, partition)


@given(topics, partitions, st.sampled_from(DirState), unique_ids)
def test_a_partition_directory_says_topic_partition_and_state(
    topic: str, partition: int, state: DirState, unique_id: str
) -> None:
    made = PartitionDir(topic, partition, state, "" if state is DirState.LIVE else unique_id)
    assert names.parse_partition_dir(made.name) == made


@pytest.mark.parametrize("state", [DirState.DELETE, DirState.STRAY, DirState.FUTURE])
def test_a_directory_in_transit_is_told_apart_from_the_partition(state: DirState) -> None:
    parsed = names.parse_partition_dir(f"my.topic-3.0123456789abcdef0123456789abcdef{state.value}")
    assert parsed == PartitionDir("my.topic", 3, state, "0123456789abcdef0123456789abcdef")


@pytest.mark.parametrize(
    "name",
    [
        "",
        "-",
        "-0",
        "orders",
        "orders-",
        "orders-x",
        "orders-007",
        "orders-+1",
        "orders-2147483648",
        "orders-\u0663",
        "orders-0\n",
        "two words-0",
        "..-0",
        "t" * 250 + "-0",
        "orders-delete",
        "orders-0-delete",
        "orders-0.-delete",
        "orders.abc-stray",
        "remote-log-index-cache",
        "lost+found",
    ],
)
def test_a_directory_that_is_no_partition_is_refused_with_its_name(name: str) -> None:
    with pytest.raises(NotALogError) as caught:
        names.parse_partition_dir(name)
    assert caught.value.place == name
    assert caught.value.remedy


@given(st.text())
def test_any_text_is_either_parsed_or_refused(name: str) -> None:
    with contextlib.suppress(NotALogError):
        assert names.parse_partition_dir(name).name == name
    parsed = names.parse_segment_file(name)
    assert parsed is None or parsed.name == name
