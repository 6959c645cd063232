"""A consumer of a session, and where it stands: in logs that it assigned to itself, or in those that its group gave it.

What was sent comes back as it was sent: a value is a number of 8 bytes, a key likewise, and the value of a tombstone is
in a header.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar

from sexton.history.op import UNKNOWN, Poll, Record, Send, Span
from sexton.verify.clients.base import ABORT, Consumer, Failure, Message, Place

T = TypeVar("T")

POLL_S: Final = 0.1

ID_HEADER: Final = "id"
"""Has the value of a tombstone, whose record has none."""


def encoded(number: int) -> bytes:
    """Encodes a number as Java's LongSerializer does."""
    return number.to_bytes(8, "big", signed=True)


def content_of(send: Send) -> tuple[bytes | None, bytes | None, list[tuple[str, bytes]]]:
    """Value, key and headers of the record."""
    value = encoded(send.value)
    key = None if send.key == UNKNOWN else encoded(send.key)
    return (None, key, [(ID_HEADER, value)]) if send.is_tombstone else (value, key, [])


def decoded(data: bytes | None) -> int:
    return UNKNOWN if data is None else int.from_bytes(data, "big", signed=True)


_number: Final = int.from_bytes


def record_of(message: Message) -> Record:
    value, key = message.value, message.key
    if value is not None:
        return Record(message.offset, _number(value, "big", signed=True), UNKNOWN if key is None else decoded(key))
    return Record(message.offset, decoded(dict(message.headers).get(ID_HEADER)), decoded(message.key), True)


def asked(call: Callable[..., T], *arguments: Any) -> T:
    """Of a consumer. Drivers leave many of its errors as the client raises them; whatever it is, nothing was read."""
    try:
        return call(*arguments)
    except Failure:
        raise
    except Exception as error:
        raise Failure(ABORT, type(error).__name__, str(error)) from None


class Reading:
    """`places` are those of all logs that the session knows, and may become more."""

    def __init__(
        self, consumer: Consumer, places: Mapping[int, Place], *, is_member: bool = False, poll_s: float = POLL_S
    ) -> None:
        self.consumer = consumer
        self._poll_s = poll_s
        self.is_member = is_member
        """Whether its group gives it logs, and takes them."""
        self.positions: dict[int, int] = {}
        """By log that it has. UNKNOWN: the client does not tell; of a member of a group only."""
        self._places = places
        self._log_of: dict[Place, int] = {}
        self._moved: set[int] = set()

    def assign(self, starts: Mapping[int, int]) -> None:
        self.positions = dict(starts)
        asked(self.consumer.assign, {self._places[log]: offset for log, offset in starts.items()})

    def subscribe(self, logs: Iterable[int]) -> None:
        asked(self.consumer.subscribe, sorted({self._places[log][0] for log in logs}))

    def rewind(self, positions: Mapping[int, int]) -> None:
        """To where an operation found it; a member to what its group has committed."""
        if self.is_member:
            self.rewind_to_committed()
        elif positions != self.positions:
            self.assign(positions)

    def rewind_to_committed(self) -> None:
        """As an application does after it has aborted what it made of records that it polled earlier."""
        for log in self.positions:
            offset = asked(self.consumer.committed, self._places[log])
            if offset is None:
                asked(self.consumer.seek_to_beginning, self._places[log])
            else:
                asked(self.consumer.seek, self._places[log], offset)
            self.positions[log] = UNKNOWN if offset is None else offset

    def poll(self) -> tuple[Poll, dict[int, Span]]:
        """What one poll of the client returned, and what its positions moved over. A position that went back is no
        span: the client was told to read on elsewhere."""
        before = dict(self.positions)
        log_of = self._logs_by_place()
        found: dict[int, list[Record]] = {}
        for message in asked(self.consumer.poll_messages, self._poll_s):
            log = log_of[message.topic, message.partition]
            found.setdefault(log, []).append(record_of(message))
        moved = self._follow(log_of) if self.is_member else set()
        positions = self._told(self.positions)
        for log, start in self.positions.items():
            given = found[log][-1].offset + 1 if log in found and log not in moved else UNKNOWN
            told = max(positions[log], given)
            self.positions[log] = told if told > 0 or (told == 0 and start == UNKNOWN) else start
        spans = {
            log: Span(start, self.positions[log])
            for log, start in before.items()
            if log in self.positions and log not in moved and UNKNOWN != start <= self.positions[log]
        }
        for log in found.keys() - spans.keys() if self.is_member else ():  # nobody knew where it began to read
            spans[log] = Span(found[log][0].offset, found[log][-1].offset + 1)
        return Poll({log: tuple(records) for log, records in found.items()}), spans

    def _logs_by_place(self) -> Mapping[Place, int]:
        if len(self._log_of) < len(self._places):
            self._log_of = {place: log for log, place in self._places.items()}
        return self._log_of

    def _told(self, logs: Iterable[int]) -> Mapping[int, int]:
        """A member may have lost a log meanwhile, or not know yet where it begins to read."""
        found = {}
        position, places = self.consumer.position, self._places
        for log in logs:
            try:
                found[log] = asked(position, places[log])
            except Failure:
                if not self.is_member:
                    raise
                found[log] = UNKNOWN
        return found

    def _follow(self, log_of: Mapping[Place, int]) -> set[int]:
        """Which logs were given or taken; those that it has now and had not before begin wherever the client says."""
        moved = {log_of[place] for place in asked(self.consumer.rebalanced) if place in log_of}
        has = {log_of[place] for place in asked(self.consumer.assignment) if place in log_of}
        moved |= has ^ self.positions.keys()
        self.positions = {log: UNKNOWN if log in moved else self.positions[log] for log in sorted(has)}
        self._moved |= moved
        return moved

    def take_moved(self) -> frozenset[int]:
        """Given or taken since this was asked last."""
        moved, self._moved = frozenset(self._moved), set()
        return moved

    def leave(self) -> None:
        """Leaves the group orderly, so that others take over at once."""
        with suppress(Exception):
            self.consumer.leave()

    def close(self) -> None:
        with suppress(Exception):
            self.consumer.close()
