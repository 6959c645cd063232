"""Who looks after a broker's tasks. A task that ends without a word is a partition that stands still for good, so only
the supervisor makes them, and knows two kinds:

| kind   | it does                           | a bug in it                                                      |
|--------|-----------------------------------|------------------------------------------------------------------|
| `loop` | what all rely on, for ever        | ends the broker, loudly (`fatal`); so does coming to an end      |
| `work` | something for one partition, once | is logged with its trace, counted; whoever began it tries again  |

Callbacks of the event loop are no tasks; what one of them raises comes here through `watch`.

A bug is an exception that the code did not expect. What it did expect (a full disk, a peer that is away) is handled
where it happens, and never comes here.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Final

logger = logging.getLogger(__name__)

BACK_OFF_MS: Final = (1_000, 60_000)
"""First and longest pause before work in which there was a bug is tried again: each attempt writes a trace."""

WORK: Final = (
    "MTRO and MXRO",
    "a callback",
    "a change of role",
    "a claim",
    "a commit",
    "a coordinator's append",
    "a coordinator's timers",
    "a page",
    "a read of objects",
    "a request",
    "a scrub",
    "adoption",
    "an in-sync set",
    "an upload",
    "collecting objects",
    "deleting records",
    "flush",
    "forgetting deleted topics",
    "loading a coordinator",
    "markers",
    "moving a partition to the store",
    "opening a log",
    "replication",
    "retention",
    "unpacking",
    "verification",
    "what is due",
)
"""The kinds that metrics tell of, from zero on: an alert on an increase does not see a series that begins with one."""


def back_off_ms(failures_count: int) -> int:
    """After so many failures in a row, at least one."""
    shortest, longest = BACK_OFF_MS
    return min(longest, shortest << min(failures_count - 1, 16))


class Pauses:
    """After bugs in a loop's work for one thing, each longer than the one before, until the work succeeds. They belong
    to an incarnation or a leadership: another log of the same partition has done nothing wrong."""

    def __init__(self) -> None:
        self._pauses: dict[Hashable, tuple[int, int]] = {}
        """How many failures there were, and until when it pauses."""

    def failed(self, one: Hashable, now_ms: int) -> None:
        long_ago_ms = now_ms - 2 * BACK_OFF_MS[1]
        self._pauses = {each: pause for each, pause in self._pauses.items() if pause[1] > long_ago_ms}
        failures_count = self._pauses.get(one, (0, 0))[0] + 1
        self._pauses[one] = failures_count, now_ms + back_off_ms(failures_count)

    def succeeded(self, one: Hashable) -> None:
        self._pauses.pop(one, None)

    def last(self, one: Hashable, now_ms: int) -> bool:
        return one in self._pauses and now_ms < self._pauses[one][1]


class Supervisor:
    def __init__(self, fatal: Callable[[BaseException], None] = lambda error: None) -> None:
        self.bugs: Counter[str] = Counter()
        """Survived since the broker started, by the work in which they were."""
        self.is_stopping = False
        """From now on loops may end."""
        self._fatal = fatal
        self._works: set[asyncio.Task[None]] = set()

    def loop(self, loop: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(loop)
        task.add_done_callback(lambda ended: self._loop_ended(ended, what))
        return task

    def work(self, work: Coroutine[Any, Any, None], what: str, place: object = "") -> asyncio.Task[None]:
        """`what` names the kind, for the metric; `place` what it was for, for the log."""
        task = asyncio.get_running_loop().create_task(work)
        self._works.add(task)  # the loop holds tasks only weakly
        task.add_done_callback(lambda ended: self._work_ended(ended, what, place))
        return task

    def survived(self, bug: BaseException, what: str, place: object = "") -> None:
        """To be told by whoever goes on with the next partition, or tries again."""
        self.bugs[what] += 1
        at = f" of {place}" if place else ""
        logger.error("internal error in %s%s. Everything else continues", what, at, exc_info=bug)

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """For a process that is one broker: what a callback raises, or nobody retrieved, is a bug like others."""

        def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            error = context.get("exception")
            if isinstance(error, Exception):
                self.survived(error, "a callback", context.get("message", ""))
            else:
                loop.default_exception_handler(context)

        loop.set_exception_handler(handle)

    def _work_ended(self, task: asyncio.Task[None], what: str, place: object) -> None:
        self._works.discard(task)
        if not task.cancelled() and (bug := task.exception()) is not None:
            self.survived(bug, what, place)

    def _loop_ended(self, task: asyncio.Task[None], what: str) -> None:
        if task.cancelled() or self.is_stopping:
            return
        error = task.exception() or RuntimeError(f"{what} came to an end")
        logger.critical("%s cannot continue, and the broker cannot run without it", what, exc_info=error)
        self._fatal(error)
