"""Requests to the store are counted by what became of them, and told in a broker's metrics."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sexton.broker.observe.metrics import metrics
from sexton.cloud.metered import CloudStats, Ended, MeteredStore
from sexton.errors import DamagedObjectError
from sexton.ports.metastore import ControllerRow
from sexton.ports.objects import ObjectMissingError, StoreRefusedError, StoreUnavailableError
from tests.broker.serving import Client, ManualClock, ServingBroker, batch_of, serving_broker
from tests.broker.test_cloud_topics import create, led, read, with_broker, write
from tests.cloud.worlds import MemoryStore


@pytest.mark.parametrize(
    ("error", "ended"),
    [
        (StoreUnavailableError, Ended.UNAVAILABLE),
        (StoreRefusedError, Ended.REFUSED),
        (ObjectMissingError, Ended.MISSING),
        (DamagedObjectError, Ended.DAMAGED),
    ],
)
def test_a_request_that_fails_is_counted_by_its_error(error: type[Exception], ended: Ended) -> None:
    stats, inner, clock = CloudStats(), MemoryStore(), ManualClock()
    store = MeteredStore(inner, stats, clock)

    async def trouble(operation: str, key: str) -> None:
        raise error("what", "where")

    async def go() -> None:
        await store.put("a", b"12345")
        inner.trouble = trouble
        with pytest.raises(error):
            await store.get("a", 0, 5)
        inner.trouble = None
        await store.get("a", 1, 3)
        assert await store.delete(["a", "b"]) == ["a", "b"]

    asyncio.run(go())
    assert +stats.requests == {("put", Ended.OK): 1, ("get", ended): 1, ("get", Ended.OK): 1, ("delete", Ended.OK): 2}
    assert (stats.put_bytes, stats.got_bytes) == (5, 3)
    assert (sum(stats.puts.counts), sum(stats.gets.counts)) == (1, 1)


def decides(broker: ServingBroker, broker_id: int) -> None:
    broker.view.controller = ControllerRow(broker_id, 1, 1)


def test_metrics_tell_what_cloud_topics_cost_and_how_they_are() -> None:
    async def work(broker: ServingBroker, client: Client) -> None:
        await create(client, storage_mode="cloud")
        await led(broker)
        await write(client, batch_of(b"v"))
        await read(client)
        decides(broker, broker.config.node_id)
        lines = (await metrics(broker)).decode().splitlines()
        told = dict(line.rsplit(" ", 1) for line in lines if line.startswith("sexton_cloud"))
        assert told["sexton_cloud_partitions_led"] == "1"
        assert told['sexton_cloud_requests_total{operation="put",outcome="ok"}'] in ("1", "2")
        assert told['sexton_cloud_requests_total{operation="get",outcome="ok"}'] == "1"  # the store's marker
        assert told['sexton_cloud_reads_total{from="memory"}'] == "1"
        assert told["sexton_cloud_pending_bytes"] == "0"
        assert told["sexton_cloud_missing_objects_total"] == "0"
        assert told['sexton_cloud_seconds_count{operation="commit"}'] == "1"
        assert told['sexton_cloud_objects{level="L0",state="live"}'] == "1"
        assert int(told['sexton_cloud_object_bytes{level="L0",state="live"}']) > 61
        assert float(told["sexton_cloud_unleveled_seconds"]) >= 0
        assert told["sexton_cloud_pins"] == "0"

    with_broker(work)


def test_what_is_in_the_store_is_told_by_the_controller_alone_and_read_now_and_then() -> None:
    async def work(broker: ServingBroker, client: Client) -> None:
        await create(client, storage_mode="cloud")
        await led(broker)
        asked, sum_objects = [], broker.metastore.sum_objects

        async def counted() -> Any:
            asked.append(1)
            return await sum_objects()

        broker.metastore.sum_objects = counted  # type: ignore[method-assign]
        decides(broker, broker.config.node_id)
        for _ in range(3):
            assert b"sexton_cloud_pins 0" in await metrics(broker)
        assert len(asked) == 1
        decides(broker, broker.config.node_id + 1)
        assert b"sexton_cloud_pins" not in await metrics(broker)

    with_broker(work)


def test_a_broker_without_a_store_tells_nothing_of_it() -> None:
    async def go() -> None:
        broker = await serving_broker()
        assert b"sexton_cloud" not in await metrics(broker)
        await broker.stop()

    asyncio.run(go())
