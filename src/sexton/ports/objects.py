"""An object store: S3 and what speaks like it, GCS, Azure, a folder. What cloud topics keep their bytes in.

Objects are immutable. A key is put by one process only, with one content only, so a PUT whose outcome is unknown is
sent again as it was (docs/cloud.md, C10), and nothing here needs a conditional write, an order of listings, or a clock.
The one exception is the store's marker (`object_names.py`).

A call that is cancelled or times out may be carried out all the same, at any later time. No call is made before it is
needed: a process starts without the store.

Errors are named for what to do next:

| error                 | it means                                       | what to do                             |
|-----------------------|------------------------------------------------|----------------------------------------|
| StoreUnavailableError | away, slow, busy, full: the outcome is unknown | the same call again, for ever          |
| StoreRefusedError     | no permission, no such bucket, wrong clock     | tell a person; try again all the same  |
| ObjectMissingError    | the store says that there is no such object    | look at the map again; else it is lost |
| DamagedObjectError    | fewer bytes than asked for, or not those put   | read once more; else it is damaged     |
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import ClassVar, NamedTuple, Protocol

from sexton.errors import DamagedObjectError, SextonError
from sexton.ports.disk import Buffer

__all__ = [
    "MARKER_BYTES_MAX",
    "Buffer",
    "DamagedObjectError",
    "ListedObject",
    "ObjectMissingError",
    "ObjectStore",
    "StoreRefusedError",
    "StoreUnavailableError",
]

MARKER_BYTES_MAX = 1 << 16
"""What is larger is no marker."""


class StoreUnavailableError(SextonError):
    """The store did not answer in time, answered that it cannot now, or the connection broke. Whether a change was
    made is unknown: make the same call again."""

    exit_code: ClassVar[int] = 75


class StoreRefusedError(SextonError):
    """The store answers, and does not let us: credentials, permissions, bucket, clock. A person must act; until then
    the same call is worth trying every few seconds."""

    exit_code: ClassVar[int] = 77


class ObjectMissingError(SextonError):
    """The store answers that there is no such object."""

    exit_code: ClassVar[int] = 66


class ListedObject(NamedTuple):
    key: str
    size_bytes: int


class ObjectStore(Protocol):
    """Keys are relative to the store's place (its URL). All calls raise StoreUnavailableError and StoreRefusedError."""

    @property
    def place(self) -> str:
        """Where this is, as errors and logs name it. Has no secrets."""
        ...

    async def put(self, key: str, data: Buffer) -> None:
        """On return the object survives whatever the store survives; for a folder, a power loss.

        Whoever puts a key again must put the same bytes: which of two contents is kept is undefined. The data must not
        change while the call is under way, nor after a call that failed: a request may still be reading it.
        """
        ...

    async def get(self, key: str, start: int, size_bytes: int) -> Buffer:
        """Returns exactly that many bytes. Raises ObjectMissingError, and DamagedObjectError if the object ends sooner.
        The size is at least 1."""
        ...

    async def size_bytes(self, key: str) -> int:
        """Returns the size of the whole object. Raises ObjectMissingError."""
        ...

    async def delete(self, keys: Sequence[str]) -> Sequence[str]:
        """Returns the keys that are gone now, among them those that were not there. For the others the outcome is
        unknown: call again. Raises an error only if that is so of all of them."""
        ...

    def list(self, prefix: str) -> AsyncIterator[ListedObject]:
        """Yields what lies below a prefix ("" is all; another one ends with a slash), in any order. What is put or
        deleted meanwhile may be there or not. For the scrub and `sexton cloud check` alone."""
        ...

    async def create_marker(self, key: str, data: bytes) -> bytes:
        """Puts the object if there is none, and returns what is there afterwards, which may be another's."""
        ...

    async def read_marker(self, key: str) -> bytes | None:
        """Returns the whole object, of at most MARKER_BYTES_MAX; None if there is none."""
        ...

    async def close(self) -> None: ...
