"""The four corruptions on Apache Kafka, found by an audit of the running cluster while the bad replica follows; and the
same on Sexton, where nothing is found."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from pyspark.sql import SparkSession

from sexton.audit.classes import Class
from sexton.audit.judge import PartitionReport, Verdict
from sexton.audit.report import Report
from sexton.audit.run import audit
from sexton.reproduce.live import WARM_UP_TOPIC
from sexton.reproduce.run import run
from sexton.reproduce.scenarios import SCENARIOS, Scenario
from sexton.reproduce.script import Event, Kind
from sexton.reproduce.systems import running
from sexton.reproduce.world import AWAY
from tests.audit.live.reading import source_at

pytestmark = [pytest.mark.spark, pytest.mark.long]

KAFKA = "kafka-4.3.0"
SEXTON = "sexton-coordinated"


class BeforeTheLead:
    """Holds all scripts when they are about to make the broker that was away the leader."""

    def __init__(self, count: int) -> None:
        self._missing = count
        self.all_here = asyncio.Event()

    async def __call__(self, kind: Kind, what: str) -> None:
        if kind is not Kind.LEAD:
            return
        self._missing -= 1
        if not self._missing:
            self.all_here.set()
        await asyncio.Event().wait()


def tell(system: str, scenario: Scenario, event: Event) -> None:
    print(f"{event.at_s:6.1f} {scenario.name}: {event.text}")


async def audited_before_the_lead(spark: SparkSession, system: str, scenarios: Sequence[Scenario]) -> Report:
    def look(bootstrap: str, pattern: str) -> Report:
        with source_at(bootstrap, pattern) as source:
            return audit(spark.sparkContext, [source])

    async with running([system]) as worlds:
        bootstrap = worlds[system].place(WARM_UP_TOPIC).bootstrap
        # Kernels are loaded now: markers are kept for 0 ms, so that traces are gone soon after the last step.
        await asyncio.to_thread(look, bootstrap, WARM_UP_TOPIC)
        before = BeforeTheLead(len(scenarios))
        scripts = asyncio.ensure_future(run(worlds, lambda _: False, scenarios, tell, before=before))
        waiting = asyncio.ensure_future(before.all_here.wait())
        await asyncio.wait([scripts, waiting], return_when=asyncio.FIRST_COMPLETED)
        assert before.all_here.is_set(), scripts.result()
        try:
            return await asyncio.to_thread(look, bootstrap, f"{system}[.].*")
        finally:
            scripts.cancel()
            await asyncio.gather(scripts, return_exceptions=True)


@pytest.fixture(scope="module")
def report(spark: SparkSession) -> Report:
    return asyncio.run(audited_before_the_lead(spark, KAFKA, list(SCENARIOS.values())))


def partition(report: Report, scenario: str) -> PartitionReport:
    return next(each for each in report.partitions if each.topic_partition[0] == f"{KAFKA}.{scenario}")


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("scenario", "key", "expected"),
    [
        ("tombstone", b"user", Class.TOMBSTONE),
        ("aborted-to-committed", b"poison", Class.ABORTED_TO_COMMITTED),
        ("committed-to-aborted", b"user", Class.COMMITTED_TO_ABORTED),
    ],
)
def test_the_key_is_found_with_its_class_and_nothing_else(
    report: Report, scenario: str, key: bytes, expected: Class
) -> None:
    """Markers are kept for 0 ms here: where cleaners have been faster than the audit, it says what else it may be."""
    found = partition(report, scenario)
    assert found.verdict is Verdict.DIVERGED, found
    assert [case.key.key for case in found.cases] == [key]
    (case,) = found.cases
    told = case.explained
    assert told.is_class == expected or (not told.is_sure and expected in told.alternatives), told
    assert [found.standings[number].replica.id.broker for number in case.explained.accused] == [AWAY]


@pytest.mark.kafka
def test_a_replica_that_is_stuck_is_found_before_anybody_waits_at_it(report: Report) -> None:
    found = partition(report, "stuck-partition")
    assert found.verdict is Verdict.DIVERGED
    (stuck,) = [finding for finding in found.findings if finding.is_class == Class.STUCK]
    assert found.standings[stuck.replica].replica.id.broker == AWAY
    assert stuck.facts["coordinator_knows"] is False


@pytest.mark.kafka
def test_what_is_no_corruption_agrees(report: Report) -> None:
    assert partition(report, "committed-value").verdict is Verdict.AGREE


@pytest.mark.cluster
def test_replicas_of_sexton_agree_after_all_of_it(spark: SparkSession) -> None:
    found = asyncio.run(audited_before_the_lead(spark, SEXTON, list(SCENARIOS.values())))
    assert len(found.partitions) == len(SCENARIOS)
    assert {each.verdict for each in found.partitions} == {Verdict.AGREE}, found
