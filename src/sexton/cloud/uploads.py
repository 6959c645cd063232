"""A broker's objects on their way: gathered, put, committed.

    append → gather → link of the chain → PUT (several in flight) → commit → the log's high watermark

**The chain** has what is not committed yet, in order: objects, and markers that travel inline. A link is *ready* when
its PUT is done (a marker's always is; one that takes long may be begun a second time, see `hedging`) and nothing before
it in the chain concerns one of its partitions without being ready itself. All ready links are committed in one
transaction, and one transaction is under way at a time. So a partition's pieces are committed in their order; a slow
PUT holds up only those behind it that build on it; and a marker whose partition has nothing else on the way overtakes
all uploads.

**Unknown outcomes** are asked for again, for ever, with the same call (C10). Nothing is ever deleted here (trap T2).

| outcome of a run            | what is done                                                                        |
|-----------------------------|-------------------------------------------------------------------------------------|
| accepted                    | the log's high watermark moves                                                      |
| fenced, gone, misplaced     | the log is dropped with its tail (`CommitListener.lost`), other logs go on          |
| lost                        | the object expired: the same bytes are put under another id                         |
| skipped                     | the link stays in the chain                                                         |
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from sexton.cloud.gather import Gather, encode
from sexton.cloud.hedging import Hedging
from sexton.cloud.host import CloudHost, CloudSettings
from sexton.cloud.log import CloudLog, Piece
from sexton.cloud.patience import until_known
from sexton.cloud.pool import Pool
from sexton.cloud.room import Room
from sexton.log.checks import Rules
from sexton.log.producers import Verification
from sexton.log.types import Appended
from sexton.ports.cloud import RUNS_MAX, Extent, ObjectId, Outcome, Owner
from sexton.ports.cloud import Gather as Commit
from sexton.ports.disk import Buffer
from sexton.ports.object_names import ObjectName
from sexton.ports.objects import StoreRefusedError, StoreUnavailableError
from sexton.ports.retrying import until_answered
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.records.objects import Level
from sexton.types import PartitionId

logger = logging.getLogger(__name__)

COMMITTED_AT_ONCE: Final = 8
"""Links in one transaction at most: what a slow metastore lets pile up is committed together, and no transaction grows
beyond what the metastore takes (RUNS_MAX)."""

AWAY_MS: Final = 2_000
"""A store or metastore that has failed for so long is away: who has no room is refused, and does not wait for it."""

TOLD_EVERY_MS: Final = 10_000
"""A store that is away is logged this often."""

_ERRORS: Final = {
    Outcome.FENCED: (ErrorCode.not_leader_or_follower, "another broker has claimed the partition"),
    Outcome.GONE: (ErrorCode.unknown_topic_or_partition, "the topic was deleted"),
    Outcome.MISPLACED: (ErrorCode.not_leader_or_follower, "the metastore's log ends elsewhere"),
}


class CommitListener(Protocol):
    def committed(self, piece: Piece, extent: Extent) -> None:
        """The piece is part of the log: its high watermark has moved."""
        ...

    def lost(self, error: KafkaError) -> None:
        """The log was dropped: its tail will never be committed by this broker."""
        ...


class TailKeeper(Protocol):
    """Keeps what was committed just now in memory, for consumers that read at the end of the log."""

    def keep(self, object_id: ObjectId, data: memoryview) -> None: ...


@dataclass(slots=True, eq=False)
class Link:
    pieces: list[Piece]
    positions: list[int]
    size_bytes: int
    """Size in memory."""
    data: bytearray | None = None
    """None: inline."""
    owner: Owner | None = None
    object_id: ObjectId | None = None
    is_put: bool = False
    has_been_sent: bool = False
    """A commit of it was sent: from then on it is repeated as it was."""

    @property
    def keys(self) -> set[PartitionId]:
        return {piece.key for piece in self.pieces}

    @property
    def takes_markers(self) -> bool:
        return self.data is None and not self.has_been_sent and len(self.pieces) < RUNS_MAX


class Uploads:
    def __init__(self, host: CloudHost, settings: CloudSettings, tail: TailKeeper) -> None:
        self._host = host
        self._settings = settings
        self._tail = tail
        self._pool = Pool(host)
        self._gather = Gather(settings.gather)
        self._chain: deque[Link] = deque()
        self._listeners: dict[CloudLog, CommitListener] = {}
        self._unput: deque[Link] = deque()
        """Links that wait for one of the PUTs in flight to end."""
        self._puts: dict[asyncio.Task[None], None] = {}
        self._hedging = Hedging(settings.hedges)
        self._puts_max = settings.uploads_max
        """Halved when the store is busy, raised by one with each success."""
        self._timer: asyncio.TimerHandle | None = None
        """Timer of the present gather."""
        self._is_overdue = False
        """The present gather has waited long enough, and grows only because no PUT can begin."""
        self._committing: asyncio.Task[None] | None = None
        self._chain_bytes = 0
        self._room = Room(self._fits)
        self._failing_since_ms: int | None = None
        self._told_ms = -TOLD_EVERY_MS
        self.is_stopped = False

    # Logs

    def join(self, log: CloudLog, listener: CommitListener) -> None:
        self._listeners[log] = listener

    def leave(self, log: CloudLog) -> None:
        """The log's tail is dropped. What is on its way and was not sent for commit is left out of it."""
        if self._listeners.pop(log, None) is None:
            return
        self._gather.forget(log)
        log.drop()
        self._room.forget(log)
        self._room.look()
        self._go_on()

    def append(
        self,
        log: CloudLog,
        records: Buffer,
        now_ms: int,
        *,
        from_client: bool = True,
        verification: Verification | None = None,
        validated_by: Rules | None = None,
    ) -> Appended:
        """Raises NOT_ENOUGH_REPLICAS if there is no room: clients send again, and nothing was appended."""
        size_bytes = len(records)
        if from_client:
            self._check_room(size_bytes)
        if not self._gather.has_room(size_bytes):
            self._seal()
        appended, piece = log.append(
            records, now_ms, from_client=from_client, verification=verification, validated_by=validated_by
        )
        if piece is None:
            return appended
        if piece.is_inline:
            self._add_inline(piece)
            return appended
        self._gather.add(piece, len(piece.batches[-1]))
        if self._gather.is_full:
            self._seal()
        elif self._timer is None and not self._is_overdue:
            linger_s = 0 if self._need_not_linger else self._settings.gather.linger_ms / 1000
            self._timer = asyncio.get_running_loop().call_later(linger_s, self._linger_is_over)
        return appended

    @property
    def _need_not_linger(self) -> bool:
        """An eager broker waits for no company while nothing is on its way."""
        return self._settings.gather.is_eager and not self._puts and not self._unput

    def _add_inline(self, piece: Piece) -> None:
        """Markers that wait for a commit go together, one for each partition, as many as a transaction takes."""
        last = self._chain[-1] if self._chain else None
        if last is None or not last.takes_markers or piece.key in last.keys:
            last = Link([], [], 0, is_put=True)
            self._chain.append(last)
        last.pieces.append(piece)
        last.positions.append(0)
        last.size_bytes += piece.size_bytes
        self._chain_bytes += piece.size_bytes
        self._go_on()

    @property
    def pending_bytes(self) -> int:
        """Appended and neither committed nor dropped (C11)."""
        return self._gather.size_bytes + self._chain_bytes

    @property
    def batches_bytes(self) -> int:
        """The same without what objects have around their batches."""
        pieces = (piece for link in self._chain for piece in link.pieces)
        return self._gather.size_bytes + sum(piece.size_bytes for piece in pieces)

    def must_wait(self, log: CloudLog, size_bytes: int) -> bool:
        """While the store or the metastore is away, `append` refuses at once what there is no room for."""
        return self._room.must_wait(log, size_bytes, is_away=self.is_away)

    def wait_for_room(self, log: CloudLog, size_bytes: int, go_on: Callable[[], None]) -> Callable[[], None]:
        return self._room.wait(log, size_bytes, go_on)

    @property
    def waiting_count(self) -> int:
        """Batches that wait for room."""
        return len(self._room)

    def _fits(self, size_bytes: int) -> bool:
        """One batch is always taken where there is nothing else, whatever its size."""
        return not self.pending_bytes or self.pending_bytes + size_bytes <= self._settings.pending_bytes_max

    def _check_room(self, size_bytes: int) -> None:
        if not self._fits(size_bytes):
            why = "the store or the metastore does not answer" if self.is_away else "the store is slower than clients"
            raise KafkaError(
                ErrorCode.not_enough_replicas, f"{self.pending_bytes} bytes wait to be stored, and {why}: try again"
            )

    @property
    def is_away(self) -> bool:
        """Whether no PUT and no commit has succeeded for a while, and some have failed."""
        since_ms = self._failing_since_ms
        return since_ms is not None and self._host.clock.monotonic_ms() - since_ms >= AWAY_MS

    # Gathering

    def _linger_is_over(self) -> None:
        """Beyond what may be in flight the gather goes on growing, until a PUT has ended or it is full."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._is_overdue = bool(self._gather) and (len(self._puts) >= self._puts_max or bool(self._unput))
        if self._gather and not self._is_overdue and not self.is_stopped:
            self._seal()

    def _seal(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._is_overdue = None, False
        pieces = self._gather.seal()
        data, positions = encode(pieces, self._host.cluster_id, Owner.broker(*self._host.identity))
        for piece in pieces:
            piece.batches.clear()  # the object has them
        link = Link(pieces, positions, len(data), data)
        self._chain.append(link)
        self._chain_bytes += link.size_bytes
        self._unput.append(link)
        self._put_next()

    # Putting

    def _put_next(self) -> None:
        while self._unput and len(self._puts) < self._puts_max and not self.is_stopped:
            link = self._unput.popleft()
            task = self._host.supervisor.work(self._put(link), "an upload", link.object_id or "")
            self._puts[task] = None
            task.add_done_callback(self._put_ended)
        if self._is_overdue or (self._gather and self._need_not_linger):
            self._linger_is_over()

    def _put_ended(self, task: asyncio.Task[None]) -> None:
        self._puts.pop(task, None)
        if not self.is_stopped:
            self._put_next()

    async def _put(self, link: Link) -> None:
        try:
            if self._drop_dead_pieces(link):
                return
            link.owner, link.object_id = await (self._put_hedged if self._hedging.is_on else self._put_once)(link)
            self._succeeded()
            self._puts_max = min(self._settings.uploads_max, self._puts_max + 1)
            link.is_put = True
            if link.pieces:
                self._go_on()
            else:
                self._give_back(link.owner, link.object_id)  # it was dropped meanwhile
        except Exception as bug:
            self._abandon(link, bug)
            raise

    async def _put_once(self, link: Link) -> tuple[Owner, ObjectId]:
        """Returns under which id the store has it."""
        host = self._host
        owner, object_id = await self._pool.take()
        key = ObjectName(host.cluster_id, Level.L0, object_id).key
        since_ms = host.clock.monotonic_ms()
        try:
            await until_answered(lambda: host.objects.put(key, _whole(link)), host.rng, self._put_failed)
        except asyncio.CancelledError:
            self._give_back(owner, object_id)  # the store may have it all the same, now or later
            raise
        self._hedging.took((host.clock.monotonic_ms() - since_ms) / 1000)
        return owner, object_id

    async def _put_hedged(self, link: Link) -> tuple[Owner, ObjectId]:
        """Under a second id as well if the first takes long. One of them is used, and the other released."""
        attempts = [asyncio.ensure_future(self._put_once(link))]
        try:
            done, _ = await asyncio.wait(attempts, timeout=self._hedging.slow_s)
            if not done:
                self._host.stats.hedged_puts_count += 1
                attempts.append(asyncio.ensure_future(self._put_once(link)))
                done, _ = await asyncio.wait(attempts, return_when=asyncio.FIRST_COMPLETED)
            first = next(attempt for attempt in attempts if attempt in done)
            for other in done - {first}:
                self._give_back(*other.result())
            return first.result()
        finally:
            for attempt in attempts:
                attempt.cancel()
            await asyncio.gather(*attempts, return_exceptions=True)

    def _put_failed(self, error: StoreUnavailableError | StoreRefusedError, attempts_count: int) -> None:
        self._puts_max = max(1, self._puts_max // 2)
        self._failed(f"{self._host.objects.place}: {error}")

    # Committing

    def _go_on(self) -> None:
        if self._committing is None and not self.is_stopped and self._ready():
            self._committing = self._host.supervisor.work(self._commit_all(), "a commit")

    def _ready(self) -> list[Link]:
        """In order, of one owner: what can be committed together."""
        for link in [link for link in self._chain if not link.has_been_sent]:
            self._drop_dead_pieces(link)
        ready: list[Link] = []
        held: set[PartitionId] = set()
        owner: Owner | None = None
        runs_count = 0
        for link in self._chain:
            is_mine = link.owner is None or owner is None or link.owner == owner
            has_room = len(ready) < COMMITTED_AT_ONCE and runs_count + len(link.pieces) <= RUNS_MAX
            if link.is_put and is_mine and has_room and held.isdisjoint(link.keys):
                ready.append(link)
                owner = owner or link.owner
                runs_count += len(link.pieces)
            else:
                held |= link.keys
        return ready

    def _drop_dead_pieces(self, link: Link) -> bool:
        """Leaves out what was dropped before a commit of it was sent. Returns whether nothing is left."""
        alive = [(piece, at) for piece, at in zip(link.pieces, link.positions, strict=True) if not piece.log.is_dropped]
        if len(alive) == len(link.pieces):
            return not alive
        link.pieces, link.positions = [piece for piece, _ in alive], [at for _, at in alive]
        if not link.pieces and link in self._chain:
            self._remove(link)
            if link.object_id is not None and link.is_put and link.owner is not None:
                self._give_back(link.owner, link.object_id)
        return not link.pieces

    def _give_back(self, owner: Owner, object_id: ObjectId) -> None:
        if not self.is_stopped:
            self._pool.give_back(owner, [object_id])

    async def _commit_all(self) -> None:
        try:
            while not self.is_stopped and (links := self._ready()):
                try:
                    await self._commit(links)
                except Exception as bug:
                    self._host.supervisor.survived(bug, "a commit", ", ".join(str(link.object_id) for link in links))
                    for link in links:
                        self._abandon(link, bug)
        finally:
            self._committing = None

    async def _commit(self, links: list[Link]) -> None:
        host = self._host
        owner, commits = self._ask_for(links)
        since_ms = host.clock.monotonic_ms()
        told = await until_known(
            lambda: host.metastore.commit_l0(owner, commits, host.clock.now_ms()),
            host.rng,
            lambda: self._failed("the metastore does not answer"),
        )
        host.stats.commits.took((host.clock.monotonic_ms() - since_ms) / 1000)
        self._succeeded()
        for link, outcomes in zip(links, told, strict=True):
            self._take(link, outcomes)

    def _ask_for(self, links: Sequence[Link]) -> tuple[Owner, list[Commit]]:
        """What is sent to the metastore, from now on as it is: until it has answered, nothing is left out of it."""
        owner = next((link.owner for link in links if link.owner is not None), Owner.broker(*self._host.identity))
        for link in links:
            link.has_been_sent = True
        return owner, [
            Commit(
                object_id=link.object_id,
                size_bytes=len(link.data) if link.data is not None else 0,
                runs=[piece.run(at) for piece, at in zip(link.pieces, link.positions, strict=True)],
            )
            for link in links
        ]

    def _take(self, link: Link, outcomes: Sequence[Outcome]) -> None:
        lost: list[tuple[Piece, int]] = []
        link.has_been_sent = False
        for piece, at, outcome in zip(link.pieces, link.positions, outcomes, strict=True):
            if outcome is Outcome.ACCEPTED:
                self._accepted(link, piece, at)
            elif outcome in (Outcome.LOST, Outcome.SKIPPED):
                lost.append((piece, at))
            else:
                code, what = _ERRORS[outcome]
                self._lose(piece.log, KafkaError(code, f"{piece.log.place}: {what}"))
        if not lost:
            self._remove(link)
            if link.data is not None and link.object_id is not None:
                self._tail.keep(link.object_id, _whole(link))
            return
        link.pieces, link.positions = [piece for piece, _ in lost], [at for _, at in lost]
        if Outcome.LOST in outcomes:
            logger.info("object %s has expired before it was committed: it is put again", link.object_id)
            link.owner = link.object_id = None
            link.is_put = False
            self._unput.append(link)
            self._put_next()

    def _accepted(self, link: Link, piece: Piece, at: int) -> None:
        """Of a log that was dropped meanwhile nothing is known any more: whoever leads finds it in the metastore."""
        listener = self._listeners.get(piece.log)
        if listener is None:
            return
        try:
            extent = piece.log.note_committed(piece, link.object_id, at)
            listener.committed(piece, extent)
        except Exception as bug:
            self._host.supervisor.survived(bug, "a commit", piece.log)
            self._lose(piece.log, KafkaError(ErrorCode.unknown_server_error, str(bug)))

    def _lose(self, log: CloudLog, error: KafkaError) -> None:
        listener = self._listeners.get(log)
        self.leave(log)
        if listener is not None:
            listener.lost(error)

    def _abandon(self, link: Link, bug: Exception) -> None:
        """A bug: what the link holds is not committed by this leadership, and nothing that builds on it is."""
        for piece in list(link.pieces):
            self._lose(piece.log, KafkaError(ErrorCode.unknown_server_error, str(bug)))
        if link in self._chain:
            self._remove(link)

    def _remove(self, link: Link) -> None:
        self._chain.remove(link)
        self._chain_bytes -= link.size_bytes
        self._room.look()

    # How the store and the metastore are

    def _succeeded(self) -> None:
        if self._failing_since_ms is not None:
            logger.info("cloud topics: writes succeed again")
        self._failing_since_ms = None

    def _failed(self, what: str) -> None:
        now_ms = self._host.clock.monotonic_ms()
        if self._failing_since_ms is None:
            self._failing_since_ms = now_ms
        if now_ms - self._told_ms >= TOLD_EVERY_MS:
            self._told_ms = now_ms
            logger.warning("cloud topics: cannot write now, trying again: %s", what)

    # The end

    @property
    def is_idle(self) -> bool:
        """Whether everything that was appended is committed or dropped."""
        return not self._gather and not self._chain

    def flush(self) -> None:
        """Sends what was gathered without waiting for more: the broker hands over."""
        if self._gather:
            self._seal()

    async def stop(self) -> None:
        """What is not committed by now is dropped: its clients were told nothing."""
        self.is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
        tasks = [*self._puts, *([self._committing] if self._committing is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for log in list(self._listeners):
            self.leave(log)
        await self._pool.close()

    def check_invariants(self) -> None:
        pieces = [piece for link in self._chain for piece in link.pieces]
        ends: dict[PartitionId, int] = {}
        for piece in pieces:
            if piece.log.is_dropped:
                continue
            before = ends.get(piece.key, piece.log.committed_offset)
            assert piece.base_offset == before, (
                f"C5: {piece.log!r} has {before} and then {piece.base_offset} on its way"
            )
            ends[piece.key] = piece.end_offset
        assert self._chain_bytes == sum(link.size_bytes for link in self._chain), "C11: bytes are counted wrong"


def _whole(link: Link) -> memoryview:
    assert link.data is not None
    return memoryview(link.data).toreadonly()
