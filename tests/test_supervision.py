"""Nothing that runs in the background of a broker ends without a word."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import sexton
from sexton.supervision import BACK_OFF_MS, WORK, Supervisor, back_off_ms

SOURCES = Path(sexton.__file__).parent

AWAITED_BY_THEIR_MAKERS = {
    ("adapters/files.py", "flush_directory"): "all who share the flush await it",
    ("broker/broker.py", "catch_up"): "whoever catches up awaits it, also when cancelled",
    ("broker/broker.py", "_join"): "the lease while logs are read: asked at each step, and awaited at the end",
    ("broker/network/connection.py", "_wait_for"): "a request: the connection is told its outcome",
    ("cloud/uploads.py", "_put_hedged"): "awaits the two attempts, whichever it uses",
    ("coordinators/partition.py", "_unless_cancelled"): "the append that the partition waits for",
    ("log/group_flush.py", "wait"): "hands its outcome, bugs too, to all who wait for the flush",
    ("log/log.py", "swap"): "whoever swaps awaits it, also when cancelled",
}
"""Tasks that are no background: a bug in one is somebody's exception. Everything else is for the supervisor to make."""


NOT_IN_A_BROKER = frozenset(
    {"audit", "checker", "cli", "compactor", "harness", "history", "reproduce", "simulate", "spark", "topics", "verify"}
)
"""Packages that no broker imports, or that run one."""

CLIENTS = "client"
"""Brokers have its connections, which make no task. What makes some are producers and members of groups."""


def tasks_made() -> Iterator[tuple[str, str]]:
    """File and function of each place in the code of a broker that makes a task by itself."""
    layers = {path.name for path in SOURCES.iterdir() if (path / "__init__.py").exists()}
    assert layers >= NOT_IN_A_BROKER | {CLIENTS}
    for layer in sorted(layers - NOT_IN_A_BROKER - {CLIENTS}):
        for path in sorted((SOURCES / layer).rglob("*.py")):
            for function in ast.walk(ast.parse(path.read_text())):
                if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                    for node in ast.walk(function):
                        if isinstance(node, ast.Attribute) and node.attr in (
                            "ensure_future",
                            "create_task",
                            "TaskGroup",
                        ):
                            yield str(path.relative_to(SOURCES)), function.name


def test_only_the_supervisor_makes_tasks_that_nobody_awaits() -> None:
    assert set(tasks_made()) == set(AWAITED_BY_THEIR_MAKERS)


def kinds_counted() -> Iterator[str]:
    """What each caller of the supervisor says that it was about."""
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=owner, attr="work" | "survived"),
                    args=[_, ast.Constant(value=str(kind)), *_],
                ) if "supervisor" in ast.unparse(owner).lower():
                    yield kind


def test_every_kind_of_work_is_told_from_zero_on() -> None:
    assert {*kinds_counted(), "a callback"} == set(WORK)


def supervised(body: Callable[[Supervisor, list[BaseException]], Awaitable[None]]) -> Any:
    def test() -> None:
        async def run() -> None:
            fatal: list[BaseException] = []
            await body(Supervisor(fatal.append), fatal)

        asyncio.run(run())

    return test


async def has_a_bug() -> None:
    raise IndexError("nobody expected this")


async def ends() -> None:
    pass


async def never_ends() -> None:
    await asyncio.Event().wait()


@supervised
async def test_a_bug_in_a_loop_is_fatal(supervisor: Supervisor, fatal: list[BaseException]) -> None:
    await asyncio.wait([supervisor.loop(has_a_bug(), "a loop")])
    await asyncio.sleep(0)
    assert [type(error) for error in fatal] == [IndexError]


@supervised
async def test_a_loop_that_comes_to_an_end_is_fatal(supervisor: Supervisor, fatal: list[BaseException]) -> None:
    await asyncio.wait([supervisor.loop(ends(), "a loop")])
    await asyncio.sleep(0)
    assert [str(error) for error in fatal] == ["a loop came to an end"]


@supervised
async def test_a_loop_may_be_cancelled_and_may_end_with_its_broker(
    supervisor: Supervisor, fatal: list[BaseException]
) -> None:
    endless = supervisor.loop(never_ends(), "a loop")
    await asyncio.sleep(0)
    endless.cancel()
    await asyncio.wait([endless])
    supervisor.is_stopping = True
    await asyncio.wait([supervisor.loop(has_a_bug(), "a loop")])
    await asyncio.sleep(0)
    assert fatal == []


def test_a_bug_in_the_work_for_one_partition_is_counted_and_logged_with_its_trace(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @supervised
    async def body(supervisor: Supervisor, fatal: list[BaseException]) -> None:
        await asyncio.wait(
            [supervisor.work(has_a_bug(), "retention", "orders-3"), supervisor.work(ends(), "retention")]
        )
        await asyncio.sleep(0)
        assert supervisor.bugs == {"retention": 1}
        assert fatal == []

    body()
    (record,) = caplog.records
    assert record.exc_info is not None, "the simulator finds bugs by their traces"
    assert record.exc_info[0] is IndexError
    assert "retention of orders-3" in record.getMessage()


@supervised
async def test_a_bug_in_a_callback_of_the_loop_is_counted(supervisor: Supervisor, fatal: list[BaseException]) -> None:
    loop = asyncio.get_running_loop()
    supervisor.watch(loop)
    loop.call_soon([].pop)
    await asyncio.sleep(0)
    assert supervisor.bugs == {"a callback": 1}
    assert fatal == []


def test_pauses_grow_up_to_the_longest() -> None:
    pauses = [back_off_ms(count) for count in range(1, 100)]
    assert pauses[0] == BACK_OFF_MS[0]
    assert pauses == sorted(pauses)
    assert pauses[-1] == BACK_OFF_MS[1]
