"""Who looks after a broker's tasks. A task that ends without a word is a partition that stands still for good, so only
the supervisor makes them, and knows two kinds:

| kind   | it does                           | a bug in it                                                      |
|--------|-----------------------------------|------------------------------------------------------------------|
| `loop` | what all rely on, for ever        | ends the broker, loudly (`fatal`); so does coming to an end      |
| `work` | something for one partition, once | is logged with its trace, counted; whoever began it tries again  |

A bug is an exception that the code did not expect. What it did expect (a full disk, a peer that is away) is handled
where it happens, and never comes here.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Final

logger = logging.getLogger(__name__)

BACK_OFF_MS: Final = (1_000, 60_000)
"""First and longest pause before work in which there was a bug is tried again: each attempt writes a trace."""


def back_off_ms(failures_count: int) -> int:
    """After so many failures in a row, at least one."""
    shortest, longest = BACK_OFF_MS
    return min(longest, shortest << min(failures_count - 1, 16))


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
        logger.error("a bug in %s%s: the others go on, and it is tried again", what, at, exc_info=bug)

    def _work_ended(self, task: asyncio.Task[None], what: str, place: object) -> None:
        self._works.discard(task)
        if not task.cancelled() and (bug := task.exception()) is not None:
            self.survived(bug, what, place)

    def _loop_ended(self, task: asyncio.Task[None], what: str) -> None:
        if task.cancelled() or self.is_stopping:
            return
        error = task.exception() or RuntimeError(f"{what} came to an end")
        logger.critical("%s cannot go on, and without it this broker is none", what, exc_info=error)
        self._fatal(error)
