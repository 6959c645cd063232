"""Stores that are reached over HTTP: S3 and what speaks like it, GCS, Azure. All through obstore.

What obstore does by itself is turned off where it hides something: it sends each request once (who calls knows when to
stop trying), an object in one request without parts (parts of an upload that was cut off stay, and cost), deletions one
by one (of a bulk deletion that failed in part it does not say which part). A range that reaches beyond the end comes
back short and without an error; the length is checked here.

obstore's errors are few and its texts are many: what to do next is told from the HTTP status and the store's own error
code, both of which are in the text (`diagnose`).

Credentials are read when a store is opened: from the environment, from AWS's shared credentials file, and whatever else
obstore knows (instance metadata, web identity, service accounts). A store that is refused is opened again before a
later call, so that new credentials in a file are found without a restart.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar

from sexton.errors import DamagedObjectError, SextonError
from sexton.ports.objects import (
    MARKER_BYTES_MAX,
    Buffer,
    ListedObject,
    ObjectMissingError,
    StoreRefusedError,
    StoreUnavailableError,
)

if TYPE_CHECKING:
    # obstore is 15 MB, and an extra: only who opens a remote store imports it.
    from obstore.store import ObjectStore as Opened

T = TypeVar("T")

REOPEN_S: Final = 5.0
"""How long a store that is refused is used before it is opened again with the credentials that are there by then."""

DELETES_AT_ONCE: Final = 16
"""Requests to delete that are under way together: few beside what a store takes, many beside one."""

TEXT_MAX: Final = 300
"""How much of the store's own words an error repeats."""

MAYBE_LATER: Final = frozenset({408, 409, 412, 425, 429})
"""Statuses of the 400s that may be others next time."""

REMEDIES: Final = {
    "RequestTimeTooSkewed": "Set this machine's clock",
    "ExpiredToken": "Renew the credentials; new ones are read from the file without a restart",
    "TokenRefreshRequired": "Renew the credentials; new ones are read from the file without a restart",
    "InvalidAccessKeyId": "Correct the access key in the environment or the credentials file",
    "SignatureDoesNotMatch": "Correct the secret key in the environment or the credentials file",
    "NoSuchBucket": "Make the bucket, or correct cloud.store.url",
    "ContainerNotFound": "Make the container, or correct cloud.store.url",
    "PermanentRedirect": "The bucket is in another region: add ?region=… to cloud.store.url",
    "AuthorizationHeaderMalformed": "The bucket is in another region: add ?region=… to cloud.store.url",
}
REFUSED_REMEDY: Final = "Let these credentials read, write, delete and list below cloud.store.url"
AWAY_REMEDY: Final = "Check that the store is up and can be reached from here; the call will be tried again"

_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>(\w+)</Code>")
_MESSAGE: Final = re.compile(r"<Message>([^<]+)</Message>")
"""What the store itself says to people, among what it says to programs."""
_DEBUGGING: Final = "Debug source:"
"""What comes before it is for people."""
_WRONG_REGION: Final = "redirect without LOCATION"
_METADATA_SERVICES: Final = ("169.254.169.254", "169.254.170.2", "metadata.google.internal")
"""Where credentials are looked for when there are none elsewhere."""


@dataclass(frozen=True, slots=True)
class StoreTimeouts:
    put_ms: int = 10_000
    get_ms: int = 10_000
    """Also of everything else."""
    connect_ms: int = 3_000

    @property
    def longest_ms(self) -> int:
        return max(self.put_ms, self.get_ms)


class RemoteStore:
    """Implements `ports.objects.ObjectStore`. `open_store` is called when the store is first used."""

    def __init__(self, open_store: Callable[[StoreTimeouts], Opened], place: str, timeouts: StoreTimeouts) -> None:
        self._open = open_store
        self._place = place
        self._timeouts = timeouts
        self._opened: Opened | None = None
        self._opened_s = 0.0
        self._is_refused = False

    @property
    def place(self) -> str:
        return self._place

    async def put(self, key: str, data: Buffer) -> None:
        from obstore import put_async

        sending = put_async(self._store(), key, data, use_multipart=False)
        try:
            await self._ended(sending, self._timeouts.put_ms, key)
        except ObjectMissingError as error:  # a 404 for a PUT is about the bucket
            raise StoreRefusedError(error.what, error.place, REMEDIES["NoSuchBucket"]) from error

    async def get(self, key: str, start: int, size_bytes: int) -> Buffer:
        from obstore import get_range_async

        asking = get_range_async(self._store(), key, start=start, length=size_bytes)
        data = memoryview(await self._ended(asking, self._timeouts.get_ms, key))
        if len(data) != size_bytes:
            raise DamagedObjectError(
                f"{len(data)} bytes came from byte {start}, not {size_bytes}", f"{self._place}/{key}"
            )
        return data

    async def size_bytes(self, key: str) -> int:
        from obstore import head_async

        return int((await self._ended(head_async(self._store(), key), self._timeouts.get_ms, key))["size"])

    async def delete(self, keys: Sequence[str]) -> Sequence[str]:
        gone: list[str] = []
        failures: list[SextonError] = []
        for first in range(0, len(keys), DELETES_AT_ONCE):
            some = keys[first : first + DELETES_AT_ONCE]
            outcomes = await asyncio.gather(*(self._delete(key) for key in some))
            gone += [key for key, failure in zip(some, outcomes, strict=True) if failure is None]
            failures += [failure for failure in outcomes if failure is not None]
            if len(failures) >= DELETES_AT_ONCE and not gone:
                break  # a store that is away is not asked a thousand times
        if failures and not gone:
            raise failures[0]
        return gone

    async def _delete(self, key: str) -> SextonError | None:
        from obstore import delete_async

        try:
            await self._ended(delete_async(self._store(), key), self._timeouts.get_ms, key)
        except ObjectMissingError:
            return None
        except (StoreUnavailableError, StoreRefusedError) as error:
            return error
        return None

    async def list(self, prefix: str) -> AsyncIterator[ListedObject]:
        from obstore import list as list_objects

        chunks = aiter(list_objects(self._store(), prefix.rstrip("/") or None, chunk_size=1000))
        while True:
            try:
                chunk = await self._ended(anext(chunks), self._timeouts.get_ms, prefix)
            except StopAsyncIteration:
                return
            except ObjectMissingError as error:
                raise StoreRefusedError(error.what, error.place, REMEDIES["NoSuchBucket"]) from error
            for meta in chunk:
                yield ListedObject(meta["path"], meta["size"])

    async def create_marker(self, key: str, data: bytes) -> bytes:
        """Looks first, for the sake of stores that do not know conditional writes. After the write it looks again,
        whatever the answer was: "already exists" may be about this very request, or be no more than a conflict."""
        found = await self.read_marker(key)
        if found is not None:
            return found
        await self._create(key, data)
        found = await self.read_marker(key)
        if found is None:
            raise StoreUnavailableError("the marker was made, and is not there", f"{self._place}/{key}", AWAY_REMEDY)
        return found

    async def _create(self, key: str, data: bytes) -> None:
        from obstore import put_async
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        async def create() -> None:
            try:
                await put_async(self._store(), key, data, use_multipart=False, mode="create")
            except (AlreadyExistsError, PreconditionError):
                return

        await self._ended(create(), self._timeouts.put_ms, key)

    async def read_marker(self, key: str) -> bytes | None:
        try:
            size_bytes = await self.size_bytes(key)
            if size_bytes > MARKER_BYTES_MAX:
                raise StoreRefusedError(
                    f"it has {size_bytes} bytes: this is no marker of Sexton's",
                    f"{self._place}/{key}",
                    "Give cloud.store.url a prefix of its own",
                )
            return bytes(await self.get(key, 0, size_bytes)) if size_bytes else b""
        except ObjectMissingError:
            return None

    async def close(self) -> None:
        self._opened = None

    def _store(self) -> Opened:
        now_s = asyncio.get_running_loop().time()
        if self._opened is None or (self._is_refused and now_s - self._opened_s >= REOPEN_S):
            self._opened = self._open(self._timeouts)
            self._opened_s = now_s
            self._is_refused = False
        return self._opened

    async def _ended(self, call: Awaitable[T], timeout_ms: int, key: str) -> T:
        """Waits for an answer, and raises one of the port's errors if there is none or a bad one. obstore's own timeout
        ends a request, not the search for credentials before it."""
        from obstore.exceptions import BaseError

        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await call
        except TimeoutError:
            raise StoreUnavailableError(
                f"no answer within {timeout_ms} ms", f"{self._place}/{key}", AWAY_REMEDY
            ) from None
        except (BaseError, OSError) as error:
            self._fail(error, key)

    def _fail(self, error: Exception, key: str) -> NoReturn:
        failure = diagnose(error, f"{self._place}/{key}")
        if isinstance(failure, StoreRefusedError):
            self._is_refused = True
        raise failure from error


def diagnose(error: Exception, place: str) -> SextonError:
    """What an error of obstore means for the caller."""
    text = " ".join(str(error).partition(_DEBUGGING)[0].split())
    message_found = _MESSAGE.search(text)
    said = message_found[1][:TEXT_MAX] if message_found else text[-TEXT_MAX:]
    status_found, code_found = _STATUS.search(text), _CODE.search(text)
    status = int(status_found[1]) if status_found else None
    code = code_found[1] if code_found else ""
    if any(service in text for service in _METADATA_SERVICES):
        return StoreRefusedError(
            f"no credentials were found ({said})",
            place,
            "Put them into the environment or the store's own credentials file (docs/cloud.md)",
        )
    if code in REMEDIES:
        return StoreRefusedError(f"the store refuses ({code}: {said})", place, REMEDIES[code])
    if isinstance(error, FileNotFoundError) or status == 404:
        return ObjectMissingError(f"there is no such object ({said})", place)
    if status == 416:
        return DamagedObjectError(f"the object ends before the bytes that were asked for ({said})", place)
    if _WRONG_REGION in text:
        return StoreRefusedError(f"the store sends us elsewhere ({said})", place, REMEDIES["PermanentRedirect"])
    if status is not None and 400 <= status < 500 and status not in MAYBE_LATER:
        return StoreRefusedError(f"the store refuses with status {status} ({said})", place, REFUSED_REMEDY)
    return StoreUnavailableError(f"the store does not answer as it should ({said})", place, AWAY_REMEDY)
