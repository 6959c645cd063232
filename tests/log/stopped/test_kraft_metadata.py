"""A stopped broker's metadata log says how its topics are configured."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest

from sexton.errors import CorruptLogError, UnsupportedFormatError
from sexton.log.stopped import kraft_metadata as cluster
from sexton.log.stopped.kraft_metadata import read_metadata
from sexton.records import batch
from sexton.records.header import CONTROL
from sexton.records.names import log_file_name

ORDERS, AUDIT = uuid.UUID(int=1), uuid.UUID(int=2)


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def text(value: str | None) -> bytes:
    return b"\x00" if value is None else uvarint(len(value.encode()) + 1) + value.encode()


def frame(kind: int, body: bytes, version: int = 0, frame_version: int = 1, tagged: bytes = b"\x00") -> bytes:
    return uvarint(frame_version) + uvarint(kind) + uvarint(version) + body + tagged


def topic(name: str, topic_id: uuid.UUID) -> bytes:
    return frame(2, text(name) + topic_id.bytes)


def removed(topic_id: uuid.UUID) -> bytes:
    return frame(9, topic_id.bytes)


def config(name: str, key: str, value: str | None, resource: int = cluster.TOPIC_RESOURCE) -> bytes:
    return frame(4, bytes([resource]) + text(name) + text(key) + text(value))


def int32(*values: int) -> bytes:
    return struct.pack(f">{len(values)}i", *values)


def array(items: Sequence[bytes]) -> bytes:
    return uvarint(len(items) + 1) + b"".join(items)


def tags(**fields: bytes) -> bytes:
    """Tagged fields, named t0, t1, ..."""
    return uvarint(len(fields)) + b"".join(
        uvarint(int(name[1:])) + uvarint(len(value)) + value for name, value in fields.items()
    )


def partition(topic_id: uuid.UUID, number: int, *replicas: int, version: int = 1) -> bytes:
    ids = array([int32(replica) for replica in replicas])
    body = int32(number) + topic_id.bytes + ids + ids + array([]) + array([]) + int32(replicas[0], 4, 7)
    directories = array([bytes(16)] * len(replicas)) if version >= 1 else b""
    return frame(3, body + directories, version, tagged=tags(t0=b"\x00"))


def moved(topic_id: uuid.UUID, number: int, *replicas: int, version: int = 1) -> bytes:
    """Without replicas, a change of the leader alone."""
    changed = {"t2": array([int32(replica) for replica in replicas])} if replicas else {}
    return frame(5, int32(number) + topic_id.bytes, version, tagged=tags(t1=int32(2), **changed))


def registered(broker_id: int, *log_dirs: uuid.UUID, version: int = 3) -> bytes:
    body = int32(broker_id) + (b"\x00" if version >= 2 else b"") + uuid.UUID(int=9).bytes + bytes(8)
    body += array([text("PLAINTEXT") + text("localhost") + b"\x23\x84" + bytes(2) + b"\x00"])
    body += array([text("metadata.version") + bytes(4) + b"\x00"] * 2)
    body += text(None) + b"\x00" + (b"\x00" if version >= 1 else b"")
    told = {"t0": array([each.bytes for each in log_dirs])} if version >= 3 else {}
    return frame(0, body, version, tagged=tags(**told))


def registration_changed(broker_id: int, *log_dirs: uuid.UUID, version: int = 2) -> bytes:
    told = {"t2": array([each.bytes for each in log_dirs])} if log_dirs else {}
    return frame(17, int32(broker_id) + bytes(8), version, tagged=tags(t0=b"\x01", **told))


BEGIN, END, ABORT = frame(23, text(None)), frame(24, b""), frame(25, text(None))
SOMETHING_ELSE = frame(12, b"a feature level, in a version of its own", version=7)


def records(values: Sequence[bytes], base_offset: int, **fields: int) -> bytes:
    made = [batch.Record(base_offset + index, 1_000, None, value) for index, value in enumerate(values)]
    return batch.encode(batch.make_batch(made, **fields))


def leader_change(offset: int) -> bytes:
    key, value = struct.pack(">hh", 0, 2), b"\x00\x00\x01"
    return batch.encode(batch.make_batch([batch.Record(offset, 1_000, key, value)], attributes=CONTROL))


class Metadata:
    def __init__(self, log_dir: Path) -> None:
        self.log_dir = log_dir
        self.directory = log_dir / "__cluster_metadata-0"
        self.directory.mkdir()

    def segment(self, base_offset: int, *values: bytes, **fields: int) -> Path:
        """A segment of one batch per value."""
        data = b"".join(records([value], base_offset + index, **fields) for index, value in enumerate(values))
        path = self.directory / log_file_name(base_offset)
        path.write_bytes(data)
        return path

    def snapshot(self, end_offset: int, *values: bytes, epoch: int = 1) -> Path:
        header = batch.make_batch([batch.Record(0, 1_000, struct.pack(">hh", 0, 3), b"")], attributes=CONTROL)
        path = self.directory / f"{end_offset:020d}-{epoch:010d}.checkpoint"
        path.write_bytes(batch.encode(header) + (records(values, 1) if values else b""))
        return path

    def read(self) -> cluster.ClusterMetadata:
        found = read_metadata(self.log_dir)
        assert found is not None
        return found


@pytest.fixture
def metadata(tmp_path: Path) -> Metadata:
    return Metadata(tmp_path)


def test_a_log_directory_without_metadata_has_nothing_to_say(tmp_path: Path) -> None:
    assert read_metadata(tmp_path) is None


def test_an_empty_metadata_log_has_no_topics(metadata: Metadata) -> None:
    metadata.segment(0)
    assert metadata.read() == cluster.ClusterMetadata({}, {}, {})


def test_every_topic_is_there_and_only_what_was_set_explicitly(metadata: Metadata) -> None:
    metadata.segment(
        0,
        topic("orders", ORDERS),
        SOMETHING_ELSE,
        config("orders", "cleanup.policy", "compact"),
        topic("audit", AUDIT),
        config("orders", "segment.ms", "1000"),
    )
    assert metadata.read().topics == {"audit": {}, "orders": {"cleanup.policy": "compact", "segment.ms": "1000"}}


def test_the_last_value_counts_and_null_unsets(metadata: Metadata) -> None:
    metadata.segment(
        0,
        topic("orders", ORDERS),
        config("orders", "segment.ms", "1000"),
        config("orders", "cleanup.policy", "delete"),
        config("orders", "cleanup.policy", "compact"),
        config("orders", "segment.ms", None),
        config("orders", "never.set", None),
    )
    assert metadata.read().topics == {"orders": {"cleanup.policy": "compact"}}


def test_a_topic_that_was_removed_and_made_again_starts_without_the_old_settings(metadata: Metadata) -> None:
    first = [topic("orders", ORDERS), config("orders", "cleanup.policy", "compact"), removed(ORDERS)]
    path = metadata.segment(0, *first)
    assert metadata.read().topics == {}
    path.write_bytes(path.read_bytes() + records([topic("orders", AUDIT)], 3))
    assert metadata.read().topics == {"orders": {}}


def test_broker_settings_are_told_apart_from_topics_of_the_same_name(metadata: Metadata) -> None:
    metadata.segment(
        0,
        topic("1", ORDERS),
        config("", "log.cleaner.threads", "2", resource=4),
        config("1", "log.retention.ms", "5", resource=4),
        config("2", "log.retention.ms", "6", resource=4),
        config("2", "log.retention.ms", None, resource=4),
    )
    found = metadata.read()
    assert found.topics == {"1": {}}
    assert found.cluster_defaults == {"log.cleaner.threads": "2"}
    assert found.brokers == {"1": {"log.retention.ms": "5"}}


@pytest.mark.parametrize("codec", range(5))
def test_batches_of_many_records_may_be_compressed(metadata: Metadata, codec: int) -> None:
    values = [topic("orders", ORDERS), config("orders", "cleanup.policy", "compact")]
    path = metadata.directory / log_file_name(0)
    path.write_bytes(leader_change(0) + records(values, 1, attributes=codec))
    assert metadata.read().topics == {"orders": {"cleanup.policy": "compact"}}


def test_the_newest_snapshot_counts_and_then_what_follows_it(metadata: Metadata) -> None:
    metadata.snapshot(2, topic("stale", AUDIT))
    metadata.snapshot(11, topic("stale", AUDIT), epoch=1)
    metadata.snapshot(11, topic("orders", ORDERS), config("orders", "a", "from the snapshot"), epoch=2)
    (metadata.directory / f"{99:020d}-{1:010d}.checkpoint.part").write_bytes(b"unfinished")
    (metadata.directory / f"{99:020d}-{1:010d}.checkpoint.deleted").write_bytes(b"gone")
    metadata.segment(0, *[topic("stale", AUDIT)] * 10)
    metadata.segment(10, topic("stale", AUDIT), config("orders", "b", "from the log"))
    assert metadata.read().topics == {"orders": {"a": "from the snapshot", "b": "from the log"}}


def test_a_batch_that_the_snapshot_ends_in_counts_from_there(metadata: Metadata) -> None:
    metadata.snapshot(2, topic("orders", ORDERS))
    values = [topic("stale", AUDIT), topic("stale", AUDIT), config("orders", "a", "1")]
    (metadata.directory / log_file_name(0)).write_bytes(records(values, 0))
    assert metadata.read().topics == {"orders": {"a": "1"}}


def test_a_snapshot_alone_is_enough(metadata: Metadata) -> None:
    metadata.snapshot(11, topic("orders", ORDERS))
    assert metadata.read().topics == {"orders": {}}


def test_a_metadata_transaction_counts_when_it_ends_and_not_when_it_is_aborted_or_open(metadata: Metadata) -> None:
    made, aborted, opened = uuid.UUID(int=11), uuid.UUID(int=12), uuid.UUID(int=13)
    metadata.segment(
        0,
        *(BEGIN, topic("made", made), config("made", "a", "1"), END),
        *(BEGIN, topic("aborted", aborted), config("made", "a", "2"), ABORT),
        *(BEGIN, topic("opened", opened), config("made", "a", "3")),
    )
    assert metadata.read().topics == {"made": {"a": "1"}}


def test_a_torn_write_at_the_end_is_ignored_wherever_it_was_cut(metadata: Metadata) -> None:
    path = metadata.segment(0, topic("orders", ORDERS))
    whole = path.read_bytes()
    more = records([config("orders", "a", "1")], 1)
    for size_bytes in range(len(more.rstrip(b"\x00"))):
        path.write_bytes(whole + more[:size_bytes])
        assert metadata.read().topics == {"orders": {}}
        path.write_bytes(whole + more[:size_bytes] + bytes(len(more) - size_bytes))
        assert metadata.read().topics == {"orders": {}}
    path.write_bytes(whole + bytes(4096))
    assert metadata.read().topics == {"orders": {}}


def test_a_fault_before_the_end_is_not_taken_for_a_torn_write(metadata: Metadata) -> None:
    path = metadata.segment(0, topic("orders", ORDERS), config("orders", "a", "1"), config("orders", "a", "2"))
    whole = path.read_bytes()
    second = len(records([topic("orders", ORDERS)], 0))
    for position in (second, second + 16, second + 18, second + 70):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x10]) + whole[position + 1 :])
        with pytest.raises((CorruptLogError, UnsupportedFormatError)):
            metadata.read()


def test_a_torn_write_in_an_older_segment_is_a_fault(metadata: Metadata) -> None:
    path = metadata.segment(0, topic("orders", ORDERS), SOMETHING_ELSE)
    path.write_bytes(path.read_bytes()[:-1])
    metadata.segment(2, SOMETHING_ELSE)
    with pytest.raises(CorruptLogError, match="cut off"):
        metadata.read()


def test_a_gap_between_segments_or_after_the_snapshot_is_a_fault(metadata: Metadata) -> None:
    metadata.segment(5, SOMETHING_ELSE)
    with pytest.raises(CorruptLogError, match="from offset 0 to 5 is missing"):
        metadata.read()
    metadata.snapshot(4)
    with pytest.raises(CorruptLogError, match="from offset 4 to 5 is missing"):
        metadata.read()
    metadata.snapshot(5)
    assert metadata.read().topics == {}
    metadata.segment(7, SOMETHING_ELSE)
    with pytest.raises(CorruptLogError, match="starts at 7 where 6 was expected"):
        metadata.read()


def test_a_fault_in_the_snapshot_is_a_fault(metadata: Metadata) -> None:
    path = metadata.snapshot(5, topic("orders", ORDERS))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptLogError):
        metadata.read()


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (b"", CorruptLogError),
        (topic("orders", ORDERS)[:-2], CorruptLogError),
        (topic("orders", ORDERS) + b"\x00", CorruptLogError),
        (frame(2, text(None) + ORDERS.bytes), CorruptLogError),
        (frame(2, b"\x02\xff" + ORDERS.bytes), CorruptLogError),
        (b"\x01\xff\xff\xff\xff\xff\xff", CorruptLogError),
        (removed(ORDERS), CorruptLogError),
        (frame(2, text("orders") + ORDERS.bytes, frame_version=2), UnsupportedFormatError),
        (frame(2, text("orders") + ORDERS.bytes, version=1), UnsupportedFormatError),
    ],
)
def test_a_record_that_is_not_what_it_should_be_is_refused(
    metadata: Metadata, value: bytes, error: type[Exception]
) -> None:
    metadata.segment(0, value)
    with pytest.raises(error, match="offset 0"):
        metadata.read()


def test_fields_that_a_newer_broker_tags_on_are_skipped(metadata: Metadata) -> None:
    tagged = uvarint(2) + uvarint(0) + uvarint(3) + b"new" + uvarint(300) + uvarint(0)
    metadata.segment(0, frame(2, text("orders") + ORDERS.bytes, tagged=tagged))
    assert metadata.read().topics == {"orders": {}}


def test_who_has_a_partition_is_told_also_after_it_was_moved_and_its_topic_made_anew(metadata: Metadata) -> None:
    metadata.snapshot(5, topic("orders", ORDERS), partition(ORDERS, 0, 1, 2), partition(ORDERS, 1, 2, 3, version=0))
    metadata.segment(
        5,
        moved(ORDERS, 1),
        moved(ORDERS, 0, 1, 2, 4),
        topic("audit", AUDIT),
        partition(AUDIT, 0, 7, version=2),
        removed(AUDIT),
    )
    found = metadata.read()
    assert found.replicas == {("orders", 0): frozenset({1, 2, 4}), ("orders", 1): frozenset({2, 3})}
    assert found.topic_ids == {"orders": ORDERS}
    assert found.end_offset == 10


def test_a_brokers_log_directories_are_those_it_told_last(metadata: Metadata) -> None:
    first, second, third = (uuid.UUID(int=number) for number in (11, 12, 13))
    metadata.segment(
        0,
        registered(1, first),
        registered(2, first, second),
        registered(3, version=2),
        registered(4, third),
        registration_changed(1, first, third),
        registration_changed(2),
        registration_changed(3, version=0),
        frame(1, int32(4) + bytes(8)),
        registered(5, third),
        registered(5, version=1),
    )
    assert metadata.read().log_dirs == {1: frozenset({first, third}), 2: frozenset({first, second})}


@pytest.mark.parametrize(
    ("newer", "replicas", "log_dirs"),
    [
        (frame(3, b"of a newer Kafka", version=3), None, {1: {ORDERS}}),
        (frame(5, b"of a newer Kafka", version=3), None, {1: {ORDERS}}),
        (frame(0, b"of a newer Kafka", version=5), {("orders", 0): {1}}, None),
        (frame(17, b"of a newer Kafka", version=4), {("orders", 0): {1}}, None),
    ],
)
def test_a_version_that_is_not_known_makes_only_what_it_tells_unknown(
    metadata: Metadata, newer: bytes, replicas: object, log_dirs: object
) -> None:
    known = [topic("orders", ORDERS), partition(ORDERS, 0, 1), registered(1, ORDERS)]
    metadata.segment(0, *known, BEGIN, newer, END, partition(ORDERS, 0, 1), registered(1, ORDERS))
    found = metadata.read()
    assert (found.replicas, found.log_dirs) == (replicas, log_dirs)
    assert found.topics == {"orders": {}}
