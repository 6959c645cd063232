"""Two traps of the LZ4 library that real Kafka found: what it writes by default, and what it guesses when it reads."""

from __future__ import annotations

import random
import struct

import pytest

from sexton.errors import CorruptLogError
from sexton.records import codecs
from sexton.records.codecs import LZ4_BLOCK_BYTES, LZ4_END, LZ4_HEADER, LZ4_INDEPENDENT, Codec


@pytest.mark.parametrize("size", [0, 1, 100, LZ4_BLOCK_BYTES - 1, LZ4_BLOCK_BYTES, LZ4_BLOCK_BYTES + 1, 300_000])
@pytest.mark.parametrize("kind", ["repetitive", "random", "mixed"])
def test_frames_are_as_kafka_reads_them_and_come_back_whole(size: int, kind: str) -> None:
    noise = random.Random(size).randbytes(size)
    plain = {"repetitive": b"abc" * size, "random": noise, "mixed": noise[: size // 2] + bytes(size)}[kind][:size]
    packed = codecs.compress(Codec.LZ4, plain)
    assert packed.startswith(LZ4_HEADER)
    assert packed[4] & LZ4_INDEPENDENT, "Kafka's consumers refuse blocks that depend on each other"
    assert codecs.decompress(Codec.LZ4, packed) == plain


@pytest.mark.parametrize(
    ("block", "plain"),
    [
        ("500100001041", "0100001041"),  # taken for a size of 336 bytes, and then one literal
        ("a029000063616161016162", "29000063616161016162"),
    ],
)
def test_a_block_whose_first_bytes_could_be_a_size_is_read_from_its_beginning(block: str, plain: str) -> None:
    """Left to itself the library skips them, and returns something else, without an error."""
    content = bytes.fromhex(block)
    frame = LZ4_HEADER + struct.pack("<I", len(content)) + content + LZ4_END
    assert codecs.decompress(Codec.LZ4, frame) == bytes.fromhex(plain)


def test_a_broken_block_is_corrupt_not_a_bomb() -> None:
    packed = bytearray(codecs.compress(Codec.LZ4, b"sexton " * 1000))
    packed[len(LZ4_HEADER) + 4 : len(LZ4_HEADER) + 20] = b"\xff" * 16
    with pytest.raises(CorruptLogError):
        codecs.decompress(Codec.LZ4, bytes(packed))
