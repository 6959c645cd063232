"""Partitions whose topic was local and has `storage.mode=cloud` now (docs/decisions, 31).

    LOCAL ── begin ──► MOVING ── copy, copy, … the log is sealed, copy the rest ── finish ──► CLOUD
                          └── abandon: the copy is not that of this leader's log ──► LOCAL

Each leader moves its own partitions. The copy is a cloud partition that it has claimed, so a leader that was replaced
is fenced, and its successor goes on where the copy ends. Only what is committed is copied, and clients are served from
the local log until the end. Then the log takes no more appends, for as long as the last few records take, and one
transaction makes the partition a cloud partition, in another leader epoch; every replica deletes its log when it hears
of that.

**Whether a move was finished is never guessed.** Once that was asked for, the log stays sealed until the metastore has
said that it was not done and can no more be done.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from sexton.cloud import deltas
from sexton.cloud.claims import Claims
from sexton.cloud.copying import Stretch, UnalignedError, stretch_of
from sexton.cloud.host import CloudHost
from sexton.cloud.patience import until_known
from sexton.cloud.pool import Pool
from sexton.errors import SextonError
from sexton.log.log import Log
from sexton.ports.cloud import Claimed, Copied, EpochStart, Gather, ObjectId, Outcome, Owner
from sexton.ports.disk import FileSlice
from sexton.ports.metastore import LeaseLostError, MetastoreUnavailableError, PartitionRow, StaleError, Storage
from sexton.ports.object_names import ObjectName
from sexton.ports.objects import StoreRefusedError, StoreUnavailableError
from sexton.protocol.errors import KafkaError
from sexton.records.header import unpack
from sexton.records.objects import FRONT_BYTES, MAGIC, Level, ObjectEncoder, Writer
from sexton.replication.local_replica import LocalReplica
from sexton.types import LeaderEpoch, PartitionId

if TYPE_CHECKING:
    from sexton.broker.broker import Broker

logger = logging.getLogger(__name__)

IDLE_MS: Final = 500
"""Between two looks for partitions to move."""
SEALED_MS: Final = 2_000
"""For so long a sealed log waits for its followers. Then it takes appends again, and the end is tried later."""


@dataclass(slots=True)
class Move:
    """Of one log, in one reign of its leader."""

    replica: LocalReplica
    leader_epoch: LeaderEpoch
    end_offset: int
    """Of the copy."""
    has_caught_up: bool = False
    """The last stretch was all that there was: what is left is little."""
    asked: Copied | None = None
    """What `finish_move` was called with, until its outcome is known."""

    @property
    def key(self) -> PartitionId:
        return self.replica.topic_id, self.replica.partition

    @property
    def log(self) -> Log:
        return self.replica.log


class Mover:
    def __init__(self, broker: Broker, host: CloudHost, claims: Claims) -> None:
        self._broker = broker
        self._host = host
        self._claims = claims
        self._stretch_bytes = broker.config.cloud_l0_bytes
        self._pool = Pool(host)
        self._moves: dict[PartitionId, Move] = {}
        self._told: dict[PartitionId, str] = {}
        """Why a partition does not get on, so that it is logged once."""

    async def run(self) -> None:
        while True:
            due = self._due()
            keys = {(replica.topic_id, replica.partition) for replica in due}
            self._moves = {key: move for key, move in self._moves.items() if key in keys}
            steps = [await self._try_step(replica) for replica in due]
            if not due and (left := self._pool.drain())[1]:
                await self._release(*left)
            if not any(steps):
                await asyncio.sleep(IDLE_MS / 1000)

    def _due(self) -> list[LocalReplica]:
        view = self._broker.view
        led = [replica for replica in self._broker.replicas.all() if replica.is_leader]
        return [replica for replica in led if view.wants_cloud(replica.topic)]

    async def _try_step(self, replica: LocalReplica) -> bool:
        """One partition that cannot be moved holds up no other. Returns whether there is more to do at once."""
        key = replica.topic_id, replica.partition
        try:
            has_more = await self._step(replica)
            self._told.pop(key, None)
            return has_more
        except (MetastoreUnavailableError, LeaseLostError, StaleError) as error:
            logger.debug("%r: the move waits: %s", replica, error)
        except (SextonError, KafkaError, OSError) as error:
            if self._told.get(key) != str(error):
                logger.error("%r cannot be moved to the store now: %s", replica, error)
            self._told[key] = str(error)
        except Exception as bug:
            self._broker.supervisor.survived(bug, "moving a partition to the store", replica)
        return False

    async def _step(self, replica: LocalReplica) -> bool:
        move = self._moves.get((replica.topic_id, replica.partition))
        if move is None or move.replica is not replica or move.leader_epoch != replica.row.leader_epoch:
            move = await self._take_up(replica)
            if move is None:
                return False
            self._moves[move.key] = move
        if move.asked is not None:
            return await self._conclude(move)
        if replica.log.start_offset > move.end_offset:
            await self._abandon(replica, "its log start has overtaken the copy")
            return True
        if not move.has_caught_up and move.end_offset < replica.high_watermark:
            await self._copy(move)
            return True
        return await self._finish(move)

    # Taking up

    async def _take_up(self, replica: LocalReplica) -> Move | None:
        row, log = replica.row, replica.log
        if row.storage is Storage.LOCAL:
            start_offset = _first_base(log)
            stored = await self._broker.metastore.begin_move(*self._broker.identity, row, start_offset)
            if stored is None:
                await self._broker.catch_up()
                return None
            self._broker.replicas.rows_written([stored])
            logger.info("%s-%d: moving to the store begins", replica.topic, replica.partition)
            return Move(replica, row.leader_epoch, start_offset)
        claimed = await self._claims.claim((replica.topic_id, replica.partition), row.leader_epoch)
        if not isinstance(claimed, Claimed):
            logger.info("%r: its copy cannot be claimed: %s", replica, claimed)
            return None
        end_offset = claimed.row.end_offset
        if not _is_copy_of(log, claimed):
            await self._abandon(replica, f"its copy has {end_offset} offsets of another history")
            return None
        if replica.high_watermark < end_offset:
            return None  # a new leader: what is committed it learns in a moment
        return Move(replica, row.leader_epoch, end_offset)

    async def _abandon(self, replica: LocalReplica, why: str) -> None:
        """The copy goes, and another one is begun."""
        logger.warning("%s-%d: the copy is begun anew: %s", replica.topic, replica.partition, why)
        host, broker, row = self._host, self._broker, replica.row
        has_more = True
        while has_more:
            stored, has_more = await until_known(lambda: broker.metastore.abandon_move(*host.identity, row), host.rng)
        self._moves.pop((replica.topic_id, replica.partition), None)
        if stored is not None:
            broker.replicas.rows_written([stored])
        else:
            await broker.catch_up()

    # Copying

    async def _copy(self, move: Move) -> None:
        """Copies one stretch of what is committed."""
        replica, log, host = move.replica, move.log, self._host
        found = log.read(move.end_offset, self._stretch_bytes, replica.high_watermark, min_one=True)
        data = b"".join(
            part.file.read(part.position, part.size_bytes) if isinstance(part, FileSlice) else part
            for part in found.parts
        )
        try:
            stretch = stretch_of(data, move.end_offset, found.next_offset, log.epochs, log.place)
        except UnalignedError as error:
            await self._abandon(replica, str(error))
            return
        aborted = log.aborted_entries(stretch.base_offset, stretch.end_offset)
        owner, object_id = await self._pool.take()
        content = _object_with(stretch, move, host, owner)
        key = ObjectName(host.cluster_id, Level.L0, object_id).key
        try:
            await host.objects.put(key, memoryview(content).toreadonly())
        except (StoreUnavailableError, StoreRefusedError):
            # Not tried for ever: the log may be sealed. What lands all the same is nobody's.
            await self._release(owner, [object_id])
            raise
        run = stretch.run(move.key, move.leader_epoch, FRONT_BYTES, aborted)
        gather = Gather(object_id=object_id, size_bytes=len(content), runs=[run])
        ((outcome,),) = await until_known(
            lambda: host.metastore.commit_l0(owner, [gather], host.clock.now_ms()), host.rng
        )
        if outcome is not Outcome.ACCEPTED:
            self._moves.pop(move.key, None)  # taken up again, as the metastore has it
            raise StaleError(f"{log.place}: the copy did not take offset {stretch.base_offset}: {outcome.value}")
        move.end_offset = stretch.end_offset
        move.has_caught_up = found.next_offset >= replica.high_watermark or len(data) < self._stretch_bytes // 2

    # The end

    async def _finish(self, move: Move) -> bool:
        replica, log, host = move.replica, move.log, self._host
        replica.seal()
        try:
            until_ms = host.clock.monotonic_ms() + SEALED_MS
            while replica.high_watermark < log.end_offset:
                if host.clock.monotonic_ms() > until_ms or not replica.serves_in(move.leader_epoch):
                    return False
                await asyncio.sleep(0.01)
            while move.end_offset < log.end_offset:
                await self._copy(move)
                if not self._is_current(move):
                    return False
            if not await self._take_over_start(move):
                return False
            if not self._is_current(move) or log.end_offset != move.end_offset:
                return False
            move.asked = _copied(move)
            return await self._conclude(move)
        finally:
            if move.asked is None:
                replica.unseal()

    async def _take_over_start(self, move: Move) -> bool:
        host, start_offset = self._host, move.log.start_offset
        while True:
            told = await until_known(
                lambda: host.metastore.advance_start(move.key, move.leader_epoch, start_offset), host.rng
            )
            if told.outcome is not Outcome.ACCEPTED:
                self._moves.pop(move.key, None)
                return False
            if not told.has_more:
                return True

    def _is_current(self, move: Move) -> bool:
        return self._moves.get(move.key) is move and move.replica.row.leader_epoch == move.leader_epoch

    async def _conclude(self, move: Move) -> bool:
        """Asks until it is known. Whoever gets here again asks again, with the row as it is by then."""
        replica, host, asked = move.replica, self._host, move.asked
        assert asked is not None
        row: PartitionRow = replica.row
        stored = await until_known(lambda: self._broker.metastore.finish_move(*host.identity, row, asked), host.rng)
        if stored is None:
            move.asked = None
            replica.unseal()
            return False
        logger.info("%s-%d: moved to the store, offsets %d to %d", replica.topic, replica.partition, *asked.offsets)
        await self._broker.catch_up()
        await self._broker.news.tell()
        return True

    async def _release(self, owner: Owner, ids: Sequence[ObjectId]) -> None:
        """Nobody commits them any more. If this fails they go when the owner's registration ends."""
        try:
            await self._host.metastore.release_objects(owner, ids)
        except MetastoreUnavailableError as error:
            logger.debug("%d objects are released later: %s", len(ids), error)


def _first_base(log: Log) -> int:
    """Where the copy begins: at the batch that has the log start, which may lie in its middle."""
    found = log.read(log.start_offset, 1, log.end_offset, min_one=True)
    for part in found.parts:
        head = part.file.read(part.position, part.size_bytes) if isinstance(part, FileSlice) else part
        return min(log.start_offset, unpack(memoryview(head)).base_offset)
    return log.start_offset


def _is_copy_of(log: Log, claimed: Claimed) -> bool:
    """Whether this log has what was copied, by the epochs in which it was: what was committed in an epoch is in the log
    of every later leader, unless an unclean election, or a loss of all that was not flushed, has come between."""
    if claimed.row.end_offset > log.end_offset:
        return False
    for one, other in pairwise(claimed.epochs):
        if other.start_offset <= log.start_offset:
            continue
        known = log.epochs.end_offset_of(one.leader_epoch, log.end_offset)
        if known is None or known[1] < other.start_offset:
            return False
    return True


def _object_with(stretch: Stretch, move: Move, host: CloudHost, owner: Owner) -> bytearray:
    encoder = ObjectEncoder(Level.L0, host.cluster_id, Writer.broker(int(owner.id), owner.epoch))
    encoder.begin_run(*move.key, stretch.base_offset, epoch=move.leader_epoch)
    encoder.add(stretch.data)
    run = encoder.end_run()
    assert (run.end_offset, run.size_bytes) == (stretch.end_offset, len(stretch.data)), f"C5: {move.log!r}: {run}"
    content = bytearray(MAGIC)
    content += stretch.data
    content += encoder.finish()
    return content


def _copied(move: Move) -> Copied:
    log = move.log
    epochs = [EpochStart(entry.epoch, entry.start_offset) for entry in log.epochs.entries]
    if not epochs or epochs[-1].leader_epoch < move.leader_epoch:
        epochs.append(EpochStart(move.leader_epoch, log.end_offset))
    return Copied(
        start_offset=log.start_offset,
        end_offset=log.end_offset,
        stable_offset=log.last_stable_offset(log.end_offset),
        producers=log.producers.encode(),
        earlier=deltas.pack_earlier(log.producers),
        epochs=epochs,
    )
