"""Flink's exactly-once sink, in the versions of its connector that people start with today.

Writer and committer share a producer, and not always a client: chained they are one task and the writer's client
commits; else the committer has one of its own, and a connection that may be older than the writer's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.interop.conftest import ClusterUnderTest, start_cluster
from tests.interop.frameworks.programs import Program, fault_settings, kill_and_start, wait_until
from tests.interop.frameworks.versions import FLINK, Framework
from tests.transactions.reading import places_of, settled, values

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

BROKERS: Final = 3
PARTITIONS: Final = 3
COUNT: Final = 2_500
RATE_PER_S: Final = 100
TRANSACTION_TIMEOUT_MS: Final = 60_000
STATE_TOPIC: Final = "__transaction_state"


@dataclass
class Job:
    """A job and whoever starts it again: one process at a time."""

    framework: Framework
    bootstrap: str
    topic: str
    is_chained: bool
    naming: str
    directory: Path
    program: Program | None = None
    starts_count: int = 0

    def start(self) -> None:
        self.starts_count += 1
        task = {
            "classpath": self.framework.classpath(),
            "bootstrap": self.bootstrap,
            "topic": self.topic,
            "is_chained": self.is_chained,
            "naming": self.naming,
            "count": COUNT,
            "rate_per_s": RATE_PER_S,
            "transaction_timeout_ms": TRANSACTION_TIMEOUT_MS,
            "checkpoints": str(self.directory / "checkpoints"),
            "recover_from": str(self.last_checkpoint or ""),
        }
        self.program = Program("flink_job", task, self.directory / f"{self.topic}-{self.starts_count}.log")

    def kill(self) -> None:
        if self.program is not None:
            self.program.kill()

    @property
    def is_finished(self) -> bool:
        assert self.program is not None
        return self.program.has_said("finished")

    @property
    def last_checkpoint(self) -> Path | None:
        complete = self.directory.glob("checkpoints/*/chk-*/_metadata")
        return max((each.parent for each in complete), key=number_of, default=None)

    @property
    def checkpoints_count(self) -> int:
        assert self.program is not None
        self.program.has_said("running")  # or has ended, which is a failure
        return 0 if self.last_checkpoint is None else number_of(self.last_checkpoint)


def number_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("chk-"))


@pytest.mark.parametrize("client", [pytest.param(each, id=each.label) for each in FLINK])
def test_every_number_is_committed_once_whoever_is_killed(
    client: Framework, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    client.classpath()  # fetched first, if need be
    with start_cluster(request, tmp_path / "cluster", BROKERS, fault_settings(request.config)) as cluster:
        jobs = []
        for topic, is_chained, naming in (("chained", True, "POOLING"), ("apart", False, "INCREMENTING")):
            assert cluster.running is not None
            cluster.running.create_topic(topic, PARTITIONS, BROKERS, {"min.insync.replicas": 2})
            directory = tmp_path / topic
            directory.mkdir()
            jobs.append(Job(client, cluster.bootstrap, topic, is_chained, naming, directory))
        try:
            for job in jobs:
                job.start()
            go_through_faults(cluster, jobs)
            wait_until(lambda: all(job.is_finished for job in jobs), "the jobs have finished")
        finally:
            for job in jobs:
                job.kill()
        for job in jobs:
            read = Counter(values(settled(cluster.bootstrap, places_of([job.topic], PARTITIONS))))
            missing = sorted(set(range(COUNT)) - {int(number) for number in read})
            assert not missing, f"{job.topic}: {len(missing)} of {COUNT} were lost, the first is {missing[0]}"
            assert read.total() == COUNT, f"{job.topic}: {[each for each, count in read.items() if count > 1]} twice"


def go_through_faults(cluster: ClusterUnderTest, jobs: list[Job]) -> None:
    """The jobs are killed, then each broker is; the next fault comes when all jobs have gone on."""
    wait_until(lambda: sum(map(is_killed_and_back, jobs)) == len(jobs), "all have gone on from a checkpoint")
    for node_id in range(1, BROKERS + 1):
        wait_for_checkpoints(jobs, 2)
        kill_and_start(cluster, node_id, [STATE_TOPIC, *(job.topic for job in jobs)], going_on(jobs, 1))


def is_killed_and_back(job: Job) -> bool:
    """Kills it as soon as it has something to recover, however far the others are: it may end before they begin."""
    if job.starts_count == 1 and job.checkpoints_count >= 3:
        job.kill()
        assert job.last_checkpoint is not None, "it had finished: there was nothing to recover"
        job.start()
    return job.starts_count == 2


def wait_for_checkpoints(jobs: list[Job], count: int) -> None:
    wait_until(going_on(jobs, count), f"{count} more checkpoints")


def going_on(jobs: list[Job], count: int) -> Callable[[], bool]:
    """Whether each job has completed so many more since now. One that has finished needs none."""
    wanted = [job.checkpoints_count + count for job in jobs]
    return lambda: all(
        job.is_finished or job.checkpoints_count >= number for job, number in zip(jobs, wanted, strict=True)
    )
