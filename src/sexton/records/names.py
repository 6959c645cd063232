"""Kafka's names of the files and directories of a log.

A log directory holds one directory per partition, `topic-partition`, and a few checkpoint files. A partition
directory holds segments: files that share a 20-digit base offset and differ in their suffix. A second suffix
says that a file is not (or not yet, or no longer) part of the log:

    .cleaned   being written by compaction or a segment split; a broker deletes it on start
    .swap      finished, about to replace the segments it was made from; a broker finishes the renaming on
               start, unless a .cleaned file with the same or a lower base offset shows that the step never
               completed
    .deleted   deleted, waiting for its last reader; a broker deletes it on start

A `.snapshot` is named after the offset it ends at (exclusive): a segment's base offset, or the log's end.

A partition directory that is being removed or filled has a unique id and a suffix: `topic-3.<id>-delete`, `-stray` (the
broker should not hold that partition) or `-future` (the copy that a move between disks fills). Topics may contain
dashes and dots, so the partition is what follows the *last* dash. When a directory is being removed, a name longer than
a file system allows is shortened by cutting the end of the topic; `partition.metadata` inside still has the topic's id.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

from sexton.errors import NotALogError
from sexton.types import INT32_MAX, OFFSET_MAX

LOG_SUFFIX: Final = ".log"
OFFSET_INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
TRANSACTION_INDEX_SUFFIX: Final = ".txnindex"
PRODUCER_SNAPSHOT_SUFFIX: Final = ".snapshot"

CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"
DELETED_SUFFIX: Final = ".deleted"

CLEAN_SHUTDOWN_FILE: Final = ".kafka_cleanshutdown"

INCARNATION_FILE: Final = "incarnation"
"""Beside a log of a Sexton broker: the id of this replica's log."""

CLUSTER_METADATA_TOPIC: Final = "__cluster_metadata"
"""KRaft's own log is among the partitions but belongs to the controller, and is never compacted."""

PARTITION_MAX: Final = INT32_MAX
TOPIC_LENGTH_MAX: Final = 249
DIR_NAME_LENGTH_MAX: Final = 255

_SEGMENT_FILE = re.compile(
    r"(?P<offset>[0-9]{20})(?P<kind>\.(?:log|index|timeindex|txnindex|snapshot))"
    r"(?P<state>\.cleaned|\.swap|\.deleted)?"
)
_TOPIC = re.compile(r"[a-zA-Z0-9._-]+")
_PARTITION = re.compile(r"0|[1-9][0-9]{0,9}")


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """A parsed file name. `kind` and `state` are suffix constants; `state` is empty for a live file."""

    base_offset: int
    kind: str
    state: str = ""

    @property
    def name(self) -> str:
        return _digits(self.base_offset) + self.kind + self.state


class DirState(Enum):
    """Whether a partition directory is the partition, or a copy of it in transit. The value is the suffix."""

    LIVE = ""
    DELETE = "-delete"
    STRAY = "-stray"
    FUTURE = "-future"


@dataclass(frozen=True, slots=True)
class PartitionDir:
    topic: str
    partition: int
    state: DirState = DirState.LIVE
    unique_id: str = ""

    @property
    def name(self) -> str:
        live = f"{self.topic}-{self.partition}"
        return live if self.state is DirState.LIVE else f"{live}.{self.unique_id}{self.state.value}"


def log_file_name(base_offset: int, state: str = "") -> str:
    """Zero-padded so that a plain directory listing is in offset order."""
    return segment_file_name(base_offset, LOG_SUFFIX, state)


def transaction_index_file_name(base_offset: int, state: str = "") -> str:
    return segment_file_name(base_offset, TRANSACTION_INDEX_SUFFIX, state)


def producer_snapshot_file_name(end_offset: int, state: str = "") -> str:
    return segment_file_name(end_offset, PRODUCER_SNAPSHOT_SUFFIX, state)


def segment_file_name(base_offset: int, kind: str, state: str = "") -> str:
    return SegmentFile(base_offset, kind, state).name


def parse_segment_file(name: str) -> SegmentFile | None:
    """Returns None for any other file: a partition directory has checkpoints and may have unknown files."""
    match = _SEGMENT_FILE.fullmatch(name)
    if match is None or int(match["offset"]) > OFFSET_MAX:
        return None
    return SegmentFile(int(match["offset"]), match["kind"], match["state"] or "")


def parse_base_offset(name: str) -> int:
    """For a name that should be a segment's; raises for any other."""
    parsed = parse_segment_file(name)
    if parsed is None:
        raise NotALogError(
            "not the name of a segment file, which is 20 digits and a suffix such as .log or .index",
            place=name,
            remedy="Name a file inside a partition directory, such as 00000000000000000000.log",
        )
    return parsed.base_offset


def parse_partition_dir(name: str) -> PartitionDir:
    """Returns the partition of a directory. `name` is the last path component alone.

    Stricter than a broker in one way: an impossible topic name or partition (a space, a partition written 007) is
    refused, because a mistyped path is likelier than such a topic.
    """
    state = next((s for s in DirState if s is not DirState.LIVE and name.endswith(s.value)), DirState.LIVE)
    live, unique_id = name, ""
    if state is not DirState.LIVE:
        live, dot, unique_id = name.removesuffix(state.value).rpartition(".")
        if not dot or not unique_id:
            raise _not_a_partition(name, f"it ends in {state.value} but has no .id before that")
    topic, dash, partition = live.rpartition("-")
    if not dash:
        raise _not_a_partition(name, "it has no dash between a topic and a partition")
    if not is_topic_name(topic):
        raise _not_a_partition(name, f"{topic!r} cannot be a topic's name")
    if not _PARTITION.fullmatch(partition) or int(partition) > PARTITION_MAX:
        raise _not_a_partition(name, f"{partition!r} is not a partition number")
    return PartitionDir(topic, int(partition), state, unique_id)


def name_in_state(topic: str, partition: int, state: DirState, unique_id: str) -> str:
    """Kafka's name for a partition's directory in a state, with the topic truncated if the name would be too long."""
    for length in range(len(topic), 0, -1):
        name = PartitionDir(topic[:length], partition, state, unique_id).name
        if len(name) <= DIR_NAME_LENGTH_MAX:
            return name
    raise ValueError(f"no name is short enough for {topic!r}")


def is_topic_name(topic: str) -> bool:
    return _TOPIC.fullmatch(topic) is not None and len(topic) <= TOPIC_LENGTH_MAX and topic not in (".", "..")


def _digits(offset: int) -> str:
    if not 0 <= offset <= OFFSET_MAX:
        raise ValueError(f"offset {offset} is not between 0 and 2^63 - 1")
    return f"{offset:020d}"


def _not_a_partition(name: str, why: str) -> NotALogError:
    return NotALogError(
        f"not a partition directory: {why}",
        place=name,
        remedy="Name a directory such as orders-0, or move what is not Kafka's out of the log directory",
    )
