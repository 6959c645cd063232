"""Compressed data as no common producer writes it, and as Kafka's Java libraries read it all the same."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from typing import Final

import zstandard

from sexton.records.codecs import Codec, compress


def _halves(pack: Callable[[bytes], bytes], plain: bytes) -> bytes:
    middle = len(plain) // 2
    return pack(plain[:middle]) + pack(plain[middle:])


def _skipped(size_bytes: int) -> bytes:
    return struct.pack("<II", 0x184D2A57, size_bytes) + bytes(size_bytes)


def _checked(plain: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(plain)


ODD: Final[dict[str, tuple[int, Callable[[bytes], bytes]]]] = {
    "two gzip members": (Codec.GZIP, lambda plain: _halves(gzip.compress, plain)),
    "gzip, then zeros": (Codec.GZIP, lambda plain: gzip.compress(plain) + bytes(30)),
    "gzip, then anything": (Codec.GZIP, lambda plain: gzip.compress(plain) + b"no member of gzip" * 2),
    "two zstd frames": (Codec.ZSTD, lambda plain: _halves(zstandard.compress, plain)),
    "zstd frames with checksums": (Codec.ZSTD, lambda plain: _halves(_checked, plain)),
    "an empty second zstd frame": (Codec.ZSTD, lambda plain: zstandard.compress(plain) + zstandard.compress(b"")),
    "a zstd frame to skip": (Codec.ZSTD, lambda plain: _skipped(20) + zstandard.compress(plain) + _skipped(0)),
    "xerial twice": (Codec.SNAPPY, lambda plain: _halves(lambda half: compress(Codec.SNAPPY, half), plain)),
}
