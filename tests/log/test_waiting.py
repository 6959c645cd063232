"""Who waits for a log is told once, in order, and whoever has given up is not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from sexton.log.waiting import CommitWaiters, Watchers


async def test_futures_complete_in_the_order_of_offsets_and_of_arrival() -> None:
    waiters, told = CommitWaiters(), list[str]()

    async def wait(name: str, offset: int) -> None:
        await waiters.wait_for(offset)
        told.append(name)

    tasks = [asyncio.create_task(wait(*one)) for one in (("late", 9), ("first", 5), ("second", 5), ("never", 10))]
    await asyncio.sleep(0)
    assert waiters.first_offset == 5
    waiters.reached(9)
    await asyncio.gather(*tasks[:3])
    assert told == ["first", "second", "late"]
    assert waiters.first_offset == 10
    tasks[3].cancel()


async def test_whoever_is_reached_with_an_error_gets_it_and_the_others_wait() -> None:
    waiters = CommitWaiters()
    reached, waiting = waiters.wait_for(1), waiters.wait_for(2)
    waiters.reached(1, ValueError("too few"))
    with pytest.raises(ValueError, match="too few"):
        await reached
    assert not waiting.done()


async def test_one_that_was_cancelled_does_not_keep_the_others_from_being_told() -> None:
    waiters = CommitWaiters()
    given_up, waiting, failed = (waiters.wait_for(offset) for offset in (1, 1, 2))
    given_up.cancel()
    waiters.reached(1)
    assert waiting.done()
    waiters.fail(ValueError("gone"))
    assert isinstance(failed.exception(), ValueError)
    assert waiters.first_offset is None


def test_watchers_may_come_and_go_while_they_are_called() -> None:
    watchers, called = Watchers(), list[str]()
    cancels: list[Callable[[], None]] = []

    def first() -> None:
        called.append("first")
        cancels[0]()
        watchers.add(lambda: called.append("new"))

    cancels.append(watchers.add(first))
    watchers.add(lambda: called.append("second"))
    watchers.wake()
    assert called == ["first", "second"]
    watchers.wake()
    assert called == ["first", "second", "second", "new"]
