"""The bridge to the code that decides: rows and brokers as the product knows them, and its answers remembered."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import cache

from sexton.metadata import elections, isr, reassignment
from sexton.metadata.elections import LogState
from sexton.metadata.incarnations import is_missing, known_incarnation, marked_as_missing
from sexton.ports.metastore import BrokerRow, BrokerStatus, PartitionRow
from sexton.protocol.errors import KafkaError
from sexton.replication.leadership import IsrChange, Leadership
from sexton.types import LeaderEpoch
from tests.model.errors import Violation
from tests.model.insync.state import (
    ACTIVE,
    BROKERS,
    FENCED,
    NO_LOG,
    STARTING,
    Lead,
    Pending,
    Processes,
    Progress,
    Row,
)

TOPIC_ID = uuid.UUID(int=0, version=4)
STATUS = {STARTING: BrokerStatus.STARTING, ACTIVE: BrokerStatus.ACTIVE, FENCED: BrokerStatus.FENCED}


@cache
def _id(number: int) -> uuid.UUID:
    found = uuid.UUID(int=abs(number), version=4)
    return marked_as_missing(found) if number < 0 else found


@cache
def to_real(row: Row) -> PartitionRow:
    logs = {broker: _id(number) for broker, number in enumerate(row.logs) if number != NO_LOG}
    return PartitionRow(
        TOPIC_ID,
        0,
        row.replicas,
        row.isr,
        row.leader,
        LeaderEpoch(row.leader_epoch),
        row.epoch,
        row.adding,
        row.removing,
        logs,
    )


def _from_real(row: PartitionRow) -> Row:
    def number(broker: int) -> int:
        known = known_incarnation(row, broker)
        if known is None or broker not in row.replicas:
            return NO_LOG
        plain = known.int & 0xFFFF
        return -plain if is_missing(row, broker) else plain

    logs = tuple(number(broker) for broker in BROKERS)
    in_sync = tuple(sorted(row.isr))
    return Row(row.partition_epoch, row.leader, row.leader_epoch, in_sync, row.replicas, row.adding, row.removing, logs)


@cache
def _brokers(processes: Processes) -> dict[int, BrokerRow]:
    return {
        broker: BrokerRow(broker, one.epoch, "", 0, None, TOPIC_ID, 0, 0, STATUS[one.status])
        for broker, one in enumerate(processes)
    }


def _row_or_none(found: PartitionRow | None) -> Row | None:
    return None if found is None else _from_real(found)


# What is decided by rows and brokers alone


@cache
def elected(row: Row, processes: Processes) -> Row | None:
    return _row_or_none(elections.elect(to_real(row), _brokers(processes)))


@cache
def elected_preferred(row: Row, processes: Processes) -> Row | None:
    return _row_or_none(elections.elect_preferred(to_real(row), _brokers(processes)))


@cache
def handed_over(row: Row, broker: int, processes: Processes, answering: frozenset[int] | None) -> Row | None:
    return _row_or_none(elections.hand_over(to_real(row), broker, _brokers(processes), answering))


@cache
def is_needed(row: Row, broker: int, processes: Processes, answering: frozenset[int]) -> bool:
    return elections.is_needed(to_real(row), broker, _brokers(processes), answering)


@cache
def restarted(row: Row, broker: int, processes: Processes, state: LogState, on_disk: int, fresh: int) -> Row | None:
    found = None if on_disk <= NO_LOG else _id(on_disk)
    real = to_real(row)
    return _row_or_none(
        elections.restart(real, broker, _brokers(processes), log=state, on_disk=found, fresh=_id(fresh))
    )


@cache
def reassigned(row: Row, target: tuple[int, ...], processes: Processes) -> Row | None:
    return _asked(lambda: reassignment.start(to_real(row), target, _brokers(processes)))


@cache
def cancelled(row: Row, processes: Processes) -> Row | None:
    return _asked(lambda: reassignment.cancel(to_real(row), _brokers(processes)))


@cache
def progressed(row: Row, processes: Processes) -> Row | None:
    return _row_or_none(reassignment.progress(to_real(row), _brokers(processes)))


def _asked(change: Callable[[], PartitionRow | None]) -> Row | None:
    try:
        return _row_or_none(change())
    except KafkaError:
        return None


@cache
def shrunk(row: Row, broker: int) -> Row | None:
    return _row_or_none(isr.shrink(to_real(row), (broker,)))


@cache
def expanded(row: Row, brokers: tuple[int, ...]) -> Row | None:
    return _row_or_none(isr.expand(to_real(row), brokers))


# What a leader decides


def _leadership(lead: Lead, own: int) -> Leadership:
    leadership = Leadership(replace(to_real(lead.row), leader=own), own, lead.start, 0)
    for broker, progress in enumerate(lead.progress):
        if progress:
            leadership.fetched(
                broker, progress.process, progress.end, progress.end, 0, incarnation=_id(progress.incarnation)
            )
    if lead.pending:
        leadership.pending = _change(lead.row, lead.pending)
    return leadership


def _change(row: Row, pending: Pending) -> IsrChange:
    new = {broker: _id(log) for broker, log in enumerate(pending.logs) if log != row.logs[broker]}
    return IsrChange(pending.isr, new, dict(pending.live), pending.is_unsure, pending.is_withdrawn)


def _known(lead: Lead, leadership: Leadership) -> Lead:
    """What the leader knows by now."""
    try:
        leadership.check_invariants()
    except AssertionError as error:
        raise Violation("invariant", str(error)) from error
    row, change = _from_real(leadership.row), leadership.pending
    pending: Pending | tuple[()] = ()
    if change is not None:
        logs = tuple(change.incarnations[b].int & 0xFFFF if b in change.incarnations else row.logs[b] for b in BROKERS)
        live = tuple(sorted(change.processes.items()))
        pending = Pending(change.isr, logs, live, change.is_unsure, change.is_withdrawn)
    return lead._replace(row=row, progress=_heard(leadership), pending=pending)


def _heard(leadership: Leadership) -> tuple[Progress | tuple[()], ...]:
    def one(broker: int) -> Progress | tuple[()]:
        found = leadership.progress_of(broker)
        if found is None or found.end_offset < 0 or found.incarnation is None:
            return ()
        return Progress(found.end_offset, found.broker_epoch, found.incarnation.int & 0xFFFF)

    return tuple(one(broker) for broker in BROKERS)


@cache
def committed_end(lead: Lead, own: int, own_end: int) -> int:
    return _leadership(lead, own).committed_end(own_end)


@cache
def has_caught_up(lead: Lead, own: int, follower: int) -> bool:
    return _leadership(lead, own).caught_up(follower, lead.high_watermark)


@cache
def after_fetch(lead: Lead, own: int, follower: int, process: int, end: int, incarnation: int) -> Lead:
    leadership = _leadership(lead, own)
    leadership.fetched(follower, process, end, end, 0, incarnation=_id(incarnation))
    return _known(lead, leadership)


@cache
def after_row(lead: Lead, own: int, newer: Row) -> Lead:
    leadership = _leadership(lead, own)
    leadership.follow_row(to_real(newer), 0)
    return _known(lead, leadership)


@cache
def after_silence(lead: Lead, own: int) -> Lead:
    """The answer was lost."""
    leadership = _leadership(lead, own)
    assert leadership.pending is not None
    leadership.answer_lost(leadership.pending)
    return _known(lead, leadership)


@cache
def after_refusal(lead: Lead, own: int) -> Lead:
    leadership = _leadership(lead, own)
    assert leadership.pending is not None
    leadership.refused(leadership.pending)
    return _known(lead, leadership)


@cache
def asked_for(lead: Lead) -> Row:
    """The row to write."""
    assert lead.pending
    return _from_real(_change(lead.row, lead.pending).applied_to(to_real(lead.row)))


def forget() -> None:
    """All answers: the code that gave them is about to be another."""
    for answer in (committed_end, has_caught_up, after_fetch, after_row, after_silence, after_refusal, asked_for):
        answer.cache_clear()
