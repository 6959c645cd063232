"""What an audit says of a partition, from what was seen of its replicas: pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from sexton.audit.claims import Mismatches, Wedged, WrongClaim, find_mismatches, find_wedged, wrong_claims
from sexton.audit.classes import Class
from sexton.audit.explain import explain
from sexton.audit.keys import DifferingKey, Explained
from sexton.audit.replica import OpenClaim, Replica, Skipped
from sexton.audit.standing import Standing
from sexton.errors import SextonError
from sexton.types import TopicPartition


class Verdict(StrEnum):
    AGREE = "agree"
    LAGGING = "lagging"
    """They agree as far as each has come, and a replica has not come all the way."""
    PARTIAL = "agree among those read"
    DIVERGED = "diverged"
    WILL_DIVERGE = "will diverge"
    UNKNOWN = "unknown"

    @property
    def is_error(self) -> bool:
        return self in (Verdict.DIVERGED, Verdict.WILL_DIVERGE)

    @property
    def is_judged(self) -> bool:
        return self not in (Verdict.PARTIAL, Verdict.UNKNOWN)


@dataclass(frozen=True, slots=True)
class Case:
    """A key on which replicas differ, and why."""

    key: DifferingKey
    explained: Explained


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about a replica that is wrong, whichever keys it concerns."""

    is_class: int
    replica: int
    because: str
    key_count: int = 0
    """How many keys it hides."""
    facts: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of keys of one partition, as the pass counted them."""

    key_count: int = 0
    differing_count: int = 0
    """All, with those that were not looked at."""
    retention_count: int = 0
    behind: Mapping[int, int] = field(default_factory=dict)
    """By replica, keys whose newest record it has not got yet."""
    pinned: Mapping[int, int] = field(default_factory=dict)
    changed_count: int = 0
    """Keys that differed, and did not any more when they were looked at again."""
    busy_count: int = 0


@dataclass(frozen=True, slots=True)
class PartitionReport:
    topic_partition: TopicPartition
    verdict: Verdict
    standings: Mapping[int, Standing]
    """Of the replicas that were read, by their numbers in the job."""
    unread: tuple[Replica, ...] = ()
    counts: Counts = field(default_factory=Counts)
    cases: tuple[Case, ...] = ()
    findings: tuple[Finding, ...] = ()
    failures: tuple[tuple[str, SextonError], ...] = ()
    """What could not be read, by label."""
    notes: tuple[str, ...] = ()
    skipped: tuple[Skipped, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.topic_partition[0]}-{self.topic_partition[1]}"

    @property
    def by_class(self) -> dict[int, int]:
        """How many keys there are of each class that was found, which may be none. Of those that were not looked at
        nobody knows."""
        counts = Counter(case.explained.is_class for case in self.cases if not case.key.is_pinned)
        for finding in self.findings:
            counts[finding.is_class] += finding.key_count
        if self.counts.retention_count:
            counts[Class.RETENTION] += self.counts.retention_count
        return dict(sorted(counts.items()))

    @property
    def unexplained_count(self) -> int:
        looked_at = sum(not case.key.is_pinned for case in self.cases) + self.counts.changed_count
        return max(0, self.counts.differing_count - looked_at)

    def label(self, number: int) -> str:
        return self.standings[number].label


def judge(
    topic_partition: TopicPartition,
    standings: Mapping[int, Standing],
    reference: int | None,
    unread: Sequence[Replica],
    keys: Sequence[DifferingKey],
    counts: Counts,
    claims: Sequence[WrongClaim] | None = None,
    mismatches: Mismatches | None = None,
    wedged: Sequence[Wedged] | None = None,
) -> PartitionReport:
    """`standings` are settled. Keys have been looked up, as many as are to be explained. `claims`, `mismatches` and
    `wedged` are those that were still there when they were looked at again; None: all that these standings show."""
    failures = [(each.label, each.failure) for each in standings.values() if each.failure is not None]
    failures += [(each.label, each.failure) for each in unread if each.failure is not None]
    readable = {number: each for number, each in standings.items() if each.failure is None}
    cases: list[Case] = []
    findings: list[Finding] = []
    if reference is not None and len(readable) > 1:
        mismatches = find_mismatches(readable) if mismatches is None else mismatches
        cases = [Case(key, explain(key, readable, reference, mismatches)) for key in keys]
        findings = [
            *_stuck(readable, reference, counts),
            *_wedged(readable, find_wedged(readable) if wedged is None else wedged),
            *_lost_ends(readable),
            *(
                Finding(Class.WRONG_CLAIM, each.replica, each.because, 0, each.facts)
                for each in (wrong_claims(readable) if claims is None else claims)
            ),
        ]
    return PartitionReport(
        topic_partition=topic_partition,
        verdict=_verdict(readable, unread, bool(failures), cases, findings, counts),
        standings=readable,
        unread=tuple(unread),
        counts=counts,
        cases=tuple(cases),
        findings=tuple(findings),
        failures=tuple(failures),
        notes=tuple(_notes(readable)),
        skipped=tuple(
            skipped
            for replica in (*(each.replica for each in readable.values()), *unread)
            for skipped in replica.skipped
        ),
    )


def _verdict(
    readable: Mapping[int, Standing],
    unread: Sequence[Replica],
    has_failures: bool,
    cases: Sequence[Case],
    findings: Sequence[Finding],
    counts: Counts,
) -> Verdict:
    classes = {case.explained.is_class for case in cases} | {finding.is_class for finding in findings}
    errors = {each for each in classes if Class(each).is_error}
    is_counted = counts.differing_count > counts.changed_count
    if (errors or is_counted) and errors != {Class.WILL_DIVERGE}:
        return Verdict.DIVERGED
    if errors:
        return Verdict.WILL_DIVERGE
    if has_failures:
        return Verdict.UNKNOWN
    if len(readable) + len(unread) > 1 and len(readable) < 2:
        return Verdict.UNKNOWN
    if unread:
        return Verdict.PARTIAL
    lags = any(each.lags or each.replica.is_in_sync is False for each in readable.values())
    return Verdict.LAGGING if lags else Verdict.AGREE


# ---- What is wrong with a replica as a whole. ----


def _stuck(standings: Mapping[int, Standing], reference: int, counts: Counts) -> list[Finding]:
    """Replicas whose consumers get nothing from an offset on, where those of others go on."""
    furthest = max(each.visible_end for each in standings.values())
    found = []
    for number, each in standings.items():
        # A marker that ends a transaction may lie between the ends of two replicas that are read one after the other.
        is_pinned = each.visible_end < min(furthest, each.committed_end if not each.lags else furthest)
        for producer_id, first in each.open_transactions():
            if not is_pinned or first > each.visible_end:
                continue
            if (
                each.replica.is_working
                and not (each.lags and each.replica.is_live)
                and first >= (each.replica.cut or 0)
            ):
                continue  # it may have ended since, and this replica was read before
            if _is_open_elsewhere(number, producer_id, first, standings):
                continue
            when = "will be stuck" if each.lags else "is stuck"
            claim = next((one for one in each.replica.open if one.producer_id == producer_id), None)
            found.append(
                Finding(
                    Class.WILL_DIVERGE if each.lags else Class.STUCK,
                    number,
                    f"{each.label} {when} at offset {each.visible_end:,}: a transaction of producer {producer_id} has "
                    f"been open there since offset {first:,}{_since(claim)}, and is not open on "
                    f"{standings[reference].label if reference != number else 'the others'}",
                    counts.pinned.get(number, 0),
                    {
                        "producer_id": producer_id,
                        "first_offset": first,
                        "last_stable_offset": each.visible_end,
                        "since_ms": claim.since_ms if claim is not None else None,
                        "coordinator_knows": claim.is_known if claim is not None else None,
                        **({"will_be": int(Class.STUCK)} if each.lags else {}),
                    },
                )
            )
    return found


def _wedged(standings: Mapping[int, Standing], wedged: Sequence[Wedged]) -> list[Finding]:
    found = []
    for each in wedged:
        standing = standings[each.replica]
        lists = ", nor does it list one" if standing.replica.claims_are_complete else ""
        if each.listed is not None:
            lists = (
                f", though it lists one of producer {each.listed.producer_id} since offset {each.listed.first_offset:,}"
            )
        found.append(
            Finding(
                Class.STUCK,
                each.replica,
                f"{standing.label} is stuck at offset {each.offset:,}: its last stable offset stays there, where "
                f"others' go on, and its log has no open transaction below {each.expected:,}{lists}",
                facts={
                    "last_stable_offset": each.offset,
                    "last_stable_offset_by_markers": each.expected,
                    "producer_id": each.listed.producer_id if each.listed is not None else None,
                },
            )
        )
    return found


def _since(claim: OpenClaim | None) -> str:
    if claim is None or claim.is_known is None:
        return ""
    return ", and its coordinator knows of it" if claim.is_known else ", of which its coordinator knows nothing"


def _is_open_elsewhere(number: int, producer_id: int, first: int, standings: Mapping[int, Standing]) -> bool:
    """On all others that have come so far: then it is simply open."""
    others = [each for other, each in standings.items() if other != number and each.end_offset > first]
    return bool(others) and all(any(theirs == producer_id for theirs, _ in each.open_transactions()) for each in others)


def _lost_ends(standings: Mapping[int, Standing]) -> list[Finding]:
    """Replicas that end below what they once knew to be committed."""
    return [
        Finding(
            Class.LOST_RECORD,
            number,
            f"{_short(each)}: it has lost what it had acknowledged",
            facts={"end_offset": each.end_offset, "high_watermark": each.replica.high_watermark},
        )
        for number, each in standings.items()
        if _is_short(each, standings) and (each.replica.was_stopped_cleanly or not each.replica.is_down)
    ]


def _is_short(standing: Standing, standings: Mapping[int, Standing]) -> bool:
    known = standing.replica.high_watermark
    if standing.replica.is_live or known is None or known <= standing.end_offset:
        return False
    return any(other.end_offset > standing.end_offset for other in standings.values())


def _short(standing: Standing) -> str:
    return (
        f"{standing.label} ends at offset {standing.end_offset:,}, and its high watermark was "
        f"{standing.replica.high_watermark:,}"
    )


def _notes(standings: Mapping[int, Standing]) -> Iterator[str]:
    for each in standings.values():
        yield from (f"{each.label}: {note}" for note in each.notes)
        if _is_short(each, standings) and each.replica.is_down and not each.replica.was_stopped_cleanly:
            yield f"{_short(each)}: it has lost its end, or was copied while its broker ran"
