"""The simulated store: slow, busy, silent, late, and the same in every run."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from sexton.errors import DamagedObjectError
from sexton.ports.objects import ObjectMissingError, StoreRefusedError, StoreUnavailableError
from sexton.simulate.loop import MS, NS, Process, SimulatedLoop, new_loop
from sexton.simulate.network import Fabric
from sexton.simulate.objects import HOST, LATE_NS_MAX, ObjectService, SimulatedStore


class World:
    def __init__(self, seed: int = 1) -> None:
        rng = random.Random(seed)
        self.loop: SimulatedLoop = new_loop(rng)
        self.fabric = Fabric(self.loop, rng)
        self.service = ObjectService(self.loop, rng, self.fabric)
        self.carried_out: list[tuple[str, str]] = []
        self.service.observer = lambda who, operation, arguments, _: self.carried_out.append((operation, arguments[0]))
        self.process = Process("broker-1")
        self.store: SimulatedStore = self.service.of(self.process, "broker-1")


def simulate(main: Callable[[World], Coroutine[Any, Any, None]], seed: int = 1) -> World:
    world = World(seed)
    try:
        world.loop.run_until_complete(main(world))
    finally:
        world.loop.close()
    return world


def test_latency_is_lognormal() -> None:
    taken: list[int] = []

    async def main(world: World) -> None:
        for number in range(2_000):
            before_ns = world.loop.now_ns
            await world.store.put(str(number), b"x")
            taken.append(world.loop.now_ns - before_ns)

    simulate(main)
    taken.sort()
    assert 17 * MS < taken[1_000] < 24 * MS
    assert 30 * MS < taken[1_980] < 60 * MS


def test_a_store_that_is_down_refuses_at_once_and_does_nothing() -> None:
    async def main(world: World) -> None:
        world.service.is_down = True
        with pytest.raises(StoreUnavailableError, match="refused"):
            await world.store.put("a", b"x")
        assert world.loop.now_ns < NS
        assert not world.service.objects

    simulate(main)


def test_a_store_that_hangs_carries_out_late_what_was_given_up() -> None:
    async def main(world: World) -> None:
        world.service.hang()
        with pytest.raises(StoreUnavailableError, match="no answer"):
            await world.store.put("a", b"x")
        assert not world.service.objects
        world.service.go_on()
        assert world.service.objects == {"a": b"x"}

    simulate(main)


def test_a_cut_loses_the_request_or_the_answer() -> None:
    async def main(world: World) -> None:
        world.fabric.cut("broker-1", HOST)
        with pytest.raises(StoreUnavailableError):
            await world.store.put("a", b"x")
        assert not world.service.objects
        world.fabric.heal("broker-1", HOST)
        world.fabric.cut(HOST, "broker-1")
        with pytest.raises(StoreUnavailableError):
            await world.store.put("a", b"x")
        assert world.service.objects == {"a": b"x"}

    simulate(main)


def test_a_lost_answer_is_told_soon_and_the_work_is_done() -> None:
    async def main(world: World) -> None:
        world.service.weather.lost_probabilities["broker-1"] = 1.0
        with pytest.raises(StoreUnavailableError, match="broke"):
            await world.store.put("a", b"x")
        assert world.loop.now_ns < NS
        assert world.service.objects == {"a": b"x"}
        other = world.service.of(Process("broker-2"), "broker-2")
        await other.put("b", b"x")

    simulate(main)


def test_a_late_put_lands_after_the_object_was_put_again_and_deleted() -> None:
    """T20: a key comes back from the dead."""

    async def main(world: World) -> None:
        world.service.weather.late_probability = 1.0
        with pytest.raises(StoreUnavailableError, match="no answer"):
            await world.store.put("a", b"x")
        world.service.weather.late_probability = 0.0
        await world.store.put("a", b"x")
        assert await world.store.delete(["a"]) == ["a"]
        assert not world.service.objects
        await asyncio.sleep(LATE_NS_MAX / NS)
        assert world.service.objects == {"a": b"x"}

    for seed in range(50):
        world = World(seed)
        try:
            world.loop.run_until_complete(main(world))
            return
        except AssertionError:
            continue  # it landed before it was deleted
        finally:
            world.loop.close()
    raise AssertionError("none was late enough")


def test_a_late_delete_takes_what_was_put_meanwhile() -> None:
    """Why ids are used once (C1): a key that is used again can lose its object."""

    async def main(world: World) -> None:
        world.service.weather.late_probability = 1.0
        with pytest.raises(StoreUnavailableError):
            await world.store.delete(["a"])
        world.service.weather.late_probability = 0.0
        await world.store.put("a", b"new")
        await asyncio.sleep(LATE_NS_MAX / NS)
        assert world.carried_out == [("put", "a"), ("delete", "a")]
        assert not world.service.objects

    simulate(main, seed=3)


def test_what_was_sent_by_a_process_that_died_is_carried_out() -> None:
    async def main(world: World) -> None:
        world.loop.spawn(world.process, world.store.put("a", b"x"))
        await asyncio.sleep(0.0001)
        assert not world.service.objects
        world.loop.kill(world.process)
        await asyncio.sleep(1)
        assert world.service.objects == {"a": b"x"}

    simulate(main)


def test_a_burst_of_503_does_nothing_and_ends() -> None:
    async def main(world: World) -> None:
        world.service.be_busy(5 * NS)
        with pytest.raises(StoreUnavailableError, match="SlowDown"):
            await world.store.put("a", b"x")
        await asyncio.sleep(5)
        await world.store.put("a", b"x")
        world.service.weather.busy_probability = 0.2
        refused = 0
        for _ in range(200):
            try:
                await world.store.get("a", 0, 1)
            except StoreUnavailableError:
                refused += 1
        assert 50 < refused < 200, "one begins a burst"

    simulate(main)


def test_short_reads_are_damage_and_flipped_bits_are_silent() -> None:
    async def main(world: World) -> None:
        await world.store.put("a", bytes(100))
        world.service.weather.short_probability = 1.0
        with pytest.raises(DamagedObjectError):
            await world.store.get("a", 0, 100)
        world.service.weather.short_probability = 0.0
        world.service.weather.flip_probability = 1.0
        data = bytes(await world.store.get("a", 0, 100))
        assert sum(byte.bit_count() for byte in data) == 1
        world.service.weather.flip_probability = 0.0
        assert bytes(await world.store.get("a", 0, 100)) == bytes(100), "the object itself is whole"

    simulate(main)


def test_a_wipe_takes_what_nobody_refers_to() -> None:
    async def main(world: World) -> None:
        for key in ("a", "b", "c"):
            await world.store.put(key, b"x")
        assert world.service.wipe({"b"}) == ["a", "c"]
        with pytest.raises(ObjectMissingError):
            await world.store.get("a", 0, 1)
        assert bytes(await world.store.get("b", 0, 1)) == b"x"

    simulate(main)


def test_a_store_that_refuses_does_nothing_until_it_is_put_right() -> None:
    async def main(world: World) -> None:
        world.service.is_refusing = True
        with pytest.raises(StoreRefusedError):
            await world.store.put("a", b"x")
        assert not world.service.objects
        world.service.is_refusing = False
        await world.store.put("a", b"x")

    simulate(main)


def test_a_listing_is_in_no_order_may_name_some_twice_and_miss_the_newest() -> None:
    async def main(world: World) -> None:
        old, new = [f"old/{number}" for number in range(20)], [f"new/{number}" for number in range(20)]
        for key in old:
            await world.store.put(key, b"x")
        assert sorted([one.key async for one in world.store.list("")]) == sorted(old)
        assert [one.key async for one in world.store.list("")] != old
        await asyncio.sleep(10)
        await asyncio.gather(*(world.store.put(key, b"x") for key in new))
        world.service.weather.twice_probability = 0.5
        world.service.weather.left_out_probability = 0.5
        listed = [one.key async for one in world.store.list("")]
        assert set(old) < set(listed), "what has been there for a while is listed"
        assert 0 < len(set(listed) & set(new)) < 20
        assert len(listed) > len(set(listed))

    simulate(main)


def test_of_a_deletion_each_key_has_its_own_fate() -> None:
    async def main(world: World) -> None:
        world.service.weather.lost_probabilities["broker-1"] = 0.5
        keys = [str(number) for number in range(40)]
        gone = await world.store.delete(keys)
        assert 5 < len(gone) < 35

    simulate(main)


def test_the_same_seed_is_the_same_run() -> None:
    def run(seed: int) -> tuple[int, list[tuple[str, str]]]:
        async def main(world: World) -> None:
            world.service.weather.late_probability = 0.2
            world.service.weather.busy_probability = 0.1
            world.service.weather.lost_probabilities["broker-1"] = 0.2
            calls = [world.store.put(str(number), b"x") for number in range(30)]
            await asyncio.gather(*calls, return_exceptions=True)
            await asyncio.sleep(300)

        world = simulate(main, seed)
        return world.loop.now_ns, world.carried_out

    assert run(5) == run(5)
    assert run(5) != run(6)
