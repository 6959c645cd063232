"""The footer of an object, read with as few requests as its size allows."""

from __future__ import annotations

from typing import Final

from sexton.ports.objects import ObjectStore
from sexton.records.objects import TRAILER_BYTES, Footer, decode_footer, decode_trailer

TAIL_BYTES: Final = 32 * 1024
"""What is asked for first: the footer of an object of 64 MiB with one run has 7 KiB."""


async def read_footer(store: ObjectStore, key: str) -> Footer:
    """Raises DamagedObjectError, ObjectMissingError, UnsupportedFormatError, and what the store raises."""
    place = f"{store.place}/{key}"
    size_bytes = await store.size_bytes(key)
    start = max(0, size_bytes - TAIL_BYTES)
    tail = memoryview(await store.get(key, start, max(1, size_bytes - start)))
    trailer = decode_trailer(tail, size_bytes, place)
    if trailer.position < start:
        tail = memoryview(await store.get(key, trailer.position, trailer.size_bytes + TRAILER_BYTES))
        start = trailer.position
    at = trailer.position - start
    return decode_footer(tail[at : at + trailer.size_bytes], trailer, place)
