"""Folds that travel: what an audit needs of one broker's replicas, at 32 bytes a key, without the data.

    magic | sections | header, JSON | length of the header, uint32 | CRC-32C of sections and header, uint32

The header describes the replicas, and says where in the sections their transactions, gaps and rows of entries are. Keys
are hashed at the plan's secret points, which all machines of one audit share (`Plan`); whoever has the plan can try out
guessed keys, and nobody else can. Buckets are powers of two, so that those of two folds can be joined to fit.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from crc32c import crc32c

from sexton.audit.replica import AbortedClaim, OpenClaim, Replica, ReplicaId, Skipped
from sexton.audit.standing import Standing
from sexton.compaction.transactions import MARKER, TransactionEvents
from sexton.errors import CorruptLogError, EnvironmentFailure, NotALogError, SextonError
from sexton.records.keyhash import HashKey, random_hash_key
from sexton.spark.fold_pass import GAP, Kind, Rows

MAGIC: Final = b"SEXTON FOLD 2\n"
_SIZES: Final = struct.Struct(">II")
_REMEDY: Final = "Make it again with sexton audit index"


@dataclass(frozen=True, slots=True)
class Plan:
    """What all machines of one audit share."""

    hash_key: HashKey

    @classmethod
    def shared(cls, path: Path) -> Plan:
        """The plan in a file; the first machine makes it."""
        try:
            told = json.loads(path.read_text(encoding="utf-8"))
            return cls(HashKey(*map(int, told["hash_key"])))
        except FileNotFoundError:
            plan = cls(random_hash_key())
            path.write_text(json.dumps({"hash_key": list(plan.hash_key)}) + "\n", encoding="utf-8")
            return plan
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise NotALogError(
                f"this is no plan of sexton audit ({error})", str(path), "Copy the one that the first machine made"
            ) from error


@dataclass(frozen=True, slots=True)
class FoldedReplica:
    standing: Standing
    bucket_count: int
    rows: Mapping[int, Sequence[Rows]]
    """By bucket."""


@dataclass(frozen=True, slots=True)
class FoldFile:
    hash_key: HashKey
    replicas: tuple[FoldedReplica, ...]
    skipped: tuple[Skipped, ...] = ()


# ---- Writing ----


class Writer:
    """Rows go to the file as they come; what describes them follows."""

    def __init__(self, path: Path, hash_key: HashKey) -> None:
        self._path = path
        self._hash_key = hash_key
        self._size = 0
        self._crc = 0
        self._rows: dict[int, list[list[int]]] = {}
        self._file: BinaryIO | None = None

    def __enter__(self) -> Writer:
        try:
            self._file = open(self._path, "wb")
        except OSError as error:
            raise self._failure(error) from error
        self._write(MAGIC)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._file is not None:
            self._file.close()

    def _failure(self, error: OSError) -> EnvironmentFailure:
        return EnvironmentFailure(f"cannot be written ({error.strerror})", str(self._path), "Name another file")

    def _write(self, content: bytes | memoryview) -> None:
        assert self._file is not None, "entered"
        try:
            self._file.write(content)
        except OSError as error:
            raise self._failure(error) from error

    def _put(self, content: bytes | memoryview) -> list[int]:
        place = [self._size, len(content)]
        self._write(content)
        self._size += len(content)
        self._crc = crc32c(content, self._crc)
        return place

    def add_rows(self, number: int, bucket: int, rows: Sequence[Rows]) -> None:
        for row in rows:
            told = [bucket, row.first_offset, row.end_offset, int(row.kind), *self._put(row.payload)]
            self._rows.setdefault(number, []).append(told)

    def finish(
        self,
        standings: Mapping[int, Standing],
        bucket_counts: Mapping[int, int],
        unread: Sequence[Replica],
        skipped: Sequence[Skipped],
    ) -> None:
        replicas = [
            {
                **_replica_json(each.replica),
                **self._standing_json(each),
                "bucket_count": bucket_counts[number],
                "rows": self._rows.get(number, []),
            }
            for number, each in standings.items()
        ]
        header = json.dumps(
            {
                "hash_key": list(self._hash_key),
                "replicas": replicas + [_replica_json(each) for each in unread],
                "skipped": [list(each) for each in skipped],
            }
        ).encode()
        self._write(header)
        self._write(_SIZES.pack(len(header), crc32c(header, self._crc)))

    def _standing_json(self, each: Standing) -> dict[str, Any]:
        return {
            "end_offset": each.end_offset,
            "known_high_watermark": each.high_watermark,
            "record_count": each.record_count,
            "keyless_count": each.keyless_count,
            "size_bytes": each.size_bytes,
            "notes": list(each.notes),
            "failure": _error_json(each.failure),
            "markers": self._put(each.events.markers.tobytes()),
            "open_producer_ids": each.events.open_producer_ids.tolist(),
            "open_first_offsets": each.events.open_first_offsets.tolist(),
            "gaps": self._put(each.gaps.tobytes()),
            "has_all_gaps": each.has_all_gaps,
            "epochs": [list(pair) for pair in each.epochs],
        }


def _replica_json(replica: Replica) -> dict[str, Any]:
    return {
        "id": list(replica.id),
        "label": replica.label,
        "place": replica.place,
        "topic_id": None if replica.topic_id is None else str(replica.topic_id),
        "is_down": replica.is_down,
        "was_stopped_cleanly": replica.was_stopped_cleanly,
        "leader_epoch": replica.leader_epoch,
        "log_start_offset": replica.log_start_offset,
        "high_watermark": replica.high_watermark,
        "clean_offset": replica.clean_offset,
        "aborted": [list(each) for each in replica.aborted],
        "open": [list(each) for each in replica.open],
        "open_as_of": replica.open_as_of,
        "claims_are_complete": replica.claims_are_complete,
        "is_read": replica.is_read,
        "skipped": [list(each) for each in replica.skipped],
        "failure": _error_json(replica.failure),
    }


def _error_json(error: SextonError | None) -> list[str] | None:
    return None if error is None else [error.what, error.place, error.remedy]


# ---- Reading ----


def read(path: Path) -> FoldFile:
    """Rows are views of the file, which is mapped: it may be larger than memory."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            content = memoryview(mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) if size else b"")
    except OSError as error:
        raise NotALogError(f"cannot be read ({error.strerror})", str(path), _REMEDY) from error
    if bytes(content[: len(MAGIC)]) != MAGIC:
        raise NotALogError("this is no fold", str(path), _REMEDY)
    end = max(len(MAGIC), size - _SIZES.size)
    header_size, crc = _SIZES.unpack_from(bytes(content[end:]).ljust(_SIZES.size, b"\0"))
    if crc32c(content[len(MAGIC) : end]) != crc or header_size > end - len(MAGIC):
        raise CorruptLogError("the fold is damaged, or not whole", str(path), "Copy it once more")
    header = json.loads(bytes(content[end - header_size : end]))
    sections = content[len(MAGIC) : end - header_size]
    return FoldFile(
        HashKey(*header["hash_key"]),
        tuple(_folded(number, each, sections) for number, each in enumerate(header["replicas"])),
        tuple(Skipped(*each) for each in header["skipped"]),
    )


def _folded(number: int, told: Mapping[str, Any], sections: memoryview) -> FoldedReplica:
    replica = _replica(told)
    if "rows" not in told:
        nothing = TransactionEvents(np.zeros(0, dtype=MARKER), *(np.zeros(0, dtype=np.int64) for _ in range(2)))
        gaps = np.zeros(0, dtype=GAP)
        return FoldedReplica(
            Standing(replica=replica, events=nothing, gaps=gaps, end_offset=0, high_watermark=0), 1, {}
        )
    standing = Standing(
        replica=replica,
        events=TransactionEvents(
            np.frombuffer(_section(sections, told["markers"]), dtype=MARKER),
            np.array(told["open_producer_ids"], dtype=np.int64),
            np.array(told["open_first_offsets"], dtype=np.int64),
        ),
        gaps=np.frombuffer(_section(sections, told["gaps"]), dtype=GAP),
        has_all_gaps=told["has_all_gaps"],
        end_offset=told["end_offset"],
        high_watermark=told["known_high_watermark"],
        aborted=replica.aborted,
        epochs=tuple((epoch, end) for epoch, end in told["epochs"]),
        record_count=told["record_count"],
        keyless_count=told["keyless_count"],
        size_bytes=told["size_bytes"],
        notes=tuple(told["notes"]),
        failure=_error(told["failure"]),
    )
    rows: dict[int, list[Rows]] = {}
    for bucket, first, end, kind, *place in told["rows"]:
        rows.setdefault(bucket, []).append(Rows(number, first, end, Kind(kind), _section(sections, place)))
    return FoldedReplica(standing, told["bucket_count"], rows)


def _section(sections: memoryview, place: Sequence[int]) -> memoryview:
    return sections[place[0] : place[0] + place[1]]


def _replica(told: Mapping[str, Any]) -> Replica:
    return Replica(
        id=ReplicaId(*told["id"]),
        label=told["label"],
        place=told["place"],
        topic_id=None if told["topic_id"] is None else uuid.UUID(told["topic_id"]),
        is_down=told["is_down"],
        was_stopped_cleanly=told["was_stopped_cleanly"],
        leader_epoch=told["leader_epoch"],
        log_start_offset=told["log_start_offset"],
        high_watermark=told["high_watermark"],
        clean_offset=told["clean_offset"],
        aborted=tuple(AbortedClaim(*each) for each in told["aborted"]),
        open=tuple(OpenClaim(*each) for each in told["open"]),
        open_as_of=told["open_as_of"],
        claims_are_complete=told["claims_are_complete"],
        is_read=told["is_read"],
        skipped=tuple(Skipped(*each) for each in told["skipped"]),
        failure=_error(told["failure"]),
    )


def _error(told: Sequence[str] | None) -> SextonError | None:
    return None if told is None else SextonError(*told)


# ---- Buckets ----


def power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()


def in_buckets(replica: FoldedReplica, count: int) -> Iterator[tuple[int, list[Rows]]]:
    """Its rows by bucket, of which there are to be only so many: neighbours become one."""
    joined: dict[int, list[Rows]] = {}
    for bucket, rows in replica.rows.items():
        joined.setdefault(bucket * count // replica.bucket_count, []).extend(rows)
    yield from joined.items()
