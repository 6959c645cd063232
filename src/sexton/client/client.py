"""A client's view of a cluster: which broker to ask, in which version, and how often to retry.

There is one connection per broker, opened at first use. The cached `metadata` is refreshed when a broker reports that
it is out of date, or cannot be reached.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from sexton.client import apis
from sexton.client.apis import Api
from sexton.client.connection import CLIENT_ID, CONNECT_TIMEOUT_MS, DEFAULT_TIMEOUT_MS, Rpc
from sexton.client.errors import (
    START_ONE,
    BadAnswerError,
    ConnectionLostError,
    NotConnectedError,
    RefusedError,
    check,
    refusal,
)
from sexton.client.metadata import Address, Metadata, TopicInfo
from sexton.client.security.login import Login
from sexton.ports.clock import Clock
from sexton.ports.network import Network
from sexton.protocol.errors import ErrorCode
from sexton.types import NO_LEADER

BACKOFF_MIN_MS = 20
BACKOFF_MAX_MS = 1_000
"""Bounds of the pause between two attempts: it is doubled each time, with jitter so that many clients do not retry at
once."""

UNKNOWN_TOPIC_PATIENCE_MS = 5_000
"""How long a request is retried for a topic that is unknown: one that was just created may not have reached every
broker."""

_UNKNOWN_TOPIC = (ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id)

T = TypeVar("T")


class Peer:
    """A connection to a broker and the API versions that it supports."""

    def __init__(self, rpc: Rpc, versions: Mapping[int, tuple[int, int]]) -> None:
        self.rpc = rpc
        self._versions = versions

    def version(self, api: Api) -> int:
        low, high = self._versions.get(api.key, (0, -1))
        version = min(high, api.highest)
        if version < max(low, api.lowest):
            spoken = f"speaks {low} to {high}" if high >= 0 else "does not have it"
            what = f"no common version of {api.name}: we speak {api.lowest} to {api.highest}, the broker {spoken}"
            raise BadAnswerError(what, self.rpc.peer)
        return version

    def has(self, api: Api) -> bool:
        return api.key in self._versions

    def speaks(self, api: Api) -> bool:
        """Whether there is a version of it that both sides have."""
        low, high = self._versions.get(api.key, (0, -1))
        return max(low, api.lowest) <= min(high, api.highest)

    async def call(self, api: Api, body: Mapping[str, Any], timeout_ms: int | None = None) -> Any:
        return await self.rpc.call(api.key, self.version(api), body, timeout_ms=timeout_ms)


class Client:
    def __init__(
        self,
        network: Network,
        bootstrap: Sequence[Address],
        *,
        clock: Clock,
        rng: random.Random,
        client_id: str = CLIENT_ID,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        unknown_topic_patience_ms: int = UNKNOWN_TOPIC_PATIENCE_MS,
        login: Login | None = None,
    ) -> None:
        self.clock = clock
        self.rng = rng
        self.timeout_ms = timeout_ms
        self.metadata = Metadata()
        self._network = network
        self._bootstrap = tuple(bootstrap)
        self._client_id = client_id
        self._connect_timeout_ms = connect_timeout_ms
        self._unknown_topic_patience_ms = unknown_topic_patience_ms
        self._login = login
        self._peers: dict[Address, Peer] = {}
        self._connecting: dict[Address, asyncio.Lock] = {}
        self._is_stale = True
        self._coordinators: dict[str, int] = {}

    async def open(self) -> None:
        """Connects once, without retries, so that a wrong address shows at once."""
        await self.refresh(())

    def close(self) -> None:
        for peer in self._peers.values():
            peer.rpc.close()
        self._peers.clear()

    # Which broker to ask

    async def peer_at(self, address: Address) -> Peer:
        lock = self._connecting.setdefault(address, asyncio.Lock())
        async with lock:
            peer = self._peers.get(address)
            if peer is None or peer.rpc.is_closed:
                peer = self._peers[address] = await self._connect(address)
            return peer

    async def _connect(self, address: Address) -> Peer:
        rpc = await Rpc.connect(
            self._network,
            *address,
            client_id=self._client_id,
            timeout_ms=self.timeout_ms,
            connect_timeout_ms=self._connect_timeout_ms,
        )
        try:
            answer = await rpc.call(
                apis.API_VERSIONS.key, apis.API_VERSIONS.highest, {}, timeout_ms=self._connect_timeout_ms
            )
            check(answer.error_code, rpc.peer)
            peer = Peer(rpc, {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys})
            if self._login is not None:
                await self._login.run(peer.call, rpc.peer)
        except ConnectionLostError as error:
            remedy = error.remedy or START_ONE
            raise NotConnectedError(error.what, rpc.peer, remedy) from error  # no request was sent yet
        except BaseException:
            rpc.close()
            raise
        return peer

    async def peer(self, broker_id: int) -> Peer:
        info = self.metadata.brokers.get(broker_id)
        if info is None:
            self._is_stale = True
            raise NotConnectedError("the cluster has no such broker, or it is unreachable", f"broker {broker_id}")
        return await self.peer_at(info.address)

    async def any_peer(self) -> Peer:
        """Returns a broker that is connected already, or the first of the others, in random order, that answers."""
        connected = [peer for peer in self._peers.values() if not peer.rpc.is_closed]
        if connected:
            return self.rng.choice(connected)
        known = [info.address for info in self.metadata.brokers.values()]
        self.rng.shuffle(known)
        others = [address for address in self._bootstrap if address not in known]
        self.rng.shuffle(others)
        failures: list[NotConnectedError] = []
        for address in (*known, *others):
            try:
                return await self.peer_at(address)
            except NotConnectedError as error:
                failures.append(error)
        if not failures:
            raise NotConnectedError("no broker to connect to", "", START_ONE)
        what = "; ".join(dict.fromkeys(error.what for error in failures))
        remedy = next((error.remedy for error in failures if error.remedy not in ("", START_ONE)), START_ONE)
        raise NotConnectedError(what, ", ".join(dict.fromkeys(error.place for error in failures)), remedy)

    async def leader(self, topic: str, partition: int) -> Peer:
        if self._is_stale or self.metadata.leader(topic, partition) is None:
            await self.refresh([topic])
        info = self.metadata.leader(topic, partition)
        place = f"{topic}-{partition}"
        if info is None:
            self._is_stale = True
            raise refusal(self.metadata.errors.get(topic, ErrorCode.unknown_topic_or_partition), place)
        if info.leader == NO_LEADER:
            self._is_stale = True
            check(ErrorCode.leader_not_available, place)
        return await self.peer(info.leader)

    async def coordinator(self, group: str) -> Peer:
        broker_id = self._coordinators.get(group)
        if broker_id is None:
            peer = await self.any_peer()
            body = {"key_type": 0, "key": group, "coordinator_keys": [group]}
            answer = await peer.call(apis.FIND_ONE_COORDINATOR, body)
            found = answer.coordinators[0] if hasattr(answer, "coordinators") else answer
            check(found.error_code, f"group {group}", found.error_message)
            broker_id = self._coordinators[group] = int(found.node_id)
            if broker_id not in self.metadata.brokers:
                self._is_stale = True
        if self._is_stale:
            await self.refresh(())
        return await self.peer(broker_id)

    def coordinator_id(self, group: str) -> int:
        """The coordinator as last found; -1 if it is not known."""
        return self._coordinators.get(group, -1)

    def forget(self, group: str | None = None) -> None:
        """Drops cached metadata that has proved wrong: the leaders, and a group's coordinator."""
        self._is_stale = True
        if group is not None:
            self._coordinators.pop(group, None)

    # Metadata

    async def refresh(self, topics: Iterable[str] | None) -> Metadata:
        """Requests metadata of these topics and of those known already; None for all topics."""
        peer = await self.any_peer()
        asked = None if topics is None else list(dict.fromkeys([*self.metadata.topics, *topics]))
        body = {
            "topics": None if asked is None else [{"topic_id": None, "name": name} for name in asked],
            "allow_auto_topic_creation": False,
        }
        answer = await peer.call(apis.METADATA, body)
        self.metadata = self.metadata.merged(answer, is_complete=asked is None)
        self._is_stale = False
        return self.metadata

    async def topic(self, name: str) -> TopicInfo:
        """Returns a topic's current partitions. Raises RefusedError if there is no such topic, and none appears within
        a moment."""

        async def attempt() -> TopicInfo:
            await self.refresh([name])
            info = self.metadata.topics.get(name)
            if info is None:
                raise refusal(self.metadata.errors.get(name, ErrorCode.unknown_topic_or_partition), name)
            return info

        return await self.retry(attempt)

    # Retries

    async def retry(
        self,
        attempt: Callable[[], Awaitable[T]],
        *,
        timeout_ms: int | None = None,
        group: str | None = None,
        is_repeatable: bool = True,
    ) -> T:
        """Retries until it succeeds, fails with an error that is not retriable, or the timeout has passed (then raises
        the last error).

        A repeatable operation is retried after a lost connection too.
        """
        patience = Patience(self, self.timeout_ms if timeout_ms is None else timeout_ms)
        while True:
            try:
                return await attempt()
            except (RefusedError, NotConnectedError, ConnectionLostError) as error:
                self.forget(group)
                is_unclear = isinstance(error, ConnectionLostError) or _may_be_done(error)
                if (is_unclear and not is_repeatable) or not patience.lasts(error):
                    raise
            await patience.pause()

    @property
    def unknown_topic_patience_ms(self) -> int:
        return self._unknown_topic_patience_ms


def _may_be_done(error: Exception) -> bool:
    return isinstance(error, RefusedError) and error.code == ErrorCode.request_timed_out


class Patience:
    """How long one operation is retried, and how long it pauses in between."""

    def __init__(self, client: Client, timeout_ms: int) -> None:
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._start_s = self._loop.time()
        self._timeout_ms = timeout_ms
        self._backoff_ms = BACKOFF_MIN_MS

    @property
    def elapsed_ms(self) -> float:
        return (self._loop.time() - self._start_s) * 1000

    def lasts(self, error: Exception) -> bool:
        """Whether the error is retriable, and there is time left."""
        if isinstance(error, BadAnswerError):
            return False
        if isinstance(error, RefusedError):
            if not error.code.retriable or error.code == ErrorCode.corrupt_message:  # it would be corrupt again
                return False
            if error.code in _UNKNOWN_TOPIC and self.elapsed_ms >= self._client.unknown_topic_patience_ms:
                return False
        return self.elapsed_ms < self._timeout_ms

    async def pause(self) -> None:
        await asyncio.sleep(self._backoff_ms * (0.75 + 0.5 * self._client.rng.random()) / 1000)
        self._backoff_ms = min(self._backoff_ms * 2, BACKOFF_MAX_MS)
