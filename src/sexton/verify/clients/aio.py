"""aiokafka, on an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import functools
import importlib
import importlib.util
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka import __version__ as aiokafka_version
from aiokafka import errors as errors
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from sexton.verify.clients import secured
from sexton.verify.clients.alike import POLL_RECORDS_MAX, TIMESTAMP_TYPES, Moves, messages_of, records_of
from sexton.verify.clients.base import (
    ABORT,
    ALTER_GROUP_OFFSETS,
    CALL_TIMEOUT_S,
    DELETE_GROUP,
    FATAL,
    FENCED,
    INCREMENTAL,
    INVALID_RECORD,
    NULL_PAIRS,
    RETRY,
    ZSTD_TOPICS,
    Attributes,
    Failure,
    Frozen,
    Group,
    GroupMember,
    Headers,
    Message,
    Nodes,
    Place,
    Record,
    Refused,
    Replicas,
    Settings,
    Written,
)

if TYPE_CHECKING:
    from sexton.client.security.properties import Security

POLL_S = 0.1
ISOLATION = "read_uncommitted"
EAGER: Settings = {}
COOPERATIVE: Settings = {}  # it has nothing of the kind

# Before 0.9 aiokafka borrowed these classes from kafka-python.
kinds: Any = importlib.import_module(
    "aiokafka.admin" if importlib.util.find_spec("aiokafka.protocol.types") else "kafka.admin"
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


def on_loop(action: Callable[..., Any], *arguments: Any) -> Any:
    """Calls what is no coroutine but expects to be called on the loop."""

    async def call() -> Any:
        return action(*arguments)

    return wait(call())


def answered(work: Coroutine[Any, Any, Any]) -> Any:
    try:
        return wait(work)
    except errors.KafkaError as raised:
        raise Refused(getattr(raised, "errno", None), type(raised).__name__) from None


def check(code: int) -> None:
    """Of a response that the client returns as it came."""
    if code != 0:
        raise Refused(code, errors.for_code(code).__name__)


def settings_of(settings: Settings) -> dict[str, Any]:
    found: dict[str, Any] = {name.replace(".", "_"): value for name, value in settings.items()}
    if "batch_size" in found:
        found["max_batch_size"] = found.pop("batch_size")
    if found.get("compression_type") == "none":
        found["compression_type"] = None
    return found


def lacks() -> frozenset[str]:
    old = {ZSTD_TOPICS} if aiokafka_version.startswith("0.8") else set()
    return frozenset({NULL_PAIRS, INVALID_RECORD, INCREMENTAL, DELETE_GROUP, ALTER_GROUP_OFFSETS, *old})


def produce(
    bootstrap: str, topic: str, values: Iterable[bytes | None], given: Attributes, settings: Settings
) -> list[Written]:
    options = {"key": given.key, "partition": given.partition, "headers": list(given.headers)}

    async def send_all() -> list[Any]:
        defaults: dict[str, Any] = {"bootstrap_servers": bootstrap, "linger_ms": 5, "acks": "all"}
        producer = AIOKafkaProducer(**{**defaults, **settings_of(settings)})
        await producer.start()
        try:
            futures = [await producer.send(topic, value=value, timestamp_ms=given.at_ms, **options) for value in values]
            return [await future for future in futures]
        finally:
            await producer.stop()

    return [
        Written(each.partition, each.offset, each.timestamp, TIMESTAMP_TYPES[each.timestamp_type])
        if each is not None
        else Written(-1, -1, -1, None)
        for each in answered(send_all())
    ]


class Producer:
    def __init__(
        self,
        bootstrap: str,
        transactional_id: str,
        timeout_ms: int,
        settings: Settings,
        security: Security | None = None,
    ) -> None:
        defaults: dict[str, Any] = {
            "bootstrap_servers": bootstrap,
            "linger_ms": 5,
            "retry_backoff_ms": 20,
        }
        if transactional_id:
            defaults |= {"transactional_id": transactional_id, "transaction_timeout_ms": timeout_ms}
        else:
            defaults["enable_idempotence"] = True

        async def make() -> AIOKafkaProducer:
            return AIOKafkaProducer(**{**defaults, **settings_of(settings), **secured.python(security)})

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

    def send(
        self,
        topic: str,
        partition: int,
        values: Sequence[bytes | None],
        key: bytes | None = None,
        headers: Headers = (),
    ) -> None:
        options = {"partition": partition, "key": key, "headers": list(headers)}

        async def send_all() -> None:
            for value in values:
                self._sent.append(await self._producer.send(topic, value, **options))

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


class _Moves(Moves, ConsumerRebalanceListener):  # type: ignore[misc]
    """Called on the loop, while nobody else asks for anything."""


class Consumer:
    def __init__(
        self,
        bootstrap: str,
        isolation: str,
        group: str | None,
        settings: Settings,
        security: Security | None = None,
    ) -> None:
        self.group = group
        defaults: dict[str, Any] = {
            "bootstrap_servers": bootstrap,
            "isolation_level": isolation,
            "group_id": group,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
            "fetch_max_wait_ms": 100,
            "max_poll_records": POLL_RECORDS_MAX,
        }
        self._moves = _Moves()

        async def make() -> AIOKafkaConsumer:
            made = AIOKafkaConsumer(**{**defaults, **settings_of(settings), **secured.python(security)})
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
        on_loop(self.client.subscribe, list(topics), None, self._moves)

    def subscribe_pattern(self, pattern: str, by_broker: bool) -> None:
        assert not by_broker
        on_loop(self.client.subscribe, (), pattern)

    def _poll(self, timeout_s: float) -> list[Any]:
        found = wait(self.client.getmany(timeout_ms=int(timeout_s * 1000)))
        return [each for part in found.values() for each in part]

    def poll(self, timeout_s: float) -> list[Record]:
        return records_of(self._poll(timeout_s))

    def poll_messages(self, timeout_s: float) -> list[Message]:
        return messages_of(self._poll(timeout_s))

    def assignment(self) -> list[Place]:
        return [(each.topic, each.partition) for each in self.client.assignment()]

    def rebalanced(self) -> list[Place]:
        found: list[Place] = on_loop(self._moves.take)
        return found

    def generation(self) -> int:
        return int(getattr(self.client._coordinator, "generation", -1))

    def position(self, place: Place) -> int:
        return int(wait(self.client.position(TopicPartition(*place))))

    def seek(self, place: Place, offset: int) -> None:
        on_loop(self.client.seek, TopicPartition(*place), offset)

    def seek_to_beginning(self, place: Place) -> None:
        wait(self.client.seek_to_beginning(TopicPartition(*place)))

    def seek_to_end(self, place: Place) -> None:
        wait(self.client.seek_to_end(TopicPartition(*place)))

    def pause(self, place: Place) -> None:
        on_loop(self.client.pause, TopicPartition(*place))

    def resume(self, place: Place) -> None:
        on_loop(self.client.resume, TopicPartition(*place))

    def bounds(self, place: Place) -> tuple[int, int]:
        partition = TopicPartition(*place)
        first = wait(self.client.beginning_offsets([partition]))[partition]
        return first, wait(self.client.end_offsets([partition]))[partition]

    def offset_at(self, place: Place, time_ms: int) -> int | None:
        partition = TopicPartition(*place)
        found = wait(self.client.offsets_for_times({partition: time_ms}))[partition]
        return None if found is None else int(found.offset)

    def committed(self, place: Place) -> int | None:
        found = wait(self.client.committed(TopicPartition(*place)))
        return None if found is None else int(found)

    def commit(self) -> None:
        wait(self.client.commit())

    def commit_offsets(self, offsets: Mapping[Place, int], metadata: str) -> None:
        wait(self.client.commit({TopicPartition(*place): (offset, metadata) for place, offset in offsets.items()}))

    def leave(self) -> None:
        wait(self.client.stop())

    def close(self) -> None:
        wait(self.client.stop())


class Admin:
    def __init__(self, bootstrap: str, security: Security | None = None) -> None:
        async def make() -> AIOKafkaAdminClient:
            made = AIOKafkaAdminClient(bootstrap_servers=bootstrap, **secured.python(security))
            await made.start()
            return made

        self.client = wait(make())

    def create(self, topic: str, partitions: int, replication: int, config: Mapping[str, str]) -> None:
        new = NewTopic(topic, partitions, replication, topic_configs=dict(config))
        ((_, code, *_),) = answered(self.client.create_topics([new])).topic_errors
        check(code)

    def delete(self, topic: str) -> None:
        ((_, code),) = answered(self.client.delete_topics([topic])).topic_error_codes
        check(code)

    def topics(self) -> list[str]:
        return list(answered(self.client.list_topics()))

    def describe(self, topic: str) -> dict[int, Replicas]:
        (found,) = answered(self.client.describe_topics([topic]))
        check(found["error_code"])
        return {each["partition"]: Replicas(each["replicas"], each["isr"]) for each in found["partitions"]}

    def config(self, topic: str) -> dict[str, str]:
        (response,) = answered(self.client.describe_configs([kinds.config_resource.ConfigResource("topic", topic)]))
        ((code, *_, entries),) = response.resources
        check(code)
        return {entry[0]: entry[1] for entry in entries}

    def alter(self, topic: str, config: Mapping[str, str]) -> None:
        resource = kinds.config_resource.ConfigResource("topic", topic, dict(config))
        (response,) = answered(self.client.alter_configs([resource]))
        ((code, *_),) = response.resources
        check(code)

    def add_partitions(self, topic: str, total: int) -> None:
        response = answered(self.client.create_partitions({topic: kinds.NewPartitions(total)}))
        ((_, code, *_),) = response.topic_errors
        check(code)

    def delete_records(self, place: Place, before: int) -> int:
        asked = kinds.RecordsToDelete(before_offset=before)
        return int(answered(self.client.delete_records({TopicPartition(*place): asked}))[TopicPartition(*place)])

    def groups(self) -> list[str]:
        return [name for name, *_ in answered(self.client.list_consumer_groups())]

    def describe_group(self, group: str) -> Group:
        (response,) = answered(self.client.describe_consumer_groups([group]))
        ((code, name, state, _, _, members, *_),) = response.groups
        check(code)
        assert name == group
        return Group(state, [GroupMember(client_id, None) for _, client_id, *_ in members])

    def group_offsets(self, group: str) -> dict[Place, int]:
        found = answered(self.client.list_consumer_group_offsets(group))
        return {tuple(partition): each.offset for partition, each in found.items()}

    def describe_cluster(self) -> Nodes:
        found = answered(self.client.describe_cluster())
        return Nodes([each["node_id"] for each in found["brokers"]], found["controller_id"], found["cluster_id"])

    def close(self) -> None:
        wait(self.client.close())
