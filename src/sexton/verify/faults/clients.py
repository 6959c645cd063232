"""Clients that are killed or paused while they are at something: works on any cluster."""

from __future__ import annotations

import random
from typing import Final

from sexton.verify.faults.base import Client, Fault, Scene, Told
from sexton.verify.faults.schedule import Act, Target

SHARE: Final = 0.5
"""Of the clients that a fault of one is for; a fault of all hits each."""


class KillClients(Fault):
    """Clients are killed in the middle of a transaction. Others take their places, with other ids."""

    name = "kill-clients"
    targets = (Target.ONE, Target.ALL)
    needs_cluster = False
    hits_clients = True

    def begin(self, act: Act) -> Told:
        hit = _some(act, self.scene)
        for client in hit:
            client.kill()
        return Told([f"{len(hit)} clients"] if hit else [])

    def end(self) -> Told:
        return Told()


class PauseClients(Fault):
    """Clients are paused for longer than their transactions and sessions last, and then go on."""

    name = "pause-clients"
    targets = (Target.ONE, Target.ALL)
    needs_cluster = False
    hits_clients = True

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._paused: list[Client] = []

    def begin(self, act: Act) -> Told:
        self._paused = _some(act, self.scene)
        for client in self._paused:
            client.pause()
        return Told([f"{len(self._paused)} clients"] if self._paused else [])

    def end(self) -> Told:
        paused, self._paused = self._paused, []
        for client in paused:
            client.resume()
        return Told([f"{len(paused)} clients"] if paused else [])


def _some(act: Act, scene: Scene) -> list[Client]:
    clients = list(scene.clients())
    if act.target is Target.ALL:
        return clients
    return random.Random(act.choice).sample(clients, max(1, round(len(clients) * SHARE))) if clients else []
