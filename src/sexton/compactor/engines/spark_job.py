"""Executes brokers' plans by the Spark pipeline, many in one job.

Executors that see a broker's directory under the path in its plan work on the files; all others go through the broker's
port (`plan_files`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pyspark import SparkContext

from sexton.compaction.contract import PassResult, Plan
from sexton.compaction.fates import Fate
from sexton.compaction.survey import producer_rows
from sexton.compactor.broker_files import BrokerFiles
from sexton.compactor.engine import PlanOutcome
from sexton.compactor.plan_files import PlanFiles
from sexton.errors import SextonError
from sexton.log.stopped.partition import PartitionLog, Segment
from sexton.records import names
from sexton.settings.topic import TopicConfig
from sexton.spark.compact import Request, Staged, stage, survey_logs
from sexton.spark.passes import Progress
from sexton.spark.storage import Storage


def run(
    context: SparkContext,
    plans: Sequence[Plan],
    *,
    is_remote: bool = False,
    progress: Progress = lambda step, tasks: None,
) -> list[PlanOutcome]:
    """With `is_remote`, bytes go through the brokers' ports even where the files can be seen."""
    logs = [_log_of(plan) for plan in plans]
    storages = [_storage_of(plan, is_remote) for plan in plans]
    progress("survey", sum(len(log.segments) for log in logs))
    surveys = survey_logs(context, logs, storages)
    outcomes: dict[int, PlanOutcome] = {}
    requests: list[tuple[int, Request]] = []
    for index, (plan, log, survey) in enumerate(zip(plans, logs, surveys, strict=True)):
        if isinstance(survey, SextonError):
            outcomes[index] = PlanOutcome.failed(plan, survey)
            continue
        config = TopicConfig(segment_bytes=plan.segment_bytes, index_interval_bytes=plan.index_interval_bytes)
        request = Request(
            log=log,
            survey=survey,
            config=config,
            terms=plan.terms,
            first_dirty_offset=plan.first_dirty_offset,
            storage=storages[index],
            producers=producer_rows(plan.producers),
        )
        requests.append((index, request))
    staged = stage(context, [request for _, request in requests], progress=progress)
    for (index, _), one in zip(requests, staged, strict=True):
        outcomes[index] = _outcome(plans[index], one)
    return [outcomes[index] for index in range(len(plans))]


def _storage_of(plan: Plan, is_remote: bool) -> Storage:
    through_broker = BrokerFiles(plan.host, plan.port, plan.plan_id, plan.staging)
    return PlanFiles(through_broker, plan.directory, is_remote)


def _log_of(plan: Plan) -> PartitionLog:
    directory = Path(plan.directory)
    segments = tuple(
        Segment(base_offset, directory / names.log_file_name(base_offset), size_bytes, 0)
        for base_offset, size_bytes in plan.segments
    )
    start_offset = plan.segments[0][0]
    return PartitionLog(
        directory=directory,
        topic=plan.topic,
        partition=plan.partition,
        segments=segments,
        high_watermark=plan.high_watermark,
        log_start_offset=start_offset,
        cleaner_offset=None,
    )


def _outcome(plan: Plan, staged: Staged) -> PlanOutcome:
    if staged.report.failure is not None:
        return PlanOutcome.failed(plan, staged.report.failure)
    segments = tuple(output.new for output in staged.outputs)
    fates = {Fate(fate).label: count for fate, count in staged.report.tally.counts.items() if count}
    return PlanOutcome(plan, PassResult(plan.plan_id, segments, fates, staged.report.tally.held_back_bytes))
