"""One who changes the cluster while it works: topics, partitions, settings, replicas, log starts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

from sexton.client import apis
from sexton.client import consumer as consuming
from sexton.client.admin import Admin, Resource
from sexton.client.client import Client
from sexton.client.consumer import LATEST
from sexton.client.errors import BadAnswerError, ConnectionLostError, NotConnectedError, RefusedError, check
from sexton.ports.cloud import CLOUD, STORAGE_MODE
from sexton.protocol.errors import ErrorCode
from sexton.simulate.errors import SimulationFailure
from sexton.simulate.history import History
from sexton.simulate.plan import Action, AdminPlan, TopicPlan
from sexton.simulate.trace import Trace
from sexton.types import TopicPartition

NAME = "admin"
PARTITIONS_MAX = 6
SWITCH_ATTEMPTS = 20
HIGH_WATERMARK = -1
"""The offset that deletes all records below the high watermark."""
CallError = (NotConnectedError, ConnectionLostError, BadAnswerError, RefusedError)


class Administrator:
    def __init__(
        self,
        client: Client,
        history: History,
        trace: Trace,
        brokers_count: int,
        segment_bases: Callable[[TopicPartition], Sequence[int]] = lambda place: (),
        bounds: Callable[[TopicPartition], Sequence[int]] = lambda place: (),
    ) -> None:
        """`segment_bases` says where the segments of a partition begin, `bounds` how far its replicas are compacted."""
        self._client = client
        self._admin = Admin(client)
        self._history = history
        self._trace = trace
        self._brokers_count = brokers_count
        self._segment_bases = segment_bases
        self._bounds = bounds
        self.topics: dict[str, int] = {}
        """Those that exist for sure, with the partitions that they have at least."""

    async def create_all(self, topics: Sequence[TopicPlan]) -> None:
        """Tries until each of them exists."""
        for topic in topics:
            while topic.name not in self.topics:
                try:
                    await self._admin.create_topic(
                        topic.name, topic.partitions_count, topic.replicas_count, topic.settings
                    )
                    self._trace.note(NAME, f"created {topic.name}")
                except CallError as error:
                    if not (isinstance(error, RefusedError) and error.code == ErrorCode.topic_already_exists):
                        self._trace.note(NAME, f"could not create {topic.name}: {error.what}")
                        await asyncio.sleep(0.5)
                        continue
                self.topics[topic.name] = topic.partitions_count

    async def run(self, plans: Sequence[AdminPlan], elapsed_ms: Callable[[], int], is_over: Callable[[], bool]) -> None:
        """One after the other. What there was no time for is left: deleting a topic that is not there takes a while."""
        for plan in plans:
            await asyncio.sleep(max(0, plan.at_ms - elapsed_ms()) / 1000)
            if is_over():
                return
            try:
                what = await self._do(plan, random.Random(plan.draw))
            except CallError as error:
                what = f"failed: {error.what}"
            self._trace.note(NAME, f"{plan.action} {plan.topic}: {what}")

    async def _do(self, plan: AdminPlan, rng: random.Random) -> str:
        match plan.action:
            case Action.CREATE_TOPIC:
                return await self._create(plan.topic, rng)
            case Action.DELETE_TOPIC:
                return await self._delete(plan.topic)
            case Action.ADD_PARTITIONS:
                return await self._add_partitions(plan.topic, rng)
            case Action.CHANGE_SETTINGS:
                return await self._change_settings(plan.topic, rng)
            case Action.REASSIGN:
                return await self._reassign(plan.topic, rng)
            case Action.ELECT:
                return f"{len(await self._admin.elect_leaders(None))} partitions"
            case Action.DELETE_RECORDS:
                return await self._delete_records(plan.topic, rng)
            case Action.DELETE_COMPACTED:
                return await self._delete_compacted(plan.topic, rng)
            case Action.SWITCH:
                return await self._switch(plan.topic)
            case Action.FLAP | Action.CANCEL | Action.BURST:
                raise AssertionError(f"{plan.action} is for movers")

    async def _create(self, topic: str, rng: random.Random) -> str:
        # Two at least: the only replica could be placed on a machine whose disk is gone and whose lease is not yet.
        replicas_count = rng.randint(min(2, self._brokers_count), min(3, self._brokers_count))
        made = await self._admin.create_topic(topic, rng.randint(1, 3), replicas_count)
        return f"{made[0]} partitions with {made[1]} replicas"

    async def _delete(self, topic: str) -> str:
        self._history.dropped_topics.add(topic)
        await self._admin.delete_topic(topic)
        return "done"

    async def _add_partitions(self, topic: str, rng: random.Random) -> str:
        count = min(PARTITIONS_MAX, self.topics.get(topic, 1) + rng.randint(1, 2))
        await self._admin.create_partitions(topic, count)
        self.topics[topic] = count
        return f"{count} in all"

    async def _change_settings(self, topic: str, rng: random.Random) -> str:
        possible: list[dict[str, str | None]] = [
            {"segment.bytes": str(rng.choice((20_000, 50_000, 1 << 20)))},
            {"segment.bytes": None},
            {"min.insync.replicas": str(rng.randint(1, 2))},
            {"max.message.bytes": str(rng.choice((200_000, 1 << 20)))},
            {"segment.ms": str(rng.choice((5_000, 600_000)))},
        ]
        changes = rng.choice(possible)
        await self._admin.change_settings(Resource.TOPIC, topic, changes)
        return f"{changes}"

    async def _switch(self, topic: str) -> str:
        for _ in range(SWITCH_ATTEMPTS):
            try:
                await self._admin.change_settings(Resource.TOPIC, topic, {STORAGE_MODE: CLOUD})
                return "asked for"
            except CallError as error:
                self._trace.note(NAME, f"could not move {topic}: {error.what}")
                await asyncio.sleep(0.5)
        return "given up"

    async def _reassign(self, topic: str, rng: random.Random) -> str:
        place = (topic, rng.randrange(self.topics.get(topic, 1)))
        count = rng.randint(min(2, self._brokers_count), min(3, self._brokers_count))
        replicas = rng.sample(range(1, self._brokers_count + 1), count)
        await self._admin.reassign({place: replicas})
        return f"{place[1]} to {replicas}"

    async def _delete_records(self, topic: str, rng: random.Random) -> str:
        return await self.delete_records_of((topic, rng.randrange(self.topics.get(topic, 1))), rng)

    async def _delete_compacted(self, topic: str, rng: random.Random) -> str:
        """Up to where some replica has compacted: somebody has looked that up."""
        place = (topic, rng.randrange(self.topics.get(topic, 1)))
        end = (await consuming.list_offsets(self._client, {place: LATEST}))[place]
        bounds = [bound for bound in self._bounds(place) if 0 < bound <= end]
        return await self._delete_below(place, rng.choice(bounds)) if bounds else "nothing is compacted"

    async def delete_records_of(self, place: TopicPartition, rng: random.Random) -> str:
        """Refused where cleanup.policy does not include delete."""
        draw = rng.random()
        if draw < 0.25:
            return await self._delete_all_records(place)
        end = (await consuming.list_offsets(self._client, {place: LATEST}))[place]
        before = int(end * rng.random())
        bases = [base for base in self._segment_bases(place) if 0 < base <= end]
        if draw < 0.6 and bases:
            before = rng.choice(bases)
        return await self._delete_below(place, before)

    async def _delete_below(self, place: TopicPartition, before: int) -> str:
        self._history.deleting_records(place, before)
        start = (await self._admin.delete_records({place: before}))[place]
        if start > before and not self._history.may_start_at(place, start) and not self._history.is_gone(place):
            raise SimulationFailure("rule 1", f"{place}: {before} was asked for, but the log now starts at {start}")
        return f"{place[1]} starts at {start}"

    async def _delete_all_records(self, place: TopicPartition) -> str:
        """Everything that is committed by then. Asked once: whoever is not told how that went must expect it at any
        time, and one that is asked again could be carried out twice, at two high watermarks."""
        peer = await self._client.leader(*place)
        topics = [{"name": place[0], "partitions": [{"partition_index": place[1], "offset": HIGH_WATERMARK}]}]
        self._history.deleting_all.append(place)
        answer = await peer.call(apis.DELETE_RECORDS, {"topics": topics, "timeout": self._client.timeout_ms})
        part = answer.topics[0].partitions[0]
        check(part.error_code, f"{place[0]}-{place[1]}")
        self._history.deleting_all.remove(place)
        self._history.deleting_records(place, int(part.low_watermark))
        return f"{place[1]} starts at its high watermark, {part.low_watermark}"
