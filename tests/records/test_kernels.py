"""Kernels and their plain references: the same answers on what is valid, and no step out of bounds on the rest."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import crc32c
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sexton.compaction.kernels import newest, rewrite
from sexton.compaction.rules import Action
from sexton.errors import CorruptLogError, SextonError, UnsupportedFormatError
from sexton.jit import kernel
from sexton.records import keyhash, varint
from sexton.records.batch import (
    Batch,
    ControlType,
    Record,
    decode,
    decode_all,
    decode_header,
    encode,
    make_batch,
    make_marker,
)
from sexton.records.header import BATCH_OFFSET_MAX, DELETE_HORIZON, HEADER_BYTES
from sexton.records.kernels import keys, primitives, scan
from sexton.records.keyhash import PRIME, HashKey
from tests import logs
from tests.records.guarded import Guarded, survives

int64 = st.integers(-(2**63), 2**63 - 1)
points = st.builds(HashKey, st.integers(1, PRIME - 2), st.integers(1, PRIME - 2))
few = settings(max_examples=60)


def array(content: bytes) -> primitives.Bytes:
    return np.frombuffer(content, dtype=np.uint8)


def scan_all(content: bytes, **options: Any) -> scan.Table:
    return scan.scan_whole(array(content), 0, len(content), "log", **{"check_crc": True, **options})


# --- varints ---


@given(int64)
def test_varints_are_written_alike(value: int) -> None:
    expected = bytearray()
    varint.write_varint(expected, value)
    out = np.zeros(16, dtype=np.uint8)
    end = primitives.write_varint(out, 0, value)
    assert out[:end].tobytes() == bytes(expected)


@given(st.binary(max_size=14), st.integers(0, 4))
def test_varints_are_read_alike(content: bytes, start: int) -> None:
    start = min(start, len(content))
    try:
        expected = varint.read_varint(content, start)
    except (IndexError, ValueError):
        expected = (0, -1)
    value, end = read_varint_kernel(array(content), start, len(content))
    assert (end == -1 and expected[1] == -1) or (value, end) == expected


@given(int64)
def test_a_varint_survives_the_round_trip_and_no_prefix_of_it_is_one(value: int) -> None:
    written = bytearray()
    varint.write_varint(written, value)
    assert varint.read_varint(bytes(written), 0) == (value, len(written))
    assert read_varint_kernel(array(bytes(written)), 0, len(written)) == (value, len(written))
    for end in range(len(written)):
        assert read_varint_kernel(array(bytes(written)), 0, end)[1] == -1


def test_a_varint_that_never_ends_is_refused_by_both() -> None:
    content = b"\xff" * 20
    assert read_varint_kernel(array(content), 0, 20)[1] == -1
    with pytest.raises(ValueError, match="10 bytes"):
        varint.read_varint(content, 0)


@kernel
def read_varint_kernel(data: primitives.Bytes, start: int, end: int) -> tuple[int, int]:
    return primitives.read_varint(data, start, end)  # type: ignore[no-any-return]


# --- CRC-32C ---

CRC_KERNELS = [primitives.crc32c_by_table] + [primitives.crc32c_by_instruction] * primitives.HAS_CRC_INSTRUCTION


@pytest.mark.parametrize("crc", CRC_KERNELS)
@given(content=st.binary(max_size=80), cut=st.tuples(st.integers(0, 80), st.integers(0, 80)))
def test_crc_is_the_library_s(crc: Any, content: bytes, cut: tuple[int, int]) -> None:
    start, end = sorted(min(edge, len(content)) for edge in cut)
    assert crc(array(content), start, end) == crc32c.crc32c(content[start:end])


@pytest.mark.parametrize("crc", CRC_KERNELS)
def test_crc_has_the_known_value(crc: Any) -> None:
    assert crc(array(b"123456789"), 0, 9) == 0xE3069283


# --- the scan of headers ---


def row_as_batch(row: np.void) -> Batch:
    return Batch(
        base_offset=int(row["base_offset"]),
        last_offset=int(row["last_offset"]),
        attributes=int(row["attributes"]),
        base_timestamp_ms=int(row["base_timestamp"]),
        max_timestamp_ms=int(row["max_timestamp"]),
        producer_id=int(row["producer_id"]),
        producer_epoch=int(row["producer_epoch"]),
        base_sequence=int(row["base_sequence"]),
        leader_epoch=int(row["leader_epoch"]),
        record_count=int(row["record_count"]),
        size_bytes=int(row["size"]),
    )


@few
@given(st.randoms(use_true_random=False), st.integers(1, 5))
def test_a_scan_sees_what_the_reference_sees(rng: random.Random, rows_per_step: int) -> None:
    content = b"".join(map(encode, logs.random_log(rng).batches))
    expected = list(decode_all(content))
    steps = scan.scan(array(content), 0, len(content), "log", check_crc=True, rows_per_step=rows_per_step)
    rows = [row.copy() for table in steps for row in table]
    assert [row_as_batch(row) for row in rows] == [replace(batch, records=()) for batch in expected]
    assert [int(row["control_type"]) for row in rows] == [int(batch.control_type) for batch in expected]
    starts = np.cumsum([0] + [batch.size_bytes for batch in expected])[:-1]
    assert [int(row["position"]) for row in rows] == starts.tolist()


def two_batches() -> tuple[bytes, int]:
    first = encode(logs.data((b"a", b"1"), (b"b", None), at=10))
    return first + encode(logs.data((b"c", b"3"), at=12)), len(first)


def with_bytes(content: bytes, position: int, new: bytes) -> bytes:
    return content[:position] + new + content[position + len(new) :]


@pytest.mark.parametrize(
    ("at", "new", "error", "what"),
    [
        (8, struct.pack(">i", 48), CorruptLogError, "length is impossible"),
        (8, struct.pack(">i", -1), CorruptLogError, "length is impossible"),
        (8, struct.pack(">i", 2**31 - 1), CorruptLogError, "cut off"),
        (16, b"\x00", UnsupportedFormatError, "message format v0"),
        (16, b"\x01", UnsupportedFormatError, "message format v1"),
        (16, b"\x03", CorruptLogError, "magic byte 3"),
        (16, b"\xff", CorruptLogError, "magic byte -1"),
        (0, struct.pack(">q", -1), CorruptLogError, "impossible"),
        (0, struct.pack(">q", 11), CorruptLogError, "not above"),
        (0, struct.pack(">q", 2**63 - 1), CorruptLogError, "impossible"),
        (0, struct.pack(">q", BATCH_OFFSET_MAX + 1), CorruptLogError, "impossible"),
        (23, struct.pack(">i", -1), CorruptLogError, "impossible"),
        (57, struct.pack(">i", -1), CorruptLogError, "impossible"),
        (57, struct.pack(">i", 2), CorruptLogError, "impossible"),
        (60, b"\x00", CorruptLogError, "CRC"),
        (65, b"\x55", CorruptLogError, "CRC"),
    ],
)
def test_a_scan_stops_at_the_damaged_batch_and_says_where(at: int, new: bytes, error: type, what: str) -> None:
    content, second = two_batches()
    damaged = with_bytes(content, second + at, new)
    with pytest.raises(error, match=what) as caught:
        scan_all(damaged)
    assert isinstance(caught.value, SextonError)
    assert caught.value.place == f"log at byte {second}"
    assert caught.value.remedy


@pytest.mark.parametrize("missing", range(1, 80))
def test_a_scan_of_a_torn_end_says_that_it_is_torn_and_where(missing: int) -> None:
    content, second = two_batches()
    missing = min(missing, len(content) - second - 1)
    with pytest.raises(CorruptLogError, match="cut off") as caught:
        scan_all(content[:-missing])
    assert caught.value.place == f"log at byte {second}"
    assert "start the broker" in caught.value.remedy


def test_a_tail_of_zeros_is_not_taken_for_an_old_format() -> None:
    content, _ = two_batches()
    with pytest.raises(CorruptLogError, match="length is impossible") as caught:
        scan_all(content + bytes(4096))
    assert caught.value.place == f"log at byte {len(content)}"
    assert "start the broker" in caught.value.remedy
    with pytest.raises(CorruptLogError, match="0 bytes long"):
        list(decode_all(content + bytes(4096)))


def test_a_file_that_shrank_is_refused_and_not_read_past_its_end() -> None:
    content, _ = two_batches()
    with pytest.raises(CorruptLogError, match="a moment ago it was longer"):
        scan.scan_whole(array(content), 0, len(content) + 1, "log", check_crc=True)


def test_a_scan_hands_out_what_came_before_the_damage() -> None:
    content, _ = two_batches()
    steps = scan.scan(array(content[:-1]), 0, len(content) - 1, "log", check_crc=True)
    assert len(next(steps)) == 1
    with pytest.raises(CorruptLogError):
        next(steps)


def test_a_scan_wants_offsets_to_rise_from_the_given_one() -> None:
    content, _ = two_batches()
    assert len(scan_all(content, previous_offset=9)) == 2
    with pytest.raises(CorruptLogError, match="not above"):
        scan_all(content, previous_offset=10)


def test_the_largest_offset_is_scanned_and_hashed() -> None:
    content = encode(logs.data((b"a", None), at=BATCH_OFFSET_MAX))
    entries, _ = hash_all(content, HashKey(3, 5), 0)
    assert entries["code"].tolist() == [BATCH_OFFSET_MAX << 2 | keys.TOMBSTONE]


@few
@given(st.binary(min_size=1, max_size=200), st.booleans())
def test_a_scan_of_random_bytes_is_a_sexton_error_or_nothing(content: bytes, with_magic: bool) -> None:
    if with_magic and len(content) > 16:
        content = with_bytes(content, 16, b"\x02")
    with pytest.raises(SextonError):
        scan_all(content)


# --- key hashes ---


@given(st.binary(max_size=60), points, st.integers(0, 9), st.integers(0, 9))
def test_a_key_hashes_alike_wherever_it_lies(key: bytes, at: HashKey, before: int, after: int) -> None:
    content = array(b"\xaa" * before + key + b"\xbb" * after)
    found = keys.hash_key(content, before, len(key), np.uint64(at.first), np.uint64(at.second))
    assert tuple(map(int, found)) == keyhash.hash_key(key, at)


@given(st.lists(st.binary(max_size=20), min_size=2, max_size=40, unique=True), points)
def test_different_keys_hash_differently(distinct: list[bytes], at: HashKey) -> None:
    assert len({keyhash.hash_key(key, at) for key in distinct}) == len(distinct)


def hash_all(content: bytes, at: HashKey, keyless_flags: int) -> tuple[Any, int]:
    table = scan_all(content)
    entries = np.zeros(int(table["record_count"].sum()) + 1, dtype=keys.ENTRY)
    table = table[(table["attributes"] & 0x20) == 0]
    filled, bad, keyless = keys.hash_records(
        array(content),
        table["position"] + HEADER_BYTES,
        table["position"] + table["size"],
        table,
        np.uint64(at.first),
        np.uint64(at.second),
        keyless_flags,
        entries,
        0,
    )
    assert bad == -1
    return entries[:filled], keyless


@few
@given(st.randoms(use_true_random=False), points, st.sampled_from([keys.SKIP_KEYLESS, 0, keys.DEAD]))
def test_records_hash_as_in_a_plain_loop(rng: random.Random, at: HashKey, keyless_flags: int) -> None:
    plain = [replace(b, attributes=b.attributes & ~7) for b in logs.random_log(rng, rng.randint(1, 12)).batches]
    expected: list[tuple[tuple[int, int] | None, int]] = []
    keyless = 0
    for batch in plain:
        for record in () if batch.is_control else batch.records:
            if record.key is None:
                keyless += 1
                if keyless_flags != keys.SKIP_KEYLESS:
                    expected.append((None, record.offset << 2 | keyless_flags))
            else:
                flags = keys.TOMBSTONE if record.is_tombstone else 0
                expected.append((keyhash.hash_key(record.key, at), record.offset << 2 | flags))
    entries, found_keyless = hash_all(b"".join(map(encode, plain)), at, keyless_flags)
    assert found_keyless == keyless
    assert entries["code"].tolist() == [code for _, code in expected]
    for entry, (hashed, _) in zip(entries, expected, strict=True):
        assert hashed is None or (int(entry["first"]), int(entry["second"])) == hashed
    assert len({(e["first"], e["second"]) for e in entries}) == len({h or object() for h, _ in expected})


# --- the newest of each key ---


@few
@given(st.lists(st.integers(0, 12), max_size=60), st.integers(1, 5))
def test_splitting_keeps_the_newest_of_each_key_by_bucket_in_order(names: list[int], bucket_count: int) -> None:
    at = HashKey(123456789, 987654321)
    entries = np.zeros(len(names), dtype=keys.ENTRY)
    for index, name in enumerate(names):
        first, second = keyhash.hash_key(b"%d" % name, at)
        entries[index] = (first, second, index << 2)
    out, slots = np.zeros_like(entries), np.zeros(newest.slots_needed(len(names)), dtype=np.int32)
    alive = np.zeros(len(names), dtype=bool)
    bounds = newest.split_newest(entries, bucket_count, out, slots, alive)
    last = {name: index << 2 for index, name in enumerate(names)}
    assert sorted(out["code"][: bounds[-1]].tolist()) == sorted(last.values())
    for start, end in pairwise(bounds):
        assert out["code"][start:end].tolist() == sorted(out["code"][start:end].tolist())
        assert len({int(first) * bucket_count >> 64 for first in out["first"][start:end]}) <= 1

    count = newest.strike_older(entries, slots, alive)
    assert count == len(last)
    assert entries["code"][alive].tolist() == sorted(last.values())


@few
@given(st.sets(st.integers(0, 500), max_size=80), st.sets(st.integers(0, 500), max_size=80), st.integers(1, 4))
def test_the_filter_lets_every_dirty_key_through_and_lists_every_other_flag(
    dirty: set[int], clean: set[int], bucket_count: int
) -> None:
    at = HashKey(123456789, 987654321)
    parts, sections = [], [0]
    hashed = {name: keyhash.hash_key(b"%d" % name, at) for name in dirty | clean}
    for bucket in range(bucket_count):
        mine = [hashed[name] for name in sorted(dirty) if hashed[name][0] * bucket_count >> 64 == bucket]
        entries = np.array([(*pair, 0) for pair in mine], dtype=keys.ENTRY)
        words = np.zeros(-(-len(mine) * newest.FILTER_BITS_PER_KEY // 64), dtype=np.uint64)
        newest.fill_filter(entries, np.ones(len(mine), dtype=bool), words)
        parts.append(words)
        sections.append(sections[-1] + len(words))
    asked = np.array([(*hashed[name], (name << 2) | (2 if name % 7 == 0 else 0)) for name in sorted(clean)], keys.ENTRY)
    passed = asked.copy()
    codes = np.zeros(len(passed), dtype=np.int64)
    kept, count = newest.pass_filter(passed, len(passed), np.concatenate(parts), np.array(sections), codes)
    found = {int(code) >> 2 for code in passed["code"][:kept]}
    assert dirty & clean <= found <= clean
    assert codes[:count].tolist() == [(name << 2) | 2 for name in sorted(clean - found) if name % 7 == 0]
    assert passed["code"][:kept].tolist() == sorted(passed["code"][:kept].tolist())


# --- copying what survives ---


def outcome_for(batch: Batch, kept: Sequence[Record], codes: Sequence[int], base_timestamp_ms: int) -> np.ndarray[Any]:
    outcomes = np.zeros(1, dtype=rewrite.OUTCOME)
    outcomes["action"] = Action.REWRITE
    outcomes["attributes"] = batch.attributes
    outcomes["base_timestamp"] = base_timestamp_ms
    outcomes["kept_count"] = len(kept)
    outcomes["list_end"] = len(codes)
    return outcomes


@few
@given(st.randoms(use_true_random=False), st.booleans(), st.sampled_from([0, 1, -1, 10**12, -(2**40)]))
def test_surviving_records_are_copied_and_keep_their_timestamps(
    rng: random.Random, lists_survivors: bool, shift: int
) -> None:
    records = [
        Record(5 + 2 * index, rng.randint(0, 10**13), rng.choice([None, b"", b"k" * 70]), rng.choice([None, b"v" * 9]))
        for index in range(rng.randint(1, 9))
    ]
    batch = make_batch(records, base_offset=3, last_offset=30)
    kept = [record for record in records if rng.random() < 0.6]
    listed = kept if lists_survivors else [record for record in records if record not in kept]
    codes = np.array([r.offset << 2 | (0 if lists_survivors else keys.DEAD) for r in listed], dtype=np.int64)
    content = encode(batch)
    outcomes = outcome_for(batch, kept, codes.tolist(), batch.base_timestamp_ms - shift)
    out = np.zeros(len(content) + rewrite.MAX_VARINT_GROWTH_BYTES * len(records), dtype=np.uint8)
    rows, end, status = rewrite.write_batches(
        array(content), scan_all(content), outcomes, 0, codes, lists_survivors, out, 0
    )
    assert (rows, status) == (1, 0)
    written = decode(out[:end].tobytes())
    assert list(written.records) == kept
    assert (written.base_offset, written.last_offset) == (3, 30)
    assert written.base_timestamp_ms == batch.base_timestamp_ms - shift
    assert written.max_timestamp_ms == max((record.timestamp_ms for record in kept), default=-1)


def test_a_marker_that_gets_a_horizon_is_copied_whatever_the_list_says() -> None:
    marker = make_marker(4, ControlType.ABORT, 7, 1, logs.NOW_MS)
    content = encode(marker)
    for lists_survivors in (True, False):
        outcomes = outcome_for(marker, marker.records, [], logs.NOW_MS + 5)
        outcomes["attributes"] = marker.attributes | DELETE_HORIZON
        out = np.zeros(200, dtype=np.uint8)
        none = np.zeros(0, dtype=np.int64)
        rows, end, status = rewrite.write_batches(
            array(content), scan_all(content), outcomes, 0, none, lists_survivors, out, 0
        )
        assert (rows, status) == (1, 0)
        written = decode(out[:end].tobytes())
        assert written.records == marker.records
        assert written.delete_horizon_ms == logs.NOW_MS + 5


# --- out of bounds ---

HOSTILE_LENGTHS = [-(2**63), -(2**31), -2, -1, 0, 1, 4, 5, 6, 63, 64, 2**31, 2**62, 2**63 - 200, 2**63 - 1]
ROOM_BYTES = 1 << 16


def hostile_record(rng: random.Random) -> bytes:
    """A record made of varints that mean trouble, with a length that fits or does not."""
    body = bytearray(b"\x00")
    for _ in range(rng.randint(0, 6)):
        varint.write_varint(body, rng.choice(HOSTILE_LENGTHS))
        body += bytes(rng.randint(0, 3))
    out = bytearray()
    varint.write_varint(out, rng.choice([len(body), len(body), len(body), *HOSTILE_LENGTHS]))
    return bytes(out + body)


def hostile_batch(rng: random.Random) -> bytes:
    """Right header, right CRC, records by an enemy; or a good batch with bytes changed and the CRC made right again."""
    if rng.random() < 0.5:
        body = b"".join(hostile_record(rng) for _ in range(rng.randint(1, 4)))
        count = rng.choice([1, 2, len(body) // 7, 10])
    else:
        good = encode(replace(logs.random_log(rng, 1).batches[0], attributes=0))
        body, count = good[HEADER_BYTES:], struct.unpack_from(">i", good, 57)[0]
        for _ in range(rng.randint(1, 4) if body else 0):
            body = with_bytes(body, rng.randrange(len(body)), rng.randbytes(1))
        body = body[: rng.choice([len(body), rng.randint(0, len(body))])]
    after_crc = struct.pack(">hiqqqhii", 0, 1000, logs.NOW_MS, logs.NOW_MS, -1, -1, -1, min(count, len(body)))
    crc = crc32c.crc32c(after_crc + body)
    return struct.pack(">qiibI", 7, 49 + len(body), 0, 2, crc) + after_crc + body


def run_kernels_on(rng: random.Random, content: bytes, source: Guarded, target: Guarded) -> None:
    for data in source.both(content):
        try:
            table = scan.scan_whole(data, 0, len(data), "hostile", check_crc=rng.random() < 0.5)
        except SextonError:
            continue
        records = int(table["record_count"].sum())
        if records > len(content):
            continue  # packed; the index pass checks how many records fit into what is unpacked
        entries = target.at_end(24 * records).view(keys.ENTRY)
        starts, ends = table["position"] + HEADER_BYTES, table["position"] + table["size"]
        one = np.uint64(12345)
        keys.hash_records(data, starts, ends, table, one, one, 0, entries, 0)
        outcomes = np.zeros(len(table), dtype=rewrite.OUTCOME)
        outcomes["action"] = [rng.choice(list(Action)) for _ in table]
        outcomes["base_timestamp"] = table["base_timestamp"] + rng.choice([0, 1, -(2**63)])
        outcomes["kept_count"] = rng.choice([0, 1, records])
        codes = np.arange(7 << 2, 1000 << 2, 4, dtype=np.int64)
        outcomes["list_end"] = len(codes)
        room = len(content) + rewrite.MAX_VARINT_GROWTH_BYTES * records
        for size in (room, rng.randint(0, room)):
            out = target.at_end(size)
            first = 0
            while first < len(table):
                row, _, _ = rewrite.write_batches(
                    data, table, outcomes, first, codes, rng.random() < 0.5, out, rng.randint(0, len(out))
                )
                first = max(row, first) + 1
        for row in range(len(table)):
            out = target.at_end(room)
            rewrite.copy_kept_records(
                data, int(starts[row]), int(ends[row]), table[row], outcomes[row], codes, False, out, 0
            )


def run_many(seed: int, count: int) -> None:
    rng = random.Random(seed)
    source, target = Guarded(ROOM_BYTES), Guarded(1 << 20)
    for _ in range(count):
        kind = rng.random()
        if kind < 0.7:
            content = hostile_batch(rng)
        elif kind < 0.9:
            content = b"".join(map(encode, logs.random_log(rng, 4).batches))
            for _ in range(rng.randint(0, 5)):
                content = with_bytes(content, rng.randrange(len(content)), rng.randbytes(1))
            content = content[: rng.choice([len(content), rng.randint(0, len(content))])]
        else:
            content = rng.randbytes(rng.randint(0, 200))
        run_kernels_on(rng, content[:ROOM_BYTES], source, target)


def test_no_kernel_leaves_its_buffers_on_corrupt_input() -> None:
    run_many(0, 2)  # compiled before the fork
    assert survives(run_many, 1, 4000)


def test_the_forbidden_pages_would_show_a_kernel_that_does() -> None:
    assert survives(_read_inside)
    assert not survives(_read_outside)


def _read_inside() -> None:
    primitives.crc32c(Guarded(100).at_end(100), 0, 100)


def _read_outside() -> None:
    primitives.crc32c(Guarded(100).at_end(100), 0, 101)


@pytest.mark.parametrize("length", [2**63 - 1, 2**63 - 100, 2**62, 2**31, 1000])
def test_a_key_length_that_overflows_is_refused(length: int) -> None:
    body = bytearray(b"\x00\x00\x00")
    varint.write_varint(body, length)
    body += b"key and value"
    record = bytearray()
    varint.write_varint(record, len(body))
    record += body
    table = np.zeros(1, dtype=scan.BATCH)
    table["record_count"], table["last_offset"] = 1, 10
    content = Guarded(100).at_end(len(record))
    content[:] = array(bytes(record))
    entries = np.zeros(1, dtype=keys.ENTRY)
    one = np.uint64(3)
    starts, ends = np.zeros(1, dtype=np.int64), np.array([len(record)])
    assert keys.hash_records(content, starts, ends, table, one, one, 0, entries, 0)[1] == 0


def test_a_header_says_the_same_to_both_when_its_bits_are_flipped() -> None:
    """Where the reference sees a header, the scan sees the same one, CRCs aside."""
    good = encode(logs.data((b"a", b"1"), (b"b", None), at=10))
    for bit in range(8 * HEADER_BYTES):
        flipped = with_bytes(good, bit // 8, bytes([good[bit // 8] ^ 1 << bit % 8]))
        try:
            expected = decode_header(flipped, 0)
        except SextonError as error:
            with pytest.raises(type(error)):
                scan_all(flipped, check_crc=False)
            continue
        if expected.record_count <= expected.size_bytes - 12:  # the scan also notices that so many cannot fit
            assert row_as_batch(scan_all(flipped[: expected.size_bytes], check_crc=False)[0]) == expected


# --- compiled once ---

SECOND_START = """
import sys
from sexton.spark import warm_up
warm_up.run()
from numba.core.dispatcher import Dispatcher
missed = {
    f"{module}.{name}"
    for module, loaded in list(sys.modules.items()) if module.startswith("sexton.")
    for name, value in vars(loaded).items()
    if isinstance(value, Dispatcher) and value.stats.cache_misses
}
hits = sum(
    sum(value.stats.cache_hits.values())
    for module, loaded in list(sys.modules.items()) if module.startswith("sexton.")
    for value in vars(loaded).values() if isinstance(value, Dispatcher)
)
print(len(missed), hits > 10, sorted(missed))
"""


def test_a_second_start_loads_every_kernel_from_the_cache() -> None:
    for _ in range(2):  # the first one may have to compile
        done = subprocess.run([sys.executable, "-c", SECOND_START], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("0 True"), done.stdout
