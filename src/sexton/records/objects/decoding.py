"""Reads objects that may be anything: whatever the bytes are, the answer is right or an error.

DamagedObjectError says that the bytes contradict themselves, or what the metastore says of them;
UnsupportedFormatError that a later version wrote them. Nothing is read beyond what is checked here: a size or a count
is believed only after the checksum over it, and within the bytes that are there.

Whoever has the metastore's extents needs no footer: `read_batches` checks a run by its batches. With the footer, a
block or a run is checked by its own checksum as well, which covers offsets and leader epochs, too.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from itertools import pairwise
from typing import Final, NamedTuple

from crc32c import crc32c

from sexton.errors import DamagedObjectError, UnsupportedFormatError
from sexton.records import header
from sexton.records.header import BATCH_OFFSET_MAX, CONTROL, HEADER_BYTES, TRANSACTIONAL, Buffer, Head
from sexton.records.names import PARTITION_MAX
from sexton.records.objects.layout import (
    BLOCK_STRUCT,
    FRONT_BYTES,
    HEAD_STRUCT,
    KNOWN_FLAGS,
    MAGIC,
    MAGIC_FAMILY,
    RUN_STRUCT,
    TRAILER_BYTES,
    TRAILER_STRUCT,
    Block,
    Footer,
    Level,
    Run,
    Writer,
    WriterKind,
    unpack_run,
)
from sexton.types import NO_EPOCH, NO_OFFSET, PartitionId

REMEDY: Final = (
    "Nothing was changed. If reading it again gives the same, the store has damaged the object: restore it from the "
    "store's own versions or backup"
)
OBJECT_BYTES_MIN: Final = (
    FRONT_BYTES + HEADER_BYTES + HEAD_STRUCT.size + RUN_STRUCT.size + BLOCK_STRUCT.size + TRAILER_BYTES
)


class Trailer(NamedTuple):
    """Where the footer is."""

    position: int
    size_bytes: int
    crc: int


def decode_trailer(tail: Buffer, object_size_bytes: int, place: str = "") -> Trailer:
    """Reads the last TRAILER_BYTES of what it is given, which must end where the object ends."""
    if object_size_bytes < OBJECT_BYTES_MIN or len(tail) < TRAILER_BYTES:
        raise _damaged(f"{object_size_bytes} bytes are too few for an object", place)
    size_bytes, crc, magic = TRAILER_STRUCT.unpack_from(tail, len(tail) - TRAILER_BYTES)
    _check_magic(magic, "ends", place)
    position = object_size_bytes - TRAILER_BYTES - size_bytes
    if position < FRONT_BYTES + HEADER_BYTES or size_bytes < HEAD_STRUCT.size:
        raise _damaged(f"a footer of {size_bytes} bytes cannot be in an object of {object_size_bytes}", place)
    return Trailer(position, size_bytes, crc)


def decode_footer(data: Buffer, trailer: Trailer, place: str = "") -> Footer:
    """Decodes the footer from exactly its own bytes."""
    if len(data) != trailer.size_bytes:
        raise _damaged(f"{len(data)} bytes of a footer of {trailer.size_bytes} were read", place)
    if crc32c(data) != trailer.crc:
        raise _damaged("the CRC of the footer does not match", place)
    level, cluster_id, kind, writer_id, epoch, run_count = HEAD_STRUCT.unpack_from(data, 0)
    if level not in (Level.L0, Level.L1) or kind not in (WriterKind.BROKER, WriterKind.COMPACTOR):
        raise _damaged(f"the footer names level {level} and a writer of kind {kind}", place)
    footer = Footer(
        Level(level),
        uuid.UUID(bytes=cluster_id),
        Writer(WriterKind(kind), uuid.UUID(bytes=writer_id), epoch),
        _decode_runs(memoryview(data), run_count, place),
    )
    _check_runs(footer, trailer.position, place)
    return footer


def check_object(data: Buffer, place: str = "") -> Footer:
    """Decodes a whole object and checks every byte of it."""
    view = memoryview(data)
    trailer = decode_trailer(view, len(view), place)
    _check_magic(bytes(view[:FRONT_BYTES]), "begins", place)
    footer = decode_footer(view[trailer.position : trailer.position + trailer.size_bytes], trailer, place)
    for run in footer.runs:
        check_run(run, footer.level, view[run.position : run.position + run.size_bytes], place)
    return footer


def check_run(run: Run, level: Level, data: Buffer, place: str = "") -> list[Head]:
    """Checks the bytes of a whole run against the footer. Returns its batches."""
    where = f"{place} run of {run.topic_id}-{run.partition} at {run.position}"
    if len(data) != run.size_bytes:
        raise _damaged(f"{len(data)} bytes of a run of {run.size_bytes} were read", where)
    if crc32c(data) != run.crc:
        raise _damaged("the CRC of the run does not match", where)
    heads = read_batches(data, level, run.base_offset, run.end_offset, where)
    found = (len(heads), sum(head.record_count for head in heads), max(head.max_timestamp_ms for head in heads))
    if found != (run.batch_count, run.record_count, run.max_timestamp_ms):
        raise _damaged(f"batches, records and newest time are {found}, not as the footer has them", where)
    _check_blocks(run, heads, memoryview(data), where)
    return heads


def check_block(run: Run, level: Level, number: int, data: Buffer, place: str = "") -> list[Head]:
    """Checks the bytes of one block. Returns its batches, positions counted from the block's beginning."""
    block, end = run.blocks[number], run.block_end(number)
    where = f"{place} block {number} of {run.topic_id}-{run.partition} at {run.position + block.position}"
    if len(data) != end - block.position:
        raise _damaged(f"{len(data)} bytes of a block of {end - block.position} were read", where)
    if crc32c(data) != block.crc:
        raise _damaged("the CRC of the block does not match", where)
    is_last = number + 1 == len(run.blocks)
    heads = _walk(data, level, block.offset, run.end_offset if is_last else run.blocks[number + 1].offset, where)
    if heads[0].base_offset != block.offset or (is_last and heads[-1].last_offset + 1 != run.end_offset):
        raise _damaged("its batches are not those that the footer names", where)
    return heads


def read_batches(data: Buffer, level: Level, base_offset: int, end_offset: int, place: str = "") -> list[Head]:
    """Checks that these bytes are the batches of [base, end): each by its own CRC, in L0 without gaps, up to the end.
    Returns them with their positions in `data`."""
    heads = _walk(data, level, base_offset, end_offset, place)
    last_end = heads[-1].last_offset + 1
    if last_end != end_offset:
        raise _damaged(f"the last batch ends at offset {last_end}, not at {end_offset}", place)
    return heads


def find_run(
    footer: Footer, partition: PartitionId, base_offset: int, end_offset: int, position: int, place: str = ""
) -> Run:
    """Returns the run that an extent of the metastore names. Raises DamagedObjectError if the footer has no such run:
    then one of the two is not what it was, and guessing which would make a hole or a lie (C12)."""
    for run in footer.runs:
        if (run.topic_id, run.partition) == partition and run.base_offset == base_offset:
            if (run.end_offset, run.position) == (end_offset, position):
                return run
            raise _damaged(
                f"the extent [{base_offset}, {end_offset}) at byte {position} of {partition[0]}-{partition[1]} is "
                f"[{run.base_offset}, {run.end_offset}) at byte {run.position} in the footer",
                place,
            )
    raise _damaged(f"the footer names no run of {partition[0]}-{partition[1]} at offset {base_offset}", place)


# ---- the footer's parts ----


def _decode_runs(data: memoryview, run_count: int, place: str) -> tuple[Run, ...]:
    at = HEAD_STRUCT.size
    if not 0 < run_count <= (len(data) - at) // RUN_STRUCT.size:
        raise _damaged(f"a footer of {len(data)} bytes cannot have {run_count} runs", place)
    runs: list[Run] = []
    for _ in range(run_count):
        if at + RUN_STRUCT.size > len(data):
            raise _damaged("the footer ends within a run", place)
        run, block_count, flags = unpack_run(data, at)
        at += RUN_STRUCT.size
        end = at + block_count * BLOCK_STRUCT.size
        if end > len(data) or flags & ~KNOWN_FLAGS:
            raise _damaged(f"a run of the footer has {block_count} blocks and flags {flags:#x}", place)
        runs.append(replace(run, blocks=tuple(Block(*one) for one in BLOCK_STRUCT.iter_unpack(data[at:end]))))
        at = end
    if at != len(data):
        raise _damaged(f"{len(data) - at} bytes follow the last run of the footer", place)
    return tuple(runs)


def _check_runs(footer: Footer, footer_position: int, place: str) -> None:
    position = FRONT_BYTES
    ends: dict[PartitionId, int] = {}
    for run in footer.runs:
        where = f"{place} run of {run.topic_id}-{run.partition} at {run.position}"
        if run.size_bytes < HEADER_BYTES or run.position + run.size_bytes > footer_position:
            raise _damaged(f"its {run.size_bytes} bytes lie outside of the object", where)
        if run.position != position:
            what = "overlaps the one before it" if run.position < position else "leaves a gap behind the one before it"
            raise _damaged(f"it {what}, which ends at {position}", where)
        if fault := _why_impossible(run, footer.level) or _why_blocks_are_impossible(run):
            raise _damaged(fault, where)
        key = (run.topic_id, run.partition)
        if run.base_offset < ends.get(key, 0):
            raise _damaged(f"its offsets begin at {run.base_offset}, within those of an earlier run", where)
        position += run.size_bytes
        ends[key] = run.end_offset
    if position != footer_position:
        raise _damaged(f"the runs end at {position}, and the footer begins at {footer_position}", place)


def _why_impossible(run: Run, level: Level) -> str:
    if not 0 <= run.base_offset < run.end_offset <= BATCH_OFFSET_MAX + 1:
        return f"its offsets [{run.base_offset}, {run.end_offset}) do not ascend"
    if not 0 <= run.partition <= PARTITION_MAX:
        return f"its partition is {run.partition}"
    if not 0 < run.batch_count <= run.size_bytes // HEADER_BYTES:
        return f"{run.batch_count} batches cannot be in {run.size_bytes} bytes"
    if not 0 <= run.record_count <= run.end_offset - run.base_offset:
        return f"{run.record_count} records cannot be in [{run.base_offset}, {run.end_offset})"
    if run.is_settled != (level is Level.L1):
        return f"it is {'' if run.is_settled else 'not '}settled, in level {level}"
    if run.cleaned_offset < NO_OFFSET or run.epoch < NO_EPOCH:
        return f"its cleaned offset is {run.cleaned_offset}, its epoch {run.epoch}"
    return ""


def _why_blocks_are_impossible(run: Run) -> str:
    blocks = run.blocks
    if not 0 < len(blocks) <= run.batch_count or blocks[0].position != 0:
        return "its index does not begin where it begins"
    if blocks[0].offset < run.base_offset or blocks[-1].offset >= run.end_offset:
        return "its index has offsets that it does not have"
    for one, other in pairwise(blocks):
        if one.offset >= other.offset or other.position - one.position < HEADER_BYTES:
            return f"its index does not ascend at offset {other.offset}"
    if run.size_bytes - blocks[-1].position < HEADER_BYTES:
        return "its index has a position beyond its end"
    if max(block.max_timestamp_ms for block in blocks) != run.max_timestamp_ms:
        return "its index and it have different newest times"
    return ""


def _check_blocks(run: Run, heads: list[Head], data: memoryview, place: str) -> None:
    first = 0
    for number, block in enumerate(run.blocks):
        end = run.block_end(number)
        last = first
        while last < len(heads) and heads[last].position < end:
            last += 1
        newest_ms = max((head.max_timestamp_ms for head in heads[first:last]), default=None)
        begins = (heads[first].position, heads[first].base_offset) if first < len(heads) else None
        if begins != (block.position, block.offset) or newest_ms != block.max_timestamp_ms:
            raise _damaged(f"entry {number} of its index does not name a batch of it", place)
        if crc32c(data[block.position : end]) != block.crc:
            raise _damaged(f"the CRC of its block {number} does not match", place)
        first = last


# ---- batches ----


def _walk(data: Buffer, level: Level, base_offset: int, end_offset: int, place: str) -> list[Head]:
    """Returns the batches, at least one, all of them whole and within these offsets."""
    heads: list[Head] = []
    view = memoryview(data)
    at, next_offset = 0, base_offset
    while at < len(view):
        head = header.head_at(view, at, at)
        if isinstance(head, str):
            raise _damaged(f"at byte {at}: {head}", place)
        end = at + head.size_bytes
        if end > len(view):
            raise _damaged(f"at byte {at}: the batch is cut off", place)
        if not next_offset <= head.base_offset <= head.last_offset < end_offset:
            raise _damaged(
                f"at byte {at}: the batch [{head.base_offset}, {head.last_offset + 1}) does not lie in "
                f"[{next_offset}, {end_offset})",
                place,
            )
        if level is Level.L0 and head.base_offset != next_offset:
            raise _damaged(f"at byte {at}: offsets [{next_offset}, {head.base_offset}) are missing", place)
        if level is Level.L1 and head.attributes & (TRANSACTIONAL | CONTROL):
            raise _damaged(f"at byte {at}: the batch is not settled, and L1 is (C7)", place)
        if not header.has_valid_crc(view[at:end], head):
            raise _damaged(f"at byte {at}: the CRC of the batch does not match", place)
        heads.append(head)
        next_offset = head.last_offset + 1
        at = end
    if not heads:
        raise _damaged("there is no batch", place)
    return heads


def _check_magic(magic: bytes, verb: str, place: str) -> None:
    if magic == MAGIC:
        return
    if magic.startswith(MAGIC_FAMILY) and magic[len(MAGIC_FAMILY) :].isdigit():
        raise UnsupportedFormatError(
            f"this object has format {magic.decode()}, and this build reads {MAGIC.decode()}",
            place,
            "Read it with the version that wrote it, or a newer one",
        )
    raise _damaged(f"it {verb} with {magic!r}, and an object {verb} with {MAGIC!r}", place)


def _damaged(what: str, place: str) -> DamagedObjectError:
    return DamagedObjectError(what, place.strip(), REMEDY)
