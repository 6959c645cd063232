"""Cuts a whole log into chunks for tasks, including the active segment: for jobs that only read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from sexton.compaction.chunking import CHUNK_RECORDS_MAX, Chunk, Slice
from sexton.compaction.survey import LogSurvey
from sexton.log.stopped.partition import PartitionLog, mapped
from sexton.records.kernels.scan import scan


def stable_end(log: PartitionLog, survey: LogSurvey) -> int:
    """Where a ``read_committed`` consumer stops. A copy without checkpoints has no high watermark; its log end is
    used."""
    end = survey.log_end_offset
    return survey.last_stable_offset(end if log.high_watermark is None else min(log.high_watermark, end))


def chunks_below(
    log: PartitionLog,
    survey: LogSurvey,
    end_offset: int,
    target_bytes: int,
    *,
    partition: int,
    first_number: int,
) -> list[Chunk]:
    """Returns all batches that begin below ``end_offset``, as chunks that count as dirty. Numbers rise with offsets."""
    pieces = list(_slices(log, survey, end_offset))
    if pieces and end_offset < survey.log_end_offset:
        last = pieces.pop()
        cut = replace(last, end=_position_of(last, end_offset))
        pieces += [cut] if cut.size_bytes else []
    groups: list[list[Slice]] = []
    for piece in pieces:
        if not groups or _is_full(groups[-1], piece, target_bytes):
            groups.append([])
        groups[-1].append(piece)
    return [Chunk(first_number + index, partition, True, tuple(group)) for index, group in enumerate(groups)]


def _slices(log: PartitionLog, survey: LogSurvey, end_offset: int) -> Iterator[Slice]:
    for number, (file, segment) in enumerate(zip(log.segments, survey.segments, strict=True)):
        ends = np.append(segment.grains["position"], segment.size_bytes)[1:]
        for grain, end in zip(segment.grains, ends, strict=True):
            if grain["base_offset"] >= end_offset:
                return
            yield Slice(
                path=str(file.path),
                segment=number,
                start=int(grain["position"]),
                end=int(end),
                previous_offset=int(grain["previous_offset"]),
                record_count=int(grain["record_count"]),
            )


def _position_of(piece: Slice, offset: int) -> int:
    """Returns the position of the first batch of a slice that starts at or above an offset; the slice's end if there is
    none."""
    with mapped(piece.path, piece.start, piece.end) as data:
        tables = scan(data, piece.start, piece.end, piece.path, check_crc=False, previous_offset=piece.previous_offset)
        for table in tables:
            above = np.flatnonzero(table["base_offset"] >= offset)
            if len(above):
                return int(table["position"][above[0]])
    return piece.end


def _is_full(group: Sequence[Slice], piece: Slice, target_bytes: int) -> bool:
    too_long = sum(part.size_bytes for part in group) + piece.size_bytes > target_bytes
    too_many = sum(part.record_count for part in group) + piece.record_count > CHUNK_RECORDS_MAX
    return too_long or too_many
