"""Consumers: some read every partition from its beginning, some share the work as a group."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from sexton.client import consumer as consuming
from sexton.client.client import Client
from sexton.client.consumer import EARLIEST, Consumed, Consumer
from sexton.client.errors import (
    BadAnswerError,
    ConnectionLostError,
    CorruptRecordsError,
    NotConnectedError,
    RefusedError,
)
from sexton.client.fetching import READ_COMMITTED, READ_UNCOMMITTED
from sexton.client.groups import GroupConsumer
from sexton.client.members import ConsumerMember
from sexton.errors import UnsupportedFormatError
from sexton.protocol.errors import ErrorCode
from sexton.simulate.errors import SimulationFailure
from sexton.simulate.history import History, identity
from sexton.simulate.journal import Given, Look
from sexton.simulate.sessions import SessionConsumer
from sexton.simulate.trace import Trace
from sexton.types import TopicPartition

DamagedError = (CorruptRecordsError, UnsupportedFormatError)
"""Records that have rotted on a leader's disk are sent as they are, as by Kafka: it is consumers who check them."""

CallError = (NotConnectedError, ConnectionLostError, BadAnswerError, RefusedError, *DamagedError)
BACKOFF_S = 0.2


def _given(consumed: Consumed) -> Given:
    topic, partition, record = consumed
    return Given((topic, partition), record.offset, identity(record), record.key, record.value is None)


class Reader:
    """Reads everything of some partitions, in order, for as long as the simulation lasts."""

    def __init__(
        self,
        *,
        name: str,
        places: Sequence[TopicPartition],
        client: Client,
        history: History,
        is_over: Callable[[], bool],
        isolation: int = READ_UNCOMMITTED,
        pause_ms: int = 0,
        rack: str = "",
        keeps_sessions: bool = False,
    ) -> None:
        """With a rack it reads from a follower there, if a leader says so."""
        self._name = name
        self._isolation = isolation
        self._pause_ms = pause_ms
        self._places = places
        self._client = client
        self._history = history
        self._is_over = is_over
        kind = SessionConsumer if keeps_sessions else Consumer
        self._consumer = kind(client, isolation=isolation, rack=rack)
        self._losses_counts: dict[TopicPartition, int] = {}
        self.folds: dict[TopicPartition, dict[bytes, bytes]] = {}
        """What it makes of the keys in each partition: values that were not deleted since."""

    async def run(self) -> None:
        self._consumer.assign(dict.fromkeys(self._places, 0))
        while not self._is_over():
            await self._poll()
            await asyncio.sleep(self._pause_ms / 1000)

    async def _poll(self) -> None:
        self._begin_anew()
        before = dict(self._consumer.positions)
        is_committed = self._isolation == READ_COMMITTED
        look = Look(self._name, is_committed)
        self._history.journal.began(look)
        try:
            consumed = await self._consumer.poll()
        except RefusedError as error:
            self._client.forget()
            if error.code == ErrorCode.offset_out_of_range:
                await self._find_again()
            else:
                self._drop_deleted()
                await asyncio.sleep(BACKOFF_S)
            return
        except CallError:
            self._client.forget()
            await asyncio.sleep(BACKOFF_S)
            return
        after = self._consumer.positions
        look.positions = {place: (at, after[place]) for place, at in before.items() if after.get(place, at) != at}
        look.given = [_given(each) for each in consumed]
        self._history.journal.ended(look)
        for topic, partition, record in consumed:
            place = (topic, partition)
            if record.offset < before.get(place, 0):
                raise SimulationFailure(
                    "rule 2", f"{self._name} asked {place} from {before[place]}, got {record.offset}"
                )
            before[place] = record.offset + 1
            self._history.saw(self._name, place, record.offset, identity(record), is_committed=is_committed)
            if record.key is not None:
                fold = self.folds.setdefault(place, {})
                fold.pop(record.key, None)
                if record.value is not None:
                    fold[record.key] = record.value

    def _begin_anew(self) -> None:
        """Where something was lost, as one that notices must: what it has made of the records may be of lost ones."""
        for place, losses in self._history.losses.items():
            if place in self._consumer.positions and self._losses_counts.get(place, 0) < len(losses):
                self._losses_counts[place] = len(losses)
                self._consumer.positions[place] = 0
                self.folds.pop(place, None)

    def position(self, place: TopicPartition) -> int:
        return self._consumer.positions.get(place, 0)

    def _drop_deleted(self) -> None:
        gone = self._history.dropped_topics
        self._consumer.positions = {
            place: offset for place, offset in self._consumer.positions.items() if place[0] not in gone
        }

    async def _find_again(self) -> None:
        """A position that the log no longer has: fine below its start, a loss above its end."""
        for place, position in list(self._consumer.positions.items()):
            try:
                start = (await consuming.list_offsets(self._client, {place: EARLIEST}))[place]
            except CallError:
                continue
            if not self._history.may_start_at(place, start):
                raise SimulationFailure(
                    "rule 1",
                    f"{place} starts at {start}, though nobody asked for more than "
                    f"{self._history.start_bounds.get(place, 0)} to be deleted",
                )
            if start > position:
                self._consumer.positions[place] = start


class GroupReader:
    """A member of a group. What it was given, it commits; after a change of members it may be given some again."""

    def __init__(
        self,
        *,
        name: str,
        group: str,
        topics: Sequence[str],
        client: Client,
        history: History,
        delivered: dict[TopicPartition, set[int]],
        trace: Trace,
        is_over: Callable[[], bool],
        is_healed: Callable[[], bool],
        pause_ms: int = 0,
        is_consumer_protocol: bool = False,
        rack: str = "",
    ) -> None:
        """`is_consumer_protocol`: KIP-848 instead of the classic protocol."""
        self._name = name
        self._group = group
        self._is_consumer_protocol = is_consumer_protocol
        self._rack = rack
        self._pause_ms = pause_ms
        self._is_healed = is_healed
        """From then on it does not pause: what it still has to read may be hundreds of runs, one a response."""
        self._topics = topics
        self._client = client
        self._history = history
        self._delivered = delivered
        """Shared by the members: what the group as a whole was given."""
        self._trace = trace
        self._is_over = is_over

    async def run(self) -> None:
        member: GroupConsumer | ConsumerMember
        if self._is_consumer_protocol:
            member = ConsumerMember(self._client, self._group, self._topics, start_at=EARLIEST, rack=self._rack)
        else:
            member = GroupConsumer(self._client, self._group, self._topics, start_at=EARLIEST)
        assigned: list[TopicPartition] = []
        while not self._is_over():
            try:
                look = Look(self._name, is_committed=False, is_shared=True)
                self._history.journal.began(look)
                consumed = await member.poll()
                look.given = [_given(each) for each in consumed]
                self._history.journal.ended(look)
                for topic, partition, record in consumed:
                    self._history.saw(self._name, (topic, partition), record.offset, identity(record))
                    self._delivered.setdefault((topic, partition), set()).add(record.offset)
                await member.commit()
                if member.assigned != assigned:
                    assigned = member.assigned
                    self._trace.note(self._name, f"is assigned {', '.join(f'{t}-{p}' for t, p in assigned)}")
            except CallError as error:
                self._trace.note(self._name, f"group: {error.what}")
                self._client.forget(self._group)
                await asyncio.sleep(BACKOFF_S)
            await asyncio.sleep(0 if self._is_healed() else self._pause_ms / 1000)
        await member.close()
