"""Replicas in log directories, of brokers that run or do not. Everything is opened for reading, nothing is locked.

Checkpoints of a running broker are up to five seconds old, and it appends and compacts meanwhile: see
`spark.file_stretch` for how its segments are read. A directory on which no broker runs is *down*: a stopped broker's,
or a copy.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np

from sexton.audit.pattern import compile_pattern
from sexton.audit.replica import AbortedClaim, OpenClaim, Replica, ReplicaId, Skipped
from sexton.errors import NotALogError, SextonError
from sexton.log.stopped.kraft_metadata import ClusterMetadata, read_metadata
from sexton.log.stopped.partition import PartitionLog, ReadCheckpoint, Segment, open_partition
from sexton.log.stopped.running import is_running
from sexton.log.stopped.surroundings import is_sextons
from sexton.records import checkpoints, indexes, names
from sexton.records.batch import Batch, decode
from sexton.records.kernels.scan import scan
from sexton.records.producer_snapshot import decode_producer_snapshot
from sexton.spark.file_stretch import FileStretch
from sexton.types import INT64_MAX, NO_EPOCH, NO_OFFSET, LeaderEpoch

PATIENCE_S: Final = 10.0
"""For what another broker has already written. A follower that runs has it within a second."""
POLL_S: Final = 0.2

HOW_TO_NAME: Final = "Write BROKER=DIRECTORY, for example 1=/mnt/b1/kafka, with commas between several directories"

LOG_DIR_FILES: Final = (checkpoints.META_PROPERTIES, checkpoints.REPLICATION_OFFSET_CHECKPOINT)
"""Either is in each log directory, also in one without partitions."""

INTERNAL: Final = "__"
"""What the names of Kafka's own topics begin with."""

WHY_SKIPPED: Final = {
    names.DirState.DELETE: "it is being deleted",
    names.DirState.STRAY: "its broker should not have it",
    names.DirState.FUTURE: "it is being moved here from another disk",
}


@dataclass(slots=True)
class _Found:
    """A partition directory, opened."""

    log: PartitionLog
    log_dir: Path
    topic_id: uuid.UUID | None
    leader_epoch: LeaderEpoch


class FolderSource:
    """`dirs`: each broker's log directories, all of them."""

    def __init__(
        self, dirs: Mapping[int, Sequence[Path]], topic: str = "", *, everything: bool = False, suffix: str = ""
    ) -> None:
        """`topic` is a regular expression of whole names. Topics that are not compacted are skipped unless `everything`
        is asked for, where the metadata beside the partitions tells which they are. `suffix` goes to labels. Raises
        BadPatternError."""
        self._dirs = {broker: [path.resolve() for path in paths] for broker, paths in dirs.items()}
        self._pattern = topic
        self._matches = compile_pattern(topic) if topic else None
        self._everything = everything
        self._suffix = suffix
        self._found: dict[ReplicaId, _Found] = {}
        self._read_checkpoint = _kept()
        self.skipped: list[Skipped] = []

    # ---- Finding ----

    def check(self, *, must_match: bool = False) -> None:
        """Raises NotALogError if these are no log directories, or of other brokers than was said; with `must_match`, if
        there is no topic to read."""
        self._check_identities()
        if not must_match:
            return
        metadata = self._metadata()
        names_here = {
            parsed.topic for paths in self._dirs.values() for path in paths for _, parsed in _partitions(path)
        }
        wanted = [name for name in names_here if self._is_wanted(name)]
        if not wanted and not self._pattern:
            raise NotALogError("there are no topics here, but internal ones", "", "--topic reads those that it names")
        if not wanted:
            what = f"none of the {len(names_here):,} topics here has a name like this"
            raise NotALogError(what, self._pattern, "The pattern is of whole names")
        if not any(self._is_compacted(name, metadata) for name in wanted):
            what = f"none of the {len(wanted):,} topics here is compacted"
            raise NotALogError(what, self._pattern, "--all looks at topics that are not compacted, too")

    def find(self) -> Sequence[Replica]:
        """May be called again, when a partition is read again."""
        self._found, self._read_checkpoint, self.skipped = {}, _kept(), []
        self._check_identities()
        metadata = self._metadata()
        replicas: list[Replica] = []
        for broker, paths in sorted(self._dirs.items()):
            for path in paths:
                for directory, parsed in _partitions(path):
                    replica = self._replica(broker, path, directory, parsed, metadata)
                    if replica is not None:
                        replicas.append(replica)
        return replicas

    def _check_identities(self) -> None:
        """Directories given for the wrong broker would all seem to differ."""
        clusters: dict[str, Path] = {}
        for broker, paths in self._dirs.items():
            for path in paths:
                if not path.is_dir():
                    raise NotALogError("there is no such directory", str(path), "Name a broker's log directories")
                mine = checkpoints.read_meta_properties(path / checkpoints.META_PROPERTIES)
                if mine is None:
                    _check_is_log_dir(path)
                    continue
                if mine.node_id not in (None, broker):
                    raise NotALogError(
                        f"it belongs to broker {mine.node_id}, not to {broker}", str(path), f"Say {mine.node_id}={path}"
                    )
                if mine.cluster_id is not None:
                    clusters.setdefault(mine.cluster_id, path)
        if len(clusters) > 1:
            raise NotALogError(
                f"these directories are of {len(clusters)} clusters ({', '.join(sorted(clusters))})",
                ", ".join(map(str, clusters.values())),
                "Name directories of brokers of one cluster",
            )

    def _metadata(self) -> ClusterMetadata | None:
        """The newest there is. Without it every topic counts."""
        found: list[ClusterMetadata] = []
        for path in (path for paths in self._dirs.values() for path in paths):
            try:
                metadata = read_metadata(path)
            except SextonError as error:
                self.skipped.append(Skipped(str(path), f"its cluster metadata cannot be read ({error.what})"))
                continue
            if metadata is not None:
                found.append(metadata)
        return max(found, key=lambda metadata: metadata.end_offset, default=None)

    def _replica(
        self,
        broker: int,
        log_dir: Path,
        directory: Path,
        parsed: names.PartitionDir,
        metadata: ClusterMetadata | None,
    ) -> Replica | None:
        if not self._is_wanted(parsed.topic):
            return None
        if parsed.state is not names.DirState.LIVE:
            self.skipped.append(Skipped(str(directory), WHY_SKIPPED[parsed.state]))
            return None
        if not self._is_compacted(parsed.topic, metadata):
            return None
        id = ReplicaId(parsed.topic, parsed.partition, broker)
        label = f"broker {broker}{self._suffix}"
        if id in self._found:
            self.skipped.append(Skipped(str(directory), f"{self._found[id].log.directory} is the same partition"))
            return None
        try:
            self._found[id] = _open(directory, log_dir, self._read_checkpoint)
            return self._described(id, label)
        except SextonError as error:
            return Replica(id=id, label=label, place=str(directory), is_read=False, failure=error)

    def _is_wanted(self, topic: str) -> bool:
        """Internal topics only if a pattern names them."""
        if topic == names.CLUSTER_METADATA_TOPIC:
            return False
        return not topic.startswith(INTERNAL) if self._matches is None else self._matches(topic)

    def _is_compacted(self, topic: str, metadata: ClusterMetadata | None) -> bool:
        """Or is to be read all the same."""
        return self._everything or metadata is None or _is_compacted(topic, metadata)

    def _described(self, id: ReplicaId, label: str) -> Replica:
        found = self._found[id]
        log = found.log
        open_claims, as_of = _open_claims(log)
        is_down = not is_running(found.log_dir)
        was_stopped_cleanly = is_down and (found.log_dir / names.CLEAN_SHUTDOWN_FILE).exists()
        skipped = []
        recorded = self._read_checkpoint(found.log_dir / checkpoints.LOG_START_OFFSET_CHECKPOINT)
        start = recorded.get((log.topic, log.partition))
        if start is not None and start < log.segments[0].base_offset:
            reason = f"offsets {start:,} to {log.segments[0].base_offset:,} are not on this disk (tiered storage)"
            skipped.append(Skipped(str(log.directory), reason))
        return Replica(
            id=id,
            label=label,
            place=str(log.directory),
            topic_id=found.topic_id,
            is_down=is_down,
            was_stopped_cleanly=was_stopped_cleanly,
            leader_epoch=found.leader_epoch,
            log_start_offset=log.log_start_offset,
            high_watermark=log.high_watermark,
            clean_offset=log.cleaner_offset,
            aborted=tuple(_aborted_claims(log)),
            open=open_claims,
            open_as_of=as_of,
            # A killed broker makes its newest indexes again when it starts; one of Sexton's writes them late.
            claims_are_complete=(was_stopped_cleanly or not is_down) and not is_sextons(log.directory),
            skipped=tuple(skipped),
        )

    # ---- Reading ----

    def stretches(self, replica: Replica, number: int, from_offset: int, to_offset: int | None) -> list[FileStretch]:
        segments = self._found[replica.id].log.segments
        ends = [*(segment.base_offset for segment in segments[1:]), INT64_MAX]
        limit = INT64_MAX if to_offset is None else to_offset
        return [
            FileStretch(
                replica=number,
                path=str(segment.path),
                size_bytes=segment.size_bytes,
                from_offset=max(segment.base_offset, from_offset),
                to_offset=min(end, limit),
                may_be_torn=segment is segments[-1] and not replica.was_stopped_cleanly,
            )
            for segment, end in zip(segments, ends, strict=True)
            if end > from_offset and segment.base_offset < limit
        ]

    def read_on(self, wanted: Mapping[ReplicaId, int]) -> list[Replica]:
        """One that is down is as it was."""
        deadline_s = time.monotonic() + PATIENCE_S
        self._read_checkpoint = _kept()
        replicas = []
        for id, offset in wanted.items():
            found = self._found[id]
            while is_running(found.log_dir):
                self._found[id] = _open(found.log.directory, found.log_dir, self._read_checkpoint)
                if _end_offset(self._found[id].log) >= offset or time.monotonic() > deadline_s:
                    break
                time.sleep(POLL_S)
            described = self._described(id, f"broker {id.broker}{self._suffix}")
            replicas.append(replace(described, log_end_offset=_end_offset(self._found[id].log)))
        return replicas

    def look_up(self, replica: Replica, offsets: Sequence[int]) -> dict[int, Batch]:
        found: dict[int, Batch] = {}
        for stretch in self.stretches(replica, 0, min(offsets, default=0), max(offsets, default=-1) + 1):
            wanted = np.array(
                sorted(each for each in set(offsets) if stretch.from_offset <= each < stretch.to_offset), dtype=np.int64
            )
            if len(wanted):
                found.update(_batches_at(stretch, wanted))
        return found

    def now(self, ids: Sequence[ReplicaId]) -> list[Replica]:
        """As their files are now. One that is down is as it was."""
        self._read_checkpoint = _kept()
        replicas = []
        for id in ids:
            found = self._found[id]
            label = f"broker {id.broker}{self._suffix}"
            try:
                described = self._described(id, label)
                if is_running(found.log_dir):
                    self._found[id] = _open(found.log.directory, found.log_dir, self._read_checkpoint)
                    end_offset = _end_offset(self._found[id].log)
                    described = replace(self._described(id, label), log_end_offset=end_offset)
                replicas.append(described)
            except SextonError as error:
                place = str(found.log.directory)
                replicas.append(Replica(id=id, label=label, place=place, is_read=False, failure=error))
        return replicas

    def close(self) -> None:
        pass


def broker_of(log_dirs: Sequence[Path]) -> int | None:
    """Returns the broker id in meta.properties; None if no directory names one."""
    for log_dir in log_dirs:
        found = checkpoints.read_meta_properties(log_dir / checkpoints.META_PROPERTIES)
        if found is not None and found.node_id is not None:
            return found.node_id
    return None


def _check_is_log_dir(path: Path) -> None:
    if not any((path / name).exists() for name in LOG_DIR_FILES) and not any(_partitions(path)):
        what = "this is no broker's log directory: it has neither partitions (orders-0) nor a broker's files"
        raise NotALogError(what, str(path), "Name what the broker's log.dirs names")


def _partitions(log_dir: Path) -> Iterator[tuple[Path, names.PartitionDir]]:
    for path in _listed(log_dir):
        with suppress(NotALogError):
            yield path, names.parse_partition_dir(path.name)


def _listed(log_dir: Path) -> list[Path]:
    try:
        return sorted(path for path in log_dir.iterdir() if path.is_dir())
    except OSError as error:
        raise NotALogError(f"cannot be listed ({error.strerror})", str(log_dir), "Check its permissions") from error


def _kept() -> ReadCheckpoint:
    """Each file is read once: it has a line for each partition of its log directory."""
    return cache(checkpoints.read_offset_checkpoint)


def _open(directory: Path, log_dir: Path, read_checkpoint: ReadCheckpoint) -> _Found:
    """A directory may be a link; its checkpoints are beside the link."""
    log = open_partition(directory, read_checkpoint)
    metadata = checkpoints.read_partition_metadata(directory / checkpoints.PARTITION_METADATA)
    epochs = checkpoints.read_file(directory / checkpoints.LEADER_EPOCH_CHECKPOINT)
    path = str(directory / checkpoints.LEADER_EPOCH_CHECKPOINT)
    entries = () if epochs is None else checkpoints.decode_leader_epochs(epochs, path)
    return _Found(
        log, log_dir, None if metadata is None else metadata.topic_id, entries[-1].epoch if entries else NO_EPOCH
    )


def _is_compacted(topic: str, metadata: ClusterMetadata) -> bool:
    settings = {**metadata.cluster_defaults, **metadata.topics.get(topic, {})}
    policy = settings.get("cleanup.policy", metadata.cluster_defaults.get("log.cleanup.policy", "delete"))
    return topic not in metadata.topics or "compact" in policy


# ---- What a broker claims ----


def _aborted_claims(log: PartitionLog) -> Iterator[AbortedClaim]:
    for segment in log.segments:
        path = log.directory / names.transaction_index_file_name(segment.base_offset)
        content = checkpoints.read_file(path)
        for entry in indexes.decode_transaction_index(content or b""):
            yield AbortedClaim(int(entry["producer_id"]), int(entry["first_offset"]), int(entry["last_offset"]))


def _open_claims(log: PartitionLog) -> tuple[tuple[OpenClaim, ...], int]:
    """Of the newest snapshot, and the log end that it is about: if no batch has come since, it holds now."""
    files = (names.parse_segment_file(path.name) for path in log.directory.iterdir())
    ends = [
        file.base_offset for file in files if file and file.kind == names.PRODUCER_SNAPSHOT_SUFFIX and not file.state
    ]
    as_of = max(ends, default=NO_OFFSET)
    path = log.directory / names.producer_snapshot_file_name(max(as_of, 0))
    try:
        entries = decode_producer_snapshot(checkpoints.read_file(path) or b"", str(path))
    except SextonError:
        return (), NO_OFFSET
    return tuple(
        OpenClaim(entry.producer_id, entry.producer_epoch, entry.current_txn_first_offset, entry.last_timestamp)
        for entry in entries
        if entry.current_txn_first_offset >= 0
    ), as_of


# ---- Looking at batches ----


def _end_offset(log: PartitionLog) -> int:
    """Returns the log end, which it reads from the batch headers of the last segment."""
    segment = log.segments[-1]
    end = segment.base_offset
    for piece in _whole(segment).pieces():
        try:
            for table in scan(piece.data, 0, len(piece.data), piece.place, check_crc=False, previous_offset=end - 1):
                end = int(table["last_offset"][-1]) + 1
        except SextonError:
            break
    return end


def _whole(segment: Segment) -> FileStretch:
    return FileStretch(
        replica=0,
        path=str(segment.path),
        size_bytes=segment.size_bytes,
        from_offset=segment.base_offset,
        to_offset=INT64_MAX,
        may_be_torn=True,
    )


def _batches_at(stretch: FileStretch, wanted: np.ndarray[tuple[int], np.dtype[np.int64]]) -> dict[int, Batch]:
    found: dict[int, Batch] = {}
    for piece in stretch.pieces():
        view = memoryview(piece.data)  # type: ignore[arg-type]
        try:
            for table in scan(piece.data, 0, len(piece.data), piece.place, check_crc=False):
                rows = np.searchsorted(table["last_offset"], wanted)
                decoded: dict[int, Batch] = {}
                for offset, row in zip(wanted.tolist(), rows.tolist(), strict=True):
                    if row < len(table) and table["base_offset"][row] <= offset:
                        if row not in decoded:
                            decoded[row] = decode(view, int(table["position"][row]), piece.place)
                        found[offset] = decoded[row]
                if table["last_offset"][-1] >= wanted[-1]:
                    return found
        except SextonError:
            break
    return found


@dataclass(slots=True)
class Dirs:
    """`1=/mnt/b1,/mnt/b1b` as given on the command line."""

    of_broker: dict[int, list[Path]] = field(default_factory=dict)

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Dirs:
        """Without a broker, the directories themselves may say whose they are. Raises NotALogError."""
        dirs = cls()
        for text in texts:
            broker, equals, listed = text.partition("=")
            is_named = bool(equals) and broker.isdigit()
            paths = [Path(path) for path in (listed if is_named else text).split(",") if path]
            number = int(broker) if is_named else _own_broker(text, paths)
            if not paths:
                raise NotALogError("no directory was named", text, HOW_TO_NAME)
            dirs.of_broker.setdefault(number, []).extend(paths)
        return dirs


def _own_broker(text: str, paths: Sequence[Path]) -> int:
    for path in paths:
        if not path.is_dir():
            raise NotALogError(
                "there is no such directory, and it does not begin with a broker's id", text, HOW_TO_NAME
            )
    number = broker_of(paths)
    if number is None:
        raise NotALogError("nothing in it says which broker's it is (meta.properties)", text, HOW_TO_NAME)
    return number
