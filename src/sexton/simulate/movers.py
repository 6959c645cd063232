"""Those who move replicas in haste: away and back again within milliseconds, or half the way and then not; and those
who do whatever can be done to one partition, one thing after the other.

Each move is a task of its own, so that several are under way at once, through whichever brokers their two clients know.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Coroutine, Sequence
from functools import partial
from typing import Any

from sexton.client.admin import Admin
from sexton.client.client import Client
from sexton.client.errors import BadAnswerError, ConnectionLostError, NotConnectedError, RefusedError
from sexton.simulate.plan import Action, AdminPlan
from sexton.simulate.trace import Trace
from sexton.types import TopicPartition

NAMES = ("mover-1", "mover-2")
CallError = (NotConnectedError, ConnectionLostError, BadAnswerError, RefusedError)

DeleteRecords = Callable[[TopicPartition, random.Random], Coroutine[Any, Any, object]]

APART_MS = (5, 30, 100, 500)
"""Between taking a replica away and adding it again."""

STANDS_LOOKS = 3
"""How often, a second apart, a partition is seen with the replicas that it got back before its mover believes it."""

CANCEL_AFTER_MS = (5, 200, 2_000, 8_000, 20_000)
BURST_STEPS_MAX = 6


class Movers:
    def __init__(
        self,
        clients: Sequence[Client],
        trace: Trace,
        brokers_count: int,
        delete_records: DeleteRecords,
        deletes: Collection[str],
    ) -> None:
        """`delete_records` does so on a partition of a topic that `deletes`."""
        self._admins = [Admin(client) for client in clients]
        self._delete_records = delete_records
        self._deletes = deletes
        self._trace = trace
        self._brokers = range(1, brokers_count + 1)
        self._found: dict[TopicPartition, Sequence[int]] = {}
        """The most replicas that each partition had when somebody came to move it."""

    async def run(self, plans: Sequence[AdminPlan], elapsed_ms: Callable[[], int], is_over: Callable[[], bool]) -> None:
        """Once it is over, every partition gets back the replicas that it had: some moves came only half the way."""
        moves = []
        for plan in plans:
            await asyncio.sleep(max(0, plan.at_ms - elapsed_ms()) / 1000)
            if is_over():
                break
            moves.append(asyncio.ensure_future(self._move(plan, random.Random(plan.draw))))
        await asyncio.gather(*moves)
        while self._found and not is_over():
            await asyncio.sleep(0.5)
        await asyncio.gather(*(self._put_back(place, replicas) for place, replicas in self._found.items()))

    async def _put_back(self, place: TopicPartition, replicas: Sequence[int]) -> None:
        """Until they have stood for a while: a request that somebody gave up waiting for may be carried out yet."""
        admin, looks_left = self._admins[0], STANDS_LOOKS
        while looks_left > 0:
            try:
                found = (await admin.client.topic(place[0])).partitions[place[1]].replicas
                if set(found) == set(replicas):
                    looks_left -= 1
                else:
                    looks_left = STANDS_LOOKS
                    await admin.reassign({place: replicas})
            except CallError as error:
                self._trace.note(NAMES[0], f"could not put {place} back: {error.what}")
            await asyncio.sleep(1)

    async def _move(self, plan: AdminPlan, rng: random.Random) -> None:
        first, second = rng.sample(self._admins, 2)
        try:
            partitions = (await first.client.topic(plan.topic)).partitions
            number = rng.choice(sorted(partitions))
            place, replicas = (plan.topic, number), partitions[number].replicas
            self._found[place] = max(replicas, self._found.get(place, ()), key=len)
            if plan.action is Action.FLAP:
                await self._flap(place, replicas, first, second, rng)
            elif plan.action is Action.BURST:
                await self._burst(place, replicas, rng)
            else:
                await self._move_and_cancel(place, replicas, first, second, rng)
        except CallError as error:
            self._trace.note(NAMES[0], f"{plan.action} {plan.topic}: failed: {error.what}")

    async def _flap(
        self, place: TopicPartition, replicas: Sequence[int], first: Admin, second: Admin, rng: random.Random
    ) -> None:
        """The second request does not wait for the first one's answer."""
        if len(replicas) < 2:
            return
        removed = rng.choice(replicas)
        fewer = [broker for broker in replicas if broker != removed]
        apart_ms = rng.choice(APART_MS)
        self._trace.note(NAMES[0], f"removes {removed} from {place} and adds it again {apart_ms} ms later")
        back = rng.choice((list(replicas), [*fewer, removed]))
        results = await asyncio.gather(
            first.reassign({place: fewer}), _later(apart_ms, second, place, back), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _burst(self, place: TopicPartition, replicas: Sequence[int], rng: random.Random) -> None:
        """Step after step, some before the one before has been answered: what one of them makes of the log is on its
        way to the followers when the next one comes."""
        removed = rng.choice(replicas)
        fewer = [broker for broker in replicas if broker != removed]
        steps: list[Callable[[], Coroutine[Any, Any, object]]] = []
        for _ in range(rng.randint(3, BURST_STEPS_MAX)):
            admin, kind = rng.choice(self._admins), rng.choice(("flap", "flap", "delete", "elect"))
            if kind == "flap" and fewer:
                steps += [partial(admin.reassign, {place: fewer}), partial(admin.reassign, {place: [*fewer, removed]})]
            elif kind == "delete" and place[0] in self._deletes:
                steps.append(partial(self._delete_records, place, rng))
            elif kind == "elect":
                order = rng.sample(replicas, len(replicas))
                steps += [partial(admin.reassign, {place: order}), partial(admin.elect_leaders, [place])]
        apart_ms = rng.choice(APART_MS)
        self._trace.note(NAMES[0], f"does {len(steps)} things to {place}, {apart_ms} ms apart, and removes {removed}")
        under_way = []
        for step in steps:
            under_way.append(asyncio.ensure_future(step()))
            await asyncio.sleep(apart_ms * rng.random() / 1000)
        for result in await asyncio.gather(*under_way, return_exceptions=True):
            if isinstance(result, BaseException) and not isinstance(result, CallError):
                raise result

    async def _move_and_cancel(
        self, place: TopicPartition, replicas: Sequence[int], first: Admin, second: Admin, rng: random.Random
    ) -> None:
        """To where it was not: what is added is behind, and what was there before may fail meanwhile."""
        others = [broker for broker in self._brokers if broker not in replicas]
        rng.shuffle(others)
        target = [*others, *replicas][: max(1, len(replicas))]
        if rng.random() < 0.3:
            target = [*replicas, *others]
        after_ms = rng.choice(CANCEL_AFTER_MS)
        self._trace.note(NAMES[0], f"moves {place} to {target} and cancels that {after_ms} ms later")
        await first.reassign({place: target})
        await _later(after_ms, second, place, None)


async def _later(delay_ms: int, admin: Admin, place: TopicPartition, target: Sequence[int] | None) -> None:
    await asyncio.sleep(delay_ms / 1000)
    await admin.reassign({place: target})
