"""Record batch v2, the reference codec: round trips, foreign bytes, and every way of being damaged."""

from __future__ import annotations

import contextlib
import gzip
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import cramjam
import crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sexton.errors import CorruptLogError, SextonError, UnsupportedFormatError
from sexton.records import codecs
from sexton.records.batch import (
    Batch,
    ControlType,
    Header,
    Record,
    decode,
    decode_all,
    decode_header,
    encode,
    make_batch,
    make_marker,
)
from sexton.records.codecs import XERIAL_HEADER, Codec, Unpacker, compress, decompress
from sexton.records.header import (
    ATTRIBUTES_POSITION,
    CODEC_MASK,
    CONTROL,
    DELETE_HORIZON,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
)
from sexton.records.varint import write_varint
from tests.records import framings

CODECS = list(Codec)
SMALL = make_batch(
    [Record(5, 1000, b"key", b"value", (Header("h", b"x"),)), Record(6, 1001, None, None)],
    producer_id=9,
    producer_epoch=2,
    base_sequence=7,
)


def with_body(body: bytes, attributes: int = 0, record_count: int = 1, last_offset: int = 10) -> bytes:
    """A batch around any body at all, with a CRC that is right."""
    after_crc = struct.pack(">hiqqqhii", attributes, last_offset, 0, 0, -1, -1, -1, record_count)
    crc = crc32c.crc32c(after_crc + body)
    return struct.pack(">qiibI", 0, HEADER_BYTES - 12 + len(body), 0, 2, crc) + after_crc + body


def varints(*values: int) -> bytes:
    out = bytearray()
    for value in values:
        write_varint(out, value)
    return bytes(out)


def record_bytes(*fields: int | bytes, length: int | None = None) -> bytes:
    """A record from varints and raw bytes, after its attributes."""
    body = b"\x00" + b"".join(varints(part) if isinstance(part, int) else part for part in fields)
    return varints(len(body) if length is None else length) + body


GOOD_RECORD = record_bytes(0, 0, 1, b"k", 1, b"v", 0)


# --- round trips ---

texts = st.text(max_size=8)
parts = st.none() | st.binary(max_size=40)
timestamps = st.integers(-1, 2**53)


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    offsets = sorted(draw(st.sets(st.integers(0, 10_000), max_size=6)))
    base = draw(st.integers(0, 2**40))
    attributes = draw(st.sampled_from(CODECS)) | draw(st.sampled_from([0, TRANSACTIONAL, CONTROL | TRANSACTIONAL]))
    max_timestamp = draw(timestamps)
    by_append = draw(st.booleans())
    records = tuple(
        Record(
            base + offset,
            max_timestamp if by_append else draw(timestamps),
            draw(parts),
            draw(parts),
            tuple(draw(st.lists(st.builds(Header, texts, parts), max_size=3))),
        )
        for offset in offsets
    )
    attributes |= (LOG_APPEND_TIME if by_append else 0) | (DELETE_HORIZON if draw(st.booleans()) else 0)
    return Batch(
        base_offset=base,
        last_offset=base + draw(st.integers(offsets[-1] if offsets else 0, 20_000)),
        attributes=attributes if records else attributes & ~CODEC_MASK,
        base_timestamp_ms=draw(timestamps),
        max_timestamp_ms=max_timestamp,
        producer_id=draw(st.integers(-1, 2**63 - 1)),
        producer_epoch=draw(st.integers(-1, 2**15 - 1)),
        base_sequence=draw(st.integers(-1, 2**31 - 1)),
        leader_epoch=draw(st.integers(-1, 2**31 - 1)),
        record_count=len(records),
        records=records,
    )


@given(batches())
def test_a_batch_survives_the_round_trip(batch: Batch) -> None:
    content = encode(batch)
    assert decode(content) == replace(batch, size_bytes=len(content))
    assert decode_header(content, 0) == replace(batch, size_bytes=len(content), records=())


@given(st.lists(batches(), max_size=4))
def test_a_segment_is_its_batches_in_order(several: list[Batch]) -> None:
    content = b"".join(map(encode, several))
    assert [replace(batch, size_bytes=0) for batch in decode_all(content)] == several


@given(batches(), st.binary(max_size=20), st.binary(max_size=20))
def test_a_batch_is_found_at_any_position_and_what_follows_is_not_its_business(
    batch: Batch, before: bytes, after: bytes
) -> None:
    content = encode(batch)
    assert decode(before + content + after, len(before)) == decode(content)


def test_a_batch_has_the_bytes_that_the_format_says() -> None:
    batch = make_batch([Record(3, 100, b"k", b"v")], leader_epoch=4, producer_id=5, producer_epoch=6, base_sequence=7)
    body = bytes.fromhex("10 00 00 00 02 6b 02 76 00".replace(" ", ""))
    content = encode(batch)
    assert content[:21] == struct.pack(">qiibI", 3, 49 + len(body), 4, 2, crc32c.crc32c(content[21:]))
    assert content[21:] == struct.pack(">hiqqqhii", 0, 0, 100, 100, 5, 6, 7, 1) + body


def test_a_leader_may_stamp_offset_and_epoch_without_touching_the_crc() -> None:
    content = encode(SMALL)
    stamped = struct.pack(">q", 1000) + content[8:12] + struct.pack(">i", 77) + content[16:]
    batch = decode(stamped)
    assert (batch.base_offset, batch.last_offset, batch.leader_epoch) == (1000, 1001, 77)
    assert [record.offset for record in batch.records] == [1000, 1001]


@pytest.mark.parametrize("kind", [ControlType.COMMIT, ControlType.ABORT])
def test_a_marker_says_which_it_is(kind: ControlType) -> None:
    marker = decode(encode(make_marker(4, kind, 9, 1, 1000)))
    assert marker.control_type == kind
    assert marker.is_control
    assert marker.is_transactional


@pytest.mark.parametrize("key", [None, b"", b"\0\0\0", b"\0\0\0\2", b"\0\0\xff\xff"])
def test_any_other_control_record_is_of_unknown_type(key: bytes | None) -> None:
    batch = decode(encode(make_batch([Record(0, 0, key, b"")], attributes=CONTROL)))
    assert batch.control_type == ControlType.UNKNOWN


def test_a_data_record_that_looks_like_a_marker_is_none() -> None:
    assert decode(encode(make_batch([Record(0, 0, b"\0\0\0\1", b"")]))).control_type == ControlType.UNKNOWN


def test_under_log_append_time_every_record_has_the_batch_s_time() -> None:
    batch = make_batch([Record(0, 1, b"a", b""), Record(1, 2, b"b", b"")], attributes=LOG_APPEND_TIME)
    assert [r.timestamp_ms for r in decode(encode(replace(batch, max_timestamp_ms=99))).records] == [99, 99]


def test_a_delete_horizon_is_the_base_timestamp() -> None:
    batch = replace(SMALL, attributes=DELETE_HORIZON, base_timestamp_ms=5000)
    read = decode(encode(batch))
    assert read.delete_horizon_ms == 5000
    assert [record.timestamp_ms for record in read.records] == [1000, 1001]
    assert SMALL.delete_horizon_ms is None


def test_a_header_name_may_be_any_bytes_as_brokers_do_not_check() -> None:
    body = record_bytes(0, 0, 1, b"k", 1, b"v", 1, 2, b"\xff\xfe", 1, b"x")
    read = decode(with_body(body, last_offset=0))
    assert read.records[0].headers[0].name.encode(errors="surrogateescape") == b"\xff\xfe"
    assert decode(encode(read)) == read


# --- damage ---


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_cut_off_at_any_byte_is_refused(codec: int) -> None:
    content = encode(replace(SMALL, attributes=codec))
    for size in range(len(content)):
        with pytest.raises(CorruptLogError, match="cut off"):
            decode(content[:size])


@pytest.mark.parametrize("codec", CODECS)
def test_every_flipped_bit_is_detected_or_changes_only_what_the_crc_leaves_out(codec: int) -> None:
    content = encode(replace(SMALL, attributes=codec))
    whole = decode(content)
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            read = decode(bytes(flipped))
        except SextonError:
            continue
        assert bit // 8 < ATTRIBUTES_POSITION, f"bit {bit} changed and nobody noticed"
        assert read.size_bytes == whole.size_bytes
        assert [(r.key, r.value) for r in read.records] == [(r.key, r.value) for r in whole.records]


@settings(max_examples=300)
@given(st.sampled_from(CODECS), st.data())
def test_damage_behind_a_right_crc_is_a_sexton_error_or_a_batch(codec: int, data: st.DataObject) -> None:
    """As a producer with a bug, or with bad intentions, would write it."""
    body = bytearray(encode(replace(SMALL, attributes=codec))[HEADER_BYTES:])
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.just(len(body)) | st.integers(0, len(body)))
    try:
        decode(with_body(bytes(body[:cut]), codec, record_count=data.draw(st.integers(0, 3))))
    except SextonError as error:
        if not (error.place and error.remedy):
            raise AssertionError("an error that does not say where, or what now") from error


@given(st.binary(max_size=150))
def test_random_bytes_are_refused(content: bytes) -> None:
    if content:
        with pytest.raises(SextonError):
            list(decode_all(content))


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (GOOD_RECORD + b"\x00", "1 bytes follow"),
        (b"", "record 0 .* cannot be parsed"),
        (record_bytes(0, 0, 1, b"k", 1, b"v", 0, length=-1), "length -1"),
        (record_bytes(0, 0, 1, b"k", 1, b"v", 0, length=2**62), "length"),
        (record_bytes(0, 0, -2, 1, b"v", 0), "length -2"),
        (record_bytes(0, 0, 1, b"k", -7, 0), "length -7"),
        (record_bytes(0, 0, 2**63 - 1, b"k", 1, b"v", 0), "length"),
        (record_bytes(0, 0, 1, b"k", 1, b"v", -1), "header count -1"),
        (record_bytes(0, 0, 1, b"k", 1, b"v", 2**40), "header count"),
        (record_bytes(0, 0, 1, b"k", 1, b"v", 1, -1, 0), "without a name"),
        (record_bytes(0, 0, 1, b"k", 1, b"v", 0, b"junk"), "the record ends"),
        (record_bytes(0, 0, 1, b"k", 1, b"v", 0, length=7), "header count 0"),
        (record_bytes(0, 11, 1, b"k", 1, b"v", 0), "offset 11, outside"),
        (record_bytes(0, -1, 1, b"k", 1, b"v", 0), "offset -1, outside"),
        (b"\xff" * 12, "longer than 10 bytes"),
    ],
)
def test_a_record_that_cannot_be_is_refused_with_the_reason(body: bytes, what: str) -> None:
    with pytest.raises(CorruptLogError, match=what):
        decode(with_body(body))


def test_records_out_of_order_are_refused() -> None:
    body = record_bytes(0, 3, 1, b"k", 1, b"v", 0) + record_bytes(0, 3, 1, b"k", 1, b"v", 0)
    with pytest.raises(CorruptLogError, match="out of order"):
        decode(with_body(body, record_count=2))


@pytest.mark.parametrize(
    ("position", "new", "error", "what"),
    [
        (16, b"\x00", UnsupportedFormatError, "message format v0"),
        (16, b"\x01", UnsupportedFormatError, "message format v1"),
        (16, b"\x03", CorruptLogError, "magic byte 3"),
        (8, struct.pack(">i", -5), CorruptLogError, "-5 bytes long"),
        (8, struct.pack(">i", 48), CorruptLogError, "48 bytes long"),
        (0, struct.pack(">q", -5), CorruptLogError, "base offset -5"),
        (23, struct.pack(">i", -5), CorruptLogError, "delta -5"),
        (57, struct.pack(">i", -5), CorruptLogError, "count -5"),
        (57, struct.pack(">i", 3), CorruptLogError, "count 3"),
        (21, struct.pack(">h", 4), CorruptLogError, "CRC"),
    ],
)
def test_a_header_that_cannot_be_is_refused_and_says_where(position: int, new: bytes, error: Any, what: str) -> None:
    content = encode(SMALL)
    damaged = content + content[:position] + new + content[position + len(new) :]
    with pytest.raises(error, match=what) as caught:
        decode(damaged, len(content), "the log")
    assert caught.value.place == f"the log at byte {len(content)}"
    assert caught.value.remedy


# --- codecs ---


@pytest.mark.parametrize("codec", CODECS)
@given(plain=st.binary(max_size=300))
def test_codecs_give_back_what_they_got(codec: int, plain: bytes) -> None:
    assert decompress(codec, compress(codec, plain)) == plain


@pytest.mark.parametrize("codec", CODECS)
def test_codecs_handle_batches_larger_than_any_first_guess(codec: int) -> None:
    plain = b"x" * 3_000_000
    assert decompress(codec, compress(codec, plain)) == plain


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec_is_said_to_be_unknown(codec: int) -> None:
    with pytest.raises(UnsupportedFormatError, match=f"codec {codec} is unknown"):
        decode(with_body(GOOD_RECORD, codec, last_offset=0))
    with pytest.raises(UnsupportedFormatError, match="unknown"):
        compress(codec, b"")


def test_snappy_is_written_in_xerial_s_framing_and_read_with_and_without_it() -> None:
    plain = bytes(range(256)) * 300
    framed = compress(Codec.SNAPPY, plain)
    assert framed.startswith(XERIAL_HEADER)
    raw = bytes(cramjam.snappy.compress_raw(plain))
    assert decompress(Codec.SNAPPY, framed) == decompress(Codec.SNAPPY, raw) == plain
    body = GOOD_RECORD
    for packed in (compress(Codec.SNAPPY, body), bytes(cramjam.snappy.compress_raw(body))):
        assert decode(with_body(packed, Codec.SNAPPY, last_offset=0)).records[0].key == b"k"


def test_gzip_is_anybody_s_gzip() -> None:
    assert decompress(Codec.GZIP, gzip.compress(b"hello")) == b"hello"
    assert gzip.decompress(compress(Codec.GZIP, b"hello")) == b"hello"


@pytest.mark.parametrize(("codec", "packed"), framings.ODD.values(), ids=framings.ODD.keys())
def test_framings_that_kafka_reads_are_read(codec: int, packed: Callable[[bytes], bytes]) -> None:
    for plain in (GOOD_RECORD, b"", bytes(range(256)) * 4000):
        assert decompress(codec, packed(plain)) == plain
    assert decode(with_body(packed(GOOD_RECORD), codec, last_offset=0)).records[0].key == b"k"


@pytest.mark.parametrize(("codec", "packed"), framings.ODD.values(), ids=framings.ODD.keys())
def test_odd_framings_cut_off_anywhere_give_a_beginning_or_an_error(
    codec: int, packed: Callable[[bytes], bytes]
) -> None:
    plain = b"some records, some of them alike, some records" * 3
    whole = packed(plain)
    for size in range(1, len(whole)):
        with contextlib.suppress(CorruptLogError):
            assert plain.startswith(decompress(codec, whole[:size]))


def test_members_that_unfold_past_the_limit_only_together_are_refused() -> None:
    for codec, packed in framings.ODD.values():
        with pytest.raises(UnsupportedFormatError, match="more than 1000 bytes"):
            Unpacker(1000).unpack(codec, memoryview(packed(bytes(1200))), 0, "here")


@pytest.mark.parametrize(
    "framed",
    [
        XERIAL_HEADER + b"\x00\x00",
        compress(Codec.SNAPPY, b"x") + XERIAL_HEADER[:12],
        XERIAL_HEADER + struct.pack(">i", -1),
        XERIAL_HEADER + struct.pack(">i", 100) + b"short",
        XERIAL_HEADER + struct.pack(">i", 3) + b"\xff\xff\xff",
        b"\xff\xff\xff",
    ],
)
def test_broken_snappy_is_refused(framed: bytes) -> None:
    with pytest.raises(SextonError):
        decompress(Codec.SNAPPY, framed, "here")


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize("limit_bytes", [1000, 100_000, 2_000_000])
def test_a_batch_that_unfolds_past_the_limit_is_refused_before_it_takes_the_memory(
    codec: int, limit_bytes: int
) -> None:
    unpacker = Unpacker(limit_bytes)
    bomb = memoryview(compress(codec, b"\0" * (8 * limit_bytes)))
    with pytest.raises(UnsupportedFormatError, match=f"more than {limit_bytes} bytes"):
        unpacker.unpack(codec, bomb, 0, "here")
    assert len(unpacker.buffer) <= max(1 << 20, 4 * limit_bytes)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("limit_bytes", [1000, 100_000, 2_000_000])
def test_a_batch_that_reaches_the_limit_exactly_is_read_wherever_it_lands(codec: int, limit_bytes: int) -> None:
    plain = bytes(index * 7 % 251 for index in range(1000)) * (limit_bytes // 1000)
    packed = memoryview(compress(codec, plain))
    for position in (0, 12345):
        unpacker = Unpacker(limit_bytes)
        end = unpacker.unpack(codec, packed, position, "here")
        assert unpacker.buffer[position:end].tobytes() == plain


def test_batches_are_unpacked_one_after_the_other_without_disturbing_each_other() -> None:
    unpacker = Unpacker()
    plains = [bytes([index]) * (400_000 * index) for index in range(1, 5)]
    ends, position = [], 0
    for index, plain in enumerate(plains):
        position = unpacker.unpack(CODECS[index + 1], memoryview(compress(CODECS[index + 1], plain)), position, "here")
        ends.append(position)
    starts = [0, *ends[:-1]]
    assert [unpacker.buffer[a:b].tobytes() for a, b in zip(starts, ends, strict=True)] == plains


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_packed_data_cut_off_anywhere_is_refused(codec: int) -> None:
    packed = compress(codec, b"some records, some of them alike, some records" * 3)
    for size in range(1, len(packed)):
        try:
            assert len(decompress(codec, packed[:size])) < 138  # xerial's blocks: what is whole is read
        except SextonError:
            continue
        assert codec == Codec.SNAPPY
        assert size == len(codecs.XERIAL_HEADER)
