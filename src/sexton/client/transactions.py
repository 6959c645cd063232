"""A transactional producer (KIP-98): one transaction at a time, one batch per call.

Every request is retried until its outcome is known: batches carry sequence numbers, and the coordinator accepts the
same request twice. It is made for scripts that go step by step, not for speed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sexton.client import apis
from sexton.client.client import Client
from sexton.client.errors import check
from sexton.client.producer import ACKS_ALL, ANSWER_MARGIN_MS, Message, records_of
from sexton.client.transaction_admin import transaction_coordinator
from sexton.records import batch as batches
from sexton.records.header import TRANSACTIONAL
from sexton.types import TopicPartition

TRANSACTION_TIMEOUT_MS: Final = 600_000
"""The coordinator aborts transactions that are open for longer. Scripts wait for compaction in the middle of a
transaction."""


class TransactionalProducer:
    """Call `init` first; then for each transaction `begin`, `send` any number of times, `commit` or `abort`."""

    def __init__(self, client: Client, transactional_id: str, timeout_ms: int = TRANSACTION_TIMEOUT_MS) -> None:
        self._client = client
        self.transactional_id = transactional_id
        self._timeout_ms = timeout_ms
        self.producer_id = -1
        self._epoch = -1
        self._sequences: dict[TopicPartition, int] = {}
        self._joined: list[TopicPartition] | None = None
        """Partitions of the open transaction; None if none is open."""

    @property
    def is_open(self) -> bool:
        return self._joined is not None

    async def init(self) -> None:
        """Gets the producer id. A transaction that another instance left open is aborted."""

        async def attempt() -> None:
            body = {"transactional_id": self.transactional_id, "transaction_timeout": self._timeout_ms}
            answer = await self._ask(apis.INIT_PRODUCER_ID, body)
            check(answer.error_code, self._name)
            self.producer_id, self._epoch = int(answer.producer_id), int(answer.producer_epoch)

        await self._client.retry(attempt)
        self._sequences.clear()
        self._joined = None

    def begin(self) -> None:
        assert self.producer_id >= 0, "init comes first"
        assert self._joined is None, "a transaction is open"
        self._joined = []

    async def send(self, topic: str, partition: int, messages: Sequence[Message]) -> int:
        """Returns the first record's offset."""
        assert self._joined is not None, "begin comes first"
        place = (topic, partition)
        if place not in self._joined:
            await self._join(place)
            self._joined.append(place)
        sequence = self._sequences.get(place, 0)
        data = self._encode(messages, sequence)

        async def attempt() -> int:
            peer = await self._client.leader(topic, partition)
            body = {
                "transactional_id": self.transactional_id,
                "acks": ACKS_ALL,
                "timeout": self._client.timeout_ms,
                "topic_data": [{"name": topic, "partition_data": [{"index": partition, "records": data}]}],
            }
            limit_ms = self._client.timeout_ms + ANSWER_MARGIN_MS
            answer = await peer.call(apis.PRODUCE_IN_TRANSACTION, body, limit_ms)
            response = answer.responses[0].partition_responses[0]
            check(response.error_code, f"{topic}-{partition}", getattr(response, "error_message", None))
            return int(response.base_offset)

        offset = await self._client.retry(attempt)
        self._sequences[place] = (sequence + len(messages)) & 0x7FFFFFFF
        return offset

    async def commit(self) -> None:
        await self._end(is_committed=True)

    async def abort(self) -> None:
        await self._end(is_committed=False)

    @property
    def _name(self) -> str:
        return f"transactional id {self.transactional_id}"

    async def _ask(self, api: apis.Api, body: dict[str, Any]) -> Any:
        _, peer = await transaction_coordinator(self._client, self.transactional_id)
        return await peer.call(api, body)

    async def _join(self, place: TopicPartition) -> None:
        body = {
            "v3_and_below_transactional_id": self.transactional_id,
            "v3_and_below_producer_id": self.producer_id,
            "v3_and_below_producer_epoch": self._epoch,
            "v3_and_below_topics": [{"name": place[0], "partitions": [place[1]]}],
        }

        async def attempt() -> None:
            answer = await self._ask(apis.ADD_PARTITIONS_TO_TXN, body)
            response = answer.results_by_topic_v3_and_below[0].results_by_partition[0]
            check(response.partition_error_code, self._name)

        await self._client.retry(attempt)

    async def _end(self, *, is_committed: bool) -> None:
        assert self._joined is not None, "no transaction is open"
        body = {
            "transactional_id": self.transactional_id,
            "producer_id": self.producer_id,
            "producer_epoch": self._epoch,
            "committed": is_committed,
        }

        async def attempt() -> None:
            check((await self._ask(apis.END_TXN, body)).error_code, self._name)

        if self._joined:  # the coordinator does not know a transaction without partitions
            await self._client.retry(attempt)
        self._joined = None

    def _encode(self, messages: Sequence[Message], sequence: int) -> bytes:
        return batches.encode(
            batches.make_batch(
                records_of(messages, self._client.clock.now_ms()),
                attributes=TRANSACTIONAL,
                producer_id=self.producer_id,
                producer_epoch=self._epoch,
                base_sequence=sequence,
                leader_epoch=-1,
            )
        )


async def coordinator_id(client: Client, transactional_id: str) -> int:
    """Returns the broker that coordinates this id now, or would."""

    async def attempt() -> int:
        return (await transaction_coordinator(client, transactional_id))[0]

    return await client.retry(attempt)
