"""An audit from its sources to its report: what is read when, in which order, and how often.

    find      each source                 replicas in scope, and how each stands
    read      one Spark job               every replica, once (``spark.fold_job``)
    tails     the same                    what came since, until each was read past all that any other had shown
    compare   the same                    keys on which replicas differ
    again     the same                    until differences stand (``settling``), where brokers go on working
    look up   the driver                  the records of those keys again: what has changed meanwhile is dropped
    judge     pure                        what it is, and why

Why the order cannot accuse wrongly is told where differences settle (``settling``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from pyspark import SparkContext

from sexton.audit.again import CLAIM_LOOKS, WEDGED_PAUSE_S, is_still_claimed, is_still_mismatched
from sexton.audit.claims import Wedged, find_mismatches, find_wedged, wrong_claims
from sexton.audit.former import of_one_topic_each
from sexton.audit.judge import Counts, PartitionReport, judge
from sexton.audit.keys import DifferingKey
from sexton.audit.only import Only
from sexton.audit.replica import Replica, ReplicaId, Skipped, Source
from sexton.audit.report import Report
from sexton.audit.seen import looked_up_key, standing_of, view_of
from sexton.audit.settling import LOOKS_MAX, ROWS_MAX, Looks
from sexton.audit.standing import Standing, reference_of, settle
from sexton.records.batch import Batch
from sexton.records.kernels.keys import FLAG_BITS
from sexton.records.keyhash import HashKey, random_hash_key
from sexton.spark.fold_compare import NO_CODE, Compared, Differences, View, Why
from sexton.spark.fold_job import FoldJob, Side
from sexton.spark.fold_pass import StretchFacts
from sexton.spark.stretches import Stretch
from sexton.types import NO_OFFSET, TopicPartition

CONFIRM_DEFAULT = 10_000
"""Differing keys of a partition that are looked at again and explained; the rest are counted."""

ATTEMPTS_MAX = 3
"""How often a partition is read whose leader changes meanwhile."""

Progress = Callable[[str, int], None]

AllStandings = dict[TopicPartition, dict[int, Standing]]


def _ignore(step: str, tasks: int) -> None: ...


@dataclass(slots=True)
class _Member:
    """A replica in the job."""

    number: int
    found: Replica
    """As it was when everything began. `replica` is how it stood when it was last read on."""
    source: Source
    facts: list[StretchFacts] = field(default_factory=list)
    is_current: bool = False
    replica: Replica = field(init=False)

    def __post_init__(self) -> None:
        self.replica = self.found

    @property
    def end_offset(self) -> int:
        known = (each.read_to for each in self.facts if each.read_to != NO_OFFSET)
        return max(known, default=self.replica.log_start_offset)

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
    gone: list[Skipped] = []
    size_bytes = 0
    points = random_hash_key() if only is None else only.hash_key
    wanted: set[TopicPartition] | None = None
    for attempt in range(ATTEMPTS_MAX):
        attempted = _Attempt(
            context=context,
            sources=sources,
            points=points,
            wanted=wanted,
            confirm=confirm,
            only=only,
            progress=progress,
        )
        found = attempted.reports()
        for name in (wanted or set()) - found.keys():
            del reports[name]
            gone.append(Skipped(f"{name[0]}-{name[1]}", "it was deleted while it was read"))
        reports.update(found)
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
        skipped=tuple(dict.fromkeys([*skipped, *gone])),
        size_bytes=size_bytes,
        took_s=took_s,
        began_ms=began_ms,
    )


class _Attempt:
    def __init__(
        self,
        *,
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
        by_source = [(source, replica) for source in sources for replica in source.find()]
        replicas = of_one_topic_each([replica for _, replica in by_source])
        found = [(source, replica) for (source, _), replica in zip(by_source, replicas, strict=True)]
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
        self._read_tails(job, self._ends())
        standings, compared = self._compare(job)
        busy: dict[TopicPartition, int] = {}
        if any(each.replica.is_working for each in self._members):
            standings, compared, busy = self._look_until_settled(job, standings, compared)
        self.size_bytes = sum(facts.size_bytes for each in self._members for facts in each.facts)
        wedged = self._wedged(standings)
        return {
            name: self._report(name, standings[name], compared.get(name), busy.get(name, 0), wedged)
            for name in standings
        }

    def _compare(self, job: FoldJob) -> tuple[AllStandings, dict[TopicPartition, Compared]]:
        standings = {name: self._standings(name) for name in self._partitions}
        views: list[View | None] = [None] * len(self._members)
        for each in standings.values():
            readable = {number: one for number, one in each.items() if one.failure is None}
            for number, standing in readable.items() if len(readable) > 1 else ():
                views[number] = view_of(standing)
        ends = {number: min(view.visible_end, view.end_offset) for number, view in enumerate(views) if view is not None}
        job.index_again(ends, [facts for each in self._members for facts in each.facts])
        compared = job.compare(views, max(self._confirm, ROWS_MAX), self._only) if any(views) else {}
        return standings, {self._partitions[number]: each for number, each in compared.items()}

    def _look_until_settled(
        self, job: FoldJob, standings: AllStandings, compared: dict[TopicPartition, Compared]
    ) -> tuple[AllStandings, dict[TopicPartition, Compared], dict[TopicPartition, int]]:
        """Looks again at partitions with brokers that go on working (`settling`)."""
        looks = {name: Looks(each) for name, each in compared.items() if self._is_working(name)}
        for _ in range(LOOKS_MAX - 1):
            open_ones = {
                name
                for name, each in looks.items()
                if each.is_open or (each.before is None and _is_pinned_somewhere(standings[name]))
            }
            if not open_ones:
                break
            self._read_tails(job, self._high_watermarks(open_ones))
            self._cut({name: standings[name] for name in open_ones})
            standings, now = self._compare(job)
            for name in open_ones:
                looks[name] = looks[name].then(now[name])
        busy = {}
        for name, each in looks.items():
            compared[name], busy[name] = each.settled(max(self._confirm, ROWS_MAX))
        return standings, compared, busy

    def _cut(self, before: AllStandings) -> None:
        """Files have no barrier. What had ended by the look before, each replica has been read past by now."""
        for name, standings in before.items():
            cut = max(each.visible_end for each in standings.values() if each.failure is None)
            for each in self._of(name):
                if each.replica.is_working and not each.replica.is_live and each.is_current:
                    each.replica = replace(each.replica, cut=cut)

    def _is_working(self, name: TopicPartition) -> bool:
        return any(each.replica.is_working for each in self._of(name))

    def changed(self) -> set[TopicPartition]:
        """Partitions whose leader, or topic, is another than when they were found."""
        before = {each.replica.id: each.found for each in self._members}
        changed = set()
        for source in {id(each.source): each.source for each in self._members}.values():
            ids = [each.replica.id for each in self._members if each.source is source]
            for now in source.now(ids):
                then = before[now.id]
                if (now.leader_epoch, now.topic_id) != (then.leader_epoch, then.topic_id):
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

    def _ends(self) -> dict[TopicPartition, int]:
        """How far the furthest of each partition's replicas was read."""
        return {name: max(each.end_offset for each in some) for name, some in self._by_partition.items()}

    def _high_watermarks(self, names: set[TopicPartition]) -> dict[TopicPartition, int]:
        """The highest there is now of each of these partitions, or how far they were read. Of files, their ends."""
        ends = {name: end for name, end in self._ends().items() if name in names}
        for source, members in self._by_source(lambda each: each.replica.id.topic_partition in names):
            for now in source.now([each.replica.id for each in members]):
                name = now.id.topic_partition
                ends[name] = max(ends[name], (now.high_watermark if now.is_live else now.log_end_offset) or 0)
        return ends

    def _read_tails(self, job: FoldJob, ends: Mapping[TopicPartition, int]) -> None:
        """Reads on until each replica has been read to its partition's end, or comes no further."""
        more: list[Stretch] = []

        def is_behind(each: _Member) -> bool:
            end = ends.get(each.replica.id.topic_partition, 0)
            return not each.has_failed and not each.replica.is_down and each.end_offset < end

        for source, members in self._by_source(is_behind):
            behind = {each.replica.id: each for each in members}
            for replica in source.read_on({id: ends[id.topic_partition] for id in behind}):
                member = behind[replica.id]
                if replica.is_read:
                    member.replica = replace(replica, log_start_offset=member.replica.log_start_offset)
                    more += member.source.stretches(replica, member.number, member.end_offset, None)
        if more:
            self._take(job.add(more))
        for each in self._members:
            if each.replica.id.topic_partition in ends:
                each.is_current = each.end_offset >= ends[each.replica.id.topic_partition]

    def _by_source(self, is_wanted: Callable[[_Member], bool]) -> list[tuple[Source, list[_Member]]]:
        found: dict[int, tuple[Source, list[_Member]]] = {}
        for each in self._members:
            if is_wanted(each):
                found.setdefault(id(each.source), (each.source, []))[1].append(each)
        return list(found.values())

    def _of(self, name: TopicPartition) -> list[_Member]:
        return self._by_partition.get(name, [])

    # ---- What was seen ----

    def _standings(self, name: TopicPartition) -> dict[int, Standing]:
        all_of_it = {
            each.number: standing_of(each.replica, each.facts, is_current=each.is_current) for each in self._of(name)
        }
        readable = {number: each for number, each in all_of_it.items() if each.failure is None}
        return {**all_of_it, **settle(readable)}

    def _wedged(self, standings: AllStandings) -> dict[int, Wedged]:
        """By member. All are asked again together: a broker may be wedged in each of its partitions."""
        readable = ({number: one for number, one in some.items() if one.failure is None} for some in standings.values())
        suspects = {each.replica: each for some in readable for each in find_wedged(some)}
        by_source = self._by_source(lambda member: member.number in suspects)
        found = dict(suspects)
        for _ in range(CLAIM_LOOKS):
            if not found:
                break
            time.sleep(WEDGED_PAUSE_S)
            for source, members in by_source:
                for member, now in zip(members, source.now([each.replica.id for each in members]), strict=True):
                    if not suspects[member.number].is_still_so(now):
                        found.pop(member.number, None)
        return found

    def _report(
        self,
        name: TopicPartition,
        standings: Mapping[int, Standing],
        compared: Compared | None,
        busy_count: int,
        wedged: Mapping[int, Wedged],
    ) -> PartitionReport:
        readable = sorted(number for number, each in standings.items() if each.failure is None)
        reference = reference_of({number: standings[number] for number in readable}) if readable else None
        keys: list[DifferingKey] = []
        counts = Counts()
        if compared is not None:
            keys, changed_count = self._looked_up(compared, readable)
            if changed_count and all(key.is_pinned for key in keys):  # so were those that were not looked up
                busy_count = max(busy_count, compared.differing_count - changed_count)
            counts = Counts(
                key_count=compared.key_count,
                differing_count=compared.differing_count - busy_count,
                retention_count=compared.retention_count,
                behind=dict(zip(readable, compared.behind_counts, strict=True)),
                pinned=dict(zip(readable, compared.pinned_counts, strict=True)),
                changed_count=changed_count,
                busy_count=busy_count,
            )
        together = {number: standings[number] for number in readable}
        source_of = {number: self._members[number].source for number in readable}
        claims = [each for each in wrong_claims(together) if is_still_claimed(source_of[each.replica], each, together)]
        mismatches = {
            number: [each for each in some if is_still_mismatched(source_of[number], number, each, together)]
            for number, some in (find_mismatches(together) if keys else {}).items()
        }
        stuck = [wedged[number] for number in readable if number in wedged]
        return judge(name, standings, reference, self._unread.get(name, ()), keys, counts, claims, mismatches, stuck)

    def _looked_up(self, compared: Compared, readable: Sequence[int]) -> tuple[list[DifferingKey], int]:
        """The differing keys with their records; those that have changed meanwhile are counted instead. If all have,
        the next ones are looked up."""
        keys: list[DifferingKey] = []
        changed_count = 0
        for first in range(0, len(compared.differences), self._confirm) if self._confirm else ():
            rows = compared.differences[first : first + self._confirm]
            more, count = self._looked_up_rows(rows, readable)
            keys, changed_count = [*keys, *more], changed_count + count
            if more or not count:
                break
        return keys, changed_count

    def _looked_up_rows(self, rows: Differences, readable: Sequence[int]) -> tuple[list[DifferingKey], int]:
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


def _is_pinned_somewhere(standings: Mapping[int, Standing]) -> bool:
    """Whether consumers of one replica wait where those of another go on: perhaps only because it was read before."""
    ends = {each.visible_end for each in standings.values() if each.failure is None}
    return len(ends) > 1
