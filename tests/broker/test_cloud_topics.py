"""Cloud topics through a broker's API: made, written, read, and refused with a reason."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, cast

import pytest

from sexton.broker.api import (
    alter_configs,
    create_topics,
    delete_records,
    describe_log_dirs,
    fetch,
    list_offsets,
    produce,
)
from sexton.broker.resources import Resource, change_settings
from sexton.cloud.replica import CloudReplica
from sexton.ports.metastore import ConfigScope
from sexton.ports.object_names import MARKER_KEY
from sexton.ports.objects import StoreRefusedError
from sexton.ports.work_queue import CloudWork
from sexton.protocol import private
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.protocol.private import PrivateApi
from sexton.records.batch import Record, decode_all, encode, make_batch
from tests.broker.serving import BROKER_ID, OTHER_IDS, Client, ServingBroker, batch_of, serving_broker
from tests.cloud.worlds import MemoryStore, away, until
from tests.log.helpers import plain

CLOUD = {"storage.mode": "cloud"}


def with_broker(
    work: Callable[[ServingBroker, Client], Coroutine[Any, Any, None]],
    store: MemoryStore | None = None,
    **settings: Any,
) -> None:
    async def go() -> None:
        broker = await serving_broker(objects=store or MemoryStore(), cloud_linger_ms=1, **settings)
        await work(broker, Client(broker))
        assert not broker.supervisor.bugs
        await broker.stop()

    asyncio.run(go())


async def refusing(operation: str, key: str) -> None:
    raise StoreRefusedError("no permission", key)


async def create(client: Client, name: str = "c", **settings: str) -> Any:
    configs = [{"name": key.replace("_", "."), "value": value} for key, value in settings.items()]
    topic = {
        "name": name,
        "num_partitions": -1,
        "replication_factor": -1,
        "assignments": [{"partition_index": 0, "broker_ids": [BROKER_ID]}],
        "configs": configs,
    }
    body = {"topics": [topic], "timeout": 10_000, "validate_only": False}
    return (await client.call(create_topics.API_KEY, 5, body)).topics[0]


async def led(broker: ServingBroker, name: str = "c") -> CloudReplica:
    def is_led() -> bool:
        return broker.replicas.cloud is not None and getattr(broker.replicas.cloud.get(name, 0), "is_leader", False)

    await until(is_led)
    replica = broker.replicas.leader(name, 0)
    assert isinstance(replica, CloudReplica)
    return replica


async def write(client: Client, batch: bytes, acks: int = -1, timeout: int = 5_000) -> Any:
    partition = {"index": 0, "records": batch}
    body = {
        "transactional_id": None,
        "acks": acks,
        "timeout": timeout,
        "topic_data": [{"name": "c", "partition_data": [partition]}],
    }
    return (await client.call(produce.API_KEY, 9, body)).responses[0].partition_responses[0]


async def read(client: Client, offset: int = 0) -> Any:
    partition = {
        "partition": 0,
        "current_leader_epoch": -1,
        "fetch_offset": offset,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": 1 << 20,
    }
    body = {
        "replica_id": -1,
        "max_wait": 5_000,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "isolation_level": 1,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic": "c", "partitions": [partition]}],
        "forgotten_topics_data": [],
        "rack_id": "",
    }
    return (await client.call(fetch.API_KEY, 12, body)).responses[0].partitions[0]


async def offset_of(client: Client, timestamp: int) -> Any:
    asked = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
    body = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": "c", "partitions": [asked]}]}
    return (await client.call(list_offsets.API_KEY, 7, body)).topics[0].partitions[0]


def test_what_is_produced_to_a_cloud_topic_is_in_the_store_and_can_be_consumed() -> None:
    async def work(broker: ServingBroker, client: Client) -> None:
        assert (await create(client, storage_mode="cloud")).error_code == 0
        await led(broker)
        for number, acks in enumerate((-1, 1)):
            assert (await write(client, batch_of(b"%d" % number, number), acks)).base_offset == number
        store = broker.objects
        assert isinstance(store, MemoryStore)
        assert len([key for key in store.objects if key != MARKER_KEY]) == 2
        answer = await read(client)
        assert [record.value for batch in decode_all(bytes(answer.records)) for record in batch.records] == [b"0", b"1"]
        assert (answer.high_watermark, answer.last_stable_offset) == (2, 2)
        found = [(await offset_of(client, time)).offset for time in (-1, -2, 1, 2, -3)]
        assert found == [2, 0, 1, -1, 1]

    with_broker(work)


def test_a_fetch_is_answered_when_the_store_has_sent_what_it_asks_for() -> None:
    store = MemoryStore()

    async def work(broker: ServingBroker, client: Client) -> None:
        await create(client, storage_mode="cloud")
        replica = await led(broker)
        await write(client, batch_of(b"cold"))
        assert broker.replicas.cloud is not None
        broker.replicas.cloud.parts.cache.clear()

        async def slow(operation: str, key: str) -> None:
            await asyncio.sleep(0.02)

        store.trouble = slow
        answer = await read(client)
        assert [batch.base_offset for batch in decode_all(bytes(answer.records))] == [0]
        assert len(store.gets) == 1
        assert replica.high_watermark == 1

    with_broker(work, store)


def test_a_store_that_is_away_is_a_timeout_and_the_retry_is_recognised() -> None:
    store = MemoryStore()

    async def work(broker: ServingBroker, client: Client) -> None:
        await create(client, storage_mode="cloud")
        await led(broker)
        store.trouble = away
        batch = plain(b"v", producer_id=5, producer_epoch=0, base_sequence=0)
        late = await write(client, batch, timeout=20)
        assert (late.error_code, late.base_offset) == (ErrorCode.request_timed_out, -1)
        store.trouble = None
        again = await write(client, batch)
        assert (again.error_code, again.base_offset) == (0, 0)
        assert broker.replicas.leader("c", 0).high_watermark == 1

    with_broker(work, store)


def test_delete_records_of_a_cloud_topic() -> None:
    async def work(broker: ServingBroker, client: Client) -> None:
        await create(client, storage_mode="cloud")
        await led(broker)
        await write(client, plain(b"a", b"b"))
        asked = {"name": "c", "partitions": [{"partition_index": 0, "offset": 1}]}
        answer = await client.call(delete_records.API_KEY, 1, {"topics": [asked], "timeout": 1000})
        assert answer.topics[0].partitions[0].low_watermark == 1
        assert (await read(client, 0)).error_code == ErrorCode.offset_out_of_range
        assert (await read(client, 1)).error_code == 0

    with_broker(work)


def test_the_store_is_a_log_directory_with_the_size_of_what_is_led() -> None:
    async def work(broker: ServingBroker, client: Client) -> None:
        await create(client, storage_mode="cloud")
        await led(broker)
        await write(client, plain(b"v" * 500))
        asked = [{"topic": "c", "partitions": [0]}]
        folder, store = (await client.call(describe_log_dirs.API_KEY, 4, {"topics": asked})).results
        assert folder.topics == ()
        assert (store.log_dir, store.total_bytes) == (broker.objects.place if broker.objects else "", -1)
        (partition,) = store.topics[0].partitions
        assert partition.partition_size > 500

    with_broker(work)


def test_a_broker_that_resigns_serves_nothing_and_leads_again_in_another_epoch() -> None:
    async def work(broker: ServingBroker, client: Client) -> None:
        await create(client, storage_mode="cloud")
        await led(broker)
        await write(client, batch_of(b"a"))
        await broker.change(topic="c", leader=2, replicas=(1, 2), isr=(1, 2), leader_epoch=1)
        assert (await write(client, batch_of(b"b"))).error_code == ErrorCode.not_leader_or_follower
        await broker.change(topic="c", leader=BROKER_ID, leader_epoch=2)
        await led(broker)
        assert (await write(client, batch_of(b"b"))).base_offset == 1

    with_broker(work)


def test_the_default_mode_of_a_broker_is_for_topics_that_clients_make_and_not_for_internal_ones() -> None:
    async def work(broker: ServingBroker, client: Client) -> None:
        await create(client)
        await led(broker)
        row = broker.view.partition("c", 0)
        assert row is not None
        assert row.is_cloud
        await broker.ensure_internal_topic("__consumer_offsets")
        offsets = broker.view.partition("__consumer_offsets", 0)
        assert offsets is not None
        assert not offsets.is_cloud

    with_broker(work, default_storage_mode="cloud", offsets_topic_replication_factor=1)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("min_insync_replicas", "2", "the store has it"),
        ("unclean_leader_election_enable", "true", "none can lose"),
        ("flush_before_ack", "false", "the store has it"),
        ("max_message_bytes", str(9 << 20), "one request"),
    ],
)
def test_what_has_no_meaning_for_a_cloud_topic_is_refused_with_the_reason(name: str, value: str, reason: str) -> None:
    async def work(broker: ServingBroker, client: Client) -> None:
        answer = await create(client, storage_mode="cloud", **{name: value})
        assert answer.error_code == ErrorCode.invalid_config
        assert reason in answer.error_message

    with_broker(work)


def test_a_cloud_topic_without_a_store_is_refused_with_the_remedy() -> None:
    async def go() -> None:
        broker = await serving_broker()
        answer = await create(Client(broker), storage_mode="cloud")
        assert answer.error_code == ErrorCode.invalid_config
        assert "set cloud.store.url" in answer.error_message
        await broker.stop()

    asyncio.run(go())


def test_a_store_of_another_cluster_is_refused() -> None:
    store = MemoryStore()
    store.objects[MARKER_KEY] = b'{"cluster_id": "00000000-0000-0000-0000-0000000000aa", "format_version": 1}'

    async def work(broker: ServingBroker, client: Client) -> None:
        answer = await create(client, storage_mode="cloud")
        assert answer.error_code == ErrorCode.invalid_config
        assert "belongs to cluster" in answer.error_message

    with_broker(work, store)


def test_a_store_without_the_clusters_marker_is_refused_once_cloud_topics_exist() -> None:
    store = MemoryStore()

    async def work(broker: ServingBroker, client: Client) -> None:
        await create(client, storage_mode="cloud")
        del store.objects[MARKER_KEY]
        answer = await create(client, "d", storage_mode="cloud")
        assert answer.error_code == ErrorCode.invalid_config
        assert "Set cloud.store.url to where the cloud topics are" in answer.error_message
        assert MARKER_KEY not in store.objects

    with_broker(work, store)


@pytest.mark.parametrize(
    ("trouble", "code", "told"),
    [
        (away, ErrorCode.request_timed_out, "does not answer"),
        (refusing, ErrorCode.invalid_config, "no permission"),
    ],
)
def test_a_store_that_cannot_be_used_is_told_when_a_topic_is_made(trouble: Any, code: ErrorCode, told: str) -> None:
    store = MemoryStore()

    async def troubled(key: str, data: bytes) -> bytes:
        await trouble("put", key)
        return data

    store.create_marker = troubled  # type: ignore[method-assign]

    async def work(broker: ServingBroker, client: Client) -> None:
        answer = await create(client, storage_mode="cloud")
        assert answer.error_code == code
        assert told in answer.error_message
        assert broker.view.topic("c") is None

    with_broker(work, store)


def test_a_batch_above_the_limit_is_refused_and_the_next_one_is_taken() -> None:
    async def work(broker: ServingBroker, client: Client) -> None:
        await create(client, storage_mode="cloud", max_message_bytes="1000")
        await led(broker)
        large = await write(client, plain(b"v" * 2000))
        assert (large.error_code, large.base_offset) == (ErrorCode.message_too_large, -1)
        assert (await write(client, plain(b"v"))).base_offset == 0

    with_broker(work)


def test_a_broker_without_a_store_leaves_cloud_partitions_to_others() -> None:
    async def go() -> None:
        broker = await serving_broker()
        await broker.add_topic("c", uuid.UUID(int=8), settings=CLOUD)
        await broker.apply_failed()
        row = broker.view.partition("c", 0)
        assert row is not None
        assert row.leader in OTHER_IDS
        assert row.replicas[0] == row.leader
        await broker.stop()

    asyncio.run(go())


def test_a_cloud_topic_cannot_become_local() -> None:
    async def work(broker: ServingBroker, client: Client) -> None:
        await create(client, storage_mode="cloud")
        resource = Resource(ConfigScope.TOPIC, "c")
        settings: dict[str, str]
        for settings in ({"storage.mode": "local"}, {}):
            with pytest.raises(KafkaError) as refused:
                await change_settings(broker, resource, partial(_given, settings), validate_only=False)
            assert "there is no way back" in refused.value.message
        after = {**CLOUD, "retention.ms": "1000"}
        await change_settings(broker, resource, lambda _: after, validate_only=False)
        await broker.catch_up()
        assert (await led(broker)).config.retention_ms == 1000

    with_broker(work)


def test_who_replaces_all_settings_of_a_topic_leaves_its_data_where_it_is() -> None:
    async def work(broker: ServingBroker, client: Client) -> None:
        await create(client, storage_mode="cloud", retention_ms="7")
        entries = [{"name": "cleanup.policy", "value": "delete"}]
        resource = {"resource_type": 2, "resource_name": "c", "configs": entries}
        body = {"resources": [resource], "validate_only": False}
        assert (await client.call(alter_configs.API_KEY, 1, body)).responses[0].error_code == 0
        await broker.catch_up()
        assert (await led(broker)).config.retention_ms != 7
        row = broker.view.partition("c", 0)
        assert row is not None
        assert row.is_cloud

    with_broker(work)


def _given(settings: dict[str, str], _: object) -> dict[str, str]:
    return settings


def keyed(value: bytes) -> bytes:
    return encode(make_batch([Record(0, 1_700_000_000_000, b"k", value)], leader_epoch=-1))


async def ask(broker: ServingBroker, api_key: int, body: dict[str, Any]) -> Any:
    (part,) = await broker.compaction_requests.handlers()[api_key](None, memoryview(private.encode(body)))
    return private.decode_answer(cast(bytes, part), "")


def test_operators_see_compacted_cloud_partitions_in_the_same_table_and_ask_for_them() -> None:
    async def work(broker: ServingBroker, client: Client) -> None:
        await create(client, storage_mode="cloud", cleanup_policy="compact,delete")
        await led(broker)
        await write(client, keyed(b"old"))
        await write(client, keyed(b"new"))
        (one,) = (await ask(broker, PrivateApi.COMPACTION_STATUS, {}))["replicas"]
        assert (one["broker"], one["topic"], one["partition"], one["role"]) == ("store", "c", 0, "leader")
        assert (one["mcco"], one["log_end_offset"], one["mtro"]) == (0, 2, 2)
        assert await broker.metastore.read_work() == []
        told = await ask(broker, PrivateApi.COMPACTION_REQUEST, {"topic": "c", "partition": None})
        assert told == {"partitions": [], "in_store": [0]}
        (row,) = await broker.metastore.read_work()
        assert row.is_requested
        assert row.key.broker_id == CloudWork.COMPACT

    with_broker(work)
