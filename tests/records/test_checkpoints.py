"""Checkpoints: what Kafka writes is read, what is malformed is placed, and a crash leaves old or new."""

from __future__ import annotations

import contextlib
import os
import stat
import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sexton.errors import CorruptLogError, EnvironmentFailure, SextonError, UnsupportedFormatError
from sexton.records import checkpoints
from sexton.records.checkpoints import EpochEntry, MetaProperties, PartitionMetadata
from sexton.records.names import is_topic_name
from sexton.types import LeaderEpoch
from tests.epochs import history
from tests.ownership import theirs

OFFSETS = {("orders", 0): 123, ("orders", 10): 7, ("orders-eu", 2): 2**63 - 1}
EPOCHS = history((0, 0), (3, 17), (4, 123))
TOPIC_ID = uuid.UUID("5e0c9f9a-6d1f-4c57-9f0e-8f6a52f3b6aa")

topics = st.from_regex(r"[a-zA-Z0-9._-]{1,30}", fullmatch=True).filter(is_topic_name)
partitions = st.tuples(topics, st.integers(0, 2**31 - 1))
offsets = st.integers(0, 2**63 - 1)
epochs = st.tuples(
    st.sets(st.integers(0, 2**31 - 1), max_size=20), st.sets(st.integers(0, 2**63 - 1), max_size=20)
).map(lambda sets: tuple(EpochEntry(LeaderEpoch(e), o) for e, o in zip(sorted(sets[0]), sorted(sets[1]), strict=False)))


# ---- offset checkpoints ----


def test_an_offset_checkpoint_is_a_version_a_count_and_lines() -> None:
    encoded = checkpoints.encode_offset_checkpoint({("b", 1): 5, ("a", 10): 6, ("a", 2): 7})
    assert encoded == b"0\n3\na 2 7\na 10 6\nb 1 5\n"


@given(st.dictionaries(partitions, offsets))
def test_an_offset_checkpoint_comes_back(entries: dict[tuple[str, int], int]) -> None:
    encoded = checkpoints.encode_offset_checkpoint(entries)
    assert checkpoints.decode_offset_checkpoint(encoded, "x") == entries


@pytest.mark.parametrize("data", [b"", b"0\n0\n", b"0\r\n0\r\n"])
def test_an_empty_checkpoint_has_no_entries(data: bytes) -> None:
    assert checkpoints.decode_offset_checkpoint(data, "x") == {}
    assert checkpoints.decode_leader_epochs(data, "x") == ()


def test_a_missing_checkpoint_has_no_entries(tmp_path: Path) -> None:
    assert checkpoints.read_offset_checkpoint(tmp_path / "absent") == {}


def test_extra_white_space_between_fields_is_no_matter() -> None:
    assert checkpoints.decode_offset_checkpoint(b"0\n1\norders \t 3  9 \n", "x") == {("orders", 3): 9}
    assert checkpoints.decode_leader_epochs(b"0\n1\n3  9\n", "x") == history((3, 9))


def test_a_checkpoint_cut_at_any_byte_is_refused() -> None:
    whole = checkpoints.encode_offset_checkpoint(OFFSETS)
    for cut in range(1, len(whole)):
        with pytest.raises(CorruptLogError) as caught:
            checkpoints.decode_offset_checkpoint(whole[:cut], "some/file")
        assert caught.value.place.startswith("some/file:")
        assert caught.value.remedy


@pytest.mark.parametrize("tail", [b"\n", b"orders 1 1\n", b"\0", b" "])
def test_bytes_after_the_last_entry_are_refused(tail: bytes) -> None:
    with pytest.raises(CorruptLogError):
        checkpoints.decode_offset_checkpoint(checkpoints.encode_offset_checkpoint(OFFSETS) + tail, "x")


@pytest.mark.parametrize(
    ("data", "line", "what"),
    [
        (b"x\n0\n", 1, "version"),
        (b"0\nmany\n", 2, "count of entries"),
        (b"0\n2\na 0 1\n", 2, "2 entries are announced, 1 are there"),
        (b"0\n1\na 0\n", 3, "a topic, a partition and an offset"),
        (b"0\n1\n a 0 1\n", 3, "a topic, a partition and an offset"),
        (b"0\n1\n\0\0 0 1\n", 3, "a topic, a partition and an offset"),
        (b"0\n2\na 0 1\na x 1\n", 4, "partition"),
        (b"0\n1\na 2147483648 1\n", 3, "partition"),
        (b"0\n1\na 0 -1\n", 3, "offset"),
        (b"0\n1\na 0 1_0\n", 3, "offset"),
        (b"0\n1\na 0 9223372036854775808\n", 3, "offset"),
        (b"0\n2\na 0 1\na 0 2\n", 4, "twice"),
        (b"0\n1\na 0 1", 3, "no end"),
        (b"0\n1\n\xff 0 1\n", 3, "not text"),
        (bytes(4096), 1, "version"),
    ],
)
def test_a_malformed_line_is_named_with_what_was_expected(data: bytes, line: int, what: str) -> None:
    with pytest.raises(CorruptLogError) as caught:
        checkpoints.decode_offset_checkpoint(data, "dir/file")
    assert caught.value.place == f"dir/file:{line}"
    assert what in caught.value.what
    assert len(str(caught.value)) < 400


def test_an_unknown_version_is_unsupported_not_corrupt() -> None:
    with pytest.raises(UnsupportedFormatError, match="version 1"):
        checkpoints.decode_offset_checkpoint(b"1\n0\n", "x")


@pytest.mark.parametrize("entry", [("two words", 0, 1), ("a", -1, 1), ("a", 0, -1), ("a", 0, 2**63)])
def test_what_could_not_be_read_back_is_not_written(entry: tuple[str, int, int]) -> None:
    with pytest.raises(ValueError, match="no checkpoint can hold"):
        checkpoints.encode_offset_checkpoint({(entry[0], entry[1]): entry[2]})


@given(st.binary(max_size=60))
def test_any_bytes_are_entries_or_a_typed_error(data: bytes) -> None:
    for decode in (
        checkpoints.decode_offset_checkpoint,
        checkpoints.decode_leader_epochs,
        checkpoints.decode_partition_metadata,
        checkpoints.decode_meta_properties,
    ):
        with contextlib.suppress(SextonError):
            decode(data, "x")


# ---- leader epochs ----


@given(epochs)
def test_leader_epochs_come_back(entries: tuple[EpochEntry, ...]) -> None:
    assert checkpoints.decode_leader_epochs(checkpoints.encode_leader_epochs(entries), "x") == entries


def test_leader_epochs_cut_at_any_byte_are_refused() -> None:
    whole = checkpoints.encode_leader_epochs(EPOCHS)
    for cut in range(1, len(whole)):
        with pytest.raises(CorruptLogError):
            checkpoints.decode_leader_epochs(whole[:cut], "x")


@pytest.mark.parametrize("data", [b"0\n2\n1 5\n1 6\n", b"0\n2\n1 5\n2 5\n", b"0\n2\n2 5\n1 6\n"])
def test_epochs_out_of_order_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptLogError, match="does not come after") as caught:
        checkpoints.decode_leader_epochs(data, "x")
    assert caught.value.place == "x:4"


@pytest.mark.parametrize("entries", [EPOCHS[::-1], history((-1, 0)), history((2**31, 0))])
def test_epochs_that_could_not_be_read_back_are_not_written(entries: tuple[EpochEntry, ...]) -> None:
    with pytest.raises(ValueError, match="cannot follow"):
        checkpoints.encode_leader_epochs(entries)


# ---- partition.metadata and meta.properties ----


def test_partition_metadata_is_written_as_kafka_does() -> None:
    metadata = PartitionMetadata(uuid.UUID(int=1))
    assert checkpoints.encode_partition_metadata(metadata) == b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ"


@given(st.uuids())
def test_partition_metadata_comes_back(topic_id: uuid.UUID) -> None:
    metadata = PartitionMetadata(topic_id)
    encoded = checkpoints.encode_partition_metadata(metadata)
    assert checkpoints.decode_partition_metadata(encoded, "x") == metadata
    assert checkpoints.decode_partition_metadata(encoded + b"\n", "x") == metadata


def test_partition_metadata_cut_at_any_byte_is_refused() -> None:
    whole = checkpoints.encode_partition_metadata(PartitionMetadata(TOPIC_ID))
    for cut in range(len(whole)):
        with pytest.raises(CorruptLogError):
            checkpoints.decode_partition_metadata(whole[:cut], "x")


def test_partition_metadata_of_a_later_version_may_say_more() -> None:
    text = checkpoints.encode_partition_metadata(PartitionMetadata(TOPIC_ID, version=1)) + b"\nmore: 1\n"
    assert checkpoints.decode_partition_metadata(text, "x") == PartitionMetadata(TOPIC_ID, version=1)
    with pytest.raises(CorruptLogError, match="end of the file"):
        checkpoints.decode_partition_metadata(text.replace(b"version: 1", b"version: 0"), "x")


def test_a_zero_topic_id_is_no_topic_id() -> None:
    with pytest.raises(CorruptLogError, match="topic id"):
        checkpoints.decode_partition_metadata(b"version: 0\ntopic_id: " + b"A" * 22, "x")


def test_meta_properties_of_a_kraft_broker_are_read() -> None:
    text = (
        b"#\n#Sat Nov 15 08:22:00 UTC 2025\ncluster.id=4L6g3nShT-eMCtK--X86sw\n"
        b"directory.id=XgyfmW0fTFefDo9qUvO2qg\nnode.id=3\nversion=1\n"
    )
    assert checkpoints.decode_meta_properties(text, "x") == MetaProperties(
        "4L6g3nShT-eMCtK--X86sw", 3, checkpoints.parse_uuid("XgyfmW0fTFefDo9qUvO2qg"), 1
    )


def test_meta_properties_of_a_zookeeper_broker_may_be_sparse() -> None:
    assert checkpoints.decode_meta_properties(b"", "x") == MetaProperties(None, None, None, 0)
    read = checkpoints.decode_meta_properties(b"version: 0\r\nbroker.id = 7\r\n", "x")
    assert read == MetaProperties(None, 7, None, 0)


@given(
    st.text(st.characters(codec="utf-8")).filter(str.isprintable),
    st.integers(0, 2**31 - 1),
    st.none() | st.uuids(),
    st.sampled_from([0, 1]),
)
def test_meta_properties_come_back(cluster_id: str, node_id: int, directory_id: uuid.UUID | None, version: int) -> None:
    meta = MetaProperties(cluster_id, node_id, directory_id, version)
    assert checkpoints.decode_meta_properties(checkpoints.encode_meta_properties(meta), "x") == meta


@pytest.mark.parametrize(
    "text",
    [
        b"version=1\nnode.id=1\n",
        b"version=1\ncluster.id=a\n",
        b"version=1\ncluster.id=a\nnode.id=-1\n",
        b"version=x\n",
        b"version=0\ndirectory.id=short\n",
    ],
)
def test_meta_properties_without_what_they_need_are_refused(text: bytes) -> None:
    with pytest.raises(CorruptLogError):
        checkpoints.decode_meta_properties(text, "x")


def test_meta_properties_of_the_future_are_unsupported() -> None:
    with pytest.raises(UnsupportedFormatError):
        checkpoints.decode_meta_properties(b"version=2\n", "x")


def test_a_cluster_id_that_would_break_the_line_is_not_written() -> None:
    with pytest.raises(ValueError, match="cluster"):
        checkpoints.encode_meta_properties(MetaProperties("a\nnode.id=9", 1))


# ---- the clean-shutdown marker ----


def test_a_clean_shutdown_marker_carries_the_broker_epoch() -> None:
    assert checkpoints.encode_clean_shutdown(42) == b'{"version":0,"brokerEpoch":42}'


# ---- files ----


def test_every_kind_of_file_survives_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "file"
    checkpoints.write_offset_checkpoint(path, OFFSETS)
    assert checkpoints.read_offset_checkpoint(path) == OFFSETS
    checkpoints.replace_file(path, checkpoints.encode_partition_metadata(PartitionMetadata(TOPIC_ID)))
    assert checkpoints.read_partition_metadata(path) == PartitionMetadata(TOPIC_ID)
    checkpoints.replace_file(path, checkpoints.encode_meta_properties(MetaProperties("c", 1, TOPIC_ID)))
    assert checkpoints.read_meta_properties(path) == MetaProperties("c", 1, TOPIC_ID)
    assert os.listdir(tmp_path) == ["file"]


def test_metadata_files_may_be_absent(tmp_path: Path) -> None:
    assert checkpoints.read_partition_metadata(tmp_path / "absent") is None
    assert checkpoints.read_meta_properties(tmp_path / "absent") is None


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664])
def test_a_replaced_file_keeps_its_mode(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "file"
    path.touch()
    path.chmod(mode)
    checkpoints.replace_file(path, b"new")
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert path.read_bytes() == b"new"


def test_a_new_checkpoint_is_like_the_brokers_other_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / checkpoints.REPLICATION_OFFSET_CHECKPOINT).touch(0o640)
    handed = theirs(tmp_path / checkpoints.REPLICATION_OFFSET_CHECKPOINT, monkeypatch)
    path = tmp_path / checkpoints.CLEANER_OFFSET_CHECKPOINT
    checkpoints.write_offset_checkpoint(path, {("orders", 0): 3})
    assert handed == [(path.with_name(path.name + ".tmp"), 12345, 54321)]
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_content_is_flushed_before_the_rename_and_the_directory_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    real_fsync, real_replace = os.fsync, os.replace

    def fsync(descriptor: int) -> None:
        steps.append("flush directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "flush file")
        real_fsync(descriptor)

    def replace(source: Path, target: Path) -> None:
        steps.append("rename")
        real_replace(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    checkpoints.replace_file(tmp_path / "file", b"new")
    assert steps == ["flush file", "rename", "flush directory"]


def test_a_full_disk_leaves_the_old_content_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EnvironmentFailure, match="No space left") as caught:
        checkpoints.replace_file(path, b"new")
    assert caught.value.place == str(path)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_directory_in_place_of_a_checkpoint_is_the_environments_fault(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailure, match="cannot be read"):
        checkpoints.read_offset_checkpoint(tmp_path)
    with pytest.raises(EnvironmentFailure, match="cannot be written"):
        checkpoints.write_offset_checkpoint(tmp_path / "absent" / "file", {})


def test_a_huge_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with open(path, "wb") as file:
        file.truncate(checkpoints.FILE_BYTES_MAX + 1)
    with pytest.raises(CorruptLogError, match="too many"):
        checkpoints.read_offset_checkpoint(path)
