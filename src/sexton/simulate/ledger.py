"""What is known to be committed in a partition that keeps everything."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from sexton.simulate.copies import Entry


@dataclass(slots=True)
class Ledger:
    """One partition's committed batches, by base offset."""

    entries: dict[int, Entry] = field(default_factory=dict)
    end_offset: int = 0

    def conflict(self, entry: Entry) -> str | None:
        """Evidence that a batch contradicts what is committed at its offsets."""
        if entry.base_offset >= self.end_offset:
            return None
        committed = self.entries.get(entry.base_offset)
        if committed == entry:
            return None
        return f"holds {entry}, committed is {committed or 'another batch across that offset'}"

    def agreed_end(self, entries: Iterable[Entry], start_offset: int, deleted_below: int) -> int:
        """Up to where a log that starts there holds what is committed, without a gap."""
        end = start_offset
        for entry in entries:
            is_deleted = entry.last_offset < deleted_below
            if entry.base_offset >= self.end_offset:
                break
            if not is_deleted and (entry.base_offset > max(end, deleted_below) or self.conflict(entry) is not None):
                break
            end = entry.last_offset + 1
        return min(end, self.end_offset)

    def cut(self, offset: int) -> None:
        """What lies there and above is lost."""
        self.entries = {base: entry for base, entry in self.entries.items() if entry.last_offset < offset}
        self.end_offset = offset

    def add(self, entry: Entry) -> None:
        self.entries[entry.base_offset] = entry
        self.end_offset = max(self.end_offset, entry.last_offset + 1)
