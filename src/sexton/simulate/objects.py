"""An object store as brokers meet it: far away, slow, sometimes busy, sometimes silent, and late.

What is simulated is the way there and back, and what a store that keeps its word may still do:

- *Down*: the connection is refused at once, and nothing was done.
- *Hanging*: requests wait, and are carried out, late, when it goes on; whoever sent them has given up by then.
- *Cut off* in one direction: the request never arrives, or it does and the answer is lost.
- *Losing answers*: the request was carried out, and the connection breaks.
- *Late*: a PUT or a DELETE whose sender is told nothing is carried out minutes later, after its sender has given up,
  put the object again, deleted it, or died.
- *Busy* (503 SlowDown): nothing was done; comes in bursts.
- *Refusing* (403): nothing was done, until somebody has put the credentials right.
- *Short reads and flipped bits*: the answer ends too soon, which the adapter notices; or has a wrong bit, which only
  who knows a checksum can notice.
- *Listings* come in any order; some objects may come twice, and what was put just now may be left out.
- *Wiped*: everything is gone that nobody refers to, at the worst moment (`wipe`). A system that relies on such an
  object relies on luck.

Latency is lognormal, as that of real stores is: half of the requests within the median, one in a hundred above
`p99_factor` times that.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from sexton.errors import DamagedObjectError
from sexton.ports.objects import (
    MARKER_BYTES_MAX,
    Buffer,
    ListedObject,
    ObjectMissingError,
    StoreRefusedError,
    StoreUnavailableError,
)
from sexton.simulate.loop import MS, NS, Process, SimulatedLoop
from sexton.simulate.network import Fabric
from sexton.simulate.service import Request, Service, complete

HOST = "objects"
TIMEOUT_MS = 10_000
LATE_NS_MAX = 240 * NS
BREAK_NS_MAX = 500 * MS
"""How soon a client notices that its connection broke."""

BUSY_NS_MAX = 20 * NS
LISTED_NS = 10 * NS
Z_99 = 2.326
"""Standard deviations from the median to the 99th percentile."""


@dataclass(slots=True)
class StoreWeather:
    """Probabilities are per request."""

    median_ns: int = 20 * MS
    p99_factor: float = 2.5
    lost_probabilities: dict[str, float] = field(default_factory=dict)
    """How often a request is carried out and its response lost, by host."""
    late_probability: float = 0.0
    """How often a PUT or a DELETE gets no answer, and is carried out much later."""
    busy_probability: float = 0.0
    """How often a burst of 503 begins."""
    short_probability: float = 0.0
    flip_probability: float = 0.0
    twice_probability: float = 0.0
    """How often a listed object comes twice."""
    left_out_probability: float = 0.0
    """How often an object is left out of a listing that was put less than LISTED_NS ago."""


class ObjectService(Service):
    """The store itself. `objects` is what it has: whoever judges it looks there."""

    def __init__(self, loop: SimulatedLoop, rng: random.Random, fabric: Fabric) -> None:
        super().__init__(HOST, loop, rng, fabric)
        self.weather = StoreWeather()
        self.objects: dict[str, bytes] = {}
        self._put_ns: dict[str, int] = {}
        self.is_refusing = False
        self._busy_until_ns = 0

    def of(self, process: Process, host_name: str) -> SimulatedStore:
        return SimulatedStore(self, process, host_name)

    def be_busy(self, duration_ns: int) -> None:
        self._busy_until_ns = max(self._busy_until_ns, self.loop.now_ns + duration_ns)

    def wipe(self, referred: Collection[str]) -> list[str]:
        """Removes everything but these keys. Returns what is gone."""
        gone = sorted(self.objects.keys() - set(referred))
        for key in gone:
            del self.objects[key]
        return gone

    def send(self, request: Request) -> None:
        self.loop.call_for(self.loop.world, self._delay_ns(), self._arrive, request)

    def _arrive(self, request: Request) -> None:
        weather, rng = self.weather, self._rng
        if self._fabric.is_cut(request.host_name, HOST):
            return
        lost = weather.lost_probabilities.get(request.host_name, 0.0)
        if self.is_down:
            self._reply(request, None, StoreUnavailableError("connection refused", HOST))
        elif self._is_hanging:
            self._held.append(request)
        elif self.is_refusing:
            self._reply(request, None, StoreRefusedError("403 AccessDenied", HOST, "Correct the credentials"))
        elif self._is_busy():
            self._reply(request, None, StoreUnavailableError("503 SlowDown", HOST))
        elif request.operation in ("put", "delete") and rng.random() < weather.late_probability:
            self.loop.call_for(self.loop.world, int(rng.random() * LATE_NS_MAX), self._execute, request)
        elif lost and rng.random() < lost:
            self._execute(request)
            broken = StoreUnavailableError("the connection broke before the answer came", HOST)
            self._reply(request, None, broken, int(rng.random() * BREAK_NS_MAX))
        else:
            self._carry_out(request)

    def _is_busy(self) -> bool:
        if self.weather.busy_probability and self._rng.random() < self.weather.busy_probability:
            self.be_busy(int(self._rng.random() * BUSY_NS_MAX))
        return self.loop.now_ns < self._busy_until_ns

    def _outcome(self, request: Request) -> tuple[Any, Exception | None]:
        try:
            return getattr(self, f"_{request.operation}")(*request.arguments), None
        except (ObjectMissingError, DamagedObjectError) as error:
            return None, error

    # What a store does

    def _put(self, key: str, data: bytes) -> None:
        self.objects[key] = data
        self._put_ns[key] = self.loop.now_ns

    def _create(self, key: str, data: bytes) -> bytes:
        return self.objects.setdefault(key, data)

    def _read(self, key: str) -> bytes | None:
        data = self.objects.get(key)
        return None if data is None else data[:MARKER_BYTES_MAX]

    def _get(self, key: str, start: int, size_bytes: int) -> bytes:
        data = self._found(key)[start : start + size_bytes]
        weather, rng = self.weather, self._rng
        if weather.short_probability and rng.random() < weather.short_probability:
            data = data[: rng.randrange(len(data))] if data else data
        if len(data) != size_bytes:
            raise DamagedObjectError(f"{len(data)} bytes came from byte {start}, not {size_bytes}", f"{HOST}/{key}")
        if weather.flip_probability and rng.random() < weather.flip_probability:
            changed = bytearray(data)
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
            return bytes(changed)
        return data

    def _size(self, key: str) -> int:
        return len(self._found(key))

    def _delete(self, key: str) -> None:
        self.objects.pop(key, None)

    def _list(self, prefix: str) -> list[ListedObject]:
        weather, rng = self.weather, self._rng
        found: list[ListedObject] = []
        for key, data in self.objects.items():
            is_new = self.loop.now_ns - self._put_ns.get(key, 0) < LISTED_NS
            if key.startswith(prefix) and not (is_new and rng.random() < weather.left_out_probability):
                found += [ListedObject(key, len(data))] * (2 if rng.random() < weather.twice_probability else 1)
        rng.shuffle(found)
        return found

    def _found(self, key: str) -> bytes:
        data = self.objects.get(key)
        if data is None:
            raise ObjectMissingError("there is no such object", f"{HOST}/{key}")
        return data

    def _delay_ns(self) -> int:
        """Delay of one direction: half of the round trip."""
        sigma = math.log(max(1.0, self.weather.p99_factor)) / Z_99
        return int(self.weather.median_ns / 2 * math.exp(sigma * self._rng.gauss(0.0, 1.0)))


def _give_up(answer: asyncio.Future[Any]) -> None:
    complete(answer, None, StoreUnavailableError(f"no answer within {TIMEOUT_MS} ms", HOST))


class SimulatedStore:
    """`ports.objects.ObjectStore` for one process."""

    def __init__(self, service: ObjectService, process: Process, host_name: str) -> None:
        self._service = service
        self._process = process
        self._host_name = host_name

    @property
    def place(self) -> str:
        return HOST

    async def _call(self, operation: str, *arguments: Any) -> Any:
        loop = self._service.loop
        request = Request(self._process, self._host_name, operation, arguments, loop.create_future())
        if self._process.alive:
            self._service.send(request)
        timer = loop.call_later(TIMEOUT_MS / 1000, _give_up, request.answer)
        try:
            return await request.answer
        finally:
            timer.cancel()

    async def put(self, key: str, data: Buffer) -> None:
        await self._call("put", key, bytes(data))

    async def get(self, key: str, start: int, size_bytes: int) -> Buffer:
        data: bytes = await self._call("get", key, start, size_bytes)
        return data

    async def size_bytes(self, key: str) -> int:
        size: int = await self._call("size", key)
        return size

    async def delete(self, keys: Sequence[str]) -> Sequence[str]:
        """One request a key, as the real adapter does: each has its own fate."""
        outcomes = await asyncio.gather(*(self._call("delete", key) for key in keys), return_exceptions=True)
        gone = [key for key, outcome in zip(keys, outcomes, strict=True) if outcome is None]
        failures = [outcome for outcome in outcomes if outcome is not None]
        if failures and not gone:
            raise failures[0]
        return gone

    async def list(self, prefix: str) -> AsyncIterator[ListedObject]:
        found: list[ListedObject] = await self._call("list", prefix)
        for one in found:
            yield one

    async def create_marker(self, key: str, data: bytes) -> bytes:
        found: bytes = await self._call("create", key, data)
        return found

    async def read_marker(self, key: str) -> bytes | None:
        found: bytes | None = await self._call("read", key)
        return found

    async def close(self) -> None:
        """The connections of one process; the store stays."""
