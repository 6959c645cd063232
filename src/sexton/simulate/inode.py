"""One file of a simulated disk: what the page cache has of it, and what a power loss may leave."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(slots=True)
class _Change:
    """One append (how much came) or one cut (what went). Numbered in the order in which they happened."""

    number: int
    appended_bytes: int
    removed: bytes = b""


class Inode:
    """A file's content as the page cache has it, and how to get back to what the device has."""

    def __init__(self, content: bytes = b"") -> None:
        self.content = bytearray(content)
        self.changes: list[_Change] = []
        self.is_poisoned = False
        self.cuts_count = 0
        """How often something but an append happened: while this stays, what was read stays true."""
        self.is_short = False
        """Whether the last power loss took bytes from its end."""
        self.flipped: tuple[int, int] | None = None
        """A byte, and the bits of it that whoever reads gets wrong. The content is what was once written."""

    def read(self, position: int, size_bytes: int) -> bytes:
        data = bytes(self.content[position : position + size_bytes])
        if self.flipped is not None and 0 <= self.flipped[0] - position < len(data):
            at, bits = self.flipped[0] - position, self.flipped[1]
            return data[:at] + bytes([data[at] ^ bits]) + data[at + 1 :]
        return data

    def append(self, data: bytes, number: int) -> None:
        self.content += data
        self.changes.append(_Change(number, len(data)))

    def truncate(self, size_bytes: int, number: int) -> None:
        if size_bytes < len(self.content):
            self.cuts_count += 1
            self.changes.append(_Change(number, 0, bytes(self.content[size_bytes:])))
            del self.content[size_bytes:]

    def flushed(self, number: int) -> None:
        if not self.is_poisoned:
            self.changes = [change for change in self.changes if change.number > number]

    def forget_unwritten(self) -> None:
        """What a failed flush left in the page cache, and only there."""
        if self.is_poisoned:
            while self.changes:
                self._undo(self.changes.pop())
            self.is_poisoned = False
            self.cuts_count += 1

    def _undo(self, change: _Change) -> None:
        if change.appended_bytes:
            del self.content[-change.appended_bytes :]
        else:
            self.content += change.removed

    def lose_power(self, rng: random.Random, page_bytes: int = 0) -> None:
        """Of what was not flushed a prefix survives, perhaps torn; or, with pages of some size, any of them."""
        self.cuts_count += 1
        size_bytes = len(self.content)
        if page_bytes and self.changes and not self.is_poisoned and all(one.appended_bytes for one in self.changes):
            self._lose_pages(rng, page_bytes)
        else:
            self._lose_changes(rng)
        self.is_short = len(self.content) < size_bytes

    def _lose_changes(self, rng: random.Random) -> None:
        kept_count = 0 if self.is_poisoned else rng.randrange(len(self.changes) + 1)
        torn: _Change | None = None
        while len(self.changes) > kept_count:
            torn = self.changes.pop()
            lost = bytes(self.content[-torn.appended_bytes :]) if torn.appended_bytes else b""
            self._undo(torn)
        if torn is not None and torn.appended_bytes and not self.is_poisoned and rng.random() < 0.5:
            self.content += _torn(lost, rng)
        self.changes.clear()
        self.is_poisoned = False

    def _lose_pages(self, rng: random.Random, page_bytes: int) -> None:
        """Each page is there or not, whatever became of those before it. The file is as long as its last page says, and
        what is missing reads as zeros, or as what the blocks held before they were this file's."""
        flushed_bytes = len(self.content) - sum(change.appended_bytes for change in self.changes)
        likelihood = rng.choice((0.2, 0.5, 0.9))
        size_bytes = flushed_bytes
        for start in range(flushed_bytes - flushed_bytes % page_bytes, len(self.content), page_bytes):
            first, end = max(start, flushed_bytes), min(start + page_bytes, len(self.content))
            if rng.random() < likelihood:
                size_bytes = end
            else:
                self.content[first:end] = self._stale(end - first, rng)
        if rng.random() < 0.5:  # the length may be written before the pages are
            size_bytes = rng.randrange(size_bytes, len(self.content) + 1)
        del self.content[size_bytes:]
        self.changes.clear()

    def _stale(self, size_bytes: int, rng: random.Random) -> bytes:
        style = rng.randrange(4)
        if style == 0:
            return rng.randbytes(size_bytes)
        if style == 1:
            at = rng.randrange(len(self.content))
            return _worn(self.content[at : at + size_bytes]).ljust(size_bytes, b"\0")
        return bytes(size_bytes)


def _worn(data: bytearray) -> bytes:
    """Blocks of another file: they look like batches, but no checksum is right. A batch of this very log that lay just
    where another is expected, behind the first bytes of that one's header, would pass for it: nothing in Kafka's
    format tells them apart, and file systems do not show such blocks."""
    for at in range(0, len(data), 16):
        data[at] ^= 1
    return bytes(data)


def _torn(lost: bytes, rng: random.Random) -> bytes:
    """What a write that was under way may leave behind."""
    kept = lost[: rng.randrange(len(lost))]
    style = rng.randrange(3)
    if style == 0:
        return kept
    if style == 1:
        return kept + bytes(len(lost) - len(kept))
    return kept + rng.randbytes(len(lost) - len(kept))
