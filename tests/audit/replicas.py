"""Brokers' log directories with one partition each, for audits of directories; and the audit, in this process."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sexton.audit.folders import FolderSource
from sexton.audit.judge import Case, PartitionReport
from sexton.audit.only import Only
from sexton.audit.report import Report
from sexton.audit.run import audit
from sexton.records import checkpoints, names
from sexton.records.batch import Batch
from sexton.records.checkpoints import EpochEntry
from sexton.types import LeaderEpoch
from tests import logs
from tests.spark.local_context import LocalContext

TOPIC = "orders"


@dataclass(frozen=True, slots=True)
class On:
    """What a broker has of the partition."""

    batches: Sequence[Batch] = ()
    clean: int | None = None
    """Its cleaner's checkpoint."""
    high_watermark: int | None = None
    """Its end, if nothing else is said."""
    start: int = 0
    epoch: int = 0
    aborted: Sequence[tuple[int, int, int, int]] | None = None
    """Its .txnindex; what its batches give, if nothing else is said."""
    log: logs.Log | None = None
    was_stopped_cleanly: bool = True


def write(directory: Path, replica: On, partition: int = 0) -> None:
    name = f"{TOPIC}-{partition}"
    log = replica.log
    if log is None:
        aborted = logs.aborted_entries(replica.batches) if replica.aborted is None else replica.aborted
        log = logs.Log([replica.start], [list(replica.batches)], replica.clean, list(aborted))
    logs.write_partition(log, directory / name)
    end = log.end_offset if replica.high_watermark is None else replica.high_watermark
    for file, offset in (
        (checkpoints.REPLICATION_OFFSET_CHECKPOINT, end),
        (checkpoints.LOG_START_OFFSET_CHECKPOINT, replica.start),
    ):
        known = checkpoints.read_offset_checkpoint(directory / file)
        checkpoints.write_offset_checkpoint(directory / file, {**known, (TOPIC, partition): offset})
    if replica.was_stopped_cleanly:
        (directory / names.CLEAN_SHUTDOWN_FILE).touch()
    (directory / name / checkpoints.LEADER_EPOCH_CHECKPOINT).write_bytes(
        checkpoints.encode_leader_epochs([EpochEntry(LeaderEpoch(replica.epoch), replica.start)])
    )


def brokers(parent: Path, *replicas: On) -> dict[int, list[Path]]:
    """Numbered from 1."""
    dirs = {}
    for number, replica in enumerate(replicas, start=1):
        directory = parent / f"broker-{number}"
        directory.mkdir(exist_ok=True)
        write(directory, replica)
        dirs[number] = [directory]
    return dirs


def audited(dirs: dict[int, list[Path]], only: Only | None = None, confirm: int = 1000) -> Report:
    context = LocalContext(random.Random(1)).as_spark
    return audit(context, [FolderSource(dirs)], confirm=confirm, only=only)


def judged(parent: Path, *replicas: On) -> PartitionReport:
    """Of brokers 1, 2, … that are all stopped."""
    (report,) = audited(brokers(parent, *replicas)).partitions
    return report


def the_case(report: PartitionReport) -> Case:
    cases = [case for case in report.cases if not case.key.is_pinned]
    assert len(cases) == 1, [case.explained.because for case in cases]
    return cases[0]


def wrong_brokers(report: PartitionReport, case: Case) -> list[int]:
    return [report.standings[number].replica.id.broker for number in case.explained.accused]
