"""A producer that writes to a cloud topic through whatever happens, and the judgement of what became of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from types import TracebackType
from typing import Any, Final, Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition

from sexton.harness.brokers import SextonCluster

PARTITIONS: Final = 3
PATIENCE_S: Final = 120
"""What a busy machine may need for what takes a second."""
QUIET: Final = {"log_level": 0, "socket.timeout.ms": 10_000}


def until(reached: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not reached():
        assert time.monotonic() < deadline_s, f"{what}: not within {PATIENCE_S} s"
        time.sleep(0.02)


class Load:
    """One idempotent producer; each partition gets the numbers from 0 on, in order, until the block is left. Then all
    of them must be acknowledged, be there once, in order, at the offsets that the producer was told."""

    def __init__(self, cluster: SextonCluster, topic: str, **settings: Any) -> None:
        self._cluster = cluster
        self.topic = topic
        self.acknowledged: dict[tuple[int, int], int | None] = {}
        """Partition and number, with the offset. librdkafka may know that a batch was taken and not where."""
        self.errors: list[KafkaError] = []
        self._next = [0] * PARTITIONS
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._producer = Producer(
            {
                **QUIET,
                "bootstrap.servers": cluster.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "delivery.timeout.ms": 300_000,
                "request.timeout.ms": 5_000,
                "retry.backoff.ms": 50,
                **settings,
            }
        )

    def __enter__(self) -> Self:
        self._cluster.create_topic(self.topic, PARTITIONS, len(self._cluster.node_ids))
        self._thread.start()
        self.go_on()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join(PATIENCE_S)
        if kind is None:
            self.check()

    def _write(self) -> None:
        while not self._is_over.is_set():
            for partition, number in enumerate(self._next):
                self._producer.produce(
                    self.topic, b"%d" % number, partition=partition, callback=partial(self._told, (partition, number))
                )
                self._next[partition] += 1
            self._producer.poll(0.02)
        self._producer.flush(PATIENCE_S)

    def _told(self, key: tuple[int, int], error: KafkaError | None, message: Any) -> None:
        if error is None:
            self.acknowledged[key] = message.offset()
        else:
            self.errors.append(error)

    def written(self, partition: int) -> int:
        """How many there are, once the block is left."""
        return self._next[partition]

    def go_on(self, count: int = 20) -> None:
        """Returns when so many more of each partition are acknowledged: all is well again, by itself."""
        goal = [number + count for number in self._next]
        until(
            lambda: all((partition, number) in self.acknowledged for partition, number in enumerate(goal)),
            f"{self.topic}: writing goes on",
        )

    def stands_still(self, seconds: float) -> None:
        """While nothing can be stored nothing is acknowledged."""
        time.sleep(0.3)  # what had been stored by then may be told still
        before = len(self.acknowledged)
        time.sleep(seconds)
        assert len(self.acknowledged) == before, "acknowledged, and nobody can have stored it"

    def check(self) -> None:
        assert self.errors == []
        for partition, log in read_all(self._cluster, self.topic).items():
            numbers = [number for _, number in log]
            assert numbers == list(range(self._next[partition])), f"partition {partition}: lost, doubled or reordered"
            assert all(one < other for (one, _), (other, _) in pairwise(log))
            told = {number: offset for (of, number), offset in self.acknowledged.items() if of == partition}
            assert sorted(told) == numbers
            assert all(told[number] in (None, offset) for offset, number in log), "told another offset"


def read_all(cluster: SextonCluster, topic: str, **settings: Any) -> dict[int, list[tuple[int, int]]]:
    """Each partition's offsets and numbers, to its end."""
    consumer = Consumer(
        {**QUIET, "bootstrap.servers": cluster.bootstrap, "group.id": "judge", "enable.auto.commit": False, **settings}
    )
    places = [TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)]
    ends = {place.partition: consumer.get_watermark_offsets(place, timeout=PATIENCE_S)[1] for place in places}
    found: dict[int, list[tuple[int, int]]] = {partition: [] for partition in ends}
    consumer.assign(places)

    def is_read() -> bool:
        for partition, offset, value in records_of(consumer):
            found[partition].append((offset, int(value)))
        return all(not end or (found[at] and found[at][-1][0] >= end - 1) for at, end in ends.items())

    until(is_read, f"{topic}: all of it is read, up to {ends}")
    consumer.close()
    return found


def records_of(consumer: Consumer, timeout_s: float = 0.2) -> Iterator[tuple[int, int, bytes]]:
    """What is there soon: partition, offset, value. Errors pass by: brokers are in trouble."""
    messages: list[Any] = consumer.consume(1_000, timeout=timeout_s)
    return ((each.partition(), each.offset(), each.value()) for each in messages if each.error() is None)


def leader_of(cluster: SextonCluster, topic: str, partition: int = 0) -> int:
    found: dict[int, int] = {}

    def is_led() -> bool:
        found.update(cluster.leaders(topic))
        return found.get(partition, -1) > 0

    until(is_led, f"{topic}-{partition} has a leader")
    return found[partition]
