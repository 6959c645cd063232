"""Producer snapshots: Kafka's bytes, and every way in which they can be damaged."""

from __future__ import annotations

import pickle
import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from sexton.errors import (
    CorruptHistoryError,
    CorruptLogError,
    DamagedObjectError,
    NotAHistoryError,
    NotALogError,
    SextonError,
    UnsupportedFormatError,
)
from sexton.records.producer_snapshot import (
    ProducerEntry,
    decode_producer_snapshot,
    encode_producer_snapshot,
)
from sexton.types import ProducerEpoch, ProducerId

ENTRIES = (
    ProducerEntry(ProducerId(4000), ProducerEpoch(3), 17, 1234, 4, 1_700_000_000_000, 2, 1230),
    ProducerEntry(ProducerId(4001), ProducerEpoch(0), -1, -1, 0, -1, -1, -1),
)

int16 = st.integers(-(2**15), 2**15 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
producers = st.builds(ProducerEntry, int64, int16, int32, int64, int32, int64, int32, int64)


def sealed(body: bytes) -> bytes:
    return struct.pack(">hI", 1, crc32c(body)) + body


def test_an_empty_snapshot_is_ten_bytes() -> None:
    assert encode_producer_snapshot([]) == sealed(bytes(4))
    assert decode_producer_snapshot(encode_producer_snapshot([]), "x") == ()


def test_a_snapshot_is_laid_out_as_kafkas_schema_says() -> None:
    body = struct.pack(">i", 1) + struct.pack(">qhiqiqiq", 4000, 3, 17, 1234, 4, 1_700_000_000_000, 2, 1230)
    assert len(body) == 4 + 46
    assert encode_producer_snapshot(ENTRIES[:1]) == sealed(body)


def test_the_checksum_is_crc_32c() -> None:
    # The check value of CRC-32C, so that a CRC-32 of another polynomial could not pass for it.
    assert crc32c(b"123456789") == 0xE3069283


@given(st.lists(producers, unique_by=lambda entry: entry.producer_id, max_size=20))
def test_a_snapshot_comes_back_in_producer_order(entries: list[ProducerEntry]) -> None:
    read = decode_producer_snapshot(encode_producer_snapshot(entries), "x")
    assert read == tuple(sorted(entries, key=lambda entry: entry.producer_id))


def test_a_truncated_snapshot_says_which_file_and_what_to_do() -> None:
    whole = encode_producer_snapshot(ENTRIES)
    for cut in range(len(whole)):
        with pytest.raises(CorruptLogError, match="cut short") as caught:
            decode_producer_snapshot(whole[:cut], "00000000000000001235.snapshot")
        assert caught.value.place == "00000000000000001235.snapshot"
        assert "Delete the file" in caught.value.remedy


def test_every_damaged_bit_is_noticed() -> None:
    whole = encode_producer_snapshot(ENTRIES)
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        expected = UnsupportedFormatError if bit < 16 else CorruptLogError
        with pytest.raises(expected):
            decode_producer_snapshot(bytes(damaged), "x")


@pytest.mark.parametrize("tail", [b"\0", b"x" * 46])
def test_bytes_after_the_last_entry_are_refused_even_with_a_good_checksum(tail: bytes) -> None:
    whole = encode_producer_snapshot(ENTRIES)
    with pytest.raises(CorruptLogError, match="after the last entry, checksum"):
        decode_producer_snapshot(whole + tail, "x")
    with pytest.raises(CorruptLogError) as caught:
        decode_producer_snapshot(sealed(whole[6:] + tail), "x")
    assert caught.value.what == f"{len(tail)} bytes after the last entry"


@pytest.mark.parametrize(("count", "what"), [(-1, "negative count"), (3, "cut short"), (2**31 - 1, "cut short")])
def test_a_count_that_lies_is_found_out_without_believing_it(count: int, what: str) -> None:
    body = struct.pack(">i", count) + encode_producer_snapshot(ENTRIES)[10:]
    with pytest.raises(CorruptLogError, match=what):
        decode_producer_snapshot(sealed(body), "x")


@pytest.mark.parametrize("version", [-1, 0, 2])
def test_another_version_is_unsupported_not_corrupt(version: int) -> None:
    data = struct.pack(">h", version) + encode_producer_snapshot(ENTRIES)[2:]
    with pytest.raises(UnsupportedFormatError, match=f"version {version}"):
        decode_producer_snapshot(data, "x")


def test_a_producer_is_there_once() -> None:
    with pytest.raises(ValueError, match="4000 is there twice"):
        encode_producer_snapshot([ENTRIES[0], ENTRIES[0]])
    body = struct.pack(">i", 2) + 2 * encode_producer_snapshot(ENTRIES[:1])[10:]
    with pytest.raises(CorruptLogError, match="twice"):
        decode_producer_snapshot(sealed(body), "x")


@pytest.mark.parametrize("kind", [SextonError, *SextonError.__subclasses__()])
def test_an_error_crosses_to_another_process_whole(kind: type[SextonError]) -> None:
    error = pickle.loads(pickle.dumps(kind("cut short", "a.snapshot", "Delete it")))
    assert type(error) is kind
    assert (error.what, error.place, error.remedy) == ("cut short", "a.snapshot", "Delete it")
    assert str(error) == "a.snapshot: cut short. Delete it"
    assert str(kind("cut short")) == "cut short"


def test_exit_codes_tell_the_errors_apart() -> None:
    """A command reads logs, histories or objects: what is wrong with one has the code of the same with the others."""
    general = [kind for kind in SextonError.__subclasses__() if kind.__module__ == SextonError.__module__]
    kinds: list[type[SextonError]] = [SextonError, *general]
    codes = [
        kind.exit_code for kind in kinds if kind not in (CorruptHistoryError, NotAHistoryError, DamagedObjectError)
    ]
    assert len(set(codes)) == len(codes)
    assert CorruptHistoryError.exit_code == DamagedObjectError.exit_code == CorruptLogError.exit_code
    assert NotAHistoryError.exit_code == NotALogError.exit_code
    assert all(2 < code < 126 for code in codes)


@given(st.binary(max_size=200))
def test_any_bytes_are_entries_or_a_typed_error(data: bytes) -> None:
    with pytest.raises((CorruptLogError, UnsupportedFormatError)):
        decode_producer_snapshot(data, "x")
