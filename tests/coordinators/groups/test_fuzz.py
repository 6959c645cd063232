"""Whatever sequence of requests strangers send, nobody else is hurt. `make fuzz-groups` sends a million."""

from __future__ import annotations

import os
import random

import pytest

from tests.coordinators.groups.fuzzing import World

REQUESTS_COUNT = 6_000
SOAK_REQUESTS_COUNT = 1_000_000
TURN_S_MAX = 0.05


@pytest.mark.timeout(3600)
def test_whatever_strangers_send_nobody_else_is_hurt(is_soak: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """SEXTON_FUZZ_SEED repeats one run."""
    seed = int(os.environ.get("SEXTON_FUZZ_SEED", random.SystemRandom().randrange(2**32) if is_soak else 1))
    world = World(seed)
    try:
        world.run(SOAK_REQUESTS_COUNT if is_soak else REQUESTS_COUNT)
    except BaseException as error:
        raise AssertionError(f"repeat with SEXTON_FUZZ_SEED={seed}") from error
    for citizen in world.citizens:
        assert citizen.rounds_count > 3, citizen.group
        assert citizen.committed, citizen.group
    _check_variety(world, seed)
    if is_soak:
        _tell(world, seed, capsys)
        assert world.loop.longest_turn_s < TURN_S_MAX, f"a turn of {world.loop.longest_turn_s} s with seed {seed}"


def _check_variety(world: World, seed: int) -> None:
    """Strangers who are refused at the door every time show nothing."""
    outcomes = {outcome for stranger in world.strangers for outcome in stranger.codes}
    operations = {outcome.split()[0] for outcome in outcomes}
    for operation in operations:
        assert f"{operation} done" in outcomes, f"no {operation} ever succeeded with seed {seed}"


def _tell(world: World, seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    codes: dict[str, int] = {}
    for stranger in world.strangers:
        for outcome, count in stranger.codes.items():
            codes[outcome] = codes.get(outcome, 0) + count
    rounds = sum(citizen.rounds_count for citizen in world.citizens)
    passed_s, longest_ms = world.loop.now_ns // 10**9, world.loop.longest_turn_s * 1000
    with capsys.disabled():
        print(f"\nseed {seed}: {world.requests_count} requests of strangers, {rounds} rounds of citizens,")
        print(f"{passed_s} s of virtual time, the longest turn took {longest_ms:.1f} ms of the processor")
        print(", ".join(f"{outcome} {count}" for outcome, count in sorted(codes.items())))
