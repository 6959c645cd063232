"""Kafka's five codecs, with a limit on the decompressed size of a batch.

Snappy is special: Java producers write it in the framing of xerial's snappy-java (a 16-byte header, then blocks of a
big-endian length and raw snappy), others write one raw block. Both are read, the framing is written, as in Kafka. LZ4
is the frame format, of which Kafka's Java code reads only independent blocks; gzip and zstd are standard. What Kafka's
libraries accept is accepted here, too, though no common producer writes it: several gzip members, zstd frames or xerial
streams one after the other, skippable frames, padding after gzip.
"""

from __future__ import annotations

import functools
import struct
import threading
import zlib
from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, cast

import cramjam
import zstandard
from isal import isal_zlib

from sexton.errors import CorruptLogError, UnsupportedFormatError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MAX_UNCOMPRESSED_BATCH_BYTES = 512 * 1024 * 1024
"""Maximum decompressed size of one batch. Kafka's producers stay below max.request.size (1 MiB); a thousandfold is a
decompression bomb."""

XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_HEADER = XERIAL_MAGIC + struct.pack(">ii", 1, 1)
XERIAL_BLOCK_BYTES = 32 * 1024

LZ4_HEADER = bytes.fromhex("04224d18604082")
"""The header that Kafka writes: magic, version 1 with independent blocks and no checksums, blocks of 64 KiB, its own
checksum."""
LZ4_BLOCK_BYTES = 64 * 1024
LZ4_UNCOMPRESSED = 1 << 31
LZ4_END = bytes(4)
LZ4_DICTIONARY = 0x01
LZ4_CONTENT_SIZE = 0x08
LZ4_BLOCK_CHECKSUM = 0x10
LZ4_INDEPENDENT = 0x20

GZIP_MAGIC = b"\x1f\x8b\x08"
GZIP_WINDOW = 31  # the largest window, with gzip's own header and trailer
GZIP_LEVEL = 3  # of ISA-L: as small as zlib's 6, three times as fast
GZIP_DEFAULT_LEVEL = -1
LZ4_DEFAULT_LEVEL = 9  # by which Kafka means LZ4's fast compressor
LZ4_LEVEL_MAX = 12  # LZ4's own; Kafka accepts numbers up to 17
ZSTD_LEVEL = 3  # Kafka's default
ZSTD_COMPRESSORS_MAX = 8
ZSTD_CHECKSUM = 0x04
ZSTD_SKIPPABLE = 0x184D2A50
"""Magic number of a skippable frame, whatever its last four bits."""
ZSTD_REPEATED_BYTE = 1

FIRST_GUESS_RATIO = 4
"""First guess of the compression ratio; doubled until the output fits, so a wrong guess only costs a retry."""


class Codec(IntEnum):
    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class Unpacker:
    """Decompresses batch after batch into one buffer that grows and is never freed: fresh pages are slow."""

    def __init__(self, limit_bytes: int = MAX_UNCOMPRESSED_BATCH_BYTES) -> None:
        import numpy as np  # takes 0.1 s to import; a broker starts without it

        self._limit_bytes = limit_bytes
        self.buffer: npt.NDArray[np.uint8] = np.empty(1 << 20, dtype=np.uint8)

    def unpack(self, codec: int, packed: memoryview, position: int, place: str) -> int:
        """Writes the decompressed bytes at ``position`` of the buffer (grown if necessary); returns the end
        position."""
        if codec == Codec.NONE:
            self._reserve(position, len(packed), place)
            memoryview(self.buffer)[position : position + len(packed)] = packed  # type: ignore[arg-type]
            return position + len(packed)
        if codec == Codec.SNAPPY:
            return self._unpack_snappy(packed, position, place)
        decompress_into = _DECOMPRESS_INTO.get(codec)
        if decompress_into is None:
            raise unknown_codec(codec, place)
        wanted = min(max(len(packed) * FIRST_GUESS_RATIO, 4096), self._limit_bytes)
        while True:
            self._reserve(position, wanted, place)
            room = memoryview(self.buffer)[position : position + self._limit_bytes]  # type: ignore[arg-type]
            try:
                return position + decompress_into(packed, room)
            except _NoRoomError:
                if len(room) >= self._limit_bytes:
                    raise self._bomb(place) from None
                wanted = min(len(room) * 2, self._limit_bytes)
            except _BROKEN as error:
                raise _undecodable(codec, error, place) from error

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
            if packed[cursor : cursor + 8] == XERIAL_MAGIC:  # another stream: no block could be that long
                cursor += len(XERIAL_HEADER)
                if cursor > len(packed):
                    raise _undecodable(Codec.SNAPPY, "cut off in a header", place)
                continue
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
            import numpy as np

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


def decompress(
    codec: int, packed: bytes | memoryview, place: str = "", limit_bytes: int = MAX_UNCOMPRESSED_BATCH_BYTES
) -> bytes:
    """The plain reference: one batch, fresh memory."""
    if codec == Codec.NONE or len(packed) == 0:
        return bytes(packed)
    unpacker = Unpacker(limit_bytes)
    end = unpacker.unpack(codec, memoryview(packed), 0, place)
    return unpacker.buffer[:end].tobytes()


def compress(codec: int, plain: bytes | memoryview, level: int | None = None) -> bytes:
    """`level` is one of Kafka's `compression.*.level`; without one, or with Kafka's default, the fast compressor is
    used."""
    if codec == Codec.NONE:
        return bytes(plain)
    if codec == Codec.SNAPPY:
        return _compress_xerial(memoryview(plain))
    if codec == Codec.LZ4:
        return _compress_lz4(memoryview(plain), None if level == LZ4_DEFAULT_LEVEL else level)
    if codec == Codec.GZIP:
        if level is None or level == GZIP_DEFAULT_LEVEL:
            return bytes(isal_zlib.compress(plain, GZIP_LEVEL, GZIP_WINDOW))
        return zlib.compress(plain, level, GZIP_WINDOW)
    if codec == Codec.ZSTD:
        return _zstd().compressor(ZSTD_LEVEL if level is None else level).compress(plain)
    raise unknown_codec(codec, "")


def _compress_xerial(plain: memoryview) -> bytes:
    out = bytearray(XERIAL_HEADER)
    for start in range(0, len(plain), XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(plain[start : start + XERIAL_BLOCK_BYTES]))
        out += struct.pack(">i", len(block)) + block
    return bytes(out)


def _compress_lz4(plain: memoryview, level: int | None) -> bytes:
    """Framed here, because the library's own frames have dependent blocks, at which Kafka's consumers fail."""
    out = bytearray(LZ4_HEADER)
    packed_block = _lz4_block if level is None else _lz4_hard(min(level, LZ4_LEVEL_MAX))
    for start in range(0, len(plain), LZ4_BLOCK_BYTES):
        block = plain[start : start + LZ4_BLOCK_BYTES]
        packed = packed_block(block)
        if len(packed) < len(block):
            out += struct.pack("<I", len(packed))
            out += packed
        else:
            out += struct.pack("<I", len(block) | LZ4_UNCOMPRESSED)
            out += block
    return bytes(out + LZ4_END)


def _lz4_block(block: memoryview) -> memoryview:
    return memoryview(cramjam.lz4.compress_block(block, store_size=False))


@functools.cache
def _lz4_hard(level: int) -> Callable[[memoryview], memoryview]:
    """Returns LZ4's high-compression compressor, which cramjam does not have."""
    import pyarrow as pa  # takes 0.3 s to import, and is rarely needed

    codec = pa.Codec("lz4_raw", compression_level=level)
    return lambda block: memoryview(codec.compress(block, asbytes=True))


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
        "If its checksum is right, its producer wrote it so and all replicas have the same: find that producer. "
        "If not, restore this partition from another replica",
    )


class _NoRoomError(Exception):
    """The output is larger than the buffer."""


def _gunzip_into(packed: memoryview, room: memoryview) -> int:
    """Reads one member after the other, as Java does, and ignores bytes after them that are no member."""
    rest: memoryview | bytes = packed
    size = 0
    while True:
        unfolding = isal_zlib.decompressobj(GZIP_WINDOW)
        plain = unfolding.decompress(rest, len(room) - size + 1)  # 0 would mean no limit
        if len(plain) > len(room) - size or unfolding.unconsumed_tail:
            raise _NoRoomError
        if not unfolding.eof:
            raise ValueError("it is cut off")
        room[size : size + len(plain)] = plain
        size += len(plain)
        rest = unfolding.unused_data
        if not rest.startswith(GZIP_MAGIC):
            return size


def _unzstd_into(packed: memoryview, room: memoryview) -> int:
    _check_zstd_frames(packed)
    with _zstd().decompressor.stream_reader(packed, read_across_frames=True) as reader:
        size = 0
        while size < len(room):
            count = reader.readinto(room[size:])
            if count == 0:
                return size
            size += count
        if reader.read(1):
            raise _NoRoomError
        return size


def _check_zstd_frames(packed: memoryview) -> None:
    """Checks that the last frame's blocks end where the bytes do. The library's reader accepts a truncated frame."""
    cursor = _end_of_zstd_frame(packed, 0)
    while cursor < len(packed):
        cursor = _end_of_zstd_frame(packed, cursor)
    if cursor > len(packed):
        raise ValueError("it is cut off")


def _end_of_zstd_frame(packed: memoryview, start: int) -> int:
    """Returns a position past the end of `packed` if the frame is cut off."""
    if len(packed) - start < 8:
        return len(packed) + 1
    magic, skipped_bytes = struct.unpack_from("<II", packed, start)
    if magic & ~0xF == ZSTD_SKIPPABLE:
        return start + 8 + int(skipped_bytes)
    cursor = start + zstandard.frame_header_size(packed[start:])
    is_last = False
    while not is_last:
        if cursor + 3 > len(packed):
            return len(packed) + 1
        header = int.from_bytes(packed[cursor : cursor + 3], "little")
        is_last = bool(header & 1)
        is_repeated = (header >> 1) & 3 == ZSTD_REPEATED_BYTE
        cursor += 3 + (1 if is_repeated else header >> 3)
    return cursor + (4 if packed[start + 4] & ZSTD_CHECKSUM else 0)


def _unlz4_into(packed: memoryview, room: memoryview) -> int:
    """Decompresses independent blocks, as Kafka's clients write them, one by one: several times faster than by the
    frame."""
    if len(packed) < len(LZ4_HEADER) or not packed[4] & LZ4_INDEPENDENT or packed[4] & LZ4_DICTIONARY:
        return _unlz4_frame_into(packed, room)
    flags = packed[4]
    cursor = len(LZ4_HEADER) + (8 if flags & LZ4_CONTENT_SIZE else 0)
    checksum_bytes = 4 if flags & LZ4_BLOCK_CHECKSUM else 0
    if packed[:4] != LZ4_HEADER[:4]:
        raise ValueError("it does not begin like an LZ4 frame")
    block_bytes_max = 1 << (8 + 2 * (packed[5] >> 4 & 7))
    position = 0
    while True:
        if cursor + 4 > len(packed):
            raise ValueError("it is cut off between blocks")
        length = struct.unpack_from("<I", packed, cursor)[0]
        cursor += 4
        if length == 0:
            return position
        size = length & ~LZ4_UNCOMPRESSED
        if cursor + size > len(packed):
            raise ValueError(f"a block of {size} bytes")
        position += _unlz4_block(packed[cursor : cursor + size], room[position:], length != size, block_bytes_max)
        cursor += size + checksum_bytes


def _unlz4_block(block: memoryview, room: memoryview, is_plain: bool, block_bytes_max: int) -> int:
    if is_plain:
        if len(block) > len(room):
            raise _NoRoomError
        room[: len(block)] = block
        return len(block)
    try:
        # Without output_len the library takes a block's first four bytes for its size whenever they could be one.
        return int(cramjam.lz4.decompress_block_into(block, room, output_len=len(room)))
    except cramjam.DecompressionError:
        # The error does not say whether the block is broken or the room too small.
        if len(room) < block_bytes_max:
            raise _NoRoomError from None
        raise


def _unlz4_frame_into(packed: memoryview, room: memoryview) -> int:
    try:
        return int(cramjam.lz4.decompress_into(packed, room))
    except cramjam.DecompressionError as error:
        if "whole buffer" in str(error):
            raise _NoRoomError from None
        raise


class _Zstd(threading.local):
    """Contexts are expensive to create and must not be shared between threads."""

    def __init__(self) -> None:
        self.decompressor = zstandard.ZstdDecompressor()
        self._compressors: dict[int, zstandard.ZstdCompressor] = {}

    def compressor(self, level: int) -> zstandard.ZstdCompressor:
        """Keeps one compressor per level: few topics have a level of their own."""
        found = self._compressors.get(level)
        if found is None:
            if len(self._compressors) >= ZSTD_COMPRESSORS_MAX:
                self._compressors.clear()
            found = self._compressors[level] = zstandard.ZstdCompressor(level=level)
        return found


@functools.cache
def _zstd() -> _Zstd:
    return _Zstd()


_BROKEN: tuple[type[Exception], ...] = (
    cramjam.DecompressionError,
    cast("type[Exception]", isal_zlib.error),
    zstandard.ZstdError,
    ValueError,
)
"""Errors that the libraries raise for invalid data."""

_DECOMPRESS_INTO: dict[int, Callable[[memoryview, memoryview], int]] = {
    Codec.GZIP: _gunzip_into,
    Codec.LZ4: _unlz4_into,
    Codec.ZSTD: _unzstd_into,
}

_DECOMPRESS_RAW_SNAPPY_INTO: Callable[..., int] = cramjam.snappy.decompress_raw_into
