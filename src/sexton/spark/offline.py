"""Compaction of a stopped broker's log directories: `sexton compact`.

One replica alone knows nothing about the others, so by default its tombstones and markers stay (MTRO and MXRO are 0)
and nothing is settled. With the directories of all replicas of a partition, MTRO and MXRO are computed from their
disks: Kafka's cleaner checkpoint is a replica's MCCO, and its MXFO is the offset of its first transactional batch.

Settling needs care in a Kafka cluster: a follower that fetches a plain batch of a producer whose transaction it has
open refuses it. Below the lowest bound of all replicas every transaction has ended on every one of them and no replica
will fetch those batches again, so batches are settled up to there.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final

from pyspark import SparkContext

from sexton.compaction.eligibility import Bound, SegmentSummary, cleanable_bound, first_dirty_offset
from sexton.compaction.fates import Fate
from sexton.compaction.survey import LogSurvey
from sexton.compaction.terms import Terms
from sexton.errors import EnvironmentFailure, NotALogError, SextonError
from sexton.log.stopped import locks, swap
from sexton.log.stopped.partition import PartitionLog, find_partitions, open_partition
from sexton.log.stopped.surroundings import Surroundings, topic_id_of
from sexton.records.codecs import MAX_UNCOMPRESSED_BATCH_BYTES
from sexton.records.ownership import Owner
from sexton.settings.schema import BadSettingError
from sexton.settings.topic import TopicConfig
from sexton.spark.compact import Report, Request, compact
from sexton.spark.passes import Progress
from sexton.spark.surveyed import SurveyedPartition, survey_partitions

ROOT: Final = 0

_ALL_REPLICAS: Final = "--replicas needs the directories of all replicas of a partition, and of no others"


class OfflineCoordination(Enum):
    """On which replicas the removal of a tombstone or marker depends."""

    ALONE = "alone"  # the others are unknown: tombstones and markers stay
    REPLICAS = "replicas"  # the directories of all replicas are given
    INDEPENDENT = "independent"  # other replicas are ignored, as in Kafka


@dataclass(frozen=True, slots=True)
class Options:
    now_ms: int
    coordination: OfflineCoordination = OfflineCoordination.ALONE
    settings: Mapping[str, str] = field(default_factory=dict)
    """Topic configs that override the cluster's metadata."""
    metadata_dir: Path | None = None
    """The log directory with ``__cluster_metadata-0``, if it is not the partitions' own."""
    server_properties: Mapping[str, str] | None = None
    """The broker's own configs, which are in no metadata."""
    replica_count: int | None = None
    """Number of replicas of a partition, if no metadata has it."""
    high_watermark: int | None = None
    trust_log_end: bool = False
    """Use the log end as the high watermark if there is no checkpoint."""
    dry_run: bool = False
    max_batch_bytes: int = MAX_UNCOMPRESSED_BATCH_BYTES


def check_free(paths: Sequence[Path]) -> None:
    """Raises at once, before Spark is started, if a path is no log, or its broker runs, or it belongs to another
    user."""
    for log_dir in {directory.parent for directory in find_partitions(paths)}:
        with _holding(log_dir):
            pass


def _holding(log_dir: Path) -> AbstractContextManager[None]:
    """Locks a log directory. The lock file and new segments stay behind, so only the log's owner, or root, which can
    change their owner, may run this."""
    owner = Owner.of_broker(log_dir)
    if os.geteuid() not in (ROOT, owner.uid):
        raise EnvironmentFailure(
            f"it belongs to the user {_user_name(owner.uid)}, who could not open what would be written here",
            str(log_dir),
            "Run as that user, or as root",
        )
    return locks.hold(log_dir)


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def compact_directories(
    context: SparkContext, paths: Sequence[Path], options: Options, progress: Progress = lambda step, tasks: None
) -> list[Report]:
    """Compacts partition directories, or all compacted topics of log directories. Returns the reports in path order."""
    directories = find_partitions(paths)
    with ExitStack() as stack:
        for log_dir in sorted({directory.parent for directory in directories}):
            stack.enter_context(_holding(log_dir))
        log_dirs = frozenset(directory.parent for directory in directories)
        around = Surroundings(log_dirs, options.metadata_dir, options.server_properties)
        partitions = [_open(directory, around, options) for directory in directories]
        survey_partitions(context, partitions, progress)
        if options.coordination is OfflineCoordination.REPLICAS:
            _check_replicas(partitions, around, options)
        _run(context, partitions, options, progress)
        return [partition.report for partition in partitions]


class _Partition(SurveyedPartition):
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.report = Report(directory.name, str(directory))
        super().__init__(self.report)
        self.config = TopicConfig()

    @property
    def is_live(self) -> bool:
        """Whether its bound can be determined. This includes one with nothing to do: it still holds back the other
        replicas."""
        return super().is_live and self.config.compacts

    @property
    def has_been_worked_on(self) -> bool:
        return self.report.bytes_before > 0

    def high_watermark(self, options: Options) -> int:
        log, survey = self.loaded()
        known = options.high_watermark if options.high_watermark is not None else log.high_watermark
        if known is None and options.trust_log_end:
            known = survey.log_end_offset
        if known is None:
            raise NotALogError(
                "no replication-offset-checkpoint beside it says how far this partition is committed",
                str(self.directory),
                "Work in the broker's log directory, or pass --high-watermark OFFSET, or --high-watermark end if "
                "nothing in this copy can be truncated any more",
            )
        return min(known, survey.log_end_offset)

    def first_dirty(self) -> int:
        log, survey = self.loaded()
        return first_dirty_offset(log.cleaner_offset, log.log_start_offset, survey.log_end_offset)

    def bound(self, options: Options) -> Bound:
        log, survey = self.loaded()
        high_watermark = self.high_watermark(options)
        return cleanable_bound(
            summaries(log, survey),
            self.first_dirty(),
            survey.last_stable_offset(high_watermark),
            high_watermark,
            options.now_ms,
            self.config,
        )

    def mxfo(self, bound: int) -> int:
        """The offset below which this replica has nothing transactional; never above `bound`."""
        first = self.loaded()[1].first_transactional_offset
        return bound if first is None else min(bound, first)


def summaries(log: PartitionLog, survey: LogSurvey) -> list[SegmentSummary]:
    """Returns segments as `eligibility` needs them; where records have no timestamps the file's modification time is
    used, as in Kafka."""
    return [
        SegmentSummary(
            segment.base_offset,
            segment.size_bytes,
            segment.first_timestamp_ms,
            segment.max_timestamp_ms if segment.max_timestamp_ms >= 0 else file.modified_ns // 1_000_000,
        )
        for segment, file in zip(survey.segments, log.segments, strict=True)
    ]


def _open(directory: Path, around: Surroundings, options: Options) -> _Partition:
    partition = _Partition(directory)
    try:
        around.check_may_change(directory)
        if not options.dry_run:
            swap.recover(directory)
        partition.log = open_partition(directory)
        known = around.config(directory, options.settings)
        partition.config, partition.report.assumptions = known.config, known.assumptions
        if not partition.config.compacts:
            policy = ",".join(sorted(partition.config.cleanup_policy))
            partition.report.nothing_to_do = f"cleanup.policy is {policy}, not compact"
    except SextonError as error:
        partition.report.failure = error
    return partition


def _check_replicas(partitions: Sequence[_Partition], around: Surroundings, options: Options) -> None:
    for members in _by_name(partitions).values():
        try:
            _check_complete([member.directory for member in members], around, options.replica_count)
            failed = next((member.report.failure for member in members if member.report.failure is not None), None)
        except SextonError as error:
            failed = error
        for member in members:
            # A replica cannot be judged without the others.
            member.report.failure = member.report.failure or failed


def _check_complete(directories: Sequence[Path], around: Surroundings, replica_count: int | None) -> None:
    """Checks that these are all replicas of a partition, each once, and no others: what a missing replica still has
    would be forgotten by the others."""
    name, place = directories[0].name, ", ".join(map(str, directories))
    if len({topic_id for path in directories if (topic_id := topic_id_of(path)) is not None}) > 1:
        raise NotALogError("these are logs of different topics of the same name", place, _ALL_REPLICAS)
    brokers = [around.broker(path.parent) for path in directories]
    if len({broker.cluster_id for broker in brokers if broker is not None}) > 1:
        raise NotALogError("these are directories of different clusters", place, _ALL_REPLICAS)
    ids = [broker.node_id for broker in brokers if broker is not None]
    replicas = around.replicas(directories)
    if replicas is None and replica_count is None:
        raise BadSettingError(
            f"how many replicas {name} has is unknown: no cluster metadata here mentions it",
            place,
            "Name the directory that has __cluster_metadata-0 with --metadata, or say it with --replica-count",
        )
    expected_count = replica_count if replicas is None else len(replicas)
    is_complete = len(directories) == expected_count and len(set(ids)) == len(ids)
    if not is_complete or (replicas is not None and not replicas.issuperset(ids)):
        has = f"{expected_count} replicas" if replicas is None else f"replicas on the brokers {sorted(replicas)}"
        given = f"{len(directories)} directories" + (f" of the brokers {sorted(map(str, ids))}" if ids else "")
        raise NotALogError(f"{name} has {has}, and {given} were given", place, _ALL_REPLICAS)


def _by_name(partitions: Sequence[_Partition]) -> dict[str, list[_Partition]]:
    groups: dict[str, list[_Partition]] = {}
    for partition in partitions:
        groups.setdefault(partition.directory.name, []).append(partition)
    return groups


def _run(context: SparkContext, partitions: Sequence[_Partition], options: Options, progress: Progress) -> None:
    requests = _requests(partitions, options)
    _compact(context, requests, options, progress)
    if options.coordination is not OfflineCoordination.REPLICAS or options.dry_run:
        return
    # Now that every replica is clean up to its bound, MTRO and MXRO may have risen: a second round starts (or ends) the
    # delete horizons of what waited only for other replicas. All replicas count, also those that are done.
    again = [
        members
        for members in _by_name(partitions).values()
        if all(member.is_live for member in members) and any(_waits_for_replicas(member.report) for member in members)
    ]
    replicas = [member for members in again for member in members]
    for partition in replicas:
        partition.log = open_partition(partition.directory)
    survey_partitions(context, replicas, progress)
    requests = [
        (partition, request)
        for partition, request in _requests(replicas, options)
        if _waits_for_replicas(partition.report)
        and (request.terms.mtro > partition.report.mtro or request.terms.mxro > partition.report.mxro)
    ]
    _compact(context, requests, options, progress)


def _compact(
    context: SparkContext, requests: Sequence[tuple[_Partition, Request]], options: Options, progress: Progress
) -> None:
    reports = compact(
        context,
        [request for _, request in requests],
        dry_run=options.dry_run,
        max_batch_bytes=options.max_batch_bytes,
        progress=progress,
    )
    for (partition, _), report in zip(requests, reports, strict=True):
        report.assumptions = partition.report.assumptions
        partition.report = report.after(partition.report)


def _requests(partitions: Sequence[_Partition], options: Options) -> list[tuple[_Partition, Request]]:
    """Returns the request for each partition that has work; the reports of the others say why not. Replicas are judged
    together or not at all."""
    bounds: dict[Path, Bound] = {}
    for partition in partitions:
        if partition.is_live:
            try:
                bounds[partition.directory] = partition.bound(options)
            except SextonError as error:
                partition.report.failure = error
    requests = []
    for members in _by_name(partitions).values():
        unknown = [member for member in members if member.directory not in bounds]
        if unknown and options.coordination is OfflineCoordination.REPLICAS:
            _hold_back(members, unknown[0])
            continue
        for partition in members:
            if partition.directory not in bounds:
                continue
            terms = _terms(partition, members, bounds, options)
            reason = _nothing_to_do(partition, terms, bounds[partition.directory])
            if not reason:
                log, survey = partition.loaded()
                requests.append(
                    (
                        partition,
                        Request(
                            log=log,
                            survey=survey,
                            config=partition.config,
                            terms=terms,
                            first_dirty_offset=partition.first_dirty(),
                        ),
                    )
                )
            elif not partition.has_been_worked_on:
                partition.report.nothing_to_do = reason
    return requests


def _hold_back(members: Sequence[_Partition], unknown: _Partition) -> None:
    """If one replica's state is unknown, so are MTRO and MXRO for the others."""
    for member in members:
        if member is not unknown and not member.has_been_worked_on:
            member.report.failure = member.report.failure or unknown.report.failure
            member.report.nothing_to_do = member.report.nothing_to_do or unknown.report.nothing_to_do


def _terms(
    partition: _Partition, replicas: Sequence[_Partition], bounds: Mapping[Path, Bound], options: Options
) -> Terms:
    terms = Terms(options.now_ms, bounds[partition.directory].offset, partition.config.delete_retention_ms)
    if options.coordination is OfflineCoordination.INDEPENDENT:
        return terms.independent()
    if options.coordination is OfflineCoordination.ALONE:
        return terms
    return Terms(
        terms.now_ms,
        terms.bound,
        terms.delete_retention_ms,
        mtro=min(replica.first_dirty() for replica in replicas),
        mxro=min(replica.mxfo(replica.first_dirty()) for replica in replicas),
        settle_below=min(bounds[replica.directory].offset for replica in replicas),
    )


def _nothing_to_do(partition: _Partition, terms: Terms, bound: Bound) -> str:
    """Why a compaction would change nothing; empty if it might."""
    log, _ = partition.loaded()
    first_dirty = partition.first_dirty()
    if bound.offset <= log.segments[0].base_offset:
        return f"nothing lies below offset {bound.offset}: {bound.because}"
    if first_dirty >= bound.offset and terms.mtro == 0 and terms.mxro == 0:
        return f"clean up to offset {first_dirty}; above that, {bound.because}"
    return ""


def _waits_for_replicas(report: Report) -> bool:
    waiting = (Fate.TOMBSTONE_WAITS_FOR_REPLICAS, Fate.MARKER_WAITS_FOR_REPLICAS, Fate.MARKER_HAS_DATA)
    return report.failure is None and any(report.tally.of(fate) for fate in waiting)
