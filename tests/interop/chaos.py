"""A cluster under faults, with a producer that waits for acknowledgements and a group that reads along.

The workload remembers what it was told and what was read (`Story`); `check` compares both with what the log holds in
the end. It knows nothing about how the brokers work.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition

from sexton.harness.brokers import SextonCluster
from sexton.harness.cloud_store import CloudStore
from sexton.harness.postgres import Postgres
from sexton.harness.store_proxy import StoreFaults

TOPIC: Final = "chaos"
PARTITIONS: Final = 6
RECORDS_PER_S: Final = 200
QUEUE_MAX: Final = 20_000
"""Records that wait while nobody acknowledges. Beyond it the producer stops making more."""

FAULT_EVERY_S: Final = 15
PAUSE_S: Final = (6.0, 12.0)
DOWN_S: Final = (0.5, 4.0)
"""How long a supervisor takes to start a broker again."""

METASTORE_DOWN_S: Final = 8.0
STORE_FAULTS: Final = {
    "lose answers": StoreFaults(dropped=0.3),
    "pause store": StoreFaults(hanging=1.0),
    "throttle": StoreFaults(busy=0.7),
    "heal store": StoreFaults(),
}
HEAL_TIMEOUT_S: Final = 120
NOT_TOLD: Final = None
"""librdkafka takes a batch whose answer was lost for acknowledged when a later one is: brokers take them in order."""

QUIET: Final = {"log_level": 0, "socket.timeout.ms": 10_000}

Written = tuple[int, int]
"""Partition and sequence number within it."""


@dataclass
class Story:
    """What was seen, for the judgement."""

    acknowledged: dict[Written, int | None] = field(default_factory=dict)
    """With the offset that the broker gave, or NOT_TOLD."""
    given_up: dict[Written, str] = field(default_factory=dict)
    read: dict[tuple[int, int], bytes] = field(default_factory=dict)
    """By the group: partition and offset to value."""
    contradictions: list[str] = field(default_factory=list)
    fatal: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    fault_kinds: Counter[str] = field(default_factory=Counter)


class Writer:
    """One idempotent producer with acks=all; each partition gets the numbers from 0 on, in order."""

    def __init__(self, bootstrap: str, story: Story) -> None:
        self._story = story
        self._next = [0] * PARTITIONS
        self._producer = Producer(
            {
                **QUIET,
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 20,
                "delivery.timeout.ms": 300_000,
                "request.timeout.ms": 8_000,
                "retry.backoff.ms": 100,
                "error_cb": self._failed,
            }
        )

    @property
    def waiting_count(self) -> int:
        return len(self._producer)

    def step(self) -> None:
        """A round of records, one a partition."""
        if self.waiting_count < QUEUE_MAX:
            for partition in range(PARTITIONS):
                number = self._next[partition]
                self._next[partition] += 1
                self._producer.produce(
                    TOPIC,
                    value=b"%d" % number,
                    partition=partition,
                    on_delivery=partial(self._delivered, (partition, number)),
                )
        self._producer.poll(PARTITIONS / RECORDS_PER_S)

    def finish(self) -> int:
        """How many are still without an answer when patience ends."""
        return int(self._producer.flush(HEAL_TIMEOUT_S))

    def _delivered(self, key: Written, error: KafkaError | None, message: Any) -> None:
        if error is None:
            self._story.acknowledged[key] = message.offset()
        else:
            self._story.given_up[key] = str(error)

    def _failed(self, error: KafkaError) -> None:
        if error.fatal():
            self._story.fatal.append(str(error))


def records_of(consumer: Consumer, count: int) -> Iterator[tuple[int, int, bytes]]:
    """What is there within half a second: partition, offset, value. Errors pass by: the brokers are in trouble."""
    messages: list[Any] = consumer.consume(count, timeout=0.5)
    for message in messages:
        if message.error() is None:
            yield message.partition(), message.offset(), message.value()


class Reader(threading.Thread):
    """A member of the group. It commits as it goes."""

    def __init__(self, bootstrap: str, story: Story) -> None:
        super().__init__(daemon=True)
        self._story = story
        self._stopped = threading.Event()
        self._consumer = Consumer(
            {
                **QUIET,
                "bootstrap.servers": bootstrap,
                "group.id": "chaos",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": True,
                "auto.commit.interval.ms": 1_000,
                "session.timeout.ms": 10_000,
                "heartbeat.interval.ms": 1_000,
            }
        )
        self._consumer.subscribe([TOPIC])

    def run(self) -> None:
        while not self._stopped.is_set():
            for partition, offset, value in records_of(self._consumer, 500):
                self._take(partition, offset, value)
        self._consumer.close()

    def stop(self) -> None:
        self._stopped.set()
        self.join(HEAL_TIMEOUT_S)

    def _take(self, partition: int, offset: int, value: bytes) -> None:
        """Reading again after a rebalance is fine. Reading something else at the same offset is not."""
        known = self._story.read.setdefault((partition, offset), value)
        if known != value:
            self._story.contradictions.append(f"{partition}@{offset} was {known!r}, then {value!r}")


class Faults:
    """Kills and pauses brokers in turn, stops the metastore twice, and the store of cloud topics as often, and starts
    again what was killed, as a supervisor would. One broker is away at a time; metastore and store may be away
    meanwhile."""

    def __init__(
        self,
        cluster: SextonCluster,
        postgres: Postgres | None,
        rng: random.Random,
        seconds: float,
        story: Story,
        store: CloudStore | None = None,
    ) -> None:
        self._cluster = cluster
        self._postgres = postgres
        self._store = store
        self._rng = rng
        self._story = story
        self._started_s = time.monotonic()
        self._plan = sorted(self._planned(seconds), key=lambda step: step[0])
        self._down: set[int] = set()

    @property
    def is_over(self) -> bool:
        return not self._plan

    def step(self) -> None:
        while self._plan and time.monotonic() - self._started_s >= self._plan[0][0]:
            at_s, what, number = self._plan.pop(0)
            self._story.faults.append(f"{at_s:.1f} s: {what} {number or ''}".strip())
            self._story.fault_kinds[what] += 1
            self._do(what, number)
        for number in self._cluster.node_ids:
            if number not in self._down and not self._cluster.is_running(number):
                raise AssertionError(f"broker {number} ended by itself:\n{self._cluster.server_log(number)[-3000:]}")

    def _planned(self, seconds: float) -> Iterator[tuple[float, str, int]]:
        at_s = float(FAULT_EVERY_S) / 2
        while at_s < seconds:
            number, kind = self._rng.choice(self._cluster.node_ids), self._rng.choice(("kill", "pause"))
            yield at_s, kind, number
            ends_s = at_s + self._rng.uniform(*(DOWN_S if kind == "kill" else PAUSE_S))
            yield ends_s, "start" if kind == "kill" else "resume", number
            at_s += FAULT_EVERY_S
        if self._postgres is not None:
            for share, kind in ((0.3, "stop metastore"), (0.65, "kill metastore")):
                yield seconds * share, kind, 0
                yield seconds * share + METASTORE_DOWN_S, "start metastore", 0
        if self._store is not None:
            for share, kind in ((0.15, "lose answers"), (0.5, "pause store"), (0.8, "throttle")):
                yield seconds * share, kind, 0
                yield seconds * share + METASTORE_DOWN_S, "heal store", 0

    def _do(self, what: str, number: int) -> None:
        if what == "kill":
            self._down.add(number)
            self._cluster.kill_node(number)
        elif what == "start":
            self._cluster.start_node(number, wait=False)
            self._down.discard(number)
        elif what == "pause":
            self._cluster.pause_node(number)
        elif what == "resume":
            self._cluster.resume_node(number)
        elif self._store is not None and what in STORE_FAULTS:
            self._store.proxy.faults = STORE_FAULTS[what]
        elif self._postgres is not None:
            {
                "stop metastore": self._postgres.stop,
                "kill metastore": self._postgres.kill,
                "start metastore": self._postgres.start,
            }[what]()


def wait_until_healed(cluster: SextonCluster) -> None:
    """Every partition has a leader and all its replicas in sync."""
    cluster.wait_ready(HEAL_TIMEOUT_S)
    client = Consumer({**QUIET, "bootstrap.servers": cluster.bootstrap, "group.id": "heal"})
    deadline_s = time.monotonic() + HEAL_TIMEOUT_S
    while True:
        try:
            found = client.list_topics(TOPIC, timeout=10).topics[TOPIC].partitions.values()
            if all(each.leader > 0 and len(each.isrs) == len(cluster.node_ids) for each in found):
                client.close()
                return
        except KafkaException:
            found = []
        assert time.monotonic() < deadline_s, f"not healed after {HEAL_TIMEOUT_S} s: {[vars(each) for each in found]}"
        time.sleep(0.2)


def read_all(bootstrap: str) -> dict[int, list[tuple[int, int]]]:
    """The whole log: partition to (offset, number), in the order in which it is served."""
    consumer = Consumer({**QUIET, "bootstrap.servers": bootstrap, "group.id": "judge", "enable.auto.commit": False})
    ends = {
        number: consumer.get_watermark_offsets(TopicPartition(TOPIC, number), timeout=30)[1]
        for number in range(PARTITIONS)
    }
    found: dict[int, list[tuple[int, int]]] = {number: [] for number in range(PARTITIONS)}
    consumer.assign([TopicPartition(TOPIC, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
    deadline_s = time.monotonic() + HEAL_TIMEOUT_S
    while any(not log or log[-1][0] < ends[number] - 1 for number, log in found.items() if ends[number]):
        assert time.monotonic() < deadline_s, f"the log could not be read to its end {ends}"
        for partition, offset, value in records_of(consumer, 1_000):
            found[partition].append((offset, int(value)))
    consumer.close()
    return found


def check(story: Story, logs: dict[int, list[tuple[int, int]]]) -> None:
    """Nothing acknowledged is lost, moved or reordered; nothing is there twice; nobody read anything else."""
    assert story.fatal == [], "the producer was told that it cannot go on"
    assert story.contradictions == []
    for partition, log in logs.items():
        offsets = [offset for offset, _ in log]
        numbers = [number for _, number in log]
        assert all(a < b for a, b in pairwise(offsets)), f"offsets of partition {partition} are out of order"
        twice = [number for number, count in Counter(numbers).items() if count > 1]
        assert twice == [], f"partition {partition} holds these twice: {twice[:10]}"
        assert all(a < b for a, b in pairwise(numbers)), f"records of partition {partition} are out of order"
        by_number = {number: offset for offset, number in log}
        lost = [
            (number, offset)
            for (of, number), offset in story.acknowledged.items()
            if of == partition and (number not in by_number or offset not in (NOT_TOLD, by_number[number]))
        ]
        assert lost == [], f"acknowledged in partition {partition}, but not there (number, offset): {lost[:10]}"
        by_offset = dict(log)
        wrong = [
            (offset, value)
            for (of, offset), value in story.read.items()
            if of == partition and by_offset.get(offset) != int(value)
        ]
        assert wrong == [], f"read in partition {partition}, but not there (offset, value): {wrong[:10]}"
