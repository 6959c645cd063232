"""A coordinator's log: a partition of its internal topic, for as long as this broker leads it in one leader epoch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from sexton.broker.transactions.marker_batches import append_marker
from sexton.coordinators.log import EndMarker
from sexton.log.producers import Marker
from sexton.ports.disk import FileSlice
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.records.batch import Record, encode, make_batch
from sexton.records.header import TRANSACTIONAL
from sexton.replication.local_replica import LocalReplica
from sexton.types import NO_SEQUENCE, ProducerIdAndEpoch

READ_BYTES = 1 << 20
COMMIT_POLL_S = 0.02
"""Interval between two checks whether the followers of a new leader have all that it has read."""


class CoordinatorLog:
    def __init__(self, replica: LocalReplica) -> None:
        self._replica = replica
        self._leader_epoch = replica.leader_epoch

    async def append(self, records: Sequence[tuple[bytes, bytes | None]], now_ms: int) -> None:
        """Appends the records as one batch. Returns when it is committed."""
        self._replica.check_epoch(self._leader_epoch)
        batch = make_batch([Record(offset, now_ms, key, value) for offset, (key, value) in enumerate(records)])
        committed = self._replica.append(encode(batch), -1, now_ms, from_client=False)[1]
        if committed is not None:
            await committed

    async def append_in_transaction(
        self, owner: ProducerIdAndEpoch, records: Sequence[tuple[bytes, bytes | None]], now_ms: int
    ) -> None:
        """Appends the records as one batch of a client's transaction: they take effect when it commits."""
        self._replica.check_epoch(self._leader_epoch)
        made = [Record(offset, now_ms, key, value) for offset, (key, value) in enumerate(records)]
        fields = {"producer_id": owner.producer_id, "producer_epoch": owner.epoch}
        batch = make_batch(made, attributes=TRANSACTIONAL, **fields)
        committed = self._replica.append(encode(batch), -1, now_ms, from_client=False)[1]
        if committed is not None:
            await committed

    async def append_marker(self, marker: EndMarker, now_ms: int) -> None:
        self._replica.check_epoch(self._leader_epoch)
        committed = append_marker(self._replica, marker, now_ms)
        if committed is not None:
            await committed

    def check_owner(self, owner: ProducerIdAndEpoch) -> None:
        self._replica.log.producers.check_data(*owner, NO_SEQUENCE, is_transactional=True, from_client=False)

    def check_marker(self, marker: EndMarker) -> bool:
        """Returns False if the marker was written before."""
        producers = self._replica.log.producers
        producers.check_marker(*marker.owner, Marker(not marker.is_commit, marker.coordinator_epoch))
        return not marker.raises_epoch or not producers.is_marked(*marker.owner)

    def check_writable(self) -> None:
        if self._replica.has_too_few_in_sync:
            raise KafkaError(ErrorCode.not_enough_replicas, f"too few replicas of {self._replica.topic} are in sync")

    async def read(self) -> AsyncIterator[bytes]:
        """Yields all batches up to the log's end, and ends when they are committed: state that is served from them must
        not be lost."""
        log = self._replica.log
        offset, end = log.start_offset, log.end_offset
        self._check()
        while offset < end:
            self._check()
            read = log.read(offset, READ_BYTES, end, min_one=True)
            yield b"".join(
                part.file.read(part.position, part.size_bytes) if isinstance(part, FileSlice) else bytes(part)
                for part in read.parts
            )
            offset = read.next_offset
            await asyncio.sleep(0)
        while self._replica.high_watermark < end:
            await asyncio.sleep(COMMIT_POLL_S)
            self._check()

    def _check(self) -> None:
        self._replica.check_epoch(self._leader_epoch)
        self._replica.check_serving_as_leader()
