"""Kafka's five codecs, bounded: a batch may not unfold into more memory than an operator allowed.

Snappy needs a word: Java producers write it in the framing of xerial's snappy-java (a 16-byte header, then
blocks of a big-endian length and raw snappy), others write one raw block. Both are read, the framing is written,
as Kafka does. LZ4 is the frame format, of which Kafka's Java code reads only independent blocks; gzip and zstd are
themselves.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum

import cramjam
import numpy as np
import numpy.typing as npt

from sexton.errors import CorruptLogError, UnsupportedFormatError

MAX_UNCOMPRESSED_BATCH_BYTES = 512 * 1024 * 1024
"""What one batch may unfold to. Kafka's producers stay below max.request.size (1 MiB); a thousandfold is a bomb."""

XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_HEADER = XERIAL_MAGIC + struct.pack(">ii", 1, 1)
XERIAL_BLOCK_BYTES = 32 * 1024

LZ4_HEADER = bytes.fromhex("04224d18604082")
"""As Kafka writes it: magic, version 1 with independent blocks and no checksums, blocks of 64 KiB, its own checksum."""
LZ4_BLOCK_BYTES = 64 * 1024
LZ4_UNCOMPRESSED = 1 << 31
LZ4_END = bytes(4)

FIRST_GUESS_RATIO = 4
"""First guess of how far a batch unfolds; doubled until it fits, so the guess only costs a retry."""


class Codec(IntEnum):
    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class Unpacker:
    """Decompresses batch after batch into one buffer that grows and is never given back: fresh pages are slow."""

    def __init__(self, limit_bytes: int = MAX_UNCOMPRESSED_BATCH_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self.buffer: npt.NDArray[np.uint8] = np.empty(1 << 20, dtype=np.uint8)

    def unpack(self, codec: int, packed: memoryview, position: int, place: str) -> int:
        """Write the unpacked bytes at ``position`` of the buffer (grown if need be); returns the end position."""
        if codec == Codec.NONE:
            self._reserve(position, len(packed), place)
            self.buffer[position : position + len(packed)] = np.frombuffer(packed, dtype=np.uint8)
            return position + len(packed)
        if codec == Codec.SNAPPY:
            return self._unpack_snappy(packed, position, place)
        decompress_into = _DECOMPRESS_INTO.get(codec)
        if decompress_into is None:
            raise unknown_codec(codec, place)
        wanted = min(max(len(packed) * FIRST_GUESS_RATIO, 4096), self._limit_bytes)
        while True:
            self._reserve(position, wanted, place)
            room = self.buffer[position : position + self._limit_bytes]
            try:
                return position + int(decompress_into(packed, room))
            except cramjam.DecompressionError as error:
                if "whole buffer" not in str(error):  # anything but "the output did not fit"
                    raise _undecodable(codec, error, place) from error
                if len(room) >= self._limit_bytes:
                    raise self._bomb(place) from None
                wanted = min(len(room) * 2, self._limit_bytes)

    def _unpack_snappy(self, packed: memoryview, position: int, place: str) -> int:
        if packed[:8] != XERIAL_MAGIC:
            return self._unpack_snappy_block(packed, position, place)
        cursor = len(XERIAL_HEADER)
        if cursor > len(packed):
            raise _undecodable(Codec.SNAPPY, "cut off in its header", place)
        start = position
        while cursor < len(packed):
            if cursor + 4 > len(packed):
                raise _undecodable(Codec.SNAPPY, "cut off between blocks", place)
            length = struct.unpack_from(">i", packed, cursor)[0]
            cursor += 4
            if length < 0 or cursor + length > len(packed):
                raise _undecodable(Codec.SNAPPY, f"a block of {length} bytes", place)
            position = self._unpack_snappy_block(packed[cursor : cursor + length], position, place)
            if position - start > self._limit_bytes:
                raise self._bomb(place)
            cursor += length
        return position

    def _unpack_snappy_block(self, block: memoryview, position: int, place: str) -> int:
        try:
            self._reserve(position, cramjam.snappy.decompress_raw_len(block), place)
            return position + int(_DECOMPRESS_RAW_SNAPPY_INTO(block, self.buffer[position:]))
        except cramjam.DecompressionError as error:
            raise _undecodable(Codec.SNAPPY, error, place) from error

    def _reserve(self, position: int, size_bytes: int, place: str) -> None:
        if size_bytes > self._limit_bytes:
            raise self._bomb(place)
        if position + size_bytes > len(self.buffer):
            grown = np.empty(max(position + size_bytes, 2 * len(self.buffer)), dtype=np.uint8)
            grown[:position] = self.buffer[:position]
            self.buffer = grown

    def _bomb(self, place: str) -> UnsupportedFormatError:
        return UnsupportedFormatError(
            f"the batch unfolds to more than {self._limit_bytes} bytes",
            place,
            "If such batches are expected, allow them with --max-batch-bytes; otherwise treat it as an attack "
            "and find its producer",
        )


def decompress(codec: int, packed: bytes | memoryview, place: str = "") -> bytes:
    """The plain reference: one batch, fresh memory."""
    if codec == Codec.NONE or len(packed) == 0:
        return bytes(packed)
    unpacker = Unpacker()
    end = unpacker.unpack(codec, memoryview(packed), 0, place)
    return unpacker.buffer[:end].tobytes()


def compress(codec: int, plain: bytes | memoryview) -> bytes:
    if codec == Codec.NONE:
        return bytes(plain)
    if codec == Codec.SNAPPY:
        return _compress_xerial(memoryview(plain))
    if codec == Codec.LZ4:
        return _compress_lz4(memoryview(plain))
    compressor = _COMPRESS.get(codec)
    if compressor is None:
        raise unknown_codec(codec, "")
    return compressor(plain)


def _compress_xerial(plain: memoryview) -> bytes:
    out = bytearray(XERIAL_HEADER)
    for start in range(0, len(plain), XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(plain[start : start + XERIAL_BLOCK_BYTES]))
        out += struct.pack(">i", len(block)) + block
    return bytes(out)


def _compress_lz4(plain: memoryview) -> bytes:
    """Framed here, because the library's own frames have dependent blocks, at which Kafka's consumers fail."""
    out = bytearray(LZ4_HEADER)
    for start in range(0, len(plain), LZ4_BLOCK_BYTES):
        block = plain[start : start + LZ4_BLOCK_BYTES]
        packed = cramjam.lz4.compress_block(block, store_size=False)
        if len(packed) < len(block):
            out += struct.pack("<I", len(packed))
            out += memoryview(packed)
        else:
            out += struct.pack("<I", len(block) | LZ4_UNCOMPRESSED)
            out += block
    return bytes(out + LZ4_END)


def unknown_codec(codec: int, place: str) -> UnsupportedFormatError:
    return UnsupportedFormatError(
        f"compression codec {codec} is unknown",
        place,
        "Kafka knows 0 none, 1 gzip, 2 snappy, 3 lz4 and 4 zstd; a newer one needs a newer Sexton",
    )


def _undecodable(codec: int, reason: object, place: str) -> CorruptLogError:
    return CorruptLogError(
        f"the {Codec(codec).name.lower()} data cannot be decompressed ({reason})",
        place,
        "Restore this partition from another replica",
    )


_DECOMPRESS_INTO: dict[int, Callable[..., int]] = {
    Codec.GZIP: cramjam.gzip.decompress_into,
    Codec.LZ4: cramjam.lz4.decompress_into,
    Codec.ZSTD: cramjam.zstd.decompress_into,
}

_DECOMPRESS_RAW_SNAPPY_INTO: Callable[..., int] = cramjam.snappy.decompress_raw_into

_COMPRESS: dict[int, Callable[[bytes | memoryview], bytes]] = {
    Codec.GZIP: lambda plain: bytes(cramjam.gzip.compress(plain)),
    Codec.ZSTD: lambda plain: bytes(cramjam.zstd.compress(plain)),
}
