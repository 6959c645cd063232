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

**Whether a copy is one of this log** is known from its last batch: two logs that have a record of the same epoch at the
same offset agree on everything below (docs/decisions, 8). A copy that is not is given up and begun anew.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sexton.cloud import deltas
from sexton.cloud.claims import Claims
from sexton.cloud.copying import Stretch, UnalignedError, last_head, stretch_of
from sexton.cloud.host import CloudHost
from sexton.cloud.patience import until_known
from sexton.cloud.pool import Pool
from sexton.errors import CorruptLogError, DamagedObjectError, SextonError
from sexton.log.log import Log
from sexton.log.types import Read
from sexton.ports.cloud import Claimed, Copied, EpochStart, Gather, Outcome, Owner
from sexton.ports.disk import FileSlice
from sexton.ports.metastore import LeaseLostError, MetastoreUnavailableError, PartitionRow, StaleError, Storage
from sexton.ports.object_names import ObjectName
from sexton.ports.objects import ObjectMissingError, StoreRefusedError, StoreUnavailableError
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.records.header import unpack
from sexton.records.objects import FRONT_BYTES, MAGIC, Level, ObjectEncoder, Writer
from sexton.replication.local_replica import LocalReplica
from sexton.types import LeaderEpoch, PartitionId

if TYPE_CHECKING:
    from sexton.broker.broker import Broker

logger = logging.getLogger(__name__)

IDLE_MS: Final = 500
"""Between two looks for partitions to move."""
FOLLOWERS_MS: Final = 10
"""Between two looks whether followers have the end of a sealed log."""
AT_ONCE: Final = 8
"""Partitions that are MOVING through one leader: what compaction may remove from them stays where it is until then."""
SEALED_MS_MIN: Final = 2_000
SEALED_MS_MAX: Final = 30_000
"""For so long a sealed log waits for its followers, and for the store. Then it takes appends again, and the end is
tried later, with twice the patience: a store may need it."""
OPEN_SHARE: Final = 5
"""After an end that failed the log stays open for so many times as long as it may be sealed."""


@dataclass(slots=True)
class Move:
    """Of one log, in one reign of its leader."""

    replica: LocalReplica
    leader_epoch: LeaderEpoch
    end_offset: int
    """Of the copy."""
    has_caught_up: bool = False
    """The last stretch was all that was committed when it was read: what is left is what came since."""
    asked: Copied | None = None
    """What `finish_move` was called with, until its outcome is known."""
    sealed_ms: int = SEALED_MS_MIN
    resumes_ms: int = 0
    """When the end may be tried again."""

    @property
    def key(self) -> PartitionId:
        return self.replica.topic_id, self.replica.partition

    @property
    def log(self) -> Log:
        return self.replica.log

    @property
    def is_current(self) -> bool:
        """Whether this is still the same log, led in the same epoch. Whether it is served is another question."""
        return self.replica.row.leader_epoch == self.leader_epoch and not self.replica.log.is_deleted

    def put_off(self, now_ms: int) -> None:
        """The end could not be reached while the log was sealed."""
        self.has_caught_up = False
        self.resumes_ms = now_ms + OPEN_SHARE * self.sealed_ms
        self.sealed_ms = min(SEALED_MS_MAX, 2 * self.sealed_ms)


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
        try:
            while True:
                due = self._due()
                steps = [await self._try_step(replica) for replica in due]
                if not due and (left := self._pool.drain())[1]:
                    self._pool.give_back(*left)
                if not any(steps):
                    await asyncio.sleep(IDLE_MS / 1000)
        finally:
            self._pool.stop()

    def _due(self) -> list[LocalReplica]:
        """A few at once: those first whose end was asked for, for they are sealed; then those that are MOVING already.
        Those that do not get on come last."""
        view = self._broker.view
        led = {
            (replica.topic_id, replica.partition): replica
            for replica in self._broker.replicas.all()
            if replica.is_leader and view.wants_cloud(replica.topic)
        }
        asked = {key: move.replica for key, move in self._moves.items() if move.asked is not None and move.is_current}
        self._moves = {key: move for key, move in self._moves.items() if key in led or key in asked}
        self._told = {key: why for key, why in self._told.items() if key in led}
        rest = sorted(
            (key for key in led if key not in asked),
            key=lambda key: (key in self._told, led[key].row.storage is Storage.LOCAL, led[key].topic, key[1]),
        )
        return [*asked.values(), *(led[key] for key in rest[:AT_ONCE])]

    async def _try_step(self, replica: LocalReplica) -> bool:
        """One partition that cannot be moved holds up no other. Returns whether there is more to do at once."""
        key = replica.topic_id, replica.partition
        if not self._leads(replica):
            return False  # since a moment: its turn took a while to come
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

    def _leads(self, replica: LocalReplica) -> bool:
        """The row is newer than the role while that changes: it may name another leader already."""
        return replica.is_leader and replica.row.leader == self._broker.config.node_id

    async def _step(self, replica: LocalReplica) -> bool:
        move = self._moves.get((replica.topic_id, replica.partition))
        if move is None or move.asked is None:
            _check_movable(replica)
        if move is None or move.replica is not replica or not move.is_current:
            move = await self._take_up(replica)
            if move is None:
                return False
            self._moves[move.key] = move
        if move.asked is not None:
            return await self._conclude(move)
        if self._host.clock.monotonic_ms() < move.resumes_ms:
            return False
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
        why = await self._difference(log, claimed)
        if replica.row.leader_epoch != row.leader_epoch or not self._leads(replica):
            return None
        if why is not None:
            await self._abandon(replica, why)
            return None
        if replica.high_watermark < claimed.row.end_offset:
            return None  # a new leader: what is committed it learns in a moment
        return Move(replica, row.leader_epoch, claimed.row.end_offset)

    async def _difference(self, log: Log, claimed: Claimed) -> str | None:
        """Evidence that what was copied is not what this log has, or had; None if it is."""
        row, host = claimed.row, self._host
        if row.start_offset > log.start_offset:
            return f"it starts at {row.start_offset}, the log at {log.start_offset}"
        if row.end_offset > log.end_offset:
            return f"it ends at {row.end_offset}, the log at {log.end_offset}"
        if row.end_offset <= log.start_offset or not claimed.extents:
            return None  # nothing of it will be left
        last = claimed.extents[-1]
        assert last.object_id is not None, f"{log!r}: a copy has no inline extents"
        key = ObjectName(host.cluster_id, Level.L0, last.object_id).key
        try:
            head = last_head(await host.objects.get(key, last.position, last.size_bytes), key)
        except (ObjectMissingError, DamagedObjectError, CorruptLogError) as error:
            return f"its last object cannot be read: {error}"
        epoch = log.epochs.epoch_of(head.last_offset)
        if head.last_offset + 1 != row.end_offset or head.leader_epoch != epoch:
            return f"offset {head.last_offset} was written in epoch {head.leader_epoch}, and here in {epoch}"
        return None

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
        """Copies one stretch of what is committed. What retention has removed meanwhile is passed over."""
        replica, log, host = move.replica, move.log, self._host
        committed = replica.high_watermark
        begin = max(move.end_offset, log.start_offset)
        found = log.read(begin, self._stretch_bytes, committed, min_one=True)
        try:
            stretch = stretch_of(_bytes_of(found), move.end_offset, found.next_offset, log.epochs, log.place)
        except UnalignedError as error:
            await self._abandon(replica, str(error))
            return
        aborted = log.aborted_entries(stretch.base_offset, stretch.end_offset)
        owner, object_id = await self._pool.take()
        content = _object_with(stretch, move, host, owner)
        key = ObjectName(host.cluster_id, Level.L0, object_id).key
        try:
            async with asyncio.timeout(move.sealed_ms / 1000 if replica.is_sealed else None):
                await host.objects.put(key, memoryview(content).toreadonly())
        except (StoreUnavailableError, StoreRefusedError, TimeoutError) as error:
            # Not tried for ever: the log may be sealed. What lands all the same is nobody's.
            self._pool.give_back(owner, [object_id])
            if isinstance(error, TimeoutError):
                raise StoreUnavailableError(f"no answer within {move.sealed_ms} ms", key) from error
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
        move.has_caught_up = stretch.end_offset >= committed

    # The end

    async def _finish(self, move: Move) -> bool:
        """Returns False if the end was not reached: it is tried again later."""
        move.replica.seal()
        try:
            if await self._copy_rest(move, self._host.clock.monotonic_ms() + move.sealed_ms):
                move.asked = _copied(move)
        finally:
            if move.asked is None:
                self._put_off(move)
        return move.asked is not None and await self._conclude(move)

    def _put_off(self, move: Move) -> None:
        move.replica.unseal()
        move.put_off(self._host.clock.monotonic_ms())

    async def _copy_rest(self, move: Move, until_ms: int) -> bool:
        """Copies what is left of a sealed log. Returns whether the copy is all of it now."""
        replica, log, clock = move.replica, move.log, self._host.clock
        while replica.high_watermark < log.end_offset or move.end_offset < log.end_offset:
            if clock.monotonic_ms() > until_ms or not self._goes_on(move):
                return False
            if replica.high_watermark < log.end_offset:
                await asyncio.sleep(FOLLOWERS_MS / 1000)
            else:
                await self._copy(move)
        if not self._goes_on(move) or not await self._take_over_start(move):
            return False
        return self._goes_on(move) and replica.high_watermark == log.end_offset == move.end_offset

    def _goes_on(self, move: Move) -> bool:
        return self._moves.get(move.key) is move and move.is_current and move.replica.serves_in(move.leader_epoch)

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

    async def _conclude(self, move: Move) -> bool:
        """Asks until it is known. Whoever gets here again asks again, with the row as it is by then."""
        replica, host, asked = move.replica, self._host, move.asked
        assert asked is not None
        row: PartitionRow = replica.row
        stored = await until_known(lambda: self._broker.metastore.finish_move(*host.identity, row, asked), host.rng)
        if stored is None:
            move.asked = None
            self._put_off(move)
            return False
        logger.info("%s-%d: moved to the store, offsets %d to %d", replica.topic, replica.partition, *asked.offsets)
        await self._broker.catch_up()
        await self._broker.news.tell()
        return True


def _check_movable(replica: LocalReplica) -> None:
    """Raises KafkaError. A replica that compacts for itself alone may drop a tombstone whose key was copied before, by
    a leader that had not dropped it yet."""
    if replica.config.compacts and replica.coordination.is_independent:
        raise KafkaError(
            ErrorCode.invalid_config,
            "its replicas are compacted independently: set compaction.coordination=coordinated first",
        )


def _first_base(log: Log) -> int:
    """Where the copy begins: at the batch that has the log start, which may lie in its middle."""
    found = log.read(log.start_offset, 1, log.end_offset, min_one=True)
    data = _bytes_of(found)
    return min(log.start_offset, unpack(data).base_offset) if data else log.start_offset


def _bytes_of(found: Read) -> bytes:
    return b"".join(
        part.file.read(part.position, part.size_bytes) if isinstance(part, FileSlice) else part for part in found.parts
    )


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
