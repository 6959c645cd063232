"""aiokafka, on an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka import errors as errors

from tests.drivers.base import (
    ABORT,
    CALL_TIMEOUT_S,
    FATAL,
    FENCED,
    RETRY,
    Failure,
    Place,
    Record,
    Settings,
)

FENCING = ("ProducerFenced", "InvalidProducerEpoch")


@functools.cache
def loop() -> asyncio.AbstractEventLoop:
    running = asyncio.new_event_loop()
    threading.Thread(target=running.run_forever, daemon=True).start()
    return running


def prepare() -> None:
    """Starts the loop, before several threads would."""
    loop()


def wait(work: Coroutine[Any, Any, Any]) -> Any:
    async def limited() -> Any:
        return await asyncio.wait_for(work, CALL_TIMEOUT_S)

    return asyncio.run_coroutine_threadsafe(limited(), loop()).result()


def settings_of(settings: Settings) -> dict[str, Any]:
    return {name.replace(".", "_"): value for name, value in settings.items()}


class Producer:
    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int, settings: Settings) -> None:
        defaults: dict[str, Any] = {
            "bootstrap_servers": bootstrap,
            "transactional_id": transactional_id,
            "transaction_timeout_ms": timeout_ms,
            "linger_ms": 5,
            "retry_backoff_ms": 20,
        }

        async def make() -> AIOKafkaProducer:
            return AIOKafkaProducer(**{**defaults, **settings_of(settings)})

        self._producer = wait(make())
        self._sent: list[Any] = []

    def _told(self, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            return wait(work)
        except errors.KafkaError as raised:
            manager = self._producer._txn_manager
            is_fatal = manager is not None and manager.is_fatal_error()
            name = type(raised).__name__
            if name.startswith(FENCING):
                todo = FENCED
            elif is_fatal or isinstance(raised, errors.IllegalOperation):
                todo = FATAL
            else:
                todo = ABORT
            raise Failure(todo, name, str(raised)) from None
        except TimeoutError as late:
            raise Failure(RETRY, "TimeoutError", str(late)) from None

    def init(self) -> None:
        self._told(self._producer.start())

    def begin(self) -> None:
        self._told(self._producer.begin_transaction())
        self._sent = []

    def send(self, topic: str, partition: int, values: Sequence[bytes]) -> None:
        async def send_all() -> None:
            for value in values:
                self._sent.append(await self._producer.send(topic, value, partition=partition))

        self._told(send_all())

    def flush(self) -> list[int]:
        sent, self._sent = self._sent, []

        async def offsets() -> list[int]:
            await self._producer.flush()
            return [(await each).offset for each in sent]

        found: list[int] = self._told(offsets())
        return found

    def send_offsets(self, offsets: Mapping[Place, int], consumer: Consumer | Frozen) -> None:
        positions = {TopicPartition(*place): offset for place, offset in offsets.items()}
        self._told(self._producer.send_offsets_to_transaction(positions, consumer.group_metadata()))

    def commit(self) -> None:
        self._told(self._producer.commit_transaction())

    def abort(self) -> None:
        self._told(self._producer.abort_transaction())

    def close(self) -> None:
        self._told(self._producer.stop())


class Consumer:
    def __init__(self, bootstrap: str, isolation: str, group: str | None, settings: Settings) -> None:
        self.group = group
        defaults: dict[str, Any] = {
            "bootstrap_servers": bootstrap,
            "isolation_level": isolation,
            "group_id": group,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
            "fetch_max_wait_ms": 100,
        }

        async def make() -> AIOKafkaConsumer:
            made = AIOKafkaConsumer(**{**defaults, **settings_of(settings)})
            await made.start()
            return made

        self.client = wait(make())

    def group_metadata(self) -> Any:
        """The group's name is all that a producer is told."""
        return self.group

    def assign(self, starts: Mapping[Place, int]) -> None:
        async def assign() -> None:
            self.client.assign([TopicPartition(*place) for place in starts])
            for place, offset in starts.items():
                self.client.seek(TopicPartition(*place), offset)

        wait(assign())

    def subscribe(self, topics: Sequence[str]) -> None:
        async def subscribe() -> None:
            self.client.subscribe(list(topics))

        wait(subscribe())

    def poll(self, timeout_s: float) -> list[Record]:
        found = wait(self.client.getmany(timeout_ms=int(timeout_s * 1000), max_records=500))
        return [Record(each.topic, each.partition, each.offset, each.value) for part in found.values() for each in part]

    def assignment(self) -> list[Place]:
        return [(each.topic, each.partition) for each in self.client.assignment()]

    def position(self, place: Place) -> int:
        return int(wait(self.client.position(TopicPartition(*place))))

    def seek(self, place: Place, offset: int) -> None:
        async def seek() -> None:
            self.client.seek(TopicPartition(*place), offset)

        wait(seek())

    def committed(self, place: Place) -> int | None:
        found = wait(self.client.committed(TopicPartition(*place)))
        return None if found is None else int(found)

    def commit(self) -> None:
        wait(self.client.commit())

    def close(self) -> None:
        wait(self.client.stop())


class Frozen:
    """A member of a group as it was: what its producer would tell if it had not heard of a rebalance."""

    def __init__(self, consumer: Consumer) -> None:
        self._metadata = consumer.group_metadata()

    def group_metadata(self) -> Any:
        return self._metadata
