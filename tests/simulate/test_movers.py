"""Movers leave every partition with the replicas that it had, whatever became of what they asked for."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import cast

import pytest

from sexton.client.client import Client
from sexton.client.errors import ConnectionLostError
from sexton.client.metadata import PartitionInfo, TopicInfo
from sexton.simulate import movers
from sexton.simulate.loop import SimulatedLoop, new_loop
from sexton.simulate.movers import Movers
from sexton.simulate.plan import Action, AdminPlan
from sexton.simulate.trace import Trace
from sexton.types import TopicPartition

PLACE = ("t", 0)
LATE_S = 6


class Cluster:
    """One partition, its clients and their Admin. The first move is carried out when its mover has long given up."""

    def __init__(self) -> None:
        self.replicas: tuple[int, ...] = (1, 2, 3)
        self.asked_count = 0
        self.client = self

    async def topic(self, name: str) -> TopicInfo:
        return TopicInfo(name, None, False, {0: PartitionInfo(0, 1, 1, self.replicas, (1,), ())})

    async def reassign(self, targets: Mapping[TopicPartition, Sequence[int]]) -> None:
        self.asked_count += 1
        target = tuple(targets[PLACE])
        if self.asked_count > 1:
            self.replicas = target
            return
        asyncio.get_running_loop().call_later(LATE_S, setattr, self, "replicas", target)
        await asyncio.sleep(LATE_S - 1)
        raise ConnectionLostError("no answer", "try again")


def test_a_move_that_comes_late_is_put_right_again(monkeypatch: pytest.MonkeyPatch) -> None:
    loop: SimulatedLoop = new_loop(random.Random(1))
    cluster = Cluster()
    monkeypatch.setattr(movers, "Admin", lambda client: client)

    async def nothing(place: TopicPartition, rng: random.Random) -> None:
        raise AssertionError("nothing is deleted")

    clients = [cast(Client, cluster)] * 2
    moving = Movers(clients, Trace(loop), 3, nothing, ())
    plan = AdminPlan(0, Action.FLAP, PLACE[0], 5)
    loop.run_until_complete(moving.run([plan], lambda: 0, lambda: loop.now_ns > 0))
    loop.run_until_complete(asyncio.sleep(LATE_S))
    loop.close()
    assert cluster.asked_count > 2
    assert set(cluster.replicas) == {1, 2, 3}
