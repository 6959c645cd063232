"""A compactor's metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from sexton.compactor.worker import Compactor


class CompactorMetrics(Collector):
    """Made from the compactor's totals at each scrape. A counter's `_total` is the library's."""

    def __init__(self, compactor: Compactor) -> None:
        self._compactor = compactor

    def collect(self) -> Iterator[Metric]:
        compactor, totals = self._compactor, self._compactor.totals
        info = GaugeMetricFamily("sexton_compactor_info", "Which compactor this is.", labels=["compactor"])
        info.add_metric([compactor.name], 1)
        yield info
        doc = "Replicas that are due, when it last looked."
        yield GaugeMetricFamily("sexton_compactor_due", doc, compactor.due_count)
        yield GaugeMetricFamily("sexton_compactor_underway", "Replicas that it works on.", compactor.underway_count)
        yield CounterMetricFamily("sexton_compactor_jobs", "Spark jobs that it ran.", totals.jobs_count)
        doc = "Of these, failed as a whole."
        yield CounterMetricFamily("sexton_compactor_failed_jobs", doc, totals.failed_jobs_count)
        doc = "Passes over replicas, by how they ended."
        passes = CounterMetricFamily("sexton_compactor_passes", doc, labels=["outcome"])
        passes.add_metric(["committed"], totals.committed_count)
        passes.add_metric(["failed"], totals.failed_count)
        yield passes
        doc = "Sizes of committed logs before."
        yield CounterMetricFamily("sexton_compactor_input_bytes", doc, totals.input_bytes)
        doc = "Sizes of committed logs after."
        yield CounterMetricFamily("sexton_compactor_output_bytes", doc, totals.output_bytes)
        doc = "Spent in jobs, of both lanes together."
        yield CounterMetricFamily("sexton_compactor_busy_seconds", doc, totals.busy_ms / 1000)
        doc = "From when a replica was due to when its pass was committed, summed over committed passes."
        yield CounterMetricFamily("sexton_compactor_due_to_done_seconds", doc, totals.due_to_done_ms / 1000)
        doc = "Input of its jobs on cloud topics that were refused because another compactor had been first."
        yield CounterMetricFamily("sexton_compactor_wasted_bytes", doc, totals.wasted_bytes)
