"""The small text files of a log directory, and how any small file is replaced without ever being half there.

In each log directory, for all its partitions:

    replication-offset-checkpoint     high watermarks
    recovery-point-offset-checkpoint  up to where each log is known to be flushed
    log-start-offset-checkpoint       log starts that lie above the first segment's base offset
    cleaner-offset-checkpoint         up to where each log is clean
    meta.properties                   which cluster, node and directory this is
    .kafka_cleanshutdown              present if the last shutdown was clean

In each partition directory: `leader-epoch-checkpoint` and `partition.metadata`, which holds the topic's id.

The checkpoints are lines: a version (0), a count, and one line per entry. Kafka creates them empty before
it has anything to write, so a missing file, an empty file and a count of 0 mean the same. We are stricter
than Kafka on what else may be there, because each of these numbers allows something to be deleted: a last
line without its newline (a file cut short could hold 12 where 123 was written), a partition named twice, a
negative offset and epochs out of order are refused, where Kafka takes them, or takes what it can.

What a broker does on start with a checkpoint it cannot read: it takes the whole log directory offline (with
a warning first that recovery points count as 0, or log starts as the first segment's base offset). So does
an unreadable `partition.metadata`; `meta.properties` stops the broker. The clean-shutdown marker counts by
being there, whatever it contains, and is deleted before any log is loaded.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sexton.errors import CorruptLogError, EnvironmentFailure, UnsupportedFormatError
from sexton.records.names import PARTITION_MAX, is_topic_name
from sexton.records.ownership import Owner
from sexton.types import INT32_MAX, OFFSET_MAX, LeaderEpoch, TopicPartition

REPLICATION_OFFSET_CHECKPOINT: Final = "replication-offset-checkpoint"
RECOVERY_POINT_CHECKPOINT: Final = "recovery-point-offset-checkpoint"
LOG_START_OFFSET_CHECKPOINT: Final = "log-start-offset-checkpoint"
CLEANER_OFFSET_CHECKPOINT: Final = "cleaner-offset-checkpoint"
LEADER_EPOCH_CHECKPOINT: Final = "leader-epoch-checkpoint"
PARTITION_METADATA: Final = "partition.metadata"
META_PROPERTIES: Final = "meta.properties"

CHECKPOINT_VERSION: Final = 0
PARTITION_METADATA_VERSION: Final = 0
META_PROPERTIES_VERSION_MAX: Final = 1
CLEAN_SHUTDOWN_VERSION: Final = 0
FILE_BYTES_MAX: Final = 256 * 1024 * 1024
"""Far above what a million partitions need; a larger file is no checkpoint and is not read into memory."""

SHOWN_LENGTH_MAX: Final = 80
"""How much of a malformed line an error message repeats: enough to find it, not enough to flood a terminal."""

_ENTRY = re.compile(r"(\S+)\s+(\S+)\s+(\S+)\s*", re.ASCII)
_EPOCH_ENTRY = re.compile(r"(\S+)\s+(\S+)\s*", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,19}")
_UUID = re.compile(r"[A-Za-z0-9_-]{22}")


@dataclass(frozen=True, slots=True)
class EpochEntry:
    """A leader epoch and the first offset written in it."""

    epoch: LeaderEpoch
    start_offset: int


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    topic_id: uuid.UUID
    version: int = PARTITION_METADATA_VERSION


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """Version 1 has all but the directory id; in version 0 (before KRaft) every field may be missing."""

    cluster_id: str | None
    node_id: int | None
    directory_id: uuid.UUID | None = None
    version: int = META_PROPERTIES_VERSION_MAX


# ---- offset checkpoints ----


def encode_offset_checkpoint(offsets: Mapping[TopicPartition, int]) -> bytes:
    """Writes entries in partition order, so that equal content is equal bytes."""
    for (topic, partition), offset in offsets.items():
        if not (is_topic_name(topic) and 0 <= partition <= PARTITION_MAX and 0 <= offset <= OFFSET_MAX):
            raise ValueError(f"no checkpoint can hold {topic!r} {partition} {offset}")
    return _encode_lines([f"{topic} {partition} {offset}" for (topic, partition), offset in sorted(offsets.items())])


def decode_offset_checkpoint(data: bytes, place: str) -> dict[TopicPartition, int]:
    offsets: dict[TopicPartition, int] = {}
    for line_place, line in _decode_lines(data, place):
        match = _ENTRY.fullmatch(line)
        if match is None or not is_topic_name(match[1]):
            raise _malformed(line_place, line, "a topic, a partition and an offset")
        key = (match[1], _number(match[2], PARTITION_MAX, line_place, "partition"))
        if key in offsets:
            raise CorruptLogError(f"partition {key[0]}-{key[1]} is there twice", line_place, _REMEDY)
        offsets[key] = _number(match[3], OFFSET_MAX, line_place, "offset")
    return offsets


def read_offset_checkpoint(path: Path) -> dict[TopicPartition, int]:
    return decode_offset_checkpoint(read_file(path) or b"", str(path))


def write_offset_checkpoint(path: Path, offsets: Mapping[TopicPartition, int]) -> None:
    replace_file(path, encode_offset_checkpoint(offsets))


# ---- leader epochs ----


def encode_leader_epochs(entries: Sequence[EpochEntry]) -> bytes:
    for before, entry in zip((None, *entries), entries, strict=False):
        fits = 0 <= entry.epoch <= INT32_MAX and 0 <= entry.start_offset <= OFFSET_MAX
        if not fits or (before is not None and not _follows(before, entry)):
            raise ValueError(f"{entry} cannot follow {before}")
    return _encode_lines([f"{entry.epoch} {entry.start_offset}" for entry in entries])


def decode_leader_epochs(data: bytes, place: str) -> tuple[EpochEntry, ...]:
    entries: list[EpochEntry] = []
    for line_place, line in _decode_lines(data, place):
        match = _EPOCH_ENTRY.fullmatch(line)
        if match is None:
            raise _malformed(line_place, line, "an epoch and its start offset")
        epoch = LeaderEpoch(_number(match[1], INT32_MAX, line_place, "epoch"))
        entry = EpochEntry(epoch, _number(match[2], OFFSET_MAX, line_place, "start offset"))
        if entries and not _follows(entries[-1], entry):
            what = f"epoch {entry.epoch} at {entry.start_offset} does not come after the line before"
            raise CorruptLogError(what, line_place, _REMEDY)
        entries.append(entry)
    return tuple(entries)


def _follows(before: EpochEntry, entry: EpochEntry) -> bool:
    return entry.epoch > before.epoch and entry.start_offset > before.start_offset


# ---- partition.metadata ----


def encode_partition_metadata(metadata: PartitionMetadata) -> bytes:
    return f"version: {metadata.version}\ntopic_id: {format_uuid(metadata.topic_id)}".encode()


def decode_partition_metadata(data: bytes, place: str) -> PartitionMetadata:
    """By Kafka's compatibility promise later versions keep these two lines; further lines are only accepted for
    them."""
    lines = [line.removesuffix("\r") for line in _text(data, place).split("\n")]
    version_text = _field(lines, 0, "version", place)
    version = _number(version_text, INT32_MAX, f"{place}:1", "version")
    topic_id = parse_uuid(_field(lines, 1, "topic_id", place))
    if topic_id is None or topic_id.int == 0:
        raise _malformed(f"{place}:2", lines[1], "a topic id, 22 characters of base64 and not zero")
    if version == PARTITION_METADATA_VERSION and any(lines[2:]):
        raise _malformed(f"{place}:3", "\n".join(lines[2:]), "the end of the file")
    return PartitionMetadata(topic_id, version)


def read_partition_metadata(path: Path) -> PartitionMetadata | None:
    data = read_file(path)
    return None if data is None else decode_partition_metadata(data, str(path))


def _field(lines: Sequence[str], index: int, name: str, place: str) -> str:
    line = lines[index] if index < len(lines) else ""
    key, colon, value = line.partition(":")
    if not colon or key != name or not value[:1].isspace():
        raise _malformed(f"{place}:{index + 1}", line, f"'{name}: ' and a value")
    return value.strip()


def format_uuid(value: uuid.UUID) -> str:
    """Formats an id as Kafka does: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")


def parse_uuid(text: str) -> uuid.UUID | None:
    if not _UUID.fullmatch(text):
        return None
    return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=="))


# ---- meta.properties ----


def encode_meta_properties(meta: MetaProperties) -> bytes:
    pairs = {"version": str(meta.version)}
    if meta.cluster_id is not None:
        if not meta.cluster_id.isprintable():
            raise ValueError(f"{meta.cluster_id!r} cannot be a cluster's id")
        pairs["cluster.id"] = meta.cluster_id
    if meta.node_id is not None:
        pairs["node.id" if meta.version >= 1 else "broker.id"] = str(meta.node_id)
    if meta.directory_id is not None:
        pairs["directory.id"] = format_uuid(meta.directory_id)
    return "".join(f"{key}={_escape(value)}\n" for key, value in sorted(pairs.items())).encode()


def decode_meta_properties(data: bytes, place: str) -> MetaProperties:
    """Other properties in the file are ignored, as in Kafka."""
    pairs = _properties(_text(data, place))
    version = _number(pairs.get("version", "0").strip(), INT32_MAX, place, "version")
    if version > META_PROPERTIES_VERSION_MAX:
        raise _unknown_version(version, place)
    node_key = "node.id" if version >= 1 else "broker.id"
    node_id = _number(pairs[node_key], INT32_MAX, place, node_key) if node_key in pairs else None
    cluster_id = pairs.get("cluster.id")
    if version >= 1 and (node_id is None or cluster_id is None):
        raise CorruptLogError(f"{node_key} or cluster.id is missing", place, _REMEDY)
    directory_id = None
    if "directory.id" in pairs:
        directory_id = parse_uuid(pairs["directory.id"])
        if directory_id is None:
            raise _malformed(place, pairs["directory.id"], "a directory.id of 22 characters of base64")
    return MetaProperties(cluster_id, node_id, directory_id, version)


def read_meta_properties(path: Path) -> MetaProperties | None:
    data = read_file(path)
    return None if data is None else decode_meta_properties(data, str(path))


def _escape(value: str) -> str:
    return re.sub(r"([\\=:#! ])", r"\\\1", value)


def _properties(text: str) -> dict[str, str]:
    """Parses Java's properties as far as Kafka's writer uses them: one pair per line, escapes, no continued lines."""
    pairs = {}
    for raw in text.split("\n"):
        line = raw.removesuffix("\r").lstrip(" \t\f")
        if line and line[0] not in "#!":
            match = re.match(r"((?:\\.|[^\\=: \t])*)[ \t]*[=: \t]?[ \t]*(.*)", line)
            if match is not None:
                pairs[re.sub(r"\\(.)", r"\1", match[1])] = re.sub(r"\\(.)", r"\1", match[2])
    return pairs


# ---- .kafka_cleanshutdown ----


def encode_clean_shutdown(broker_epoch: int) -> bytes:
    content = {"version": CLEAN_SHUTDOWN_VERSION, "brokerEpoch": broker_epoch}
    return json.dumps(content, separators=(",", ":")).encode()


# ---- files ----


def read_file(path: Path) -> bytes | None:
    """Returns the whole content, or None if there is no such file; raises EnvironmentFailure on any other error."""
    with _environment(path, "read"):
        try:
            size_bytes = path.stat().st_size
            if size_bytes <= FILE_BYTES_MAX:
                return path.read_bytes()
        except FileNotFoundError:
            return None
    raise CorruptLogError(f"{size_bytes} bytes are too many for this file", str(path), _REMEDY)


def replace_file(path: Path, content: bytes) -> None:
    """After a crash the file has its old content or the new, never a mix; once this has returned, the new one.

    The content is written to a temporary file, flushed, renamed over the old one, and the directory is flushed. The
    mode of an existing file is kept, and its owner if permitted; a new file gets those of the broker's other files.
    """
    temporary = path.with_name(path.name + ".tmp")
    with _environment(path, "written"):
        try:
            with open(temporary, "wb") as file:
                try:
                    owner = Owner.of_file(path)
                except FileNotFoundError:
                    owner = Owner.of_broker(path.parent)
                with contextlib.suppress(PermissionError):
                    owner.give(file.fileno())
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _sync_dir(path.parent)


def _sync_dir(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _environment(path: Path, verb: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        remedy = "Check free space, the disk and the permissions of the file and its directory, then try again"
        raise EnvironmentFailure(f"cannot be {verb}: {reason}", str(path), remedy) from error


# ---- lines ----

_REMEDY: Final = "Restore the file from another copy, or correct it by hand while no broker uses it"


def _encode_lines(lines: Sequence[str]) -> bytes:
    return "".join(f"{line}\n" for line in (str(CHECKPOINT_VERSION), str(len(lines)), *lines)).encode()


def _decode_lines(data: bytes, place: str) -> list[tuple[str, str]]:
    """Returns the entry lines, each with its place, after checking version, count and the last newline."""
    if not data:
        return []
    lines = [line.removesuffix("\r") for line in _text(data, place).split("\n")]
    version = _number(lines[0], INT32_MAX, f"{place}:1", "version")
    if version != CHECKPOINT_VERSION:
        raise _unknown_version(version, f"{place}:1")
    if lines.pop():
        remedy = f"If the line is complete, end it with a newline. {_REMEDY}"
        what = "the last line has no end, so it may be cut short"
        raise CorruptLogError(what, f"{place}:{len(lines) + 1}", remedy)
    if len(lines) < 2:
        raise CorruptLogError("the file ends before its count of entries", f"{place}:2", _REMEDY)
    count = _number(lines[1], INT32_MAX, f"{place}:2", "count of entries")
    if count != len(lines) - 2:
        raise CorruptLogError(f"{count} entries are announced, {len(lines) - 2} are there", f"{place}:2", _REMEDY)
    return [(f"{place}:{number}", line) for number, line in enumerate(lines[2:], start=3)]


def _text(data: bytes, place: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line_number = data.count(b"\n", 0, error.start) + 1
        raise CorruptLogError("this is not text", f"{place}:{line_number}", _REMEDY) from None


def _number(text: str, largest: int, place: str, what: str) -> int:
    if not _NUMBER.fullmatch(text) or int(text) > largest:
        raise _malformed(place, text, f"a {what} between 0 and {largest}")
    return int(text)


def _malformed(place: str, found: str, expected: str) -> CorruptLogError:
    shown = repr(found[:SHOWN_LENGTH_MAX])[:SHOWN_LENGTH_MAX]
    more = "" if len(found) <= SHOWN_LENGTH_MAX else "..."
    return CorruptLogError(f"expected {expected}, found {shown}{more}", place, _REMEDY)


def _unknown_version(version: int, place: str) -> UnsupportedFormatError:
    return UnsupportedFormatError(
        f"version {version} of this file is unknown",
        place,
        "Read it with the Kafka release that wrote it, or with a newer release of Sexton",
    )
