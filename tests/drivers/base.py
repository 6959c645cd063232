"""What a driver offers, whichever client is behind it, and the words that it uses for failures.

A driver's module has a class `Producer` and a class `Consumer` with the methods below. They add nothing to the client:
what a client does not do by itself (rewind after an abort, say) its driver does not do either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

CALL_TIMEOUT_S: Final = 60.0
"""How long a driver lets its client try, where the client asks for a number."""

Place = tuple[str, int]
"""Topic and partition."""

Settings = Mapping[str, str | int | bool]

# What an application is to do after a failure, as the client tells it.
RETRY: Final = "retry"
"""The same call again: its outcome is not known yet."""
ABORT: Final = "abort"
"""The transaction is lost; abort it and begin the next one."""
FENCED: Final = "fenced"
"""Another instance has taken over; close."""
FATAL: Final = "fatal"
"""This producer cannot go on; close it and make a new one."""


class Failure(Exception):  # noqa: N818
    """A client's error: what to do, and the client's own name for it."""

    def __init__(self, todo: str, name: str, message: str) -> None:
        super().__init__(todo, name, message)
        self.todo = todo
        self.name = name
        self.message = message

    def __str__(self) -> str:
        return f"{self.todo}: {self.name}: {self.message}"


class Record(NamedTuple):
    topic: str
    partition: int
    offset: int
    value: bytes


class Reference(int):
    """Stands for an object of a client's process in the arguments of a call (see serve.py)."""


class Frozen(Protocol):
    """A member of a group as it was when this was made: `Frozen(consumer)`."""

    def group_metadata(self) -> Any: ...


class Consumer(Protocol):
    def __init__(self, bootstrap: str, isolation: str, group: str | None, settings: Settings) -> None: ...

    def group_metadata(self) -> Any: ...

    def assign(self, starts: Mapping[Place, int]) -> None:
        """Read these from these offsets on."""

    def subscribe(self, topics: Sequence[str]) -> None: ...

    def poll(self, timeout_s: float) -> list[Record]:
        """Whatever one poll of the client returns."""

    def assignment(self) -> list[Place]: ...

    def position(self, place: Place) -> int: ...

    def seek(self, place: Place, offset: int) -> None: ...

    def committed(self, place: Place) -> int | None: ...

    def commit(self) -> None:
        """What was polled so far, at once."""

    def close(self) -> None: ...


class Producer(Protocol):
    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int, settings: Settings) -> None: ...

    def init(self) -> None: ...

    def begin(self) -> None: ...

    def send(self, topic: str, partition: int, values: Sequence[bytes]) -> None:
        """Handed to the client; `flush` says what became of it."""

    def flush(self) -> list[int]:
        """The offsets of what was sent since the last flush, in the order in which it was sent."""

    def send_offsets(self, offsets: Mapping[Place, int], consumer: Consumer | Frozen) -> None: ...

    def commit(self) -> None: ...

    def abort(self) -> None: ...

    def close(self) -> None: ...


class Session(Protocol):
    """A member of a group that copies what it reads, in transactions (franz-go)."""

    def __init__(self, bootstrap: str, transactional_id: str, group: str) -> None: ...

    def subscribe(self, topics: Sequence[str]) -> None: ...

    def poll(self, timeout_s: float) -> list[Record]: ...

    def begin(self) -> None: ...

    def send(self, topic: str, partition: int, values: Sequence[bytes]) -> None: ...

    def end(self, commit: bool) -> bool:
        """Whether it was committed; what was polled since the last commit is polled again if it was not."""

    def close(self) -> None: ...
