"""The network between clients and brokers: slow, narrow, or given to losing connections. Brokers reach each other."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from sexton.harness.proxy import CLEAR, Address, Weather
from sexton.verify.faults.base import Fault, Scene, Told
from sexton.verify.faults.schedule import Act, Target

DELAY, NARROW, RESET, HALF_OPEN = "delay", "narrow", "reset", "half-open"
WAYS: Final = (DELAY, NARROW, RESET, HALF_OPEN)

DELAY_S: Final = (0.05, 0.5)
"""Of each frame: from a distant region to what makes clients give up where they ask for several things in a row."""
BYTES_PER_S: Final = (2_000.0, 50_000.0)
"""Of each connection: small transactions still come through, fetches of much do not before their client gives up."""
RESET_P: Final = 0.02


class SlowNetwork(Fault):
    """Clients reach brokers slowly, or not for long: delay, little bandwidth, resets, connections left half-open."""

    name = "slow-network"
    targets = (Target.ONE, Target.ALL)
    needs_proxy = True
    needs_cluster = False

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._hit: Sequence[Address] = ()

    def begin(self, act: Act) -> Told:
        rng = random.Random(act.choice)
        proxy = self.scene.proxy
        self._hit = proxy.addresses if act.target is Target.ALL else [rng.choice(proxy.addresses)]
        way = rng.choice(WAYS)
        if way == HALF_OPEN:
            proxy.leave_half_open(self._hit)
        else:
            proxy.set_weather(weather(way, rng), self._hit)
        return Told(_names(self._hit), {"how": way})

    def end(self) -> Told:
        hit, self._hit = self._hit, ()
        if hit:
            self.scene.proxy.set_weather(CLEAR, hit)
            self.scene.proxy.reset_half_open()
        return Told(_names(hit))


def weather(way: str, rng: random.Random) -> Weather:
    return {
        DELAY: Weather(delay_s=rng.uniform(*DELAY_S)),
        NARROW: Weather(bytes_per_s=rng.uniform(*BYTES_PER_S)),
        RESET: Weather(reset_p=RESET_P),
    }[way]


def _names(addresses: Sequence[Address]) -> list[str]:
    return [f"{host}:{port}" for host, port in addresses]
