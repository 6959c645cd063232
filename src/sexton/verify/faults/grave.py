"""A replica that is away until the others have forgotten what it missed, and then comes back as the leader.

What it missed, a deletion or the end of a transaction, is compacted away meanwhile, so that nobody is left who could
tell it (`reproduce` shows what Apache Kafka makes of that, one scenario at a time). Where compaction waits for who is
away, nothing is forgotten: then it is enough that compaction has gone over it again and again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import ClassVar, Final

from sexton.client.client import Client
from sexton.client.consumer import EARLIEST, LATEST, list_offsets
from sexton.client.raw import raw_batches
from sexton.errors import SextonError
from sexton.harness import asking
from sexton.history.op import Ext
from sexton.records.batch import Batch
from sexton.verify import probes
from sexton.verify.clients.base import Place
from sexton.verify.faults import moving
from sexton.verify.faults.base import Fault, InterruptedFaultError, Scene, Told, chosen
from sexton.verify.faults.missed import Missed
from sexton.verify.faults.schedule import Act, Target

WAIT_TIMEOUT_S: Final = 300.0
"""For all that is waited for: a failover, compaction, an ISR that grows."""

WARM_UP_TIMEOUT_S: Final = 600.0
"""Spark starts in ten seconds on two quiet cores, and in minutes where many want them."""

PRODUCER_EXPIRATION_MS: Final = 15_000
"""Longer than any client tries to send a record: who is forgotten meanwhile writes it twice, as Kafka's documentation
says."""

PASSES_COUNT: Final = 3
QUIET_S: Final = 2 * PRODUCER_EXPIRATION_MS / 1000
"""Compaction that went over it so often, so long after the replica was lost, and has forgotten nothing, will not."""

FORGOTTEN_COUNT: Final = 3
"""Keys: one or the other may be written again before anybody looks."""


class Grave(Fault):
    """Away until the others have compacted away what it missed, then back as the leader."""

    name = "grave"
    targets = (Target.ONE, Target.LEADER)
    needs_compaction = True
    broker_settings: ClassVar = {"producer.id.expiration.ms": PRODUCER_EXPIRATION_MS}
    """Brokers remember producers by their last batch, for a day by default: until then it stays, emptied."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._away = -1
        self._since_s = 0.0
        self._lost_ms = 0
        self._missed: dict[Place, Missed] = {}

    def begin(self, act: Act) -> Told:
        """Nobody is hit unless all are there: the others must go on without it."""
        scene = self.scene
        topics = scene.topics()
        if len(scene.serving()) < len(scene.cluster.node_ids) or not probes.is_whole(scene.bootstrap, topics):
            return Told()
        places = sorted(set(scene.places()))
        self._missed = {place: Missed(0, ()) for place in places}
        scene.wait_until("there is something to read", self._is_lost, WAIT_TIMEOUT_S)
        scene.wait_until("compaction was seen", self._has_compacted, WARM_UP_TIMEOUT_S)
        (away,) = chosen(act, scene)
        for client in scene.clients():  # so that transactions are open, of producers that do not come back
            client.kill()
        known = asking.ask(scene.bootstrap, lambda client: _high_watermarks(client, places))
        logs = _logs(scene.bootstrap, places)
        self._missed = {place: Missed(known[place], logs[place]) for place in places}
        self._away = away
        scene.cluster.kill_node(away)
        self._since_s, self._lost_ms = time.monotonic(), time.time_ns() // 1_000_000
        scene.wait_until("it is out of sync", lambda: self._is_out_of_sync(topics), WAIT_TIMEOUT_S)
        scene.wait_until("the others can be read", self._is_lost, WAIT_TIMEOUT_S)
        return Told([away])

    def end(self) -> Told:
        away = self._away
        if away < 0:
            return Told()
        try:
            try:
                self.scene.wait_until("the others have compacted what it missed", self._is_forgotten, WAIT_TIMEOUT_S)
            finally:
                self._bring_back()
            topics = self.scene.topics()
            is_whole = partial(probes.is_whole, self.scene.bootstrap, topics)
            self.scene.wait_until("it is in sync", is_whole, WAIT_TIMEOUT_S)
            moving.lead(self.scene, away, WAIT_TIMEOUT_S)
        except InterruptedFaultError:
            return Told([away])
        return Told([away], self._told())

    def heal(self) -> None:
        self._bring_back()

    def _bring_back(self) -> None:
        away, self._away = self._away, -1
        if away >= 0 and not self.scene.cluster.is_running(away):
            self.scene.cluster.start_node(away, wait=False)

    def _told(self) -> Mapping[str, object]:
        found = self._missed.values()
        return {
            str(Ext.MISSED): any(each.is_removed for each in found),
            "forgotten-keys": sum(each.forgotten_keys for each in found),
            "forgotten-markers": sum(each.forgotten_markers for each in found),
            "passes": min((each.passes_count for each in found), default=0),
        }

    def _is_out_of_sync(self, topics: Sequence[str]) -> bool:
        try:
            found = probes.partitions(self.scene.bootstrap, topics).values()
        except SextonError:
            return False
        return all(each.leader not in (self._away, -1) and self._away not in each.isr for each in found)

    def _has_compacted(self) -> bool:
        """Whatever has to start for it (Spark) has started."""
        self._look()
        return all(each.passes_count for each in self._missed.values())

    def _is_forgotten(self) -> bool:
        self._look()
        found = self._missed.values()
        if sum(each.forgotten_keys for each in found) >= FORGOTTEN_COUNT and any(
            each.forgotten_markers for each in found
        ):
            return True
        is_quiet = time.monotonic() - self._since_s >= QUIET_S
        return is_quiet and all(each.passes_count >= PASSES_COUNT for each in found)

    def _is_lost(self) -> bool:
        logs = self._look_at()
        for place, log in logs.items():
            self._missed[place].lost(log, self._lost_ms)
        return bool(logs)

    def _look(self) -> None:
        for place, log in self._look_at().items():
            self._missed[place].look(log)

    def _look_at(self) -> Mapping[Place, Sequence[Batch]]:
        """Nothing between two leaders."""
        try:
            return _logs(self.scene.bootstrap, self._missed)
        except SextonError:
            return {}


async def _high_watermarks(client: Client, places: Iterable[Place]) -> dict[Place, int]:
    return dict(await list_offsets(client, dict.fromkeys(places, LATEST)))


def _logs(bootstrap: str, places: Iterable[Place]) -> dict[Place, list[Batch]]:
    """Reads the logs of the partitions' leaders."""

    async def question(client: Client) -> dict[Place, list[Batch]]:
        starts = await list_offsets(client, dict.fromkeys(places, EARLIEST))
        return {place: [batch async for batch in raw_batches(client, *place, start)] for place, start in starts.items()}

    return asking.ask(bootstrap, question)
