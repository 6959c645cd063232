"""Batches that a leader must decompress (`log/inside.py`), off the event loop and in order.

Each partition has a queue: while one batch is being decompressed, later batches wait behind it, whether or not they
must be decompressed themselves. So no batch overtakes another of its producer. Partitions do not wait for each other,
and an invalid batch fails only the request that sent it.

Memory: a queue holds requests, which count against `queued.max.request.bytes`; of decompressed data there is only what
the threads work on. A small batch is handled on the event loop if none waits: a thread would cost more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple

from sexton.errors import UnsupportedFormatError
from sexton.log.checks import Rules
from sexton.log.inside import UNFOLDED_BYTES_MAX, validated
from sexton.ports.disk import Buffer

if TYPE_CHECKING:
    from sexton.broker.broker import Broker
    from sexton.replication.replica import Replica

THREADS: Final = 2
"""Number of threads. A bigger machine runs more brokers. Codecs release the GIL while they work."""

SMALL_BYTES: Final = 16 << 10
SMALL_UNFOLDED_BYTES: Final = 256 << 10
SMALL_RECORDS: Final = 2_000
"""Limits of a small batch: some tens of microseconds for a codec, a millisecond for a walk over this many records, a
few milliseconds for the largest batch that fits."""


class Validated(NamedTuple):
    records: Buffer
    rules: Rules | None
    """The rules by which the batch was checked; None if it did not have to be."""


Then = Callable[[Validated | Exception], None]


class _Job(NamedTuple):
    records: bytes
    is_suspect: bool
    then: Then


class Unpacking:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._lines: dict[Replica, deque[_Job]] = {}
        self._threads: ThreadPoolExecutor | None = None

    def is_due(self, replica: Replica, records: Buffer) -> bool:
        """Whether the batch cannot be appended at once."""
        log = replica.log
        return replica in self._lines or (log.looks_inside and log.rules.must_unpack(records))

    def at_once(self, replica: Replica, records: Buffer, is_suspect: bool) -> Validated | None:
        """Returns the batch as it may be appended, if the batch is small; otherwise None. Raises if the batch is
        invalid.

        `is_suspect` means that the topic's rules do not require a look inside, but something in the batch's header
        does.
        """
        is_small = len(records) <= SMALL_BYTES or replica.log.rules.is_short_walk(records, SMALL_RECORDS)
        if replica in self._lines or not is_small:
            return None
        try:
            return self._validated(replica, records, is_suspect, SMALL_UNFOLDED_BYTES)
        except UnsupportedFormatError:
            return None  # it is not small once decompressed

    def add(self, replica: Replica, records: bytes, is_suspect: bool, then: Then) -> None:
        """Calls `then` with the batch as it may be appended, or with the exception."""
        job = _Job(records, is_suspect, then)
        line = self._lines.get(replica)
        if line is not None:
            line.append(job)
            return
        line = self._lines[replica] = deque((job,))
        self._broker.supervisor.work(self._work_off(replica, line), "unpacking", replica)

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _work_off(self, replica: Replica, line: deque[_Job]) -> None:
        """A batch stays in the queue until it is appended, so that batches that arrive meanwhile come after it."""
        loop = asyncio.get_running_loop()
        self._threads = self._threads or ThreadPoolExecutor(THREADS, thread_name_prefix="unpacking")
        try:
            while line:
                job = line[0]
                found: Validated | Exception
                try:
                    found = await loop.run_in_executor(
                        self._threads, self._validated, replica, job.records, job.is_suspect, UNFOLDED_BYTES_MAX
                    )
                except Exception as error:
                    found = error
                try:
                    job.then(found)
                except Exception as bug:
                    self._broker.supervisor.survived(bug, "unpacking", replica)
                line.popleft()
        finally:
            del self._lines[replica]

    def _validated(self, replica: Replica, records: Buffer, is_suspect: bool, unfolded_bytes_max: int) -> Validated:
        """Runs in any thread."""
        rules = replica.log.rules
        if not (is_suspect or rules.must_unpack(records)):
            return Validated(records, None)
        return Validated(validated(records, rules, self._broker.clock.now_ms(), unfolded_bytes_max), rules)
