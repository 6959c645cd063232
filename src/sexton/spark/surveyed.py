"""A stopped broker's partition on its way through Spark jobs: opened, then surveyed, then worked on or left alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pyspark import SparkContext

from sexton.compaction.survey import LogSurvey
from sexton.errors import SextonError
from sexton.log.stopped.partition import PartitionLog
from sexton.spark.compact import survey_logs
from sexton.spark.passes import Progress


class Failable(Protocol):
    failure: SextonError | None


class SurveyedPartition:
    """Once its result has a failure, it is left alone."""

    def __init__(self, result: Failable) -> None:
        self._result = result
        self.log: PartitionLog | None = None
        self._survey: LogSurvey | None = None

    @property
    def is_live(self) -> bool:
        return self._result.failure is None

    def loaded(self) -> tuple[PartitionLog, LogSurvey]:
        assert self.log is not None, "opened before it is used"
        assert self._survey is not None, "surveyed before it is used"
        return self.log, self._survey

    def surveyed(self, result: LogSurvey | SextonError) -> None:
        if isinstance(result, SextonError):
            self._result.failure = result
        else:
            self._survey = result


def survey_partitions(context: SparkContext, partitions: Sequence[SurveyedPartition], progress: Progress) -> None:
    live = [partition for partition in partitions if partition.is_live]
    logs = [partition.log for partition in live if partition.log is not None]
    progress("survey", sum(len(log.segments) for log in logs))
    for partition, result in zip(live, survey_logs(context, logs), strict=True):
        partition.surveyed(result)
