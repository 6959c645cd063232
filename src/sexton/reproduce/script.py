"""The words in which scenarios are told. Each does one thing, waits until it is done, and notes when.

A script cannot tell on which system it runs. What it takes for true it keeps itself (`truth`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from sexton.errors import SextonError
from sexton.records.batch import Batch
from sexton.reproduce.pace import HURRIED, Pace
from sexton.reproduce.rendezvous import Rendezvous
from sexton.reproduce.truth import Truth
from sexton.reproduce.world import AWAY, BROKERS, FILLER_KEY, Sight, World

POLL_S: Final = 0.3
WAIT_TIMEOUT_S: Final = 300.0
"""For what comes sooner or later on a machine that is not too busy: a failover, an ISR that grows, a compaction."""

QUIET_PASSES_COUNT: Final = 4
QUIET_S: Final = 15.0
"""Compaction that went over the log so often, for so long, and removed nothing more of what could go, will not: far
longer than `delete.retention.ms` (0) and `producer.id.expiration.ms` (2 s) ask for."""

READ_PATIENCE_S: Final = 10.0
"""How long a consumer waits for a record that was acknowledged before it began to read."""

PROBE_KEY: Final = "probe"
"""Written just before each reading: a partition that serves its consumers serves this, too."""


class Kind(Enum):
    START = "start"
    PRODUCE = "produce"
    DELETE = "delete"
    BEGIN = "begin"
    COMMIT = "commit"
    ABORT = "abort"
    KILL = "kill"
    COMPACTED = "compacted"
    KEPT = "kept"
    RETURN = "return"
    LEAD = "lead"
    READ = "read"


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened, for the narration and for the picture."""

    at_s: float
    kind: Kind
    label: str
    """Label of one or two words, on one or two lines."""
    text: str


class ScriptFailedError(SextonError):
    """A step did not come to pass. What the scenario would have shown is unknown."""

    exit_code = 70


Before = Callable[[Kind, str], Awaitable[None]]
"""Called with what a script is about to do."""


async def at_once(kind: Kind, what: str) -> None:
    """For runs without --step: does not wait for a person."""


class Script:
    def __init__(
        self,
        *,
        topic: str,
        world: World,
        kill: Rendezvous,
        bring_back: Rendezvous,
        now_s: Callable[[], float],
        tell: Callable[[Event], None],
        pace: Pace = HURRIED,
        before: Before = at_once,
    ) -> None:
        """Other scripts share the outage: `kill` and `bring_back` happen once, when all have come to that step."""
        self.topic = topic
        self.truth = Truth()
        self.events: list[Event] = []
        self.sights: list[Sight] = []
        self._world = world
        self._kill = kill
        self._bring_back = bring_back
        self._now_s = now_s
        self._tell = tell
        self._quiet_s = max(QUIET_S, 2 * pace.remembered_s)
        self._wait_timeout_s = WAIT_TIMEOUT_S + 3 * pace.remembered_s
        self._before = before

    # ---- The words.

    async def start(self) -> None:
        await self._before(Kind.START, "a topic is made")
        await self._world.make_topic(self.topic)
        self._note(Kind.START, "start", f"topic {self.topic} on brokers {_listed(BROKERS)}, led by broker 1")

    async def produce(self, key: str, value: str) -> None:
        await self._write(key, value, Kind.PRODUCE)

    async def delete(self, key: str) -> None:
        await self._write(key, None, Kind.DELETE)

    async def begin(self) -> None:
        """From here on, what is produced and deleted is in a transaction. All have the same producer."""
        await self._before(Kind.BEGIN, f"transaction {self._number + 1} begins")
        self.truth.begin()
        self._note(Kind.BEGIN, "begin", f"transaction {self._number} begins")

    async def commit(self) -> None:
        await self._end(Kind.COMMIT, is_committed=True)

    async def abort(self) -> None:
        await self._end(Kind.ABORT, is_committed=False)

    async def kill(self) -> None:
        """kill -9 of the third broker, which holds all that was written so far. Returns when the others go on alone."""
        await self._before(Kind.KILL, f"broker {AWAY} is killed")
        await self._until("all replicas are in sync", self._all_in_sync)
        await self._kill.arrive(self.topic)
        self._note(Kind.KILL, "kill -9", f"broker {AWAY} is killed")
        await self._until(f"broker {AWAY} is out of sync", self._is_away)

    async def wait_until_compacted(self) -> None:
        """Until the leader's log has nothing left of what could be forgotten: the keys that are gone, and all batches
        of the transactional producer, down to the empty ones. Or until compaction has gone over it again and again and
        leaves it there."""
        await self._before(Kind.COMPACTED, "the brokers that are up compact, until nothing more can go")
        producer_id = await self._world.producer_id(self.topic)
        left: list[str] | None = None
        passes_count, quiet_since_s, horizon_offset = 0, self._now_s(), -1
        deadline_s = self._now_s() + self._wait_timeout_s
        while left is None or left:
            log = await self._world.log(self.topic)
            now_left = traces(log, self.truth.gone_keys, producer_id)
            if now_left != left:
                left, passes_count, quiet_since_s, horizon_offset = now_left, 0, self._now_s(), _end_of(log)
            elif is_compacted(log, horizon_offset):
                passes_count, horizon_offset = passes_count + 1, _end_of(log)
            if left and passes_count >= QUIET_PASSES_COUNT and self._now_s() - quiet_since_s >= self._quiet_s:
                self._note(
                    Kind.KEPT, "compacted,\nkept", f"compacted {passes_count} times since, and kept: {', '.join(left)}"
                )
                return
            if left and self._now_s() > deadline_s:
                what = f"after {self._wait_timeout_s:g} s compaction still had to remove {', '.join(left)}"
                raise ScriptFailedError(what)
            await asyncio.sleep(POLL_S)
        self._note(Kind.COMPACTED, "compacted,\nforgotten", "compacted: nothing of it is left in the leader's log")

    async def bring_back(self) -> None:
        """The third broker starts again, with the disk that it had. Returns when it is in sync."""
        await self._before(Kind.RETURN, f"broker {AWAY} is started again")
        await self._bring_back.arrive(self.topic)
        await self._until(f"broker {AWAY} is in sync", self._all_in_sync)
        self._note(Kind.RETURN, "back\nin sync", f"broker {AWAY} is back, and in sync")

    async def move_leadership(self) -> None:
        """Moves leadership to the broker that was away."""
        await self._before(Kind.LEAD, f"broker {AWAY} is made the leader")
        await self._world.move_leadership(self.topic, AWAY)
        self._note(Kind.LEAD, "leads", f"broker {AWAY} leads")

    async def read(self) -> None:
        """Everything, from the beginning, with `read_committed`, through whoever leads."""
        await self._before(Kind.READ, "a consumer with read_committed reads everything")
        probe = f"written before reading {len(self.sights) + 1}"
        self.truth.write(PROBE_KEY, probe, await self._world.write(self.topic, PROBE_KEY, probe))
        seen = await self._world.read(self.topic, PROBE_KEY, probe, READ_PATIENCE_S)
        sight = replace(
            seen,
            fold=_without_former(seen.fold, probe),
            second_fold=None if seen.second_fold is None else _without_former(seen.second_fold, probe),
        )
        self.sights.append(sight)
        self._note(
            Kind.READ,
            f"reads\n{told(sight.fold)}",
            f"through broker {sight.leader} a consumer reads {told(sight.fold)}"
            + ("" if sight.second_fold is None else f"; librdkafka reads {told(sight.second_fold)}"),
        )

    # ---- Inside.

    @property
    def _number(self) -> int:
        """Number of the last transaction."""
        return len(self.truth.transactions)

    async def _write(self, key: str, value: str | None, kind: Kind) -> None:
        is_in_transaction = self.truth.is_open
        await self._before(kind, f"{key} is deleted by a tombstone" if value is None else f"{key}={value} is written")
        write = self._world.write_in_transaction if is_in_transaction else self._world.write
        offset = await write(self.topic, key, value)
        self.truth.write(key, value, offset)
        what = f"{key} deleted" if value is None else f"{key}={value}"
        label = f"transaction {self._number}\n{what}" if is_in_transaction else what
        where = f"offset {offset}" + (f", in transaction {self._number}" if is_in_transaction else "")
        self._note(kind, label, f"{what}{' by a tombstone' if value is None else ''} ({where})")

    async def _end(self, kind: Kind, *, is_committed: bool) -> None:
        word = "COMMIT" if is_committed else "ABORT"
        await self._before(kind, f"transaction {self._number} ends: {word}")
        await self._world.end_transaction(self.topic, is_committed=is_committed)
        self.truth.end(is_committed=is_committed)
        self._note(kind, f"transaction {self._number}\n{word}", f"transaction {self._number} ends: {word}")

    async def _all_in_sync(self) -> bool:
        return await self._world.in_sync(self.topic) == frozenset(BROKERS)

    async def _is_away(self) -> bool:
        leader = await self._world.leader(self.topic)
        return leader in BROKERS and leader != AWAY and AWAY not in await self._world.in_sync(self.topic)

    async def _until(self, goal: str, reached: Callable[[], Awaitable[bool]]) -> None:
        deadline_s = self._now_s() + WAIT_TIMEOUT_S
        while not await reached():
            if self._now_s() > deadline_s:
                raise ScriptFailedError(f"not within {WAIT_TIMEOUT_S:g} s: {goal}", self.topic)
            await asyncio.sleep(POLL_S)

    def _note(self, kind: Kind, label: str, text: str) -> None:
        event = Event(self._now_s(), kind, label, text)
        self.events.append(event)
        self._tell(event)


def _without_former(fold: Mapping[str, str], probe: str) -> Mapping[str, str]:
    """The probe of an earlier reading says nothing of whether this one was served."""
    return {key: value for key, value in fold.items() if key != PROBE_KEY or value == probe}


def told(fold: Mapping[str, str]) -> str:
    """A fold in words, without the probe, whose absence shows that a partition serves nothing new."""
    pairs = ", ".join(f"{key}={value}" for key, value in fold.items() if key != PROBE_KEY)
    return (pairs or "nothing") + ("" if PROBE_KEY in fold else ", and nothing newer")


def traces(log: Sequence[Batch], gone_keys: Sequence[str], producer_id: int) -> list[str]:
    """What a log still has of keys that are gone, and of a producer: records, markers, empty batches."""
    found: list[str] = []
    for batch in log:
        is_own = batch.producer_id == producer_id >= 0
        if batch.is_control and batch.records and is_own:
            found.append(f"{batch.control_type.name} marker at {batch.base_offset}")
        elif is_own and not batch.records:
            found.append(f"empty batch at {batch.base_offset}")
        elif not batch.is_control:
            found += [
                f"{'tombstone of ' if record.is_tombstone else ''}{_text(record.key)} at {record.offset}"
                for record in batch.records
                if is_own or _text(record.key) in gone_keys
            ]
    return found


def is_compacted(log: Sequence[Batch], below: int) -> bool:
    """Whether of the filler below an offset at most one record is left: compaction has gone over all of it."""
    keys = (_text(record.key) for batch in log for record in batch.records if record.offset < below)
    return sum(key == FILLER_KEY for key in keys) <= 1


def _end_of(log: Sequence[Batch]) -> int:
    return log[-1].next_offset if log else 0


def _text(key: bytes | None) -> str:
    return (key or b"").decode(errors="replace")


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
