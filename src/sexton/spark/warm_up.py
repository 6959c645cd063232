"""Runs every kernel once on a tiny log, so that it is compiled, or loaded from the cache, before it is needed."""

from __future__ import annotations

import numpy as np

from sexton.compaction.kernels import newest, rewrite
from sexton.records import batch, segment_indexes
from sexton.records.header import HEADER_BYTES
from sexton.records.kernels import keys, scan


def run() -> None:
    records = [batch.Record(offset, offset, b"key", b"value") for offset in range(2)]
    data = np.frombuffer(batch.encode(batch.make_batch(records)), dtype=np.uint8)
    table = scan.scan_whole(data, 0, len(data), "warm-up", check_crc=True)
    for buffer in (data, data.copy()):  # read-only and writable arrays are different types to Numba
        entries = np.zeros(2, dtype=keys.ENTRY)
        starts = table["position"] + HEADER_BYTES
        ends = table["position"] + table["size"]
        keys.hash_records(buffer, starts, ends, table, np.uint64(3), np.uint64(5), 0, entries, 0)
    slots, alive = np.zeros(4, dtype=np.int32), np.zeros(2, dtype=bool)
    newest.split_newest(entries, 1, np.zeros(2, dtype=keys.ENTRY), slots, alive)
    newest.strike_older(entries, slots, alive)
    words = np.zeros(1, dtype=np.uint64)
    newest.fill_filter(entries, alive, words)
    newest.pass_filter(entries, 2, words, np.array([0, 1]), np.zeros(2, dtype=np.int64))
    outcomes = np.zeros(1, dtype=rewrite.OUTCOME)
    outcomes["action"], outcomes["kept_count"], outcomes["list_end"] = 2, 2, 2
    codes = entries["code"].copy()
    out = np.zeros(1024, dtype=np.uint8)
    rewrite.write_batches(data, table, outcomes, 0, codes, True, out, 0)
    rewrite.copy_kept_records(data.copy(), 61, len(data), table[0], outcomes[0], codes, True, out, 0)
    rewrite.write_header(out, 0, len(data), table[0], outcomes[0], 0)
    segment_indexes.build(table, 0, 4096)
