"""ListOffsets, OffsetForLeaderEpoch, InitProducerId and ApiVersions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sexton.broker import api
from sexton.protocol.errors import ErrorCode
from sexton.protocol.messages import known_versions
from tests.broker.serving import BOTH_IN_SYNC, OTHER_LEADS, TOPIC, Client, ServingBroker, serving_broker

LIST_OFFSETS, API_VERSIONS, INIT_PRODUCER_ID, OFFSET_FOR_LEADER_EPOCH = 2, 18, 22, 23
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, PENDING_UPLOAD = range(-1, -7, -1)


async def full_broker() -> ServingBroker:
    """Offsets 2 to 5 are of epoch 1, 6 to 9 of epoch 3. The last is not committed, a transaction is open from 8 on."""
    broker = await serving_broker()
    await broker.change(leader_epoch=1)
    await broker.write(*[b"x"] * 6)
    await broker.change(leader_epoch=3)
    await broker.write(*[b"x"] * 2)
    broker.append_in_transaction(44)
    await broker.write()
    await broker.replica().delete_records(2)
    await broker.change(**BOTH_IN_SYNC)
    broker.append(b"x")
    return broker


async def listed(client: Client, version: int, timestamp: int, **more: Any) -> Any:
    asked = {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1, **more}
    body = {"replica_id": -1, **more, "topics": [{"name": TOPIC, "partitions": [asked]}]}
    (topic,) = (await client.call(LIST_OFFSETS, version, body)).topics
    (found,) = topic.partitions
    return found


@pytest.mark.parametrize("version", range(1, 12))
async def test_special_places_and_times(version: int) -> None:
    client = Client(await full_broker())
    for timestamp, since, expected in (
        (LATEST, 1, (-1, 9, 3)),
        (EARLIEST, 1, (-1, 2, 1)),
        (5, 1, (5, 5, 1)),
        (100, 1, (-1, -1, -1)),
        (MAX_TIMESTAMP, 7, (8, 8, 3)),
        (EARLIEST_LOCAL, 8, (-1, 2, 1)),
        (LATEST_TIERED, 9, (-1, -1, -1)),
        (PENDING_UPLOAD, 11, (-1, -1, -1)),
    ):
        found = await listed(client, version, timestamp)
        if version < since:
            assert found.error_code is ErrorCode.unsupported_version
            continue
        assert found.error_code is ErrorCode.none
        assert (found.timestamp, found.offset) == expected[:2]
        if version >= 4:
            assert found.leader_epoch == expected[2]


async def test_read_committed_ends_at_the_last_stable_offset() -> None:
    client = Client(await full_broker())
    assert (await listed(client, 5, LATEST, isolation_level=1)).offset == 8
    assert (await listed(client, 5, 8, isolation_level=1)).offset == -1


async def test_list_offsets_refuses_what_it_must() -> None:
    broker = await full_broker()
    client = Client(broker)
    assert (await listed(client, 5, LATEST, partition_index=99)).error_code is ErrorCode.unknown_topic_or_partition
    assert (await listed(client, 5, LATEST, current_leader_epoch=2)).error_code is ErrorCode.fenced_leader_epoch
    assert (await listed(client, 5, LATEST, current_leader_epoch=4)).error_code is ErrorCode.unknown_leader_epoch
    assert (await listed(client, 5, -77)).error_code is ErrorCode.unsupported_version
    await broker.change(**OTHER_LEADS)
    assert (await listed(client, 5, LATEST)).error_code is ErrorCode.not_leader_or_follower
    assert (await listed(client, 5, LATEST, replica_id=-2)).offset == 9


async def test_new_leader_that_does_not_know_what_is_committed_says_so() -> None:
    broker = await serving_broker()
    await broker.write(*[b"x"] * 5)
    await broker.replica().delete_records(2)
    await broker.change(**BOTH_IN_SYNC)
    broker.append(b"x")
    await broker.change(leader_epoch=1)
    client = Client(broker)
    assert (await listed(client, 5, LATEST)).error_code is ErrorCode.offset_not_available
    assert (await listed(client, 4, LATEST)).error_code is ErrorCode.leader_not_available
    assert (await listed(client, 5, EARLIEST)).offset == 2


@pytest.mark.parametrize("version", range(2, 5))
async def test_end_of_an_epoch(version: int) -> None:
    broker = await full_broker()
    client = Client(broker)

    async def ended(epoch: int, **more: Any) -> Any:
        asked = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": epoch, **more}
        body = {"replica_id": -1, "topics": [{"topic": TOPIC, "partitions": [asked]}]}
        (topic,) = (await client.call(OFFSET_FOR_LEADER_EPOCH, version, body)).topics
        return topic.partitions[0]

    for epoch, expected in ((1, (1, 6)), (2, (1, 6)), (3, (3, 10)), (4, (-1, -1))):
        found = await ended(epoch)
        assert (found.leader_epoch, found.end_offset) == expected
    assert (await ended(1, current_leader_epoch=2)).error_code is ErrorCode.fenced_leader_epoch
    assert (await ended(1, partition=50)).error_code is ErrorCode.unknown_topic_or_partition
    await broker.change(**OTHER_LEADS)
    assert (await ended(1)).error_code is ErrorCode.not_leader_or_follower


@pytest.mark.parametrize("version", range(6))
async def test_every_idempotent_producer_gets_an_id_of_its_own(version: int) -> None:
    broker = await serving_broker()
    client = Client(broker)
    given = [await client.call(INIT_PRODUCER_ID, version, {"transactional_id": None})]
    broker.metastore.is_away = True  # ids are allocated in blocks: it is not asked for each
    given += [await client.call(INIT_PRODUCER_ID, version, {"transactional_id": None}) for _ in range(2)]
    first = given[0].producer_id
    assert first >= 0
    assert [(answer.producer_id, answer.producer_epoch) for answer in given] == [(first + n, 0) for n in range(3)]


async def test_metastore_that_is_away_delays_new_producers_only() -> None:
    broker = await serving_broker()
    client = Client(broker)
    broker.metastore.is_away = True
    answer = await client.call(INIT_PRODUCER_ID, 4, {"transactional_id": None})
    assert (answer.error_code, answer.producer_id) == (ErrorCode.coordinator_load_in_progress, -1)
    broker.metastore.is_away = False
    assert (await client.call(INIT_PRODUCER_ID, 4, {"transactional_id": None})).error_code is ErrorCode.none


async def test_a_fenced_broker_without_metastore_sends_new_producers_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """By closing the connection: librdkafka answers an error by asking the same broker again, for ever."""
    broker = await serving_broker()
    client = Client(broker)
    broker.metastore.is_away = True
    monkeypatch.setattr(broker, "lease_is_valid", lambda: False)
    client.feed(client.frame(INIT_PRODUCER_ID, 4, {"transactional_id": None}))
    async with asyncio.timeout(5):
        while not client.connection.is_closed:
            await asyncio.sleep(0.01)


async def test_transactional_producers_are_told_to_try_again() -> None:
    client = Client(await serving_broker())
    answer = await client.call(INIT_PRODUCER_ID, 4, {"transactional_id": "t"})
    assert (answer.error_code, answer.producer_id) == (ErrorCode.coordinator_not_available, -1)
    answer = await client.call(INIT_PRODUCER_ID, 4, {"transactional_id": ""})
    assert answer.error_code is ErrorCode.invalid_request


@pytest.mark.parametrize("version", range(5))
async def test_what_is_offered_is_what_has_a_module(version: int) -> None:
    client = Client(await serving_broker())
    body = {"client_software_name": "some-client", "client_software_version": "1.2.3"}
    answer = await client.call(API_VERSIONS, version, body)
    offered = {entry.api_key: (entry.min_version, entry.max_version) for entry in answer.api_keys}
    assert offered == {key: module.VERSIONS for key, module in api.modules().items()}


def test_no_module_offers_more_than_can_be_read() -> None:
    for key, module in api.modules().items():
        known = known_versions(key)
        assert known is not None
        assert known[0] <= module.VERSIONS[0] <= module.VERSIONS[1] <= known[1]


async def test_client_software_with_a_strange_name_is_refused() -> None:
    client = Client(await serving_broker())
    for name in ("", "-a", "a b", "a\n"):
        answer = await client.call(API_VERSIONS, 3, {"client_software_name": name, "client_software_version": "1"})
        assert answer.error_code is ErrorCode.invalid_request
