"""An audit's report for programs.

Bytes of keys and values are in it only if they were asked for: a report may leave the machine. A key's hash finds it
again (``--only``), for the report has the hash's secret points.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sexton.audit.classes import Class
from sexton.audit.judge import Case, Finding, PartitionReport, Verdict
from sexton.audit.keys import Sight
from sexton.audit.replica import Replica, Skipped
from sexton.audit.standing import Standing
from sexton.errors import SextonError
from sexton.records.checkpoints import format_uuid
from sexton.records.keyhash import HashKey


@dataclass(frozen=True, slots=True)
class Report:
    partitions: tuple[PartitionReport, ...]
    hash_key: HashKey
    skipped: tuple[Skipped, ...] = ()
    size_bytes: int = 0
    """Bytes that were read, of all replicas together."""
    took_s: float = 0.0
    began_ms: int = 0

    @property
    def is_diverged(self) -> bool:
        return any(each.verdict.is_error for each in self.partitions)

    @property
    def is_judged(self) -> bool:
        return all(each.verdict.is_judged for each in self.partitions)

    @property
    def verdict(self) -> Verdict:
        """The worst of the partitions'."""
        order = (Verdict.DIVERGED, Verdict.WILL_DIVERGE, Verdict.UNKNOWN, Verdict.PARTIAL, Verdict.LAGGING)
        found = {each.verdict for each in self.partitions}
        return next((verdict for verdict in order if verdict in found), Verdict.AGREE)


def bytes_json(data: bytes | None) -> dict[str, str] | None:
    """Without loss: as text where they are text, as hex digits where not."""
    if data is None:
        return None
    try:
        return {"utf8": data.decode()}
    except UnicodeDecodeError:
        return {"hex": data.hex()}


def as_dict(report: Report, limit: int | None = None, *, shows_values: bool = False) -> dict[str, Any]:
    """`limit` bounds the differences that are told in whole. Hashes of keys are there of all, for `--only`."""
    left = limit
    partitions = []
    for each in report.partitions:
        cases = each.cases if left is None else each.cases[:left]
        partitions.append(_partition_dict(each, cases, shows_values))
        left = None if left is None else left - len(cases)
    return {
        "verdict": report.verdict.value,
        "began_ms": report.began_ms,
        "took_s": round(report.took_s, 3),
        "bytes": report.size_bytes,
        "hash_key": list(report.hash_key),
        "partitions": partitions,
        "skipped": [_skipped_dict(each) for each in report.skipped],
    }


def _partition_dict(each: PartitionReport, cases: Sequence[Case], shows_values: bool) -> dict[str, Any]:
    counts = each.counts
    return {
        "partition": each.name,
        "verdict": each.verdict.value,
        "keys": counts.key_count,
        "keys_differing": counts.differing_count - counts.changed_count,
        "by_class": {Class(number).label: count for number, count in each.by_class.items()},
        "keys_not_explained": each.unexplained_count,
        "keys_changed_while_reading": counts.changed_count,
        "replicas": [_replica_dict(each, number) for number in each.standings],
        "not_read": [_unread_dict(replica) for replica in each.unread],
        "findings": [_finding_dict(each, finding) for finding in each.findings],
        "key_hashes": [case.key.name for case in each.cases],
        "differences": [case_dict(each, case, shows_values=shows_values) for case in cases],
        "failures": [{"replica": label, "error": error_dict(error)} for label, error in each.failures],
        "notes": list(each.notes),
        "skipped": [_skipped_dict(skipped) for skipped in each.skipped],
    }


def _replica_dict(report: PartitionReport, number: int) -> dict[str, Any]:
    standing: Standing = report.standings[number]
    replica = standing.replica
    return {
        "broker": replica.id.broker,
        "label": replica.label,
        "place": replica.place,
        "topic_id": None if replica.topic_id is None else format_uuid(replica.topic_id),
        "live": replica.is_live,
        "down": replica.is_down,
        "leader": replica.is_leader,
        "in_sync": replica.is_in_sync,
        "leader_epoch": replica.leader_epoch,
        "lags": standing.lags,
        "log_start_offset": standing.start_offset,
        "read_to_offset": standing.end_offset,
        "committed_to_offset": standing.committed_end,
        "high_watermark": replica.high_watermark,
        "last_stable_offset": standing.visible_end,
        "clean_to_offset": replica.clean_offset,
        "records": standing.record_count,
        "records_without_key": standing.keyless_count,
        "bytes": standing.size_bytes,
        "keys_behind": report.counts.behind.get(number, 0),
        "keys_hidden": report.counts.pinned.get(number, 0),
        "open_transactions": [
            {"producer_id": producer_id, "first_offset": first} for producer_id, first in standing.open_transactions()
        ],
    }


def _unread_dict(replica: Replica) -> dict[str, Any]:
    return {"label": replica.label, "place": replica.place, "because": why_unread(replica)}


def why_unread(replica: Replica) -> str:
    if replica.failure is not None:
        return str(replica.failure)
    return "; ".join(each.reason for each in replica.skipped) or "it was not read"


def _finding_dict(report: PartitionReport, finding: Finding) -> dict[str, Any]:
    return {
        "class": finding.is_class,
        "label": Class(finding.is_class).label,
        "replica": report.label(finding.replica),
        "because": finding.because,
        "keys": finding.key_count,
        "facts": _plain(finding.facts),
    }


def case_dict(report: PartitionReport, case: Case, *, shows_values: bool) -> dict[str, Any]:
    key, explained = case.key, case.explained
    return {
        "key_hash": key.name,
        "key": bytes_json(key.key) if shows_values else None,
        "class": explained.is_class,
        "label": Class(explained.is_class).label,
        "sure": explained.is_sure,
        "or": [Class(each).label for each in explained.alternatives],
        "because": explained.because,
        "wrong": [report.label(number) for number in explained.accused],
        "right": [report.label(number) for number in explained.right],
        "why_right": explained.why_right,
        "shown": {report.label(number): _sight_dict(each.shown, shows_values) for number, each in key.replicas.items()},
        "hidden": {
            report.label(number): _sight_dict(each.hidden, shows_values)
            for number, each in key.replicas.items()
            if each.hidden is not None
        },
        "tombstones": {
            report.label(number): each.newest.offset
            for number, each in key.replicas.items()
            if each.newest is not None and each.newest.is_tombstone
        },
        "facts": _plain(explained.facts),
    }


def _sight_dict(sight: Sight | None, shows_values: bool) -> dict[str, Any] | None:
    if sight is None:
        return None
    told: dict[str, Any] = {"offset": sight.offset, "tombstone": sight.is_tombstone}
    if sight.was_looked_up:
        told |= {
            "timestamp_ms": sight.timestamp_ms,
            "leader_epoch": sight.leader_epoch,
            "producer_id": sight.producer_id,
            "producer_epoch": sight.producer_epoch,
            "sequence": sight.sequence,
            "transactional": sight.is_transactional,
        }
        if shows_values:
            told["value"] = bytes_json(sight.value)
    return told


def _skipped_dict(skipped: Skipped) -> dict[str, str]:
    return {"place": skipped.place, "reason": skipped.reason}


def error_dict(error: SextonError) -> dict[str, str]:
    return {"kind": type(error).__name__, "what": error.what, "place": error.place, "remedy": error.remedy}


def _plain(facts: Mapping[str, object]) -> dict[str, object]:
    return {name: Class(int(str(it))).label if name == "will_be" else it for name, it in facts.items()}
