"""Reads the metadata log that a KRaft broker keeps beside its partitions: topics, their configs, their replicas.

Whether and how a topic is compacted, and how many replicas there are, is not in its partition directories; it is in the
cluster's metadata. A broker follows that as an ordinary log, `__cluster_metadata-0` in one of its log directories: a
snapshot (`<end offset>-<epoch>.checkpoint`), and segments with the records after it. So a stopped broker's directory
has it without a cluster to ask.

A metadata record is a frame version (1), a record type and a version, all unsigned varints, and then a message in
Kafka's flexible encoding. These of some thirty types matter here: a topic is created (2) or removed (9), a config of a
resource is set or unset (4), and the three that begin, end or abort a group of records that counts only as a whole (23
to 25, KIP-868). Also a partition gets its replicas (3) or other ones (5), a broker registers its log directories (0,
17) or is unregistered (1); an unknown version of one of these makes only its own information unknown.

Note that this is the metadata *as this broker had it when it stopped*. It may be behind the cluster, and in a
controller's own directory the last records may never have been committed. Static configs (server.properties) are not in
it.
"""

from __future__ import annotations

import mmap
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

from sexton.errors import CorruptLogError, EnvironmentFailure, SextonError, UnsupportedFormatError
from sexton.records import batch
from sexton.records.header import HEADER_BYTES, MAGIC, MAGIC_POSITION, unpack
from sexton.records.names import CLUSTER_METADATA_TOPIC, LOG_SUFFIX, parse_segment_file
from sexton.types import PartitionId

METADATA_DIR: Final = f"{CLUSTER_METADATA_TOPIC}-0"
FRAME_VERSION: Final = 1
REGISTER_BROKER_RECORD: Final = 0
UNREGISTER_BROKER_RECORD: Final = 1
TOPIC_RECORD: Final = 2
PARTITION_RECORD: Final = 3
CONFIG_RECORD: Final = 4
PARTITION_CHANGE_RECORD: Final = 5
REMOVE_TOPIC_RECORD: Final = 9
BROKER_REGISTRATION_CHANGE_RECORD: Final = 17
BEGIN_TRANSACTION_RECORD: Final = 23
END_TRANSACTION_RECORD: Final = 24
ABORT_TRANSACTION_RECORD: Final = 25
TOPIC_RESOURCE: Final = 2
BROKER_RESOURCE: Final = 4
CLUSTER_DEFAULT: Final = ""

_TYPES: Final = (
    TOPIC_RECORD,
    CONFIG_RECORD,
    REMOVE_TOPIC_RECORD,
    BEGIN_TRANSACTION_RECORD,
    END_TRANSACTION_RECORD,
    ABORT_TRANSACTION_RECORD,
)
_PARTITION_VERSIONS: Final = {PARTITION_RECORD: 2, PARTITION_CHANGE_RECORD: 2}
_BROKER_VERSIONS: Final = {
    REGISTER_BROKER_RECORD: 4,
    UNREGISTER_BROKER_RECORD: 0,
    BROKER_REGISTRATION_CHANGE_RECORD: 3,
}
"""The latest versions of these records that can be read here."""

_CHANGED_REPLICAS_TAG: Final = 2
_REGISTERED_LOG_DIRS_TAG: Final = 0
_CHANGED_LOG_DIRS_TAG: Final = 2

_Uuid = uuid.UUID
_SNAPSHOT_FILE = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint")
_TELL_US_YOURSELF = "Give the topics' settings on the command line instead of having them read from the metadata"


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """Configs that were set explicitly. `topics` has every topic, most with nothing set.

    The dynamic broker configs are the fallback of a topic's, a broker's own before the cluster's.
    """

    topics: dict[str, dict[str, str]]
    cluster_defaults: dict[str, str]
    brokers: dict[str, dict[str, str]]
    topic_ids: dict[str, uuid.UUID] = field(default_factory=dict)
    replicas: dict[tuple[str, int], frozenset[int]] | None = field(default_factory=dict)
    """The brokers that have a partition, including those that a reassignment adds or removes. None if unknown."""
    log_dirs: dict[int, frozenset[uuid.UUID]] | None = field(default_factory=dict)
    """The directory ids of brokers that register them (Kafka 3.7 and later). None if unknown."""
    end_offset: int = 0
    """Tells which of two brokers' metadata is newer: the one with the higher end offset."""


def read_metadata(log_dir: Path) -> ClusterMetadata | None:
    """None if this log directory has no metadata log: a broker with several keeps it in one of them."""
    metadata_dir = log_dir / METADATA_DIR
    if not metadata_dir.is_dir():
        return None
    image = _Image()
    try:
        for offset, value, where in _values(metadata_dir):
            image.end_offset = offset + 1
            image.replay(value, where)
    except OSError as error:
        raise EnvironmentFailure(
            f"the metadata log cannot be read: {error.strerror or error}",
            str(error.filename or metadata_dir),
            "Run as the user the broker runs as",
        ) from error
    return image.result()


# --- the state that the records result in ---


@dataclass(slots=True)
class _Image:
    """The metadata up to some offset, as far as it matters here."""

    names: dict[uuid.UUID, str] = field(default_factory=dict)
    configs: dict[tuple[int, str], dict[str, str]] = field(default_factory=dict)
    replicas: dict[PartitionId, frozenset[int]] | None = field(default_factory=dict)
    log_dirs: dict[int, frozenset[uuid.UUID]] | None = field(default_factory=dict)
    undecided: list[tuple[int, int, _Reader, str]] | None = None
    end_offset: int = 0

    def replay(self, value: bytes | None, where: str) -> None:
        reader = _Reader(value or b"", where)
        frame_version, kind, version = reader.uvarint(), reader.uvarint(), reader.uvarint()
        if frame_version != FRAME_VERSION:
            raise UnsupportedFormatError(f"metadata frame version {frame_version}", where, _TELL_US_YOURSELF)
        if kind in _PARTITION_VERSIONS:
            if version > _PARTITION_VERSIONS[kind]:
                self.replicas = None
        elif kind in _BROKER_VERSIONS:
            if version > _BROKER_VERSIONS[kind]:
                self.log_dirs = None
        elif kind not in _TYPES:
            return
        elif version != 0:
            raise UnsupportedFormatError(f"version {version} of metadata record {kind}", where, _TELL_US_YOURSELF)
        if kind == BEGIN_TRANSACTION_RECORD:
            self.undecided = []
        elif kind == ABORT_TRANSACTION_RECORD:
            self.undecided = None
        elif kind == END_TRANSACTION_RECORD:
            decided, self.undecided = self.undecided or [], None
            for record in decided:
                self._apply(*record)
        elif self.undecided is not None:
            self.undecided.append((kind, version, reader, where))
        else:
            self._apply(kind, version, reader, where)

    def _apply(self, kind: int, version: int, reader: _Reader, where: str) -> None:
        if kind in _PARTITION_VERSIONS:
            self._place(kind, reader)
        elif kind in _BROKER_VERSIONS:
            self._register(kind, version, reader)
        elif kind == TOPIC_RECORD:
            name, topic_id = reader.string(), reader.uuid()
            reader.finish()
            self.names[topic_id] = name
        elif kind == CONFIG_RECORD:
            resource = (reader.byte(), reader.string())
            key, value = reader.string(), reader.nullable_string()
            reader.finish()
            if value is None:
                self.configs.get(resource, {}).pop(key, None)
            else:
                self.configs.setdefault(resource, {})[key] = value
        else:
            topic_id = reader.uuid()
            reader.finish()
            if topic_id not in self.names:
                raise _corrupt(f"topic {topic_id} is removed but was never there", where)
            self.configs.pop((TOPIC_RESOURCE, self.names.pop(topic_id)), None)
            if self.replicas is not None:
                self.replicas = {key: found for key, found in self.replicas.items() if key[0] != topic_id}

    def _place(self, kind: int, reader: _Reader) -> None:
        if self.replicas is None:
            return
        partition, topic_id = reader.int32(), reader.uuid()
        if kind == PARTITION_RECORD:
            replicas: list[int] | None = reader.int32s()
        else:
            changed = reader.tagged().get(_CHANGED_REPLICAS_TAG)
            replicas = None if changed is None else changed.int32s()
        if replicas is not None:
            self.replicas[(topic_id, partition)] = frozenset(replicas)

    def _register(self, kind: int, version: int, reader: _Reader) -> None:
        """A registration of a Kafka before 3.7 has no log directories; a change without them changes none."""
        if self.log_dirs is None:
            return
        broker_id = reader.int32()
        if kind == BROKER_REGISTRATION_CHANGE_RECORD:
            reader.take(8)
            told = reader.tagged().get(_CHANGED_LOG_DIRS_TAG)
        else:
            self.log_dirs.pop(broker_id, None)
            if kind == UNREGISTER_BROKER_RECORD:
                return
            reader.skip_registration(version)
            told = reader.tagged().get(_REGISTERED_LOG_DIRS_TAG)
        directories = told.uuids() if told is not None else []
        if directories:
            self.log_dirs[broker_id] = frozenset(directories)

    def result(self) -> ClusterMetadata:
        return ClusterMetadata(
            topics={name: dict(self.configs.get((TOPIC_RESOURCE, name), {})) for name in sorted(self.names.values())},
            cluster_defaults=dict(self.configs.get((BROKER_RESOURCE, CLUSTER_DEFAULT), {})),
            brokers={
                name: dict(values)
                for (kind, name), values in self.configs.items()
                if kind == BROKER_RESOURCE and name != CLUSTER_DEFAULT and values
            },
            topic_ids={name: topic_id for topic_id, name in self.names.items()},
            replicas=None
            if self.replicas is None
            else {(self.names[of], number): found for (of, number), found in self.replicas.items() if of in self.names},
            log_dirs=self.log_dirs,
            end_offset=self.end_offset,
        )


class _Reader:
    """Kafka's flexible encoding, as much of it as these messages use."""

    def __init__(self, data: bytes, where: str) -> None:
        self._data = data
        self._position = 0
        self._where = where

    def take(self, size_bytes: int) -> bytes:
        end = self._position + size_bytes
        if size_bytes < 0 or end > len(self._data):
            raise _corrupt("the metadata record is cut off", self._where)
        taken = self._data[self._position : end]
        self._position = end
        return taken

    def byte(self) -> int:
        return self.take(1)[0]

    def uvarint(self) -> int:
        value = 0
        for shift in range(0, 35, 7):
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise _corrupt("a varint in the metadata record does not end", self._where)

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(bytes=self.take(16))

    def int32(self) -> int:
        return int.from_bytes(self.take(4), "big", signed=True)

    def int32s(self) -> list[int]:
        return [self.int32() for _ in range(self.uvarint() - 1)]

    def uuids(self) -> list[_Uuid]:
        return [self.uuid() for _ in range(self.uvarint() - 1)]

    def skip_registration(self, version: int) -> None:
        """Skips from the broker's id to the tagged fields of its registration."""
        self.take(1 if version >= 2 else 0)  # whether it migrates from ZooKeeper
        self.take(16 + 8)  # incarnation, epoch
        for _ in range(self.uvarint() - 1):  # endpoints
            self.string(), self.string()
            self.take(2 + 2)
            self.tagged()
        for _ in range(self.uvarint() - 1):  # features
            self.string()
            self.take(2 + 2)
            self.tagged()
        self.nullable_string()  # rack
        self.take(1 + (1 if version >= 1 else 0))  # whether it is fenced, whether it shuts down

    def tagged(self) -> dict[int, _Reader]:
        """Newer brokers may add tagged fields, which older readers skip."""
        return {self.uvarint(): _Reader(self.take(self.uvarint()), self._where) for _ in range(self.uvarint())}

    def string(self) -> str:
        text = self.nullable_string()
        if text is None:
            raise _corrupt("the metadata record has null for a name", self._where)
        return text

    def nullable_string(self) -> str | None:
        size_bytes = self.uvarint() - 1
        if size_bytes < 0:
            return None
        try:
            return self.take(size_bytes).decode()
        except UnicodeDecodeError as error:
            raise _corrupt("a name in the metadata record is not text", self._where) from error

    def finish(self) -> None:
        self.tagged()
        if self._position != len(self._data):
            raise _corrupt("bytes follow the metadata record", self._where)


# --- the records in the files ---


def _values(metadata_dir: Path) -> Iterator[tuple[int, bytes | None, str]]:
    """The records of the newest snapshot, then of the log from its end offset on, each with its offset and location.
    All records of a snapshot get the snapshot's last offset."""
    files = list(metadata_dir.iterdir())
    matches = [(match, path) for path in files if (match := _SNAPSHOT_FILE.fullmatch(path.name))]
    start_offset = 0
    if matches:
        newest, path = max(matches, key=lambda found: found[0].groups())
        start_offset = int(newest[1])
        for one in batch.decode_all(_bytes_of(path), str(path)):
            yield from ((start_offset - 1, value, where) for _, value, where in _values_of(one, 0, str(path)))
    parsed = sorted(
        (file.base_offset, path)
        for path in files
        if (file := parse_segment_file(path.name)) and file.kind == LOG_SUFFIX and not file.state
    )
    # Segments that end at or before the snapshot's end add nothing.
    needed = [found for found, after in pairwise([*parsed, None]) if found and (not after or after[0] > start_offset)]
    if needed and needed[0][0] > start_offset:
        raise _corrupt(f"the metadata from offset {start_offset} to {needed[0][0]} is missing", str(metadata_dir))
    next_offset = needed[0][0] if needed else start_offset
    for base_offset, path in needed:
        if base_offset != next_offset:
            raise _corrupt(f"a segment starts at {base_offset} where {next_offset} was expected", str(path))
        for one in _batches(path, base_offset, is_newest=path == needed[-1][1], start_offset=start_offset):
            next_offset = one.next_offset
            yield from _values_of(one, start_offset, str(path))


def _values_of(one: batch.Batch, start_offset: int, place: str) -> Iterator[tuple[int, bytes | None, str]]:
    if not one.is_control:
        for record in one.records:
            if record.offset >= start_offset:
                yield record.offset, record.value, f"{place} at offset {record.offset}"


def _batches(path: Path, base_offset: int, is_newest: bool, start_offset: int) -> Iterator[batch.Batch]:
    """Every batch of a segment in order; only the header of those that the snapshot already covers.

    The metadata log is never compacted, so each batch must begin where the one before ended.
    """
    data = _bytes_of(path)
    position, expected_offset = 0, base_offset
    while position < len(data):
        try:
            one = batch.decode_header(data, position, str(path))
            if one.next_offset > start_offset:
                one = batch.decode(data, position, str(path))
        except SextonError:
            if is_newest and _is_torn(data[position:], expected_offset):
                return
            raise
        if one.base_offset != expected_offset:
            raise _corrupt(
                f"a batch starts at offset {one.base_offset} where {expected_offset} was expected", str(path)
            )
        yield one
        position += one.size_bytes
        expected_offset = one.next_offset


def _is_torn(rest: memoryview, expected_offset: int) -> bool:
    """Whether the unreadable rest is a write that a crash cut short, which a broker would drop at startup.

    That is: too short to be a batch, zeros from the magic byte at the latest to the end of the file, or the expected
    batch, with which the file ends. Anything else is damage in the middle, and stopping there would miss what follows
    it.
    """
    if len(rest) < HEADER_BYTES or not bytes(rest[MAGIC_POSITION:]).strip(b"\x00"):
        return True
    head = unpack(rest)
    return head.base_offset == expected_offset and head.magic == MAGIC and head.size_bytes >= len(rest)


def _bytes_of(path: Path) -> memoryview:
    if path.stat().st_size == 0:
        return memoryview(b"")
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _corrupt(what: str, where: str) -> CorruptLogError:
    return CorruptLogError(what, where, f"Start the broker to see whether it can repair this. {_TELL_US_YOURSELF}")
