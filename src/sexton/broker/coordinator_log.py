"""A coordinator's log: its internal topic's partition, for as long as this broker leads it in one epoch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from sexton.ports.disk import FileSlice
from sexton.records.batch import Record, encode, make_batch
from sexton.replication.replica import Replica

READ_BYTES = 1 << 20
COMMIT_POLL_S = 0.02
"""Between two looks at what a new leader has read but its followers may not have confirmed."""


class CoordinatorLog:
    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._leader_epoch = replica.leader_epoch

    async def append(self, records: Sequence[tuple[bytes, bytes | None]], now_ms: int) -> None:
        """As one batch. Resolves when it is committed."""
        self._replica.check_epoch(self._leader_epoch)
        batch = make_batch([Record(offset, now_ms, key, value) for offset, (key, value) in enumerate(records)])
        committed = self._replica.append(encode(batch), -1, now_ms, from_client=False)[1]
        if committed is not None:
            await committed

    async def read(self) -> AsyncIterator[bytes]:
        """Everything up to the log's end, and not before it is committed: what is answered from it must not be lost."""
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
