"""Many members of one group, as cheaply as a client can be them: the classic protocol over one connection each."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from sexton.adapters.sockets import SocketNetwork
from sexton.client.connection import Rpc

FIND_COORDINATOR, JOIN_GROUP, HEARTBEAT, SYNC_GROUP = (10, 3), (11, 5), (12, 3), (14, 3)
MEMBER_ID_REQUIRED, REBALANCE_IN_PROGRESS, ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID = 79, 27, 22, 25
COORDINATOR_ERRORS = (14, 15, 16)
"""Loading, not available, not here: ask again."""

HEARTBEAT_S = 0.05
JOIN_TIMEOUT_S = 120
SESSION_TIMEOUT_MS = 30_000


class Member:
    """One member's loop: join, sync, and heartbeats that tell it to join again."""

    def __init__(self, group: str, members: int) -> None:
        self.group = group
        self.members = members
        self.generation = -1
        self.peers = 0
        """How many the generation had when this one joined it, as its leader saw it (0: not the leader)."""
        self.is_synced = False
        self._member_id = ""

    async def run(self, rpc: Rpc) -> None:
        while True:
            self.is_synced = False
            await self._join(rpc)
            while await self._heartbeat(rpc) == 0:
                await asyncio.sleep(HEARTBEAT_S)

    async def _join(self, rpc: Rpc) -> None:
        while True:
            answer = await self._ask_to_join(rpc)
            if answer.error_code == MEMBER_ID_REQUIRED:
                self._member_id = answer.member_id
            elif answer.error_code == UNKNOWN_MEMBER_ID:
                self._member_id = ""
            elif answer.error_code == 0:
                self._member_id, self.generation = answer.member_id, answer.generation_id
                self.peers = len(answer.members)
                if await self._sync(rpc, answer) == 0:
                    self.is_synced = True
                    return
            else:
                await asyncio.sleep(0.05)

    async def _ask_to_join(self, rpc: Rpc) -> Any:
        body = {
            "group_id": self.group,
            "session_timeout": SESSION_TIMEOUT_MS,
            "session_timeout_ms": SESSION_TIMEOUT_MS,
            "rebalance_timeout": 60_000,
            "rebalance_timeout_ms": 60_000,
            "member_id": self._member_id,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b""}],
        }
        return await rpc.call(*JOIN_GROUP, body, timeout_ms=JOIN_TIMEOUT_S * 1000)

    async def _sync(self, rpc: Rpc, joined: Any) -> int:
        assignments = [{"member_id": each.member_id, "assignment": b"some"} for each in joined.members]
        body = {
            "group_id": self.group,
            "generation_id": self.generation,
            "member_id": self._member_id,
            "assignments": assignments,
        }
        answer = await rpc.call(*SYNC_GROUP, body, timeout_ms=JOIN_TIMEOUT_S * 1000)
        return int(answer.error_code)

    async def _heartbeat(self, rpc: Rpc) -> int:
        body = {"group_id": self.group, "generation_id": self.generation, "member_id": self._member_id}
        return int((await rpc.call(*HEARTBEAT, body)).error_code)


async def seconds_to_join(bootstrap: str, _topic: str, group: str, count: int) -> float:
    """Until `count` members, all started at once, are in one generation and synced."""
    network = SocketNetwork()
    host, port = await find_coordinator(network, bootstrap, group)
    rpcs = [await Rpc.connect(network, host, port) for _ in range(count)]
    members = [Member(group, count) for _ in range(count)]
    started_s = time.monotonic()
    tasks = [asyncio.create_task(member.run(rpc)) for member, rpc in zip(members, rpcs, strict=True)]
    while not is_whole(members):
        for task in tasks:
            if task.done():
                task.result()  # a member's failure is the measurement's
        if time.monotonic() > started_s + JOIN_TIMEOUT_S:
            raise TimeoutError(f"{count} members were not together after {JOIN_TIMEOUT_S} s")
        await asyncio.sleep(0.005)
    seconds = time.monotonic() - started_s
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for rpc in rpcs:
        rpc.close()
    return seconds


def is_whole(members: list[Member]) -> bool:
    return all(each.is_synced for each in members) and len({each.generation for each in members}) == 1


async def find_coordinator(network: SocketNetwork, bootstrap: str, group: str) -> tuple[str, int]:
    host, port = bootstrap.split(",")[0].rsplit(":", 1)
    rpc = await Rpc.connect(network, host, int(port))
    deadline_s = time.monotonic() + JOIN_TIMEOUT_S
    while True:
        answer = await rpc.call(*FIND_COORDINATOR, {"key": group, "key_type": 0})
        if answer.error_code == 0:
            rpc.close()
            return answer.host, answer.port
        if answer.error_code not in COORDINATOR_ERRORS or time.monotonic() > deadline_s:
            raise RuntimeError(f"no coordinator for {group}: error {answer.error_code}")
        await asyncio.sleep(0.2)
