"""Base of a broker's coordinators: loads each partition of the coordinator's topic that this broker leads, runs
operations on it, and returns their results when what they wrote is committed.

`load` is called when this broker becomes leader (a new epoch is a new call), `unload` when it no longer is. If an
append fails, the partition's state in memory differs from the log: it is discarded and read again.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeVar

from sexton.coordinators.bounds import STRING_BYTES_MAX, is_too_long
from sexton.coordinators.hashing import partition_for
from sexton.coordinators.host import Host
from sexton.coordinators.partition import LOST_LEADERSHIP, LedPartition, answer_to_failed_append
from sexton.coordinators.timers import Now
from sexton.errors import SextonError
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.supervision import back_off_ms

L = TypeVar("L", bound=LedPartition[Any])
T = TypeVar("T")
logger = logging.getLogger(__name__)

RELOAD_PAUSE_S = 1.0
"""Pause before a log is read again that could not be read or written. Without it, work that is due when the log is
loaded (such as an expired transaction) would fail and be due again at once, without end."""


class CoordinatorService(ABC, Generic[L]):
    topic: ClassVar[str]
    invalid_name: ClassVar[ErrorCode]
    """Error code for a name that is too long to be recorded."""
    refusals: ClassVar[tuple[type[Exception], ...]] = (KafkaError,)
    """Exceptions that an operation raises when it has changed nothing."""

    def __init__(
        self,
        host: Host,
    ) -> None:
        self.supervisor = host.supervisor
        self._host = host
        self.led: dict[int, L] = {}
        """By number, the partitions that this broker leads. They may still be loading (`is_loaded`)."""
        self._loading: dict[int, asyncio.Task[None]] = {}

    @abstractmethod
    def _commit_timeout_ms(self) -> int: ...

    @abstractmethod
    def _empty(self, led: L) -> None:
        """Gives the partition an empty coordinator."""

    @abstractmethod
    def _load_again(self, led: L) -> None: ...

    # Leadership

    def _load_into(self, led: L) -> asyncio.Task[None]:
        """From now on requests get COORDINATOR_LOAD_IN_PROGRESS; when the task ends they are served."""
        partition = led.partition
        self.unload(partition)
        self.led[partition] = led
        task = self.supervisor.work(self._load(led), "loading a coordinator", f"{self.topic}-{partition}")
        self._loading[partition] = task
        task.add_done_callback(lambda done: self._forget_task(partition, done))
        return task

    async def _load(self, led: L) -> None:
        await asyncio.sleep(led.load_after_s)
        bugs_count = 0
        while not led.is_closed:
            try:
                await led.load()
                return
            except (KafkaError, SextonError) as error:
                logger.warning("cannot load %s-%d, retrying: %s", self.topic, led.partition, error)
                self._empty(led)
                await asyncio.sleep(RELOAD_PAUSE_S)
            except Exception as bug:
                bugs_count += 1
                self.supervisor.survived(bug, "loading a coordinator", f"{self.topic}-{led.partition}")
                led.is_loaded = False
                self._empty(led)
                await asyncio.sleep(back_off_ms(bugs_count) / 1000)

    def _forget_task(self, partition: int, task: asyncio.Task[None]) -> None:
        if self._loading.get(partition) is task:
            del self._loading[partition]

    def unload(self, partition: int) -> None:
        task = self._loading.pop(partition, None)
        if task is not None:
            task.cancel()
        led = self.led.pop(partition, None)
        if led is not None:
            led.close(KafkaError(ErrorCode.not_coordinator))

    def partitions(self) -> list[int]:
        """Returns the partitions that are loaded or being loaded."""
        return sorted(self.led)

    async def close(self) -> None:
        for partition in self.partitions():
            self.unload(partition)

    def on_failed(self, led: L, error: KafkaError) -> None:
        """Called when an append failed: the coordinator's state differs from the log, so it is discarded and read
        again."""
        if self.led.get(led.partition) is not led:
            return
        logger.warning("append to %s-%d failed: %s", self.topic, led.partition, error)
        led.close(KafkaError(answer_to_failed_append(error.code), error.message))
        self._load_again(led)
        # A leader whose lease expired reports NOT_LEADER_OR_FOLLOWER. The lease may be renewed without a role change,
        # and then no other event would load the state that is discarded here; until then clients should look for
        # another coordinator.
        fresh = self.led[led.partition]
        fresh.is_doubtful = error.code in LOST_LEADERSHIP
        fresh.load_after_s = 0.0 if led.has_committed else RELOAD_PAUSE_S

    # Requests

    def partition_of(self, name: str) -> int:
        if is_too_long(name):
            raise KafkaError(self.invalid_name, f"It has more than {STRING_BYTES_MAX} bytes.")
        count = self._host.partitions_count(self.topic)
        if count <= 0:
            raise KafkaError(ErrorCode.coordinator_not_available, f"{self.topic} does not exist yet.")
        return partition_for(name, count)

    def _find(self, name: str) -> L:
        partition = self.partition_of(name)
        led = self.led.get(partition)
        if not self._host.lease_is_valid() or (led is None and not self._host.is_elected(self.topic, partition)):
            raise KafkaError(ErrorCode.not_coordinator)
        if led is None:
            # FindCoordinator already names this broker. NOT_COORDINATOR would make clients look it up again, and
            # librdkafka reports it to the application.
            raise KafkaError(ErrorCode.coordinator_load_in_progress)
        if not led.is_loaded:
            doubtful = led.is_doubtful
            raise KafkaError(ErrorCode.not_coordinator if doubtful else ErrorCode.coordinator_load_in_progress)
        return led

    def _find_to_write(self, name: str) -> L:
        led = self._find(name)
        led.check_writable()
        return led

    async def _run(self, led: L, operation: Callable[[], tuple[T, Any]]) -> T:
        answer = self._carry_out(led, operation)
        await self._committed(led)
        return answer

    async def _committed(self, led: L) -> None:
        if led.is_committed:
            return
        try:
            async with asyncio.timeout(self._commit_timeout_ms() / 1000):
                await led.committed()
        except TimeoutError:
            # It may still be committed: the client retries, and every request may be repeated.
            raise KafkaError(ErrorCode.coordinator_not_available, "The replicas have not confirmed in time") from None

    def _carry_out(self, led: L, operation: Callable[[], tuple[T, Any]]) -> T:
        """Runs an operation and carries out its effects. A refused operation must change nothing. If it did, its
        records are written all the same, because memory must not differ from the log, and it is reported as a bug. Any
        other exception is a bug that may have left the coordinator in an inconsistent state: it is loaded again, and
        the exception is raised."""
        before = led.coordinator.effects
        try:
            answer, effects = operation()
            led.carry_out(effects)
        except self.refusals as refusal:
            if led.coordinator.effects is not before and led.coordinator.effects.records:
                self.supervisor.survived(
                    refusal, "a request", f"{led.place}: it was refused after it had changed things"
                )
                led.carry_out(led.coordinator.effects)
            led.set_alarm()
            raise
        except Exception:
            self.on_failed(led, KafkaError(ErrorCode.unknown_server_error))
            raise
        return answer

    def now(self) -> Now:
        return Now(self._host.clock.now_ms(), self._host.clock.monotonic_ms())
