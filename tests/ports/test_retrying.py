"""The same call again, for as long as it takes, and not more often than is kind."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from sexton.ports.objects import ObjectMissingError, StoreRefusedError, StoreUnavailableError
from sexton.ports.retrying import PAUSE_MS_MAX, PAUSE_MS_MIN, REFUSED_PAUSE_MS, pause_ms, until_answered
from sexton.simulate.loop import NS, Process, SimulatedLoop, new_loop
from sexton.simulate.network import Fabric
from sexton.simulate.objects import ObjectService, SimulatedStore

Failures = list[tuple[type[Exception], int]]


def simulate(main: Callable[[SimulatedLoop, ObjectService, SimulatedStore], Coroutine[Any, Any, None]]) -> None:
    rng = random.Random(1)
    loop = new_loop(rng)
    service = ObjectService(loop, rng, Fabric(loop, rng))
    loop.run_until_complete(main(loop, service, service.of(Process("broker-1"), "broker-1")))
    loop.close()


def test_a_store_that_is_busy_for_a_minute_is_waited_for() -> None:
    """T10: 503 is fatal to nobody, and a store that comes back is used within seconds."""

    async def main(loop: SimulatedLoop, service: ObjectService, store: SimulatedStore) -> None:
        failures: Failures = []
        service.be_busy(60 * NS)
        rng = random.Random(2)
        await until_answered(
            partial(store.put, "a", b"x"), rng, lambda error, number: failures.append((type(error), number))
        )
        assert service.objects == {"a": b"x"}
        assert 60 * NS < loop.now_ns < 63 * NS
        assert 30 < len(failures) < 60, "less and less often"
        assert [number for _, number in failures] == list(range(1, len(failures) + 1))

    simulate(main)


def test_lost_and_late_answers_end_in_one_object() -> None:
    async def main(loop: SimulatedLoop, service: ObjectService, store: SimulatedStore) -> None:
        service.weather.lost_probabilities["broker-1"] = 0.5
        service.weather.late_probability = 0.3
        rng = random.Random(2)
        keys = [str(number) for number in range(30)]
        await asyncio.gather(*(until_answered(partial(store.put, key, b"x"), rng, lambda *_: None) for key in keys))
        assert sorted(service.objects) == sorted(keys)

    simulate(main)


def test_an_answer_is_not_asked_for_again() -> None:
    async def main(loop: SimulatedLoop, service: ObjectService, store: SimulatedStore) -> None:
        with pytest.raises(ObjectMissingError):
            await until_answered(partial(store.get, "a", 0, 1), random.Random(1), lambda *_: pytest.fail("again"))

    simulate(main)


def test_whoever_has_no_more_time_cancels() -> None:
    async def main(loop: SimulatedLoop, service: ObjectService, store: SimulatedStore) -> None:
        service.is_down = True
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await until_answered(partial(store.put, "a", b"x"), random.Random(1), lambda *_: None)

    simulate(main)


def test_pauses_grow_to_a_bound_and_are_never_the_same() -> None:
    rng = random.Random(1)
    away, refused = StoreUnavailableError("away"), StoreRefusedError("no")
    for attempts in (1, 2, 5, 10, 10**9):
        pauses = [pause_ms(away, attempts, rng) for _ in range(100)]
        assert PAUSE_MS_MIN <= min(pauses) < max(pauses) <= PAUSE_MS_MAX
        assert len(set(pauses)) > 90
    assert max(pause_ms(away, 1, rng) for _ in range(100)) < 110
    assert min(pause_ms(away, 8, rng) for _ in range(100)) >= PAUSE_MS_MAX / 2
    assert all(REFUSED_PAUSE_MS / 2 <= pause_ms(refused, 1, rng) <= REFUSED_PAUSE_MS for _ in range(100))
