"""Two traps of the LZ4 library that real Kafka found: what it writes by default, and what it guesses when it reads."""

from __future__ import annotations

import random
import struct

import pytest

from sexton.errors import CorruptLogError
from sexton.records import codecs
from sexton.records.codecs import LZ4_BLOCK_BYTES, LZ4_HEADER, LZ4_INDEPENDENT, Codec


@pytest.mark.parametrize("size", [0, 1, 100, LZ4_BLOCK_BYTES - 1, LZ4_BLOCK_BYTES, LZ4_BLOCK_BYTES + 1, 300_000])
@pytest.mark.parametrize("kind", ["repetitive", "random", "mixed"])
def test_frames_are_as_kafka_reads_them_and_come_back_whole(size: int, kind: str) -> None:
    noise = random.Random(size).randbytes(size)
    plain = {"repetitive": b"abc" * size, "random": noise, "mixed": noise[: size // 2] + bytes(size)}[kind][:size]
    packed = codecs.compress(Codec.LZ4, plain)
    assert packed.startswith(LZ4_HEADER)
    assert packed[4] & LZ4_INDEPENDENT, "Kafka's consumers refuse blocks that depend on each other"
    assert codecs.decompress(Codec.LZ4, packed) == plain


def test_a_block_whose_first_bytes_could_be_its_size_is_not_taken_at_its_word() -> None:
    """Left to itself the library skips them, and returns something else, without an error."""
    for guessed_size in range(16, 1 << 20, 4099):
        block = struct.pack("<I", guessed_size) + b"stone "
        literals = len(block)
        token = bytes([min(literals, 15) << 4]) + (bytes([literals - 15]) if literals >= 15 else b"")
        frame = LZ4_HEADER + struct.pack("<I", len(token) + literals) + token + block + bytes(4)
        assert codecs.decompress(Codec.LZ4, frame) == block
    # A token and literals that begin like a plausible size: 0x0007c4e2, below the room there is.
    block = bytes.fromhex("e2c40700000000b60773746f6e65200600") + b"\x50ninth"
    frame = LZ4_HEADER + struct.pack("<I", len(block)) + block + bytes(4)
    assert codecs.decompress(Codec.LZ4, frame) == bytes.fromhex("c40700000000b607") + b"stone stone ninth"


def test_a_broken_block_is_corrupt_not_a_bomb() -> None:
    packed = bytearray(codecs.compress(Codec.LZ4, b"sexton " * 1000))
    packed[len(LZ4_HEADER) + 4 : len(LZ4_HEADER) + 20] = b"\xff" * 16
    with pytest.raises(CorruptLogError):
        codecs.decompress(Codec.LZ4, bytes(packed))
