"""Compares two logs key by key: each key's newest visible record of a chunk, by bucket; then, per bucket, the keys that
differ.

Rows in the shuffle are few and large, as in compaction's index pass: one per chunk and bucket, with an array of 32-byte
entries (``compaction.kernels.contents``) as payload. The records themselves are not shuffled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sexton.compaction.chunking import Chunk, Slice
from sexton.compaction.kernels import newest
from sexton.compaction.kernels.contents import CONTENT, Contents, buckets_of, hash_contents
from sexton.compaction.transactions import TransactionIndex
from sexton.errors import SextonError
from sexton.log.stopped.partition import mapped
from sexton.records.batch import ControlType
from sexton.records.header import CONTROL
from sexton.records.kernels.keys import TOMBSTONE
from sexton.records.kernels.scan import scan_whole
from sexton.records.keyhash import HashKey
from sexton.spark.arrow_columns import walk
from sexton.spark.unpacking import unpacked_runs, worker_unpacker

FAILED = -1
"""Used instead of a bucket for a row that carries an error."""

NO_CODE = -1

DIFFERENCE = np.dtype([("code_a", np.int64), ("code_b", np.int64)])
"""A key on which the logs differ: the codes (offset and flags) of its newest visible records, NO_CODE for none."""

Row = tuple[int, tuple[int, int, "bytes | SextonError"]]
"""Bucket; then side (0 or 1), chunk number, payload."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What every task must know about a side: which records its ``read_committed`` consumers see."""

    from_offset: int
    to_offset: int
    markers: npt.NDArray[np.void]
    max_batch_bytes: int


@dataclass(frozen=True, slots=True)
class Compared:
    """A bucket's result: how many keys agree and differ, and some of those that differ."""

    equal_count: int = 0
    only_a_count: int = 0
    only_b_count: int = 0
    changed_count: int = 0
    differences: bytes = b""
    failure: SextonError | None = None


def index_chunk(chunk: Chunk, scope: Scope, key: HashKey, bucket_count: int) -> Iterator[Row]:
    """Yields one row per bucket that the chunk has keys for. ``chunk.partition`` is the side."""
    try:
        parts = [part for piece in chunk.slices for part in _contents(piece, scope, key)]
    except SextonError as failure:
        yield FAILED, (chunk.partition, chunk.number, failure)
        return
    entries = _newest(parts)
    buckets = buckets_of(entries, bucket_count)
    order = np.argsort(buckets, kind="stable")
    entries, buckets = entries[order], buckets[order]
    firsts = np.flatnonzero(np.diff(buckets, prepend=-1))
    for start, end in zip(firsts, [*firsts[1:], len(entries)], strict=False):
        yield int(buckets[start]), (chunk.partition, chunk.number, entries[start:end].tobytes())


def _contents(piece: Slice, scope: Scope, key: HashKey) -> Iterator[Contents]:
    with mapped(piece.path, piece.start, piece.end) as data:
        table = scan_whole(
            data, piece.start, piece.end, piece.path, check_crc=True, previous_offset=piece.previous_offset
        )
        is_aborted = TransactionIndex(scope.markers).outcome(table) == ControlType.ABORT
        wanted = table[~is_aborted & ((table["attributes"] & CONTROL) == 0)]
        unpacker = worker_unpacker(scope.max_batch_bytes)
        for rows, body, starts, ends in unpacked_runs(data, wanted, unpacker, piece.path):
            records = walk(body, starts, ends, wanted[rows], piece.path, scope.from_offset, scope.to_offset)
            entries = np.empty(len(records), dtype=CONTENT)
            filled = hash_contents(body, records, np.uint64(key.first), np.uint64(key.second), entries)
            yield _newest([entries[:filled]])


def _newest(parts: Sequence[Contents]) -> Contents:
    """Returns each key's newest entry. Parts and their entries must be in offset order."""
    entries = np.concatenate([np.zeros(0, dtype=CONTENT), *parts])
    slots = np.empty(newest.slots_needed(len(entries)), dtype=np.int32)
    alive = np.zeros(len(entries), dtype=np.bool_)
    newest.strike_older(entries, slots, alive)
    return entries[alive]


def compare_buckets(rows: Iterable[Row], limit: int) -> Iterator[Compared]:
    """Compares, for each bucket, the newest records of its keys on both sides."""
    groups: dict[int, list[tuple[int, int, bytes | SextonError]]] = {}
    for bucket, member in rows:
        groups.setdefault(bucket, []).append(member)
    while groups:
        _, members = groups.popitem()
        failure = next((payload for _, _, payload in members if isinstance(payload, SextonError)), None)
        if failure is not None:
            yield Compared(failure=failure)
            continue
        # Chunk numbers rise with offsets.
        ordered = sorted((side, number, payload) for side, number, payload in members if isinstance(payload, bytes))
        sides = [
            _newest([np.frombuffer(payload, dtype=CONTENT) for which, _, payload in ordered if which == side])
            for side in (0, 1)
        ]
        yield compare(sides[0], sides[1], limit)


def compare(side_a: Contents, side_b: Contents, limit: int) -> Compared:
    """A tombstone means the same as no record at all: the key is not in the fold."""
    a, b = _aligned(side_a, side_b)
    sees_a = (a["code"] != NO_CODE) & ((a["code"] & TOMBSTONE) == 0)
    sees_b = (b["code"] != NO_CODE) & ((b["code"] & TOMBSTONE) == 0)
    is_same = (a["code"] == b["code"]) & (a["content"] == b["content"])
    differs = (sees_a | sees_b) & ~is_same
    differences = np.zeros(int(differs.sum()), dtype=DIFFERENCE)
    differences["code_a"], differences["code_b"] = a["code"][differs], b["code"][differs]
    order = np.argsort(np.maximum(differences["code_a"], differences["code_b"]), kind="stable")
    return Compared(
        equal_count=int((sees_a & sees_b & is_same).sum()),
        only_a_count=int((sees_a & ~sees_b).sum()),
        only_b_count=int((sees_b & ~sees_a).sum()),
        changed_count=int((sees_a & sees_b & ~is_same).sum()),
        differences=differences[order][:limit].tobytes(),
    )


def _aligned(side_a: Contents, side_b: Contents) -> tuple[Contents, Contents]:
    """Returns both sides with the same keys in the same order; where a side lacks one, its entry has NO_CODE."""
    both = np.concatenate([side_a, side_b])
    is_b = np.concatenate([np.zeros(len(side_a), dtype=np.bool_), np.ones(len(side_b), dtype=np.bool_)])
    order = np.lexsort((is_b, both["second"], both["first"]))
    both, is_b = both[order], is_b[order]
    starts = np.ones(len(both), dtype=np.bool_)
    starts[1:] = (both["first"][1:] != both["first"][:-1]) | (both["second"][1:] != both["second"][:-1])
    place = np.cumsum(starts) - 1
    aligned = []
    for which in (~is_b, is_b):
        side = np.zeros(int(starts.sum()), dtype=CONTENT)
        side["code"] = NO_CODE
        side[place[which]] = both[which]
        aligned.append(side)
    return aligned[0], aligned[1]
