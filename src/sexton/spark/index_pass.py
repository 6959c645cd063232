"""The first pass: every key's last offset in a chunk, packed by bucket; then, per bucket, the records that survive.

Rows in the shuffles are few and large. Index to reduce: one row per chunk and bucket, with an array of 24-byte entries
as payload. Reduce to rewrite: one row per bucket and chunk, with an array of 8-byte codes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from sexton.compaction import columns
from sexton.compaction.chunking import CHUNK_RECORDS_MAX, Chunk, PartitionWork, Slice
from sexton.compaction.kernels import newest
from sexton.compaction.transactions import TransactionIndex
from sexton.errors import SextonError
from sexton.records.header import CONTROL
from sexton.records.kernels.keys import DEAD, ENTRY, SKIP_KEYLESS, Entries, hash_records
from sexton.records.kernels.scan import scan_whole
from sexton.records.keyhash import HashKey
from sexton.spark import scratch
from sexton.spark.storage import Storage, failure_of
from sexton.spark.unpacking import RUN_RECORDS, unpacked_runs, unparsable, worker_unpacker

NOTES = -1
"""The bucket of rows that carry a note (a task's counts, or its failure) past the reduction."""

LISTED = -2
"""The highest of the buckets, one per chunk and counted downwards, of rows that carry codes past the reduction."""


@dataclass(frozen=True, slots=True)
class Note:
    """What a chunk's index task reports: its counts, or its failure."""

    keyless_count: int = 0
    failure: SextonError | None = None


@dataclass(frozen=True, slots=True)
class Filter:
    """The dirty keys of a partition as a Bloom filter: a section of bits for each bucket."""

    words: npt.NDArray[np.uint64]
    sections: npt.NDArray[np.int64]


BucketKey = tuple[int, int]
BucketRow = tuple[BucketKey, tuple[int, bool, "bytes | Note"]]
ChunkRow = tuple[int, "bytes | Note"]


def index_chunk(
    chunk: Chunk, work: PartitionWork, storage: Storage, key: HashKey, dirty_keys: Filter | None
) -> Iterator[BucketRow]:
    """Yields one row per bucket that the chunk has entries for. Entries of clean chunks must pass ``dirty_keys``
    first."""
    collector = _Collector(chunk, dirty_keys)
    try:
        transactions = TransactionIndex(work.markers, is_sorted=True)
        for piece in chunk.slices:
            _index_slice(piece, chunk, work, storage, transactions, key, collector)
        split, bounds = _by_bucket(collector, work.bucket_count)
    except Exception as error:
        failure = failure_of(error, work.directory)
        yield (chunk.partition, NOTES), (chunk.number, chunk.is_dirty, Note(failure=failure))
        return
    for bucket in np.flatnonzero(np.diff(bounds)):
        payload = split[bounds[bucket] : bounds[bucket + 1]].tobytes()
        yield (chunk.partition, int(bucket)), (chunk.number, chunk.is_dirty, payload)
    if collector.listed:
        listed = np.concatenate(collector.listed).tobytes()
        yield (chunk.partition, LISTED - chunk.number), (chunk.number, chunk.is_dirty, listed)
    if collector.keyless_count:
        yield (chunk.partition, NOTES), (chunk.number, chunk.is_dirty, Note(collector.keyless_count))


def _by_bucket(collector: _Collector, bucket_count: int) -> tuple[Entries, npt.NDArray[np.int64]]:
    """Returns the newest entry of each key in the chunk, and where each bucket's entries begin.

    Clean chunks are reduced to newest entries, too. If one is not clean after all (its MCCO was too high), older
    duplicates in it are then not listed as dead, and one can outlive its key's tombstone. Keeping all entries here
    would heal some of that, where the key is written again, and not where the tombstone is in the same section; it
    would also hide from the simulator, whose compactor assumes the same (`reference.compact`), half of the mistakes
    that cause such claims. Wrong claims are prevented where they are made: MCCO is durable after the swap, and an old
    disk is stopped by the fence.
    """
    filled = collector.filled
    split = cast(Entries, scratch.take("split entries", ENTRY, filled))
    slots = cast("npt.NDArray[np.int32]", scratch.take("slots", np.int32, newest.slots_needed(filled)))
    alive = cast("npt.NDArray[np.bool_]", scratch.take("alive", np.bool_, filled))
    return split, newest.split_newest(collector.entries[:filled], bucket_count, split, slots, alive)


def reduce_buckets(rows: Iterable[BucketRow]) -> Iterator[ChunkRow]:
    """Yields, for each chunk, the codes it needs from each bucket: survivors of dirty chunks, dead records of clean
    ones."""
    for key, members in _grouped(rows):
        if key[1] <= NOTES:
            yield from ((chunk, payload) for chunk, _, payload in members)
            continue
        entries, bounds, alive = strike(members)
        for (chunk, is_dirty, _), start, end in zip(members, bounds[:-1], bounds[1:], strict=True):
            codes, lives = entries["code"][start:end], alive[start:end]
            if is_dirty:
                wanted = codes[lives]
            else:
                # A record that is not listed survives, so surviving ones are listed only for their flags.
                codes = np.where(lives, codes, codes | DEAD)
                wanted = codes[(codes & 3) != 0]
            if len(wanted):
                yield chunk, wanted.tobytes()


def build_filters(rows: Iterable[BucketRow]) -> Iterator[tuple[BucketKey, bytes]]:
    """Yields each bucket's section of the filter over the dirty keys."""
    for key, members in _grouped(rows):
        if key[1] <= NOTES:
            continue
        entries, _, alive = strike(members)
        words = np.zeros(-(-int(alive.sum()) * newest.FILTER_BITS_PER_KEY // 64), dtype=np.uint64)
        newest.fill_filter(entries, alive, words)
        yield key, words.tobytes()


def join_filters(by_bucket: Mapping[int, bytes], work: PartitionWork) -> Filter:
    parts = [np.frombuffer(by_bucket.get(bucket, b""), dtype=np.uint64) for bucket in range(work.bucket_count)]
    bounds = np.cumsum([0] + [len(part) for part in parts], dtype=np.int64)
    return Filter(np.concatenate(parts), bounds)


def _grouped(rows: Iterable[BucketRow]) -> Iterator[tuple[BucketKey, list[tuple[int, bool, bytes | Note]]]]:
    groups: dict[BucketKey, list[tuple[int, bool, bytes | Note]]] = {}
    for key, member in rows:
        groups.setdefault(key, []).append(member)
    while groups:
        key, members = groups.popitem()
        yield key, sorted(members, key=lambda member: member[0])  # chunk numbers rise with offsets


def strike(
    members: list[tuple[int, bool, bytes | Note]],
) -> tuple[Entries, npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Returns a bucket's entries, where each member's begin, and which are their key's newest."""
    parts = [np.frombuffer(cast(bytes, payload), dtype=ENTRY) for _, _, payload in members]
    bounds = np.cumsum([0] + [len(part) for part in parts], dtype=np.int64)
    entries = np.concatenate(parts)
    slots = cast("npt.NDArray[np.int32]", scratch.take("slots", np.int32, newest.slots_needed(len(entries))))
    alive = np.zeros(len(entries), dtype=np.bool_)
    newest.strike_older(entries, slots, alive)
    return entries, bounds, alive


class _Collector:
    """Collects a chunk's entries. Entries of a clean chunk are filtered step by step, while they are in the cache."""

    def __init__(self, chunk: Chunk, dirty_keys: Filter | None) -> None:
        # The survey's record counts are not covered by a checked CRC, so they are only a hint.
        expected = RUN_RECORDS if dirty_keys is not None else min(chunk.record_count, CHUNK_RECORDS_MAX)
        self.entries = cast(Entries, scratch.take("entries", ENTRY, expected))
        self.filled = 0
        self.keyless_count = 0
        self.listed: list[npt.NDArray[np.int64]] = []
        """For a clean chunk: flagged codes of records whose keys the dirty section does not have. They do not depend on
        other chunks, so they need not be reduced: there may be as many of them as records."""
        self._dirty_keys = dirty_keys

    def reserve(self, count: int) -> None:
        if self.filled + count > len(self.entries):
            old = self.entries
            wanted = max(self.filled + count, 2 * len(old))
            self.entries = cast(Entries, scratch.take("entries", ENTRY, wanted))
            self.entries[: self.filled] = old[: self.filled]

    def added(self, filled: int, keyless_count: int) -> None:
        """Called when ``entries`` has been filled up to ``filled``."""
        if self._dirty_keys is not None:
            fresh = self.entries[self.filled : filled]
            words, sections = self._dirty_keys.words, self._dirty_keys.sections
            listed = cast("npt.NDArray[np.int64]", scratch.take("listed", np.int64, len(fresh)))
            kept, listed_count = newest.pass_filter(fresh, len(fresh), words, sections, listed)
            filled = self.filled + kept
            if listed_count:
                self.listed.append(listed[:listed_count].copy())
        self.filled = filled
        self.keyless_count += keyless_count


def _index_slice(
    piece: Slice,
    chunk: Chunk,
    work: PartitionWork,
    storage: Storage,
    transactions: TransactionIndex,
    key: HashKey,
    collector: _Collector,
) -> None:
    keyless_flags = _keyless_flags(chunk.is_dirty, work.terms.drop_keyless)
    with storage.reading(piece.path, piece.start, piece.end) as data:
        table = scan_whole(
            data, piece.start, piece.end, piece.path, check_crc=True, previous_offset=piece.previous_offset
        )
        facts = columns.facts_of(table, work, transactions)
        wanted = table[~columns.is_aborted(table, facts) & ((table["attributes"] & CONTROL) == 0)]
        for rows, buffer, starts, ends in unpacked_runs(
            data, wanted, worker_unpacker(work.max_batch_bytes), piece.path
        ):
            collector.reserve(int(wanted["record_count"][rows].sum(dtype=np.int64)))
            filled, bad, keyless = hash_records(
                buffer,
                starts,
                ends,
                wanted[rows],
                np.uint64(key.first),
                np.uint64(key.second),
                keyless_flags,
                collector.entries,
                collector.filled,
            )
            if bad >= 0:
                raise unparsable(piece.path, int(wanted["position"][rows][bad]))
            collector.added(filled, keyless)


def _keyless_flags(is_dirty: bool, drop_keyless: bool) -> int:
    """Returns the flags of key-less records. The list of a dirty chunk has survivors, that of a clean chunk has dead
    records."""
    if is_dirty:
        return SKIP_KEYLESS if drop_keyless else 0
    return DEAD if drop_keyless else SKIP_KEYLESS
