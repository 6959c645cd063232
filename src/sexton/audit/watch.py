"""Audits again and again, and tells Prometheus what came of the last one."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sexton.audit.classes import Class
from sexton.audit.judge import PartitionReport, Verdict
from sexton.audit.report import Report
from sexton.errors import SextonError

log = logging.getLogger(__name__)

UNEXPLAINED: Final = "unexplained"
"""The class of keys that differ beyond those that are looked at again."""


@dataclass(slots=True)
class Watched:
    """What the metrics are made of."""

    report: Report | None = None
    runs_count: int = 0
    failed_count: int = 0
    is_failing: bool = False
    ended_s: float = 0.0


def keys_by_class(partition: PartitionReport) -> dict[Class, int]:
    """What is wrong with a replica and concerns no key, such as a wrong claim, counts as one: an alert asks for more
    than 0."""
    return {Class(number): count or 1 for number, count in partition.by_class.items()}


def differing_keys(report: Report) -> Counter[str]:
    """Numbers of differing keys, by class."""
    counts: Counter[str] = Counter()
    for partition in report.partitions:
        for is_class, count in keys_by_class(partition).items():
            counts[is_class.label] += count
        counts[UNEXPLAINED] += partition.unexplained_count
    return counts


class WatchMetrics(Collector):
    """Made from the last report at each scrape. Classes and verdicts that did not occur are told as 0: an alert needs a
    series that is there before anything is wrong."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched

    def collect(self) -> Iterator[Metric]:
        watched = self._watched
        yield CounterMetricFamily("sexton_audit_runs", "Audits that came to an end.", watched.runs_count)
        yield CounterMetricFamily("sexton_audit_failed_runs", "Audits that did not.", watched.failed_count)
        yield GaugeMetricFamily("sexton_audit_is_failing", "Whether the last one did not.", int(watched.is_failing))
        if watched.report is not None:
            yield from self._of(watched.report)

    def _of(self, report: Report) -> Iterator[Metric]:
        ended = "When the last audit ended."
        yield GaugeMetricFamily("sexton_audit_last_run_timestamp_seconds", ended, self._watched.ended_s)
        yield GaugeMetricFamily("sexton_audit_duration_seconds", "How long it took.", report.took_s)
        yield GaugeMetricFamily("sexton_audit_read_bytes", "Of all replicas, as it read them.", report.size_bytes)
        keys = sum(each.counts.key_count for each in report.partitions)
        yield GaugeMetricFamily("sexton_audit_keys", "Keys that consumers are shown.", keys)
        verdicts = Counter(each.verdict for each in report.partitions)
        partitions = GaugeMetricFamily("sexton_audit_partitions", "Partitions, by verdict.", labels=["verdict"])
        for verdict in Verdict:
            partitions.add_metric([verdict.value], verdicts[verdict])
        yield partitions
        doc = "Keys on which replicas differ, by class."
        differing = GaugeMetricFamily("sexton_audit_differing_keys", doc, labels=["class"])
        counts = differing_keys(report)
        for label in (*(each.label for each in Class), UNEXPLAINED):
            differing.add_metric([label], counts[label])
        yield differing
        doc = "The same by partition, of those that are not as they should be."
        by_partition = GaugeMetricFamily(
            "sexton_audit_partition_differing_keys", doc, labels=["topic", "partition", "class"]
        )
        for each in report.partitions:
            topic, number = each.topic_partition
            for is_class, count in keys_by_class(each).items():
                if is_class.is_error:
                    by_partition.add_metric([topic, str(number), is_class.label], count)
        yield by_partition


async def watch(
    look: Callable[[], Report],
    watched: Watched,
    every_s: float,
    *,
    count: int | None = None,
    tell: Callable[[Report], None] = lambda report: None,
) -> None:
    """`look` blocks. An audit that fails is told and tried again at its next time: clusters have bad hours. Without a
    `count`, until it is cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        began_s = loop.time()
        try:
            watched.report = await asyncio.to_thread(look)
            watched.runs_count += 1
            watched.is_failing = False
            tell(watched.report)
        except SextonError as error:
            watched.failed_count += 1
            watched.is_failing = True
            log.error("this audit failed: %s", error)
        watched.ended_s = time.time()
        if count is not None and watched.runs_count + watched.failed_count >= count:
            return
        await asyncio.sleep(max(0.0, began_s + every_s - loop.time()))
