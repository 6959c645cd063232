"""What is true of a topic, by what its script was told was done: the judge's own book, kept apart from any broker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class Transaction:
    first_offset: int | None = None
    """Where its first record lies."""
    changes: dict[str, str | None] = field(default_factory=dict)
    is_committed: bool | None = None
    """None while it is open."""


class Truth:
    """The latest committed value of each key. A key that was deleted, or only ever written in aborted transactions, has
    none."""

    def __init__(self) -> None:
        self._values: dict[str, str | None] = {}
        self._ever_written: dict[str, None] = {}
        self.transactions: list[Transaction] = []

    @property
    def fold(self) -> Mapping[str, str]:
        return {key: value for key, value in self._values.items() if value is not None}

    @property
    def gone_keys(self) -> list[str]:
        """Keys that were written and must not be read any more, or never."""
        return [key for key in self._ever_written if self._values.get(key) is None]

    @property
    def is_open(self) -> bool:
        return bool(self.transactions) and self.transactions[-1].is_committed is None

    def begin(self) -> None:
        assert not self.is_open
        self.transactions.append(Transaction())

    def write(self, key: str, value: str | None, offset: int) -> None:
        """Acknowledged at this offset: in the open transaction, if there is one."""
        self._ever_written[key] = None
        if self.is_open:
            transaction = self.transactions[-1]
            transaction.changes[key] = value
            if transaction.first_offset is None:
                transaction.first_offset = offset
        else:
            self._values[key] = value

    def end(self, *, is_committed: bool) -> None:
        assert self.is_open
        transaction = self.transactions[-1]
        transaction.is_committed = is_committed
        if is_committed:
            self._values |= transaction.changes

    def transaction_at(self, first_offset: int) -> Transaction | None:
        return next((each for each in self.transactions if each.first_offset == first_offset), None)
