"""The format of an object in a store: runs of Kafka's record batches, then a footer that says what lies where.

    layout      the bytes, and what they mean
    encoding    runs in, footer at the end
    decoding    the footer, runs and blocks, each checked

docs/cloud.md has the layout byte by byte.
"""

from __future__ import annotations

from sexton.records.objects.decoding import (
    Trailer,
    check_block,
    check_object,
    check_run,
    decode_footer,
    decode_trailer,
    find_run,
    read_batches,
)
from sexton.records.objects.encoding import ObjectEncoder
from sexton.records.objects.layout import (
    FRONT_BYTES,
    INDEX_INTERVAL_BYTES,
    MAGIC,
    TRAILER_BYTES,
    Block,
    Footer,
    Level,
    Run,
    Writer,
    WriterKind,
)

__all__ = [
    "FRONT_BYTES",
    "INDEX_INTERVAL_BYTES",
    "MAGIC",
    "TRAILER_BYTES",
    "Block",
    "Footer",
    "Level",
    "ObjectEncoder",
    "Run",
    "Trailer",
    "Writer",
    "WriterKind",
    "check_block",
    "check_object",
    "check_run",
    "decode_footer",
    "decode_trailer",
    "find_run",
    "read_batches",
]
