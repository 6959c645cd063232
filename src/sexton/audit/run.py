"""An audit from its sources to its report: what is read when, in which order, and how often.

    find      each source                 replicas in scope, and how each stands
    read      one Spark job               every replica, once (``spark.fold_job``)
    tails     the same                    what came since, until each was read past all that any other had shown
    compare   the same                    keys on which replicas differ
    look up   the driver                  the records of those keys again: what has changed meanwhile is dropped
    judge     pure                        what it is, and why

Why the order cannot accuse wrongly: suppose A shows nothing of a key, B shows v, and both are as they should be. Then
something below A's end made v go (a tombstone, an abort). B was read past A's end *afterwards* and still shows v, so B
has not got it. And what A dropped because of something newer, A has, at an offset that B has been read past.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from pyspark import SparkContext

from sexton.audit.judge import Counts, PartitionReport, judge
from sexton.audit.keys import DifferingKey
from sexton.audit.only import Only
from sexton.audit.replica import Replica, ReplicaId, Source
from sexton.audit.report import Report
from sexton.audit.seen import looked_up_key, standing_of, view_of
from sexton.audit.standing import Standing, reference_of, settle
from sexton.records.batch import Batch
from sexton.records.kernels.keys import FLAG_BITS
from sexton.records.keyhash import HashKey, random_hash_key
from sexton.spark.fold_compare import NO_CODE, Compared, View, Why
from sexton.spark.fold_job import FoldJob, Side
from sexton.spark.fold_pass import StretchFacts
from sexton.spark.stretches import Stretch
from sexton.types import TopicPartition

CONFIRM_DEFAULT = 10_000
"""Differing keys of a partition that are looked at again and explained; the rest are counted."""

ATTEMPTS_MAX = 3
"""How often a partition is read whose leader changes meanwhile."""

Progress = Callable[[str, int], None]


def _ignore(step: str, tasks: int) -> None: ...


@dataclass(slots=True)
class _Member:
    """A replica in the job."""

    number: int
    replica: Replica
    source: Source
    facts: list[StretchFacts] = field(default_factory=list)
    is_current: bool = False

    @property
    def end_offset(self) -> int:
        return max((each.end_offset for each in self.facts), default=self.replica.log_start_offset)

    @property
    def has_failed(self) -> bool:
        return any(each.failure is not None for each in self.facts)


def audit(
    context: SparkContext,
    sources: Sequence[Source],
    *,
    confirm: int = CONFIRM_DEFAULT,
    only: Only | None = None,
    progress: Progress = _ignore,
) -> Report:
    began_s, began_ms = time.monotonic(), time.time_ns() // 1_000_000
    reports: dict[TopicPartition, PartitionReport] = {}
    size_bytes = 0
    points = random_hash_key() if only is None else only.hash_key
    wanted: set[TopicPartition] | None = None
    for attempt in range(ATTEMPTS_MAX):
        attempted = _Attempt(context, sources, points, wanted, confirm, only, progress)
        reports.update(attempted.reports())
        size_bytes += attempted.size_bytes
        wanted = attempted.changed() if attempt + 1 < ATTEMPTS_MAX else set()
        if not wanted:
            break
    skipped = [each for source in sources for each in getattr(source, "skipped", ())]
    ordered = tuple(reports[name] for name in sorted(reports))
    took_s = time.monotonic() - began_s
    return Report(
        partitions=ordered,
        hash_key=points,
        skipped=tuple(dict.fromkeys(skipped)),
        size_bytes=size_bytes,
        took_s=took_s,
        began_ms=began_ms,
    )


class _Attempt:
    def __init__(
        self,
        context: SparkContext,
        sources: Sequence[Source],
        points: HashKey,
        wanted: set[TopicPartition] | None,
        confirm: int,
        only: Only | None,
        progress: Progress,
    ) -> None:
        self._context = context
        self._confirm = confirm
        self._progress = progress
        self._hash_key = points
        self._only = None if only is None else np.array(sorted(only.firsts), dtype=np.uint64)
        self._names = frozenset() if only is None else only.partitions
        self._members: list[_Member] = []
        self._unread: dict[TopicPartition, list[Replica]] = {}
        self._find(sources, wanted)
        self._partitions = sorted({*self._unread, *(each.replica.id.topic_partition for each in self._members)})
        self._numbers = {name: number for number, name in enumerate(self._partitions)}
        self._by_partition: dict[TopicPartition, list[_Member]] = {}
        for each in self._members:
            self._by_partition.setdefault(each.replica.id.topic_partition, []).append(each)
        self.size_bytes = 0

    def _find(self, sources: Sequence[Source], wanted: set[TopicPartition] | None) -> None:
        found = [(source, replica) for source in sources for replica in source.find()]
        read = {replica.id for _, replica in found if replica.is_read}
        taken: set[ReplicaId] = set()
        for source, replica in found:
            name = replica.id.topic_partition
            if (wanted is not None and name not in wanted) or (self._names and replica.name not in self._names):
                continue
            if not replica.is_read:
                if replica.id not in read:
                    self._unread.setdefault(name, []).append(replica)
            elif replica.id not in taken:  # a broker that answers before its directory
                taken.add(replica.id)
                self._members.append(_Member(len(self._members), replica, source))

    def reports(self) -> dict[TopicPartition, PartitionReport]:
        job = FoldJob(
            self._context, [self._side(each) for each in self._members], self._hash_key, progress=self._progress
        )
        self._take(job.facts())
        self._read_tails(job)
        standings = {name: self._standings(name) for name in self._partitions}
        views: list[View | None] = [None] * len(self._members)
        for each in standings.values():
            readable = {number: one for number, one in each.items() if one.failure is None}
            for number, standing in readable.items() if len(readable) > 1 else ():
                views[number] = view_of(standing)
        ends = {number: view.visible_end for number, view in enumerate(views) if view is not None}
        job.index_again(ends, [facts for each in self._members for facts in each.facts])
        compared = job.compare(views, self._confirm, self._only) if any(views) else {}
        self.size_bytes = sum(facts.size_bytes for each in self._members for facts in each.facts)
        return {
            name: self._report(name, standings[name], compared.get(number))
            for number, name in enumerate(self._partitions)
        }

    def changed(self) -> set[TopicPartition]:
        """Partitions whose leader is another than when they were found."""
        before = {each.replica.id: each.replica for each in self._members}
        changed = set()
        for source in {id(each.source): each.source for each in self._members}.values():
            ids = [each.replica.id for each in self._members if each.source is source]
            for now in source.now(ids):
                if now.leader_epoch != before[now.id].leader_epoch:
                    changed.add(now.id.topic_partition)
        return changed

    # ---- Reading ----

    def _side(self, member: _Member) -> Side:
        replica = member.replica
        cuts = [replica.high_watermark, replica.last_stable_offset, *(each.first_offset for each in replica.open)]
        return Side(
            partition=self._numbers[replica.id.topic_partition],
            stretches=tuple(member.source.stretches(replica, member.number, replica.log_start_offset, None)),
            cuts=tuple(cut for cut in cuts if cut is not None),
            from_offset=replica.log_start_offset,
        )

    def _take(self, facts: Sequence[StretchFacts]) -> None:
        for each in facts:
            self._members[each.replica].facts.append(each)

    def _read_tails(self, job: FoldJob) -> None:
        """Until each replica was read past what any other had shown, as far as it comes."""
        barriers = {
            name: max(each.end_offset for each in self._of(name)) for name in self._partitions if self._of(name)
        }
        more: list[Stretch] = []
        for source in {id(each.source): each.source for each in self._members}.values():
            behind = {
                each.replica.id: each
                for each in self._members
                if each.source is source
                and not each.has_failed
                and not each.replica.is_down
                and each.end_offset < barriers[each.replica.id.topic_partition]
            }
            wanted = {id: barriers[id.topic_partition] for id in behind}
            for replica in source.read_on(wanted) if wanted else ():
                member = behind[replica.id]
                member.replica = replace(replica, log_start_offset=member.replica.log_start_offset)
                more += member.source.stretches(replica, member.number, member.end_offset, None)
        if more:
            self._take(job.add(more))
        for each in self._members:
            each.is_current = each.end_offset >= barriers[each.replica.id.topic_partition]

    def _of(self, name: TopicPartition) -> list[_Member]:
        return self._by_partition.get(name, [])

    # ---- What was seen ----

    def _standings(self, name: TopicPartition) -> dict[int, Standing]:
        all_of_it = {
            each.number: standing_of(each.replica, each.facts, is_current=each.is_current) for each in self._of(name)
        }
        readable = {number: each for number, each in all_of_it.items() if each.failure is None}
        return {**all_of_it, **settle(readable)}

    def _report(
        self, name: TopicPartition, standings: Mapping[int, Standing], compared: Compared | None
    ) -> PartitionReport:
        readable = sorted(number for number, each in standings.items() if each.failure is None)
        reference = reference_of({number: standings[number] for number in readable}) if readable else None
        keys: list[DifferingKey] = []
        counts = Counts()
        if compared is not None:
            keys, changed_count = self._looked_up(compared, readable)
            counts = Counts(
                key_count=compared.key_count,
                differing_count=compared.differing_count,
                retention_count=compared.retention_count,
                behind=dict(zip(readable, compared.behind_counts, strict=True)),
                pinned=dict(zip(readable, compared.pinned_counts, strict=True)),
                changed_count=changed_count,
            )
        return judge(name, standings, reference, self._unread.get(name, ()), keys, counts)

    def _looked_up(self, compared: Compared, readable: Sequence[int]) -> tuple[list[DifferingKey], int]:
        """The differing keys with their records; those that have changed meanwhile are counted instead."""
        rows = compared.differences
        found: dict[int, Mapping[int, Batch]] = {}
        for place, number in enumerate(readable):
            codes: set[int] = {*rows["code"][:, place].tolist(), *rows["hidden"][:, place].tolist()}
            offsets = sorted({code >> FLAG_BITS for code in codes if code != NO_CODE})
            member = self._members[number]
            found[number] = member.source.look_up(member.replica, offsets) if offsets else {}
        keys, changed_count = [], 0
        for row in rows:
            key = looked_up_key(row, readable, found, self._hash_key)
            if key is None:
                changed_count += int(row["why"] == Why.DIFFERS)
            else:
                keys.append(key)
        return keys, changed_count
