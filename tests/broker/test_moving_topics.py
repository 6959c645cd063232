"""A local topic becomes a cloud topic while it is used, in a broker of which only the ports are stand-ins."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from sexton.adapters.metastore.cloud.checks import read_tables, violations
from sexton.broker.api import create_partitions, delete_records, delete_topics, offset_for_leader_epoch
from sexton.broker.lifecycle import moving
from sexton.broker.resources import Resource, change_settings
from sexton.cloud.replica import CloudReplica
from sexton.ports.cloud import Copied, EpochStart
from sexton.ports.metastore import ConfigScope, MetastoreUnavailableError, PartitionRow, Storage
from sexton.ports.objects import StoreUnavailableError
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.records.batch import Batch, ControlType, Record, decode_all, encode, make_batch
from sexton.records.header import TRANSACTIONAL
from sexton.types import LeaderEpoch
from tests.broker.serving import BOTH_IN_SYNC, BROKER_ID, TOPIC, Client, MemoryDisk, ServingBroker, serving_broker
from tests.broker.test_cloud_topics import create, led, offset_of, read, write
from tests.cloud.worlds import MemoryStore, away, until
from tests.log.helpers import marker, plain

SOON_MS = 60_000


def with_broker(
    work: Callable[[ServingBroker, Client], Coroutine[Any, Any, None]],
    store: MemoryStore | None = None,
    disk: MemoryDisk | None = None,
    **settings: Any,
) -> None:
    """With a local topic "c" of one partition."""

    async def go() -> None:
        broker = await serving_broker(disk, objects=store or MemoryStore(), cloud_linger_ms=1, **settings)
        client = Client(broker)
        assert (await create(client)).error_code == 0
        await until(lambda: is_local(broker) and broker.replica(0, "c").is_leader)
        await work(broker, client)
        assert not broker.supervisor.bugs
        if not broker.supervisor.is_stopping:
            assert list(violations(await broker.metastore.run(read_tables))) == []
            await broker.stop()

    asyncio.run(go())


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "IDLE_MS", 5)


def is_local(broker: ServingBroker) -> bool:
    row = broker.view.partition("c", 0)
    return row is not None and row.storage is Storage.LOCAL and any(one.topic == "c" for one in broker.replicas.all())


def row_of(broker: ServingBroker, partition: int = 0) -> PartitionRow:
    row = broker.view.partition("c", partition)
    assert row is not None
    return row


async def switch(broker: ServingBroker, **more: str) -> None:
    """As a client would, without waiting for what follows."""
    changes = {"storage.mode": "cloud", **{name.replace("_", "."): text for name, text in more.items()}}
    resource = Resource(ConfigScope.TOPIC, "c")
    await change_settings(broker, resource, lambda before: {**before, **changes}, validate_only=False)
    await broker.catch_up()


async def moved(broker: ServingBroker) -> CloudReplica:
    await until(lambda: row_of(broker).is_cloud)
    return await led(broker)


def directories(broker: ServingBroker) -> list[str]:
    return [name for name in broker.disk.list("/data") if name.startswith("c-")]


async def all_of(client: Client, offset: int = 0) -> list[Batch]:
    """What read_committed may see, from that offset on."""
    found: list[Batch] = []
    while (batches := list(decode_all(bytes((await read(client, offset)).records or b"")))) != []:
        found += batches
        offset = batches[-1].next_offset
        if (await offset_of(client, -1)).offset <= offset:
            break
    return found


async def values_of(client: Client, offset: int = 0) -> list[tuple[int, bytes | None]]:
    batches = await all_of(client, offset)
    return [(one.offset, one.value) for batch in batches if not batch.is_control for one in batch.records]


def in_transaction(value: bytes, producer_id: int = 9, sequence: int = 0) -> bytes:
    fields: dict[str, Any] = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequence}
    return plain(value, **fields, attributes=TRANSACTIONAL)


def test_what_was_local_is_read_from_the_store_at_the_same_offsets_and_the_log_is_deleted() -> None:
    async def work(broker: ServingBroker, client: Client) -> None:
        for number in range(20):
            assert (await write(client, plain(b"%d" % number))).error_code == 0
        before = await all_of(client)
        epoch = row_of(broker).leader_epoch
        await switch(broker)
        replica = await moved(broker)
        assert await all_of(client) == before
        assert row_of(broker).leader_epoch == epoch + 1
        assert replica.log.start_offset == 0
        assert (await write(client, plain(b"new"))).base_offset == 20
        await until(lambda: not directories(broker))
        assert not any(one.topic == "c" for one in broker.replicas.all())
        assert (await offset_of(client, -1)).offset == 21

    with_broker(work, cloud_l0_bytes=65_536)


def test_a_log_larger_than_an_object_is_copied_in_stretches() -> None:
    store = MemoryStore()

    async def work(broker: ServingBroker, client: Client) -> None:
        for number in range(6):
            await write(client, plain(b"%d" % number * 40_000))
        await switch(broker)
        await moved(broker)
        assert [offset for offset, _ in await values_of(client)] == list(range(6))
        tables = await broker.metastore.run(read_tables)
        (extents,) = tables.extents.values()
        assert len(extents) == 6

    with_broker(work, store, cloud_l0_bytes=65_536)


def test_an_empty_topic_is_moved() -> None:
    async def work(broker: ServingBroker, client: Client) -> None:
        await switch(broker)
        await moved(broker)
        assert (await write(client, plain(b"first"))).base_offset == 0

    with_broker(work)


def test_a_producer_that_tries_again_is_recognised_over_the_move() -> None:
    async def work(broker: ServingBroker, client: Client) -> None:
        batches = [plain(b"%d" % n, producer_id=5, producer_epoch=0, base_sequence=n) for n in range(7)]
        for batch in batches:
            await write(client, batch)
        await switch(broker)
        await moved(broker)
        for number in range(2, 7):  # the last five of a producer, as in Kafka
            assert (await write(client, batches[number])).base_offset == number
        gap = await write(client, plain(b"8", producer_id=5, producer_epoch=0, base_sequence=8))
        assert gap.error_code == ErrorCode.out_of_order_sequence_number
        following = plain(b"7", producer_id=5, producer_epoch=0, base_sequence=7)
        assert (await write(client, following)).base_offset == 7
        assert (await write(client, following)).base_offset == 7

    with_broker(work)


def test_a_transaction_that_is_open_goes_on_and_one_that_was_aborted_stays_so() -> None:
    async def work(broker: ServingBroker, client: Client) -> None:
        local = broker.replica(0, "c")
        for batch, is_client in (
            (in_transaction(b"no", 8), True),
            (marker(ControlType.ABORT, pid=8), False),
            (in_transaction(b"open", 9), True),
            (plain(b"behind"), True),
        ):
            local.append(batch, 1, broker.clock.now_ms(), from_client=is_client)
        await until(lambda: local.high_watermark == 4)
        assert local.last_stable_offset == 2
        await switch(broker)
        replica = await moved(broker)
        assert (replica.high_watermark, replica.last_stable_offset) == (4, 2)
        (aborted,) = replica.log.aborted_transactions(0, 2)
        assert (aborted.producer_id, aborted.first_offset) == (8, 0)
        assert replica.log.aborted_transactions(2, 4) == []
        replica.append(in_transaction(b"more", 9, sequence=1), -1, broker.clock.now_ms())
        _, future = replica.append(marker(ControlType.COMMIT, pid=9), -1, broker.clock.now_ms(), from_client=False)
        assert future is not None
        await future
        assert replica.last_stable_offset == replica.high_watermark == 6

    with_broker(work)


def test_gaps_that_compaction_left_are_filled_with_batches_without_records() -> None:
    async def work(broker: ServingBroker, client: Client) -> None:
        log = broker.replica(0, "c").log
        kept = [(3, b"a"), (7, None), (8, b"c")]
        batches = [make_batch([Record(at, 1, b"k%d" % at, value)], leader_epoch=0) for at, value in kept]
        log.append_as_follower(b"".join(map(encode, batches)))
        broker.replica(0, "c").flush_and_commit()
        await until(lambda: broker.replica(0, "c").high_watermark == 9)
        await switch(broker)
        await moved(broker)
        assert await values_of(client) == kept
        spans = [(batch.base_offset, batch.next_offset) for batch in await all_of(client)]
        assert spans == [(0, 3), (3, 4), (4, 7), (7, 8), (8, 9)]

    with_broker(work)


@pytest.mark.parametrize("start", [1, 4, 6])
def test_a_log_that_starts_in_the_middle_of_a_batch_starts_there_in_the_store(start: int) -> None:
    async def work(broker: ServingBroker, client: Client) -> None:
        for _ in range(2):
            await write(client, plain(b"a", b"b", b"c"))
        asked = {"name": "c", "partitions": [{"partition_index": 0, "offset": start}]}
        await client.call(delete_records.API_KEY, 1, {"topics": [asked], "timeout": 1000})
        await switch(broker)
        replica = await moved(broker)
        assert (replica.log.start_offset, replica.high_watermark) == (start, 6)
        assert (await offset_of(client, -2)).offset == start
        assert (await read(client, start - 1)).error_code == ErrorCode.offset_out_of_range
        assert (await read(client, start)).error_code == 0

    with_broker(work)


def test_what_is_deleted_while_the_log_is_copied_is_not_there_afterwards() -> None:
    store = MemoryStore()

    async def work(broker: ServingBroker, client: Client) -> None:
        for number in range(8):
            await write(client, plain(b"%d" % number * 40_000))
        store.trouble = away
        await switch(broker)
        await until(lambda: row_of(broker).storage is Storage.MOVING)
        asked = {"name": "c", "partitions": [{"partition_index": 0, "offset": 5}]}
        answer = await client.call(delete_records.API_KEY, 1, {"topics": [asked], "timeout": 1000})
        assert answer.topics[0].partitions[0].low_watermark == 5
        store.trouble = None
        replica = await moved(broker)
        assert replica.log.start_offset == 5
        assert [offset for offset, _ in await values_of(client, 5)] == [5, 6, 7]

    with_broker(work, store, cloud_l0_bytes=65_536)


def test_nothing_is_acknowledged_from_a_sealed_log_and_every_error_can_be_retried() -> None:
    store = MemoryStore()

    async def work(broker: ServingBroker, client: Client) -> None:
        await write(client, plain(b"0"))
        local = broker.replica(0, "c")
        acknowledged = [0]
        errors = set()
        await switch(broker)
        while not row_of(broker).is_cloud or len(acknowledged) < 200:
            answer = await write(client, plain(b"%d" % len(acknowledged)))
            if answer.error_code:
                errors.add(ErrorCode(answer.error_code))
                await asyncio.sleep(0)
            else:
                acknowledged.append(answer.base_offset)
        assert acknowledged == list(range(len(acknowledged)))
        assert errors <= {ErrorCode.not_leader_or_follower}
        await led(broker)
        found = await values_of(client)
        assert [value for _, value in found] == [b"%d" % number for number in acknowledged]
        with pytest.raises(KafkaError):
            local.append(plain(b"late"), 1, 0)

    with_broker(work, store)


def test_a_seal_ends_if_the_store_does_not_answer_and_the_end_is_tried_later() -> None:
    store = MemoryStore()

    async def work(broker: ServingBroker, client: Client) -> None:
        await write(client, plain(b"0"))
        store.trouble = away
        await switch(broker)
        local = broker.replica(0, "c")
        await until(lambda: row_of(broker).storage is Storage.MOVING)
        assert (await write(client, plain(b"1"))).error_code == 0
        assert (await values_of(client)) == [(0, b"0"), (1, b"1")]
        store.trouble = None
        await until(lambda: local.is_sealed or row_of(broker).is_cloud)
        await moved(broker)
        assert (await values_of(client)) == [(0, b"0"), (1, b"1")]

    with_broker(work, store)


def test_a_follower_that_lags_opens_the_log_again() -> None:
    """Nothing is sealed for longer than it takes, and the end waits for who is in sync."""

    async def work(broker: ServingBroker, client: Client) -> None:
        await broker.change(topic="c", replicas=(BROKER_ID, 2), **BOTH_IN_SYNC)
        local = broker.replica(0, "c")
        local.append(plain(b"lags"), 1, broker.clock.now_ms())
        await switch(broker)
        await until(lambda: local.is_sealed)
        broker.clock.ms += SOON_MS
        await until(lambda: not local.is_sealed)
        assert (await write(client, plain(b"more"), acks=1)).error_code == 0
        follower = broker.view.broker(2)
        assert follower is not None
        local.follower_fetched(2, follower.epoch, local.log.end_offset)
        broker.clock.ms += SOON_MS
        await moved(broker)
        assert [value for _, value in await values_of(client)] == [b"lags", b"more"]

    with_broker(work, replica_lag_time_max_ms=3_600_000)


@pytest.mark.parametrize("operation", ["begin_move", "finish_move", "commit_l0", "advance_start"])
@pytest.mark.parametrize("is_carried_out", [True, False])
def test_an_answer_of_the_metastore_that_is_lost_is_asked_for_again(operation: str, is_carried_out: bool) -> None:
    async def work(broker: ServingBroker, client: Client) -> None:
        await write(client, plain(b"0"))
        call = getattr(broker.metastore, operation)
        lost = 0

        async def losing(*args: Any) -> Any:
            nonlocal lost
            lost += 1
            if lost > 2:
                return await call(*args)
            if is_carried_out:
                await call(*args)
            raise MetastoreUnavailableError("no answer")

        setattr(broker.metastore, operation, losing)
        await switch(broker)
        await moved(broker)
        assert await values_of(client) == [(0, b"0")]

    with_broker(work)


def test_a_log_stays_sealed_until_it_is_known_whether_it_was_moved() -> None:
    async def work(broker: ServingBroker, client: Client) -> None:
        await write(client, plain(b"0"))
        local, finish = broker.replica(0, "c"), broker.metastore.finish_move
        is_away, asked = True, 0

        async def finish_move(*args: Any) -> Any:
            nonlocal asked
            asked += 1
            found = await finish(*args)
            if is_away:
                raise MetastoreUnavailableError("no answer")
            return found

        broker.metastore.finish_move = finish_move  # type: ignore[method-assign, assignment]
        await switch(broker)
        await until(lambda: asked > 1)
        broker.clock.ms += SOON_MS
        await asyncio.sleep(0.05)
        assert local.is_sealed
        is_away = False
        await moved(broker)

    with_broker(work)


def test_a_leader_that_is_replaced_leaves_its_copy_to_the_next_one() -> None:
    store = MemoryStore()

    async def work(broker: ServingBroker, client: Client) -> None:
        for number in range(4):
            await write(client, plain(b"%d" % number * 40_000))
        puts = 0

        async def third(operation: str, key: str) -> None:
            nonlocal puts
            puts += operation == "put"
            if puts > 2:
                raise StoreUnavailableError("away", key)

        store.trouble = third
        await switch(broker)
        await until(lambda: puts > 3)
        begun = dict(store.objects)
        await broker.change(topic="c", leader_epoch=row_of(broker).leader_epoch + 1)
        await write(client, plain(b"next"))
        store.trouble = None
        replica = await moved(broker)
        assert begun.items() <= store.objects.items()
        assert [offset for offset, _ in await values_of(client)] == [0, 1, 2, 3, 4]
        assert [one.start_offset for one in replica.log.epochs.entries] == [0, 4, 5]
        (extents,) = (await broker.metastore.run(read_tables)).extents.values()
        kept = {key.rpartition("/")[2] for key in begun}
        assert {str(one.object_id) for one in extents[:2]} <= kept

    with_broker(work, store, cloud_l0_bytes=65_536)


def test_a_leader_that_is_replaced_while_its_turn_comes_claims_nothing() -> None:
    """Found by the simulator: the copy was claimed in the epoch of the next leader, which then was fenced."""
    store = MemoryStore()

    async def work(broker: ServingBroker, client: Client) -> None:
        await write(client, plain(b"0"))
        store.trouble = away
        await switch(broker)
        await until(lambda: row_of(broker).storage is Storage.MOVING)
        claims: list[Any] = []
        claim = broker.metastore.claim_partitions

        async def claim_partitions(*args: Any) -> Any:
            claims.append(args)
            return await claim(*args)

        broker.metastore.claim_partitions = claim_partitions  # type: ignore[method-assign, assignment]
        local, epoch = broker.replica(0, "c"), LeaderEpoch(row_of(broker).leader_epoch + 1)
        local.row = replace(local.row, leader=2, leader_epoch=epoch)  # and its role not yet
        store.trouble = None
        await asyncio.sleep(0.1)
        assert claims == []

    with_broker(work, store)


def test_a_copy_of_another_history_is_begun_anew() -> None:
    """As after an unclean election: the log has other records where the copy ends."""
    store = MemoryStore()

    async def work(broker: ServingBroker, client: Client) -> None:
        local = broker.replica(0, "c")
        await write(client, plain(b"0" * 40_000))
        await write(client, plain(b"lost" * 10_000))
        await write(client, plain(b"lost too" * 5_000))
        puts = 0

        async def third(operation: str, key: str) -> None:
            nonlocal puts
            puts += operation == "put"
            if puts > 2:
                raise StoreUnavailableError("away", key)

        store.trouble = third
        await switch(broker)
        await until(lambda: puts > 3)
        await broker.change(topic="c", leader=2, isr=(2,), leader_epoch=row_of(broker).leader_epoch + 1)
        await local.cut_to(1)
        await broker.change(topic="c", leader=1, isr=(1,), leader_epoch=row_of(broker).leader_epoch + 1)
        await until(lambda: local.is_leader)
        local.append(plain(b"won" * 10_000), 1, broker.clock.now_ms())
        local.append(plain(b"won too" * 5_000), 1, broker.clock.now_ms())
        store.trouble = None
        await moved(broker)
        assert [value for _, value in await values_of(client)] == [b"0" * 40_000, b"won" * 10_000, b"won too" * 5_000]

    with_broker(work, store, cloud_l0_bytes=65_536)


def test_a_copy_that_begins_above_the_log_is_begun_anew() -> None:
    """Its leader died in the middle of giving it up."""
    store = MemoryStore()

    async def work(broker: ServingBroker, client: Client) -> None:
        for number in range(4):
            await write(client, plain(b"%d" % number * 40_000))
        puts = 0

        async def fourth(operation: str, key: str) -> None:
            nonlocal puts
            puts += operation == "put"
            if puts > 3:
                raise StoreUnavailableError("away", key)

        store.trouble = fourth
        await switch(broker)
        await until(lambda: puts > 4)
        epoch = row_of(broker).leader_epoch
        await broker.metastore.advance_start((row_of(broker).topic_id, 0), epoch, 2)
        await broker.change(topic="c", leader_epoch=epoch + 1)
        store.trouble = None
        await moved(broker)
        assert [offset for offset, _ in await values_of(client)] == [0, 1, 2, 3]

    with_broker(work, store, cloud_l0_bytes=65_536)


def test_a_damaged_batch_is_not_copied() -> None:
    async def work(broker: ServingBroker, client: Client) -> None:
        await write(client, plain(b"0" * 70_000))
        log = broker.replica(0, "c").log
        assert isinstance(broker.disk, MemoryDisk)
        ((_, file),) = [one for one in broker.disk.volume.files(log.directory) if one[0].endswith(".log")]
        file.flipped = (500, 1)
        await switch(broker)
        await until(lambda: row_of(broker).storage is Storage.MOVING)
        await asyncio.sleep(0.1)
        assert row_of(broker).storage is Storage.MOVING
        assert directories(broker)

    with_broker(work)


def test_a_topic_that_is_deleted_meanwhile_leaves_nothing() -> None:
    store = MemoryStore()

    async def work(broker: ServingBroker, client: Client) -> None:
        await write(client, plain(b"0"))
        store.trouble = away
        await switch(broker)
        await until(lambda: row_of(broker).storage is Storage.MOVING)
        topic_id = row_of(broker).topic_id
        body = {"topics": [{"name": "c", "topic_id": None}], "timeout_ms": 1000}
        await client.call(delete_topics.API_KEY, 6, body)
        store.trouble = None
        await until(lambda: not directories(broker))
        assert not await broker.metastore.purge_topic(topic_id, 100)
        tables = await broker.metastore.run(read_tables)
        assert not tables.partitions
        assert not tables.extents

    with_broker(work, store)


def test_partitions_that_are_added_to_a_topic_on_its_way_are_in_the_store_from_the_start() -> None:
    store = MemoryStore()

    async def work(broker: ServingBroker, client: Client) -> None:
        await write(client, plain(b"0"))
        store.trouble = away
        await switch(broker)
        topics = [{"name": "c", "count": 2, "assignments": [{"broker_ids": [BROKER_ID]}]}]
        body = {"topics": topics, "timeout_ms": 1000, "validate_only": False}
        await client.call(create_partitions.API_KEY, 2, body)
        assert [row_of(broker, number).storage for number in (0, 1)] == [Storage.MOVING, Storage.CLOUD]
        store.trouble = None
        await moved(broker)

    with_broker(work, store)


def test_the_history_of_leader_epochs_is_taken_along() -> None:
    async def work(broker: ServingBroker, client: Client) -> None:
        await write(client, plain(b"0"))
        await broker.change(topic="c", leader_epoch=5)
        await write(client, plain(b"1"))
        await switch(broker)
        await moved(broker)
        await write(client, plain(b"2"))
        for epoch, end in ((0, 1), (5, 2), (6, 3)):
            asked = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": epoch}
            body = {"replica_id": -1, "topics": [{"topic": "c", "partitions": [asked]}]}
            answer = (await client.call(offset_for_leader_epoch.API_KEY, 4, body)).topics[0].partitions[0]
            assert (answer.leader_epoch, answer.end_offset) == (epoch, end)

    with_broker(work)


def test_watermarks_of_compaction_stand_still_while_a_partition_is_moving() -> None:
    store = MemoryStore()

    async def work(broker: ServingBroker, client: Client) -> None:
        await broker.configure("c", cleanup_policy="compact")
        await broker.change(topic="c", replicas=(BROKER_ID,))
        local = broker.replica(0, "c")
        await write(client, plain(b"0"))
        store.trouble = away
        await switch(broker)
        await until(lambda: row_of(broker).storage is Storage.MOVING)
        before = local.coordination.watermarks.removable
        await local.coordination.committed(1)
        await asyncio.sleep(0.02)
        assert min(local.coordination.watermarks.compacted) == 1
        assert local.coordination.watermarks.removable == before
        store.trouble = None
        await moved(broker)

    with_broker(work, store)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"cleanup_policy": "compact", "compaction_coordination": "independent"}, "compacted independently"),
        ({"max_message_bytes": "20000000"}, "one request to the store"),
    ],
)
def test_what_cannot_be_moved_is_refused_with_the_reason(settings: dict[str, str], reason: str) -> None:
    async def work(broker: ServingBroker, client: Client) -> None:
        await broker.configure("c", **settings)
        with pytest.raises(KafkaError) as refused:
            await switch(broker)
        assert reason in refused.value.message
        assert is_local(broker)

    with_broker(work)


def test_settings_without_meaning_in_the_store_may_stay_and_are_not_set_afterwards() -> None:
    async def work(broker: ServingBroker, client: Client) -> None:
        await broker.configure("c", min_insync_replicas="1", unclean_leader_election_enable="true")
        await switch(broker)
        await moved(broker)
        with pytest.raises(KafkaError):
            await switch(broker, flush_before_ack="false")
        await switch(broker, retention_ms="5000")

    with_broker(work)


def test_internal_topics_stay_local() -> None:
    async def work(broker: ServingBroker, client: Client) -> None:
        await broker.ensure_internal_topic("__consumer_offsets")
        resource = Resource(ConfigScope.TOPIC, "__consumer_offsets")
        with pytest.raises(KafkaError) as refused:
            await change_settings(
                broker, resource, lambda before: {**before, "storage.mode": "cloud"}, validate_only=False
            )
        assert "internal topic" in refused.value.message

    with_broker(work, offsets_topic_replication_factor=1)


def test_a_broker_without_a_store_refuses_and_one_that_only_looks_changes_nothing() -> None:
    async def go() -> None:
        broker = await serving_broker()
        resource = Resource(ConfigScope.TOPIC, TOPIC)
        with pytest.raises(KafkaError) as refused:
            await change_settings(broker, resource, lambda _: {"storage.mode": "cloud"}, validate_only=False)
        assert "needs an object store" in refused.value.message
        await broker.stop()
        store = MemoryStore()
        other = await serving_broker(objects=store)
        await change_settings(other, resource, lambda _: {"storage.mode": "cloud"}, validate_only=True)
        assert not store.objects
        await other.stop()

    asyncio.run(go())


def test_a_broker_that_starts_again_goes_on() -> None:
    disk, store = MemoryDisk(), MemoryStore()

    async def work(broker: ServingBroker, client: Client) -> None:
        await write(client, plain(b"0"))
        store.trouble = away
        await switch(broker)
        await until(lambda: row_of(broker).storage is Storage.MOVING)
        await stopped(broker)
        store.trouble = None
        again = await started_again(broker, store)
        await moved(again)
        assert await values_of(Client(again)) == [(0, b"0")]
        await again.stop()

    with_broker(work, store, disk)


async def stopped(broker: ServingBroker) -> None:
    broker.metastore.outlives_its_broker = True
    await broker.stop()
    broker.metastore.outlives_its_broker = False
    assert directories(broker) == ["c-0"]


async def started_again(broker: ServingBroker, store: MemoryStore | None) -> ServingBroker:
    assert isinstance(broker.disk, MemoryDisk)
    again = ServingBroker(broker.disk, objects=store, metastore=broker.metastore, cloud_linger_ms=1)
    await again.start()
    return again


@pytest.mark.parametrize("has_store", [True, False])
def test_a_log_that_was_moved_while_its_broker_was_down_is_deleted_when_it_starts(has_store: bool) -> None:
    disk, store = MemoryDisk(), MemoryStore()

    async def work(broker: ServingBroker, client: Client) -> None:
        await stopped(broker)
        other, metastore = broker.view.broker(2), broker.metastore
        assert other is not None
        led_there = replace(row_of(broker), leader=2, isr=(2,), replicas=(2, BROKER_ID), leader_epoch=LeaderEpoch(3))
        (row,) = await metastore.update_partitions([led_there])
        assert row is not None
        row = await metastore.begin_move(2, other.epoch, row, 0)
        assert row is not None
        epochs = [EpochStart(LeaderEpoch(3), 0)]
        all_of_it = Copied(start_offset=0, end_offset=0, stable_offset=0, producers=b"", earlier=b"", epochs=epochs)
        row = await metastore.finish_move(2, other.epoch, row, all_of_it)
        assert row is not None
        assert "c-0" in disk.list("/data")
        again = await started_again(broker, store if has_store else None)
        assert not directories(again)
        await again.stop()

    with_broker(work, store, disk)
