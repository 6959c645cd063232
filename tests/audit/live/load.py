"""A cluster at work: updates, deletes, transactions and changes of leaders, until somebody says that it is enough."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from confluent_kafka import KafkaException, Producer

from sexton.audit.live.connecting import Connecting
from sexton.client.admin import Admin
from sexton.errors import SextonError

KEYS_COUNT = 400
WRITES_PER_S = 3_000
PAUSE_S = 0.02
MOVE_PAUSE_S = 2.0


class Load:
    def __init__(self, bootstrap: str, topic: str, partitions: int, seed: int, writes_per_s: int) -> None:
        self.written_count = 0
        """Acknowledged, without those of transactions."""
        self.began_s = time.monotonic()
        self.transactions_count = 0
        self.moved_count = 0
        self._bootstrap = bootstrap
        self._topic = topic
        self._partitions = partitions
        self._seed = seed
        self._writes_per_s = writes_per_s
        self._is_over = threading.Event()
        self._failures: list[BaseException] = []
        work = (self._write, self._write_in_transactions, self._move_leaders)
        self._threads = [threading.Thread(target=self._guarded, args=(each,), daemon=True) for each in work]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(60)

    def check(self) -> None:
        if self._failures:
            raise self._failures[0]

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._failures.append(error)

    def _write(self) -> None:
        """As many a second as were asked for, or as the brokers take: what a moment was too short for is not made up
        for."""
        rng = random.Random(self._seed)
        producer = Producer({"bootstrap.servers": self._bootstrap, "linger.ms": 2, "on_delivery": self._delivered})
        last_s = time.monotonic()
        while not self._is_over.is_set():
            now_s = time.monotonic()
            due = min(1.0, now_s - last_s) * self._writes_per_s
            for _ in range(int(due)):
                value = None if rng.random() < 0.4 else f"{rng.random()}"
                with suppress(BufferError):
                    self._produce(producer, rng, value)
            last_s = now_s - (due - int(due)) / self._writes_per_s
            producer.poll(PAUSE_S)
        producer.flush(30)

    def _delivered(self, error: object, message: object) -> None:
        self.written_count += error is None

    def _write_in_transactions(self) -> None:
        """A producer that meets an error it cannot recover from is replaced, as an application would be."""
        rng = random.Random(self._seed + 1)
        while not self._is_over.is_set():
            producer = Producer({"bootstrap.servers": self._bootstrap, "transactional.id": f"load-{self._seed}"})
            with suppress(KafkaException):
                producer.init_transactions(60)
                while not self._is_over.is_set():
                    self._one_transaction(producer, rng)

    def _one_transaction(self, producer: Producer, rng: random.Random) -> None:
        producer.begin_transaction()
        for _ in range(rng.randrange(1, 10)):
            self._produce(producer, rng, None if rng.random() < 0.4 else f"{rng.random()}")
        producer.flush(30)
        time.sleep(rng.random() / 5)
        if rng.random() < 0.4:
            producer.abort_transaction(60)
        else:
            producer.commit_transaction(60)
        self.transactions_count += 1

    def _produce(self, producer: Producer, rng: random.Random, value: str | None) -> None:
        key = f"k{rng.randrange(KEYS_COUNT)}"
        producer.produce(self._topic, key=key, value=value, partition=rng.randrange(self._partitions))

    def _move_leaders(self) -> None:
        asyncio.run(self._keep_moving())

    async def _keep_moving(self) -> None:
        rng = random.Random(self._seed + 2)
        addresses = tuple((host, int(port)) for host, port in (part.split(":") for part in self._bootstrap.split(",")))
        client = Connecting(addresses).client()
        await client.open()
        admin = Admin(client)
        places = [(self._topic, number) for number in range(self._partitions)]
        while not self._is_over.is_set():
            brokers = sorted(client.metadata.brokers)
            rng.shuffle(brokers)
            try:
                await admin.reassign(dict.fromkeys(places, brokers))
                await asyncio.sleep(MOVE_PAUSE_S / 2)
                await admin.elect_leaders(places)
                self.moved_count += 1
            except SextonError:
                pass  # one that is under way already
            await asyncio.sleep(MOVE_PAUSE_S / 2)
        client.close()


@contextmanager
def load(
    bootstrap: str, topic: str, partitions: int, seed: int = 1, writes_per_s: int = WRITES_PER_S
) -> Iterator[Load]:
    working = Load(bootstrap, topic, partitions, seed, writes_per_s)
    working.start()
    try:
        yield working
    finally:
        working.stop()
    working.check()
