"""Virtual time, processes that stop and die, and the same order every time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest

from sexton.simulate.errors import SimulationFailure
from sexton.simulate.loop import NS, Process, SimulatedLoop, new_loop


def simulate(main: Coroutine[Any, Any, Any], seed: int = 1) -> Any:
    loop = new_loop(random.Random(seed))
    try:
        return loop.run_until_complete(main)
    finally:
        loop.close()


def running() -> SimulatedLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    return loop


async def ticks(log: list[tuple[str, float]], name: str, interval_s: float) -> None:
    while True:
        await asyncio.sleep(interval_s)
        log.append((name, running().now_ns / NS))


def test_an_hour_of_sleep_takes_no_time() -> None:
    async def main() -> float:
        await asyncio.sleep(3600)
        return running().time()

    assert simulate(main()) == 3600


def test_things_happen_between_two_turns_of_a_process_that_has_not_finished() -> None:
    """What a callback puts off by a turn is no longer done before the next message comes."""

    async def busy(log: list[str]) -> None:
        for _ in range(200):
            await asyncio.sleep(0)
        log.append("finished")

    async def main() -> list[str]:
        loop, process, log = running(), Process("a"), list[str]()
        task = loop.spawn(process, busy(log))
        for number in range(5):
            loop.call_for(process, number * 100_000, log.append, "message")
        await task
        return log

    assert simulate(main()) == ["message"] * 5 + ["finished"]


def test_a_paused_process_runs_nothing_and_catches_up_when_it_resumes() -> None:
    async def main() -> list[tuple[str, float]]:
        loop, process, log = running(), Process("a"), list[tuple[str, float]]()
        loop.spawn(process, ticks(log, "a", 1))
        await asyncio.sleep(2.5)
        loop.pause(process)
        await asyncio.sleep(10)
        loop.resume(process)
        await asyncio.sleep(1.6)
        return log

    assert simulate(main()) == [("a", 1), ("a", 2), ("a", 12.5), ("a", 13.5)]


def test_a_timeout_that_ran_out_during_a_pause_strikes_at_its_end() -> None:
    async def impatient(log: list[str]) -> None:
        try:
            async with asyncio.timeout(3):
                await asyncio.sleep(100)
        except TimeoutError:
            log.append(f"gave up at {running().time()}")

    async def main() -> list[str]:
        loop, process, log = running(), Process("a"), list[str]()
        loop.spawn(process, impatient(log))
        await asyncio.sleep(1)
        loop.pause(process)
        await asyncio.sleep(20)
        loop.resume(process)
        await asyncio.sleep(1)
        return log

    assert simulate(main()) == ["gave up at 21.0"]


def test_a_killed_process_runs_nothing_more_and_its_tasks_end_in_silence() -> None:
    async def stubborn(log: list[tuple[str, float]]) -> None:
        try:
            await ticks(log, "a", 1)
        finally:
            asyncio.get_running_loop().call_soon(log.append, ("from beyond", 0))
            await asyncio.sleep(0)
            log.append(("after an await in finally", 0))

    async def main() -> list[tuple[str, float]]:
        loop, process, log = running(), Process("a"), list[tuple[str, float]]()
        loop.spawn(process, stubborn(log))
        await asyncio.sleep(2.5)
        loop.kill(process)
        await asyncio.sleep(50)
        return log

    assert simulate(main()) == [("a", 1), ("a", 2)]


def test_a_process_with_a_fast_clock_wakes_early() -> None:
    async def main() -> list[tuple[str, float]]:
        loop, log = running(), list[tuple[str, float]]()
        loop.spawn(Process("fast", rate_ppm=40_000), ticks(log, "fast", 1.04))
        loop.spawn(Process("true"), ticks(log, "true", 1.04))
        await asyncio.sleep(1.05)
        return log

    assert simulate(main()) == [("fast", 1.0), ("true", 1.04)]


def test_clocks_never_fire_before_their_own_time() -> None:
    async def main() -> None:
        loop = running()
        for rate_ppm in (-45_000, -1, 0, 1, 33_333, 45_000):
            process = Process("p", started_ns=loop.now_ns, rate_ppm=rate_ppm, offset_ns=7)
            for local_ns in (7, 8, 1_000_003, 123_456_789_012):
                true_ns = process.true_ns(local_ns)
                assert process.local_ns(true_ns) >= local_ns
                assert true_ns == loop.now_ns or process.local_ns(true_ns - 1) < local_ns

    simulate(main())


def test_callbacks_of_one_process_keep_their_order_and_those_of_several_are_shuffled_by_the_seed() -> None:
    async def main() -> list[str]:
        loop, log = running(), list[str]()
        for process in (Process("a"), Process("b"), Process("c")):
            for number in range(3):
                loop.call_for(process, 1, log.append, f"{process.name}{number}")
        await asyncio.sleep(1)
        return log

    orders = [simulate(main(), seed) for seed in range(20)]
    assert all(sorted(order) == order or [x for x in order if x[0] == "a"] == ["a0", "a1", "a2"] for order in orders)
    assert len({tuple(order) for order in orders}) > 1
    assert orders == [simulate(main(), seed) for seed in range(20)]


def test_an_exception_that_nobody_retrieves_ends_the_simulation() -> None:
    async def broken() -> None:
        await asyncio.sleep(1)
        raise ValueError("a bug")

    async def main() -> None:
        running().spawn(Process("broker 1"), broken())
        await asyncio.sleep(100)

    with pytest.raises(SimulationFailure, match="in broker 1") as caught:
        simulate(main())
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_callback_that_raises_ends_the_simulation() -> None:
    async def main() -> None:
        running().call_for(Process("broker 1"), NS, lambda: 1 / 0)
        await asyncio.sleep(100)

    with pytest.raises(SimulationFailure, match="in broker 1"):
        simulate(main())


def test_a_dead_process_may_leave_exceptions_behind() -> None:
    async def main() -> None:
        loop, process = running(), Process("broker 1")

        async def broken() -> None:
            future = loop.create_future()
            loop.call_later(1, future.set_exception, ValueError("nobody looked"))
            await asyncio.sleep(50)

        loop.spawn(process, broken())
        await asyncio.sleep(2)
        loop.kill(process)
        await asyncio.sleep(100)

    simulate(main())


def test_waiting_for_oneself_without_time_moving_on_is_noticed() -> None:
    async def main() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(SimulationFailure, match="livelock"):
        simulate(main())


def test_nothing_left_to_wait_for_is_noticed() -> None:
    async def main() -> None:
        await running().create_future()

    with pytest.raises(SimulationFailure, match="deadlock"):
        simulate(main())


def test_sets_of_tasks_iterate_in_the_same_order_in_every_run() -> None:
    async def main() -> list[str]:
        tasks = {asyncio.ensure_future(asyncio.sleep(number % 3, f"{number}")) for number in range(50)}
        done, _ = await asyncio.wait(tasks)
        return [task.result() for task in done]

    assert simulate(main()) == simulate(main())


def test_what_threads_do_takes_a_moment_and_is_the_same_in_every_run() -> None:
    async def main() -> list[tuple[int, float]]:
        told: list[tuple[int, float]] = []

        def work(number: int) -> int:
            told.append((number, running().time()))
            return number // (number - 2)

        started = running().time()
        done = await asyncio.gather(*(asyncio.to_thread(work, n) for n in range(4)), return_exceptions=True)
        assert [type(each) for each in done] == [int, int, ZeroDivisionError, int]
        assert all(moment > started for _, moment in told)
        return told

    first = simulate(main())
    assert first == simulate(main())
    assert [number for number, _ in first] != [0, 1, 2, 3], "none waits for another"


def test_work_of_a_thread_that_nobody_waits_for_any_more_is_left_undone() -> None:
    async def main() -> None:
        done: list[int] = []
        waiting = running().run_in_executor(None, done.append, 1)
        waiting.cancel()
        await asyncio.sleep(1)
        assert done == []

    simulate(main())


def test_async_generators_that_are_left_open_are_closed() -> None:
    log: list[str] = []

    async def numbers() -> Any:
        try:
            for number in range(10):
                yield number
        finally:
            log.append("closed")

    async def main() -> None:
        async for _ in numbers():
            break
        await asyncio.sleep(1)

    simulate(main())
    assert log == ["closed"]
