"""Records as columns: the kernel must see what the reference decoder sees, and refuse what it refuses."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sexton.errors import SextonError
from sexton.records import batch as reference
from sexton.records import codecs
from sexton.records.batch import Batch, Header, Record, make_batch
from sexton.records.kernels import columns, scan
from sexton.records.kernels.columns import HEADER, NOTHING_BAD, RECORD
from sexton.records.kernels.primitives import Bytes
from sexton.records.varint import write_varint
from tests import logs

ALL = (0, 2**63 - 1)


def walk(
    bodies: Iterable[bytes], table: scan.Table, wanted: tuple[int, int] = ALL
) -> tuple[Bytes, columns.Records, int]:
    """The kernel over bodies that lie one after the other in a buffer."""
    data = np.frombuffer(b"".join(bodies), dtype=np.uint8)
    ends = np.cumsum([len(body) for body in bodies], dtype=np.int64)
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
    out = np.zeros(int(table["record_count"].sum()), dtype=RECORD)
    filled, bad = columns.walk_records(data, starts, ends, table, *wanted, out)
    return data, out[:filled], int(bad)


def as_records(data: Bytes, rows: columns.Records) -> list[Record]:
    headers = np.zeros(int(rows["header_count"].sum()), dtype=HEADER)
    columns.walk_headers(data, rows, headers)

    def piece(start: int, size: int) -> bytes | None:
        return None if size < 0 else data[start : start + size].tobytes()

    found = [
        Header(
            (piece(int(h["name_start"]), int(h["name_size"])) or b"").decode(errors="surrogateescape"),
            piece(int(h["value_start"]), int(h["value_size"])),
        )
        for h in headers
    ]
    bounds = np.concatenate([[0], np.cumsum(rows["header_count"])])
    return [
        Record(
            int(row["offset"]),
            int(row["timestamp"]),
            piece(int(row["key_start"]), int(row["key_size"])),
            piece(int(row["value_start"]), int(row["value_size"])),
            tuple(found[bounds[i] : bounds[i + 1]]),
        )
        for i, row in enumerate(rows)
    ]


def tables_and_bodies(batches: Iterable[Batch]) -> tuple[scan.Table, list[bytes]]:
    encoded = b"".join(reference.encode(batch) for batch in batches)
    data = np.frombuffer(encoded, dtype=np.uint8)
    table = scan.scan_whole(data, 0, len(data), "test", check_crc=True)
    bodies = [
        codecs.decompress(int(row["attributes"]) & 7, encoded[row["position"] + 61 : row["position"] + row["size"]])
        for row in table
    ]
    return table, bodies


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False))
def test_kernel_and_reference_read_the_same_records(rng: random.Random) -> None:
    batches = logs.random_log(rng).batches
    table, bodies = tables_and_bodies(batches)
    data, rows, bad = walk(bodies, table)
    assert bad == NOTHING_BAD
    assert as_records(data, rows) == [record for batch in batches for record in batch.records]
    spread = [index for index, batch in enumerate(batches) for _ in batch.records]
    assert rows["batch"].tolist() == spread


def test_only_the_wanted_offsets_get_a_row() -> None:
    table, bodies = tables_and_bodies([logs.data(*[(b"k", b"v")] * 10, at=100), logs.data((b"k", b"v"), at=120)])
    _, rows, bad = walk(bodies, table, (104, 120))
    assert bad == NOTHING_BAD
    assert rows["offset"].tolist() == [104, 105, 106, 107, 108, 109]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_kernel_refuses_exactly_what_the_reference_refuses(data: st.DataObject) -> None:
    records = [
        Record(i, 1000 + i, [None, b"", b"key"][i % 3], [b"v" * i, None][i % 2], (Header("h", b"x"), Header("g", None)))
        for i in range(4)
    ]
    batch = make_batch(records)
    table, (body,) = tables_and_bodies([batch])
    broken = bytearray(body)
    for _ in range(data.draw(st.integers(1, 3))):
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    broken = broken[: data.draw(st.sampled_from([len(broken), len(broken) - 1, len(broken) // 2]))]
    header = replace(batch, records=())
    try:
        expected = list(reference.read_records(bytes(broken), header, "test"))
    except SextonError:
        assert walk([bytes(broken)], table)[2] == 0
        return
    buffer, rows, bad = walk([bytes(broken)], table)
    assert bad == NOTHING_BAD
    assert [replace(r, timestamp_ms=0) for r in as_records(buffer, rows)] == [
        replace(record, timestamp_ms=0) for record in expected
    ]


@pytest.mark.parametrize("field", ["length", "key", "value", "header count", "header name", "header value"])
@pytest.mark.parametrize("size", [2**63 - 1, 2**62, 2**31, -(2**63), -2])
def test_impossible_lengths_are_refused_and_not_followed(field: str, size: int) -> None:
    """A length near 2^63 would wrap around when added to a position, and send the kernel out of its buffer."""
    body = bytearray(b"\x00")
    for name in ("timestamp", "offset", "key", "value", "header count", "header name", "header value"):
        plain = {"timestamp": 0, "offset": 0, "header count": 1}.get(name, 1)
        write_varint(body, size if name == field else plain)
        if name in ("key", "value", "header name", "header value"):
            body += b"x"
    record = bytearray()
    write_varint(record, size if field == "length" else len(body))
    table, _ = tables_and_bodies([logs.data((b"k", b"v"), at=0)])
    assert walk([bytes(record + body)], table)[2] == 0


def test_gather_copies_pieces_of_any_size_and_skips_null() -> None:
    data = np.arange(100, dtype=np.uint8)
    sizes = np.array([0, 1, -1, 7, 8, 9, 40], dtype=np.int32)
    starts = np.array([5, 99, 0, 3, 11, 0, 60], dtype=np.int64)
    offsets = np.concatenate([[0], np.cumsum(np.maximum(sizes, 0))]).astype(np.int32)
    out = np.zeros(int(offsets[-1]), dtype=np.uint8)
    columns.gather(data, starts, sizes, offsets, out)
    pieces = [data[s : s + max(n, 0)].tobytes() for s, n in zip(starts, sizes, strict=True)]
    assert out.tobytes() == b"".join(pieces)
