"""Spark, started when there is work or may be soon, and stopped when there has been none for a while and no topic is
compacted: its JVM holds a gigabyte.

Jobs run in threads, the driver's way of running several at once; Spark shares its executors fairly among them. Until
there is a job, not even PySpark is imported: a compactor that waits costs as much as a small program.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Concatenate, Final, ParamSpec, TypeVar

from sexton.compaction.contract import Plan
from sexton.compactor.engine import EngineUnavailableError, PlanOutcome

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

JOBS_MAX: Final = 4
"""Maximum number of jobs at a time: one of many small partitions, one of few large ones, one that levels, and a thread
that starts or stops Spark."""


class SparkEngine:
    def __init__(self, master: str, *, is_remote: bool = False, memory: str = "1g") -> None:
        """With `is_remote`, bytes go through the brokers' ports even where their files can be seen."""
        self._master = master
        self._is_remote = is_remote
        self._memory = memory
        self._threads = ThreadPoolExecutor(JOBS_MAX, thread_name_prefix="compaction")
        self._starting = asyncio.Lock()
        self._session: SparkSession | None = None
        self._is_ours = False
        """Whether this engine started the session. One that the process had before is not stopped when there is no more
        work."""

    async def run(self, plans: Sequence[Plan]) -> list[PlanOutcome]:
        return await self.call(_run, plans, self._is_remote)

    async def call(self, job: Callable[Concatenate[SparkSession, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a job in a thread of its own, with the session that all jobs share."""
        started = await self._started()
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, lambda: job(started, *args, **kwargs))
        except Exception:
            await self._forget_if_dead(started)
            raise

    async def _forget_if_dead(self, started: SparkSession) -> None:
        """A JVM that ran out of memory, or was killed, does not answer any more: the next job starts another one."""
        async with self._starting:
            if self._session is not started:
                return
            loop = asyncio.get_running_loop()
            if await loop.run_in_executor(self._threads, _is_dead, started):
                logger.warning("the Spark session ended; it is restarted when there is work")
                self._session = None
                await loop.run_in_executor(self._threads, _stop, started)

    async def _started(self) -> SparkSession:
        async with self._starting:
            if self._session is None:
                logger.info("starting Spark at %s", self._master)
                loop = asyncio.get_running_loop()
                try:
                    self._session = await loop.run_in_executor(self._threads, self._start)
                except Exception as error:
                    what = f"Spark cannot be started: {type(error).__name__}: {error}"
                    raise EngineUnavailableError(what, self._master, "Is Java 17 there, and the cluster?") from error
            return self._session

    def _start(self) -> SparkSession:
        from pyspark import SparkContext

        from sexton.spark import session

        self._is_ours = SparkContext._active_spark_context is None
        return session.start(
            "sexton compactor", self._master, {"spark.scheduler.mode": "FAIR", "spark.driver.memory": self._memory}
        )

    async def warm(self) -> None:
        await self._started()

    async def rest(self) -> None:
        async with self._starting:
            found, self._session = self._session, None
            if found is None or not self._is_ours:
                return
            logger.info("nothing to do: stopping Spark")
            await asyncio.get_running_loop().run_in_executor(self._threads, _stop, found)

    async def close(self) -> None:
        await self.rest()
        self._threads.shutdown(wait=False)


def _run(started: SparkSession, plans: Sequence[Plan], is_remote: bool) -> list[PlanOutcome]:
    from sexton.compactor.engines import spark_job

    return spark_job.run(started.sparkContext, plans, is_remote=is_remote)


def _is_dead(found: SparkSession) -> bool:
    try:
        return bool(found.sparkContext._jsc.sc().isStopped())
    except Exception:  # any error of Py4J about a JVM that is gone
        return True


def _stop(found: SparkSession) -> None:
    """Stops the session, and the JVM that PySpark would keep for the next one."""
    from pyspark import SparkContext

    with contextlib.suppress(Exception):
        found.stop()
    SparkContext._active_spark_context = None
    gateway = SparkContext._gateway
    if gateway is None:
        return
    SparkContext._gateway = SparkContext._jvm = None
    process = getattr(gateway, "proc", None)
    with contextlib.suppress(Exception):
        gateway.shutdown()
    if process is not None and process.stdin is not None:
        process.stdin.close()  # the JVM exits when its stdin is closed
        with contextlib.suppress(Exception):
            process.wait(timeout=10)
