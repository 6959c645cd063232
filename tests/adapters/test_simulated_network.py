"""The simulated network does what every network does: the broker cannot tell it from sockets."""

from __future__ import annotations

import random

import pytest

from sexton.simulate.loop import Process, new_loop
from sexton.simulate.network import Fabric
from tests.adapters.network_behaviour import SCENARIOS, Scenario


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_simulated_network_behaves_as_every_network(scenario: Scenario, seed: int) -> None:
    rng = random.Random(seed)
    loop = new_loop(rng)
    fabric = Fabric(loop, rng)
    fabric.add_host("here")
    process = Process("here")

    async def main() -> None:
        await loop.spawn(process, scenario(fabric.of(process, "here"), "here"))  # type: ignore[arg-type]

    try:
        loop.run_until_complete(main())
    finally:
        loop.close()
