"""Objects by the names that people give them: the URL of one, or of a prefix.

Their footers say the rest; no metastore is asked."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from sexton.adapters.objects.blocking import BlockingStore
from sexton.records.objects import TRAILER_BYTES, Footer, decode_footer, decode_trailer

NO_OBJECTS = (".json", ".tmp")
"""How names end in a store that are no objects: its marker, and uploads that were cut off."""


def find_objects(url: str) -> Iterator[tuple[BlockingStore, str]]:
    """The store and the key of that object, or of all objects below that prefix."""
    store, prefix = _split(url)
    for key in store.keys(prefix):
        if not key.endswith(NO_OBJECTS):
            yield store, key


def read_footer(store: BlockingStore, key: str) -> Footer:
    """Raises ObjectMissingError, DamagedObjectError, UnsupportedFormatError."""
    place = f"{store.place}/{key}"
    size_bytes = store.size_bytes(key)
    tail_bytes = min(size_bytes, TRAILER_BYTES)
    trailer = decode_trailer(store.read(key, size_bytes - tail_bytes, max(1, tail_bytes)), size_bytes, place)
    return decode_footer(store.read(key, trailer.position, trailer.size_bytes), trailer, place)


def _split(url: str) -> tuple[BlockingStore, str]:
    """The store, and the key or prefix in it."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        folder, _, name = parts.path.rstrip("/").rpartition("/")
        return BlockingStore(f"file://{folder}"), name
    query = f"?{parts.query}" if parts.query else ""
    return BlockingStore(f"{parts.scheme}://{parts.netloc}{query}"), parts.path.strip("/")
