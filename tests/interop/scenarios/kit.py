"""A client under test and its cluster: the verbs of its driver, and what scenarios make of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, TypeVar

from sexton.verify.clients.base import (
    Admin,
    Attributes,
    Consumer,
    Driver,
    Message,
    Place,
    Record,
    Refused,
    Settings,
    Written,
)
from tests.interop.scenarios.common import WAIT_S, Cluster, covers, raised_by, wait_for_topic, wait_until

Polled = TypeVar("Polled", Record, Message)


class Client:
    """`driver` is one of the modules of src/sexton/verify/clients."""

    def __init__(self, driver: Any, cluster: Cluster) -> None:
        self._module = driver
        self.driver: Driver = driver
        self.cluster = cluster

    def lacks(self, what: str) -> bool:
        return what in self.driver.lacks()

    @contextmanager
    def admin(self) -> Iterator[Admin]:
        with closing(self._module.Admin(self.cluster.bootstrap)) as admin:
            yield admin

    def create(self, what: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        """A new topic, replicated, that has its leaders."""
        topic = self.cluster.name(what)
        with self.admin() as admin:
            admin.create(topic, partitions, self.cluster.replication, config or {})
        wait_for_topic(self.cluster, topic, partitions)
        return topic

    def produce(
        self, topic: str, values: Iterable[bytes | None], settings: Settings | None = None, **attributes: Any
    ) -> list[Written]:
        """Writes with these `Attributes`; a failure raises."""
        return self.driver.produce(self.cluster.bootstrap, topic, values, Attributes(**attributes), settings or {})

    def consumer(self, group: str | None = None, settings: Settings | None = None) -> Consumer:
        made: Consumer = self._module.Consumer(self.cluster.bootstrap, self.driver.ISOLATION, group, settings or {})
        return made

    @contextmanager
    def reader(self, starts: Mapping[Place, int], settings: Settings | None = None) -> Iterator[Consumer]:
        """A consumer without a group that reads these from there on."""
        with closing(self.consumer(None, settings)) as consumer:
            consumer.assign(starts)
            yield consumer

    @contextmanager
    def subscribed(self, group: str, topic: str, settings: Settings | None = None) -> Iterator[Consumer]:
        """The only member of a group."""
        consumer = self.consumer(group, settings)
        try:
            consumer.subscribe([topic])
            yield consumer
        finally:
            consumer.leave()

    def read(self, topic: str, count: int) -> list[bytes]:
        """The values of the first records of partition 0."""
        with self.reader({(topic, 0): 0}) as consumer:
            return values_of(take(consumer, count))

    def messages(self, topic: str, count: int) -> list[Message]:
        """The first records of partition 0, with all that an application sees of them."""
        with self.reader({(topic, 0): 0}) as consumer:
            return poll_until(consumer.poll_messages, count, WAIT_S)

    def commit(self, group: str, offsets: Mapping[Place, int]) -> None:
        """As one does who is no member of the group."""
        with closing(self.consumer(group)) as consumer:
            consumer.assign(offsets)
            consumer.commit_offsets(offsets, "")

    def member(self, group: str, topic: str, settings: Settings | None = None) -> Member:
        consumer = self.consumer(group, settings)
        consumer.subscribe([topic])
        return Member(consumer, self.driver.POLL_S)


class Member:
    """A member of a group that is polled by its own thread: a poll may last as long as a rebalance, and that may wait
    for another member's poll."""

    def __init__(self, consumer: Consumer, poll_s: float) -> None:
        self.records: list[Record] = []
        self.assigned: list[Place] = []
        self._consumer = consumer
        self._poll_s = poll_s
        self._failures: list[BaseException] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def partitions(self) -> list[int]:
        """As of the last poll."""
        if self._failures:
            raise self._failures[0]
        return [number for _, number in self.assigned]

    def close(self) -> None:
        self._stopped.set()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), "a member did not close"
        if self._failures:
            raise self._failures[0]

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                self.records += self._consumer.poll(self._poll_s)
                self.assigned = sorted(self._consumer.assignment())
            self._consumer.leave()
        except BaseException as failure:
            self._failures.append(failure)


def wait_for_shares(members: Iterable[Member], partitions: int, what: str) -> None:
    """Until each partition has one owner, and no member idles."""
    shared = list(members)
    wait_until(lambda: covers([member.partitions for member in shared], partitions), what)


def take(consumer: Consumer, count: int, timeout_s: float = WAIT_S) -> list[Record]:
    return poll_until(consumer.poll, count, timeout_s)


def poll_until(poll: Callable[[float], list[Polled]], count: int, timeout_s: float) -> list[Polled]:
    """The next `count` records, and what the last poll brought beside them; fewer only when time is up."""
    found: list[Polled] = []
    deadline_s = time.monotonic() + timeout_s
    while len(found) < count and time.monotonic() < deadline_s:
        found += poll(0.2)
    return found


def values_of(records: Iterable[Record]) -> list[bytes]:
    return [record.value for record in records]


def refusal(action: Callable[[], object]) -> int | None:
    """The code of the error that it must be told."""
    return raised_by(action, Refused).code
