"""Administration of transactions (KIP-664): list them, find their producers, and end hanging ones.

A transaction hangs when a partition has it open and its coordinator does not know of it: it will never be ended, and
`read_committed` consumers wait at it for ever. Sexton's brokers do not let one arise (they ask the coordinator before a
partition accepts the first record of a transaction); other brokers, and logs that were written by them, may have some.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sexton.client import apis
from sexton.client.client import Client, Peer
from sexton.client.errors import RefusedError, check
from sexton.protocol.errors import ErrorCode
from sexton.types import TopicPartition

TRANSACTION_KEY = 1
"""Key type of FindCoordinator: a transactional id, not a group."""

ONGOING = "Ongoing"
PREPARE = "Prepare"
"""Prefix of the states in which the end is decided and the markers are being written."""


@dataclass(frozen=True, slots=True)
class TransactionListing:
    transactional_id: str
    coordinator: int
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    transactional_id: str
    coordinator: int
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    start_ms: int | None
    """Start of the last transaction, whether it has ended or not; None if none has begun."""
    places: tuple[TopicPartition, ...]

    @property
    def is_open(self) -> bool:
        """Whether a transaction has begun, and is not known to have ended in every partition yet."""
        return self.state == ONGOING or self.state.startswith(PREPARE)


@dataclass(frozen=True, slots=True)
class ProducerAt:
    """A producer in a partition's producer state."""

    place: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    last_sequence: int
    last_ms: int
    start_offset: int | None
    """Where its open transaction begins in the partition; None if it has none."""


async def list_transactions(client: Client) -> list[TransactionListing]:
    """Asks all brokers, each of which coordinates some transactional ids."""
    metadata = await client.refresh(())

    async def of_broker(broker_id: int) -> list[TransactionListing]:
        async def attempt() -> list[TransactionListing]:
            answer = await (await client.peer(broker_id)).call(apis.LIST_TRANSACTIONS, {})
            check(answer.error_code, f"broker {broker_id}")
            return [
                TransactionListing(each.transactional_id, broker_id, each.producer_id, each.transaction_state)
                for each in answer.transaction_states
            ]

        return await client.retry(attempt)

    found = await asyncio.gather(*(of_broker(broker_id) for broker_id in sorted(metadata.brokers)))
    return sorted((each for part in found for each in part), key=lambda each: each.transactional_id)


async def describe_transaction(client: Client, transactional_id: str) -> TransactionDescription:
    """Raises RefusedError (transactional_id_not_found) if its coordinator does not know it."""

    async def attempt() -> TransactionDescription:
        broker_id, peer = await transaction_coordinator(client, transactional_id)
        answer = await peer.call(apis.DESCRIBE_TRANSACTIONS, {"transactional_ids": [transactional_id]})
        response = answer.transaction_states[0]
        check(response.error_code, f"transactional id {transactional_id}")
        return TransactionDescription(
            transactional_id=response.transactional_id,
            coordinator=broker_id,
            producer_id=response.producer_id,
            producer_epoch=response.producer_epoch,
            state=response.transaction_state,
            timeout_ms=round(response.transaction_timeout / timedelta(milliseconds=1)),
            start_ms=_moment_ms(response.transaction_start_time),
            places=tuple((topic.topic, number) for topic in response.topics for number in topic.partitions),
        )

    return await client.retry(attempt)


async def transaction_coordinator(client: Client, transactional_id: str) -> tuple[int, Peer]:
    peer = await client.any_peer()
    body = {"key_type": TRANSACTION_KEY, "coordinator_keys": [transactional_id]}
    found = (await peer.call(apis.FIND_COORDINATOR, body)).coordinators[0]
    check(found.error_code, f"transactional id {transactional_id}", found.error_message)
    if found.node_id not in client.metadata.brokers:
        await client.refresh(())
    return int(found.node_id), await client.peer(found.node_id)


async def describe_producers(client: Client, places: Iterable[TopicPartition]) -> list[ProducerAt]:
    """Asks each partition's leader. Returns the producers in the order of the partitions."""

    async def at(topic: str, partition: int) -> list[ProducerAt]:
        async def attempt() -> list[ProducerAt]:
            peer = await client.leader(topic, partition)
            body = {"topics": [{"name": topic, "partition_indexes": [partition]}]}
            response = (await peer.call(apis.DESCRIBE_PRODUCERS, body)).topics[0].partitions[0]
            check(response.error_code, f"{topic}-{partition}", response.error_message)
            return [producer_at((topic, partition), each) for each in response.active_producers]

        return await client.retry(attempt)

    found = await asyncio.gather(*(at(*place) for place in places))
    return [each for part in found for each in part]


def producer_at(place: TopicPartition, response: Any) -> ProducerAt:
    start = response.current_txn_start_offset
    return ProducerAt(
        place=place,
        producer_id=response.producer_id,
        producer_epoch=response.producer_epoch,
        coordinator_epoch=response.coordinator_epoch,
        last_sequence=response.last_sequence,
        last_ms=response.last_timestamp,
        start_offset=start if start >= 0 else None,
    )


async def abort_at(client: Client, producer: ProducerAt) -> None:
    """Writes an abort marker into one partition, without asking the coordinator: for a hanging transaction.

    It is not retried after a lost connection: by then the producer may be in its next transaction.
    """
    topic, partition = producer.place

    async def attempt() -> None:
        peer = await client.leader(topic, partition)
        marker = {
            "producer_id": producer.producer_id,
            "producer_epoch": producer.producer_epoch,
            # A partition that has seen no marker of the producer does not know it; Kafka's tool sends 0 then, too.
            "coordinator_epoch": max(0, producer.coordinator_epoch),
            "transaction_result": False,
            "topics": [{"name": topic, "partition_indexes": [partition]}],
        }
        answer = await peer.call(apis.WRITE_TXN_MARKERS, {"markers": [marker]})
        check(answer.markers[0].topics[0].partitions[0].error_code, f"{topic}-{partition}")

    await client.retry(attempt, is_repeatable=False)


async def find_hanging(client: Client, places: Sequence[TopicPartition], older_than_ms: int) -> list[ProducerAt]:
    """Returns the open transactions in these partitions that have got no record for `older_than_ms` and that no
    coordinator knows."""
    now_ms = client.clock.now_ms()
    suspects = [
        each
        for each in await describe_producers(client, places)
        if each.start_offset is not None and now_ms - each.last_ms > older_than_ms
    ]
    if not suspects:
        return []
    names = {each.producer_id: each.transactional_id for each in await list_transactions(client)}
    known: dict[int, TransactionDescription] = {}
    for producer_id in dict.fromkeys(each.producer_id for each in suspects):
        if producer_id in names:
            try:
                known[producer_id] = await describe_transaction(client, names[producer_id])
            except RefusedError as error:
                if error.code != ErrorCode.transactional_id_not_found:
                    raise
    return [each for each in suspects if is_hanging(each, known)]


def is_hanging(suspect: ProducerAt, known: Mapping[int, TransactionDescription]) -> bool:
    """Whether the coordinator, by its description of the producer's transactional id, will not end the transaction that
    the partition has open."""
    described = known.get(suspect.producer_id)
    return described is None or described.producer_id != suspect.producer_id or suspect.place not in described.places


def _moment_ms(moment: datetime | None) -> int | None:
    """Kafka sends -1 where there is no time."""
    if moment is None or moment.timestamp() < 0:
        return None
    return round(moment.timestamp() * 1000)
