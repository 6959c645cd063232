"""What a report draws or tabulates beside the findings: nothing here is an anomaly."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from sexton.checker.view import Call, LogValue, View
from sexton.history.op import F, Record, Type

_POLLS = frozenset({F.POLL, F.TXN, F.EOS})


@dataclass(frozen=True, slots=True)
class Unseen:
    """How many records that were acknowledged by then had been given to nobody, by log."""

    time_ns: int
    counts: Mapping[int, int]


def unseen_over_time(view: View) -> Iterator[Unseen]:
    """After each ok call that sent or polled."""
    sent: set[LogValue] = set()
    polled: set[LogValue] = set()
    counts: Counter[int] = Counter()
    for call in view.calls:
        if not call.is_ok or call.op.f not in _POLLS | {F.SEND}:
            continue
        for log, sends in call.sends.items():
            for send in sends:
                is_new = (log, send.value) not in sent and (log, send.value) not in polled
                counts[log] += is_new
                sent.add((log, send.value))
        for log, records in call.polled.items():
            for record in records:
                counts[log] -= (log, record.value) in sent and (log, record.value) not in polled
                polled.add((log, record.value))
        yield Unseen(call.end_ns, dict(sorted(counts.items())))


@dataclass(frozen=True, slots=True)
class Consumed:
    """How often values were polled by one subscribed process: more than once is lawful after a rebalance."""

    distribution: Mapping[int, int]
    """By number of times: how many values."""
    repeated: Sequence[tuple[int, int, int, int]]
    """Process, log, value, times."""


def consume_counts(view: View) -> Consumed:
    subscribed: set[int] = set()
    times: Counter[tuple[int, int, int]] = Counter()
    for call in view.calls:
        if not call.is_ok:
            continue
        if call.op.f == F.SUBSCRIBE:
            subscribed.add(call.op.process)
        elif call.op.f in _POLLS and call.op.process in subscribed:
            for log, records in call.polled.items():
                times.update((call.op.process, log, record.value) for record in records)
    distribution: dict[int, int] = defaultdict(int)
    for count in times.values():
        distribution[count] += 1
    repeated = sorted((*place, count) for place, count in times.items() if count > 1)
    return Consumed(dict(sorted(distribution.items())), repeated)


class Resumed(StrEnum):
    """Where a consumer's next poll began, after a transaction in which it had polled was aborted."""

    ADVANCE = "advance"
    """Behind what the transaction had polled."""
    REWIND = "rewind"
    """Where the transaction had begun to poll."""
    REWIND_FURTHER = "rewind-further"
    OTHER = "other"


def after_aborts(view: View) -> Mapping[tuple[Resumed, bool], int]:
    """How often, by whether the log was rebalanced meanwhile. Kafka does not say what should happen (KAFKA-17582)."""
    counts: Counter[tuple[Resumed, bool]] = Counter()
    for calls in view.by_process.values():
        last: dict[int, Call] = {}
        for call in calls:
            polled = {log: records for log, records in call.polled.items() if records and call.op.f in _POLLS}
            for log, records in polled.items():
                before = last.get(log)
                if before is not None and before.op.type is Type.FAIL:
                    was_rebalanced = log in before.op.rebalanced | call.op.rebalanced
                    counts[_resumed(before.polled[log], records[0].offset), was_rebalanced] += 1
                last[log] = call
    return dict(sorted(counts.items()))


def _resumed(aborted: Sequence[Record], offset: int) -> Resumed:
    if offset > aborted[-1].offset:
        return Resumed.ADVANCE
    if offset == aborted[0].offset:
        return Resumed.REWIND
    return Resumed.REWIND_FURTHER if offset < aborted[0].offset else Resumed.OTHER
