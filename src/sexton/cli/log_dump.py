"""`sexton log dump`: a log, or an object of cloud topics, record by record.

This is the tool for a look at broken data, so it goes through the plain reference decoder, batch by batch: what came
before a corrupt batch is printed, then the error says where it is. Batches that no filter can match are not unpacked.
"""

from __future__ import annotations

import contextlib
import os
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from sexton.adapters.objects.blocking import BlockingStore
from sexton.adapters.objects.named import find_objects, read_footer
from sexton.cli import show
from sexton.errors import DamagedObjectError, NotALogError
from sexton.log.stopped.partition import find_partitions, mapped, open_partition
from sexton.records import codecs, names
from sexton.records.batch import Batch, ControlType, Header, Record, decode, decode_header
from sexton.records.codecs import Codec
from sexton.records.header import CODEC_MASK, CONTROL, HEADER_BYTES, attribute_bits
from sexton.records.kernels.primitives import Bytes
from sexton.records.kernels.scan import scan
from sexton.records.objects import Run
from sexton.settings.schema import BadSettingError
from sexton.types import NO_PRODUCER_ID, NO_SEQUENCE, OFFSET_MAX

SCAN_ROWS = 64
"""Batches looked at before the first of them is printed: a reader of a pipe should not wait."""

SEQUENCE_COUNT = 1 << 31


class Kind(StrEnum):
    """What a line is about."""

    DATA = "data"
    TOMBSTONE = "tombstone"
    COMMIT = "commit"
    ABORT = "abort"
    EMPTY = "empty"


@dataclass(frozen=True, slots=True)
class Filter:
    from_offset: int
    to_offset: int
    keys: tuple[bytes, ...]
    kinds: frozenset[str]

    def may_match(self, attributes: int, record_count: int, base_offset: int, last_offset: int) -> bool:
        """Whether a batch can have anything to show, told by its header."""
        if last_offset < self.from_offset or base_offset >= self.to_offset:
            return False
        is_control = bool(attributes & CONTROL)
        if self.keys and (is_control or record_count == 0):
            return False
        if not self.kinds:
            return True
        if record_count == 0:
            return Kind.EMPTY in self.kinds
        wanted = {Kind.COMMIT, Kind.ABORT} if is_control else {Kind.DATA, Kind.TOMBSTONE}
        return bool(wanted & self.kinds)

    def matches(self, kind: str, offset: int, key: bytes | None) -> bool:
        return (
            self.from_offset <= offset < self.to_offset
            and (not self.kinds or kind in self.kinds)
            and (not self.keys or key in self.keys)
        )


@dataclass(frozen=True, slots=True)
class Stretch:
    """Batches that lie together: a segment's file, or a partition's run in an object."""

    name: str
    """Of the file or the object."""
    partition: str
    group: str
    """What a line begins with where several partitions are printed."""
    base_offset: int
    position: int
    """Of its first byte in the file or object."""
    open: Callable[[], AbstractContextManager[Bytes]]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a batch lies."""

    stretch: Stretch
    position: int
    control_type: ControlType
    """What its header scan says, for those who do not unpack its records."""

    @property
    def short_text(self) -> str:
        return f"{self.stretch.name.rpartition('/')[2]}:{self.position}"


def dump(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="DIR|FILE.log|OBJECT...",
            help="Partition or log directories, segment files, or objects of cloud topics (a URL, or a file).",
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    from_offset: Annotated[int, typer.Option(min=0, help="The first offset to show.")] = 0,
    to_offset: Annotated[int | None, typer.Option(min=0, help="Stop before this offset.")] = None,
    key: Annotated[
        str | None, typer.Option(help="Only records with this key, as text or, for other bytes, as 0x00ff.")
    ] = None,
    kind: Annotated[list[Kind] | None, typer.Option(help="Only lines of this kind. May be repeated.")] = None,
    headers_only: Annotated[
        bool, typer.Option("--headers-only", help="One line a batch, from its header; records are not unpacked.")
    ] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Stop after so many lines.")] = None,
) -> None:
    """Print the records of a log, one a line, in offset order.

    A batch that cannot be read ends the output with an error that names its file and position.
    """
    if headers_only and (key is not None or Kind.TOMBSTONE in (kind or [])):
        raise BadSettingError(
            "--headers-only does not look at records, so it cannot find keys or tombstones", "", "Leave it out"
        )
    end = OFFSET_MAX if to_offset is None else to_offset
    wanted = Filter(from_offset, end, _key_bytes(key), frozenset(kind or []))
    describe = _batch_line if headers_only else _record_lines
    stretches = [stretch for path in paths for stretch in _stretches(path, wanted)]
    is_one = as_json or len({stretch.group for stretch in stretches}) <= 1
    lines = (
        line if is_one else f"{stretch.group} {line}"
        for stretch in stretches
        for line in _lines(stretch, wanted, describe, headers_only, as_json)
    )
    try:
        for line in islice(lines, limit):
            sys.stdout.write(line + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read this has seen enough, which is no failure. Python flushes once more at exit: into nothing.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    finally:
        lines.close()


HEADER_FIELDS = ("position", "size", "control_type", "attributes", "record_count", "base_offset", "last_offset")
Describe = Callable[[Place, Batch, Filter, bool], Iterator[str]]


def _lines(stretch: Stretch, wanted: Filter, describe: Describe, headers_only: bool, as_json: bool) -> Iterator[str]:
    where = f"{stretch.name}, from byte {stretch.position} on" if stretch.position else stretch.name
    with stretch.open() as data:
        view = memoryview(data)  # type: ignore[arg-type]
        tables = scan(
            data,
            0,
            len(data),
            where,
            # Who decodes a batch checks it; "no such key" must not come from a batch that nobody checked.
            check_crc=headers_only or bool(wanted.keys),
            previous_offset=stretch.base_offset - 1,
            rows_per_step=SCAN_ROWS,
        )
        for table in tables:
            rows = zip(*(table[name].tolist() for name in HEADER_FIELDS), strict=True)
            for position, size, control_type, *header in rows:
                if header[2] >= wanted.to_offset:
                    return
                if wanted.may_match(*header) and _may_hold_key(view[position : position + size], wanted, where):
                    place = Place(stretch, stretch.position + position, ControlType(control_type))
                    batch = (decode_header if headers_only else decode)(view, position, where)
                    yield from describe(place, batch, wanted, as_json)


def _may_hold_key(batch: memoryview, wanted: Filter, place: str) -> bool:
    """A look for the key's bytes anywhere in the batch, which is much faster than decoding every record of a log."""
    if not wanted.keys:
        return True
    body = codecs.decompress(attribute_bits(batch) & CODEC_MASK, batch[HEADER_BYTES:], place)
    return any(key in body for key in wanted.keys)


def _stretches(name: str, wanted: Filter) -> Iterator[Stretch]:
    """What can have a wanted offset, in order."""
    path = Path(name)
    if "://" in name:
        yield from _runs(name, wanted)
    elif path.is_dir() or not path.exists():
        for directory in find_partitions([path]):
            segments = open_partition(directory).segments
            ends = [segment.base_offset for segment in segments[1:]]
            for segment, end in zip(segments, [*ends, OFFSET_MAX], strict=True):
                if end > wanted.from_offset and segment.base_offset < wanted.to_offset:
                    yield _segment(segment.path)
    elif (file := names.parse_segment_file(path.name)) is not None and file.kind == names.LOG_SUFFIX:
        yield _segment(path.resolve())
    else:
        yield from _runs_of_file(path, wanted)


def _segment(path: Path) -> Stretch:
    return Stretch(
        name=str(path),
        partition=path.parent.name,
        group=str(path.parent),
        base_offset=names.parse_base_offset(path.name),
        position=0,
        open=partial(mapped, path),
    )


def _runs_of_file(path: Path, wanted: Filter) -> Iterator[Stretch]:
    try:
        yield from _runs(f"file://{path.resolve()}", wanted)
    except DamagedObjectError as error:
        raise NotALogError(
            f"this is neither a segment's .log file nor an object of a cloud topic: {error.what}",
            str(path),
            "Name a file such as 00000000000000000000.log, the partition directory that it lies in, or an object",
        ) from error


def _runs(url: str, wanted: Filter) -> Iterator[Stretch]:
    """By the footers of that object, or of all objects below that prefix. A topic's name is not in them."""
    for store, key in find_objects(url):
        for run in read_footer(store, key).runs:
            if run.end_offset > wanted.from_offset and run.base_offset < wanted.to_offset:
                partition = f"{run.topic_id}-{run.partition}"
                yield Stretch(
                    name=f"{store.place}/{key}",
                    partition=partition,
                    group=partition,
                    base_offset=run.base_offset,
                    position=run.position,
                    open=partial(_fetched, store, key, run),
                )


def _fetched(store: BlockingStore, key: str, run: Run) -> AbstractContextManager[Bytes]:
    return contextlib.nullcontext(np.frombuffer(store.read(key, run.position, run.size_bytes), dtype=np.uint8))


def _kind(place: Place, batch: Batch) -> str:
    if batch.record_count == 0:
        return Kind.EMPTY
    if not batch.is_control:
        return Kind.DATA
    return "control" if place.control_type is ControlType.UNKNOWN else place.control_type.name.lower()


def _record_lines(place: Place, batch: Batch, wanted: Filter, as_json: bool) -> Iterator[str]:
    write = _record_json if as_json else _record_text
    batch_kind = _kind(place, batch)
    if not batch.records:
        yield write(place, batch, None, batch_kind)
    for record in batch.records:
        is_tombstone = batch_kind == Kind.DATA and record.is_tombstone and record.key is not None
        kind = Kind.TOMBSTONE if is_tombstone else batch_kind
        if wanted.matches(kind, record.offset, record.key):
            yield write(place, batch, record, kind)


def _batch_line(place: Place, batch: Batch, wanted: Filter, as_json: bool) -> Iterator[str]:
    kind = _kind(place, batch)
    if wanted.kinds and kind not in wanted.kinds:
        return
    if as_json:
        yield show.json_text(
            {
                "partition": place.stretch.partition,
                "kind": kind,
                "record_count": batch.record_count,
                "max_timestamp_ms": batch.max_timestamp_ms,
                **_producer_json(batch, batch.base_sequence),
                "batch": _batch_json(place, batch),
            }
        )
        return
    yield (
        f"{batch.base_offset:>12} - {batch.last_offset:<12} {show.time_text(batch.max_timestamp_ms):<24} {kind:<9} "
        f"{batch.record_count:>6} records {batch.size_bytes:>9} bytes at {place.short_text} "
        + _batch_notes(batch, batch.base_sequence)
    )


def _record_text(place: Place, batch: Batch, record: Record | None, kind: str) -> str:
    where = f"batch={batch.base_offset}-{batch.last_offset} "
    if record is None:
        notes = _batch_notes(batch, batch.base_sequence)
        return f"{batch.base_offset:>12} {show.time_text(batch.max_timestamp_ms):<24} {kind:<9} {where}{notes}"
    start = f"{record.offset:>12} {show.time_text(record.timestamp_ms):<24} {kind:<9} "
    notes = _batch_notes(batch, _sequence(batch, record))
    if batch.is_control:
        return f"{start}coordinator_epoch={_coordinator_epoch(record)} {where}{notes}"
    headers = "".join(
        f" {show.quoted(h.name.encode(errors='surrogateescape'))}={show.quoted(h.value)}" for h in record.headers
    )
    body = f"key={show.quoted(record.key)} value={show.quoted(record.value)} "
    return start + body + (f"headers=[{headers.strip()}] " if headers else "") + where + notes


def _batch_notes(batch: Batch, sequence: int) -> str:
    notes = [f"codec={_codec(batch)}", f"leader_epoch={batch.leader_epoch}"]
    if batch.producer_id != NO_PRODUCER_ID:
        notes.append(f"producer={batch.producer_id} epoch={batch.producer_epoch}")
    if sequence != NO_SEQUENCE:
        notes.append(f"sequence={sequence}")
    if batch.is_transactional:
        notes.append("transactional")
    if batch.delete_horizon_ms is not None:
        notes.append(f"delete_horizon={show.time_text(batch.delete_horizon_ms)}")
    return " ".join(notes)


def _record_json(place: Place, batch: Batch, record: Record | None, kind: str) -> str:
    line: dict[str, Any] = {"partition": place.stretch.partition, "kind": kind}
    if record is None:
        line |= {"offset": batch.base_offset, **_producer_json(batch, batch.base_sequence)}
        return show.json_text(line | {"batch": _batch_json(place, batch)})
    line |= {
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        **_producer_json(batch, _sequence(batch, record)),
    }
    if batch.is_control:
        line["coordinator_epoch"] = _coordinator_epoch(record)
    else:
        line["key"], line["value"] = show.bytes_json(record.key), show.bytes_json(record.value)
        line["headers"] = [{"name": _name(h), "value": show.bytes_json(h.value)} for h in record.headers]
    return show.json_text(line | {"batch": _batch_json(place, batch)})


def _producer_json(batch: Batch, sequence: int) -> dict[str, Any]:
    """Null where Kafka writes -1."""
    has_producer = batch.producer_id != NO_PRODUCER_ID
    return {
        "producer_id": batch.producer_id if has_producer else None,
        "producer_epoch": batch.producer_epoch if has_producer else None,
        "sequence": None if sequence == NO_SEQUENCE else sequence,
        "transactional": batch.is_transactional,
    }


def _batch_json(place: Place, batch: Batch) -> dict[str, Any]:
    return {
        "segment": place.stretch.name,
        "position": place.position,
        "size_bytes": batch.size_bytes,
        "base_offset": batch.base_offset,
        "last_offset": batch.last_offset,
        "leader_epoch": batch.leader_epoch,
        "codec": _codec(batch),
        "timestamp_type": "LogAppendTime" if batch.is_log_append_time else "CreateTime",
        "delete_horizon_ms": batch.delete_horizon_ms,
    }


def _codec(batch: Batch) -> str:
    """A header alone may name a codec that nobody knows."""
    return Codec(batch.codec).name.lower() if batch.codec in list(Codec) else f"unknown-{batch.codec}"


def _sequence(batch: Batch, record: Record) -> int:
    if batch.base_sequence < 0:
        return NO_SEQUENCE
    return (batch.base_sequence + record.offset - batch.base_offset) % SEQUENCE_COUNT


def _coordinator_epoch(record: Record) -> int | None:
    """From a marker's value: version i16, coordinator epoch i32."""
    value = record.value or b""
    return int(struct.unpack_from(">i", value, 2)[0]) if len(value) >= 6 else None


def _name(header: Header) -> str:
    """Names are text in Kafka, but any bytes get past a broker: what is no text is shown as Kafka reads it."""
    return header.name.encode(errors="surrogateescape").decode(errors="replace")


def _key_bytes(text: str | None) -> tuple[bytes, ...]:
    """The key itself; and, where it can be read as hex digits, the bytes that they stand for."""
    if text is None:
        return ()
    keys = [text.encode()]
    if text.startswith("0x"):
        with contextlib.suppress(ValueError):
            keys.append(bytes.fromhex(text[2:]))
    return tuple(keys)
