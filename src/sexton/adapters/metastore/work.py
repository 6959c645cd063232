"""The work queue of compactors (`sexton.ports.work_queue`): transactions without a revision.

On PostgreSQL other writers are not locked out here, so each statement compares as it writes.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from sqlalchemy import RowMapping, and_, bindparam, delete, insert, or_, select, text, update

from sexton.adapters.metastore.operations import read_leases
from sexton.adapters.metastore.schema import compactors, runs, work
from sexton.adapters.metastore.session import Session
from sexton.ports.metastore import LeaseLostError, StaleError
from sexton.ports.work_queue import CompactorRow, RunRow, WorkKey, WorkRow

RUNS_KEPT = 10_000
"""Number of runs kept in the history: a few megabytes."""


def publish_work(session: Session, broker_id: int, broker_epoch: int, rows: Sequence[WorkRow]) -> None:
    with session.writing_apart():
        if read_leases(session).get(broker_id, (None,))[0] != broker_epoch:
            raise LeaseLostError(f"broker {broker_id} was fenced or another process has taken its place")
        known = {
            (topic_id, partition)
            for topic_id, partition in session.execute(
                select(work.c.topic_id, work.c.partition).where(work.c.broker_id == broker_id)
            )
        }
        due = {(row.key.topic_id, row.key.partition) for row in rows}
        for topic_id, partition in sorted(known - due):
            session.execute(delete(work).where(_is_key(WorkKey(broker_id, topic_id, partition))))
        for row in rows:
            if (row.key.topic_id, row.key.partition) in known:
                session.execute(update(work).where(_is_key(row.key)).values(**_values(row)))
        added = [row for row in rows if (row.key.topic_id, row.key.partition) not in known]
        if added:
            session.execute(
                insert(work),
                [
                    {
                        "broker_id": row.key.broker_id,
                        "topic_id": row.key.topic_id,
                        "partition": row.key.partition,
                        **_values(row),
                    }
                    for row in added
                ],
            )


def publish_cloud_work(session: Session, rows: Sequence[WorkRow]) -> None:
    with session.writing_apart():
        known = _read_cloud(session)
        due = {row.key: row for row in rows}
        held = {key for key, row in known.items() if row.holder is not None or row.is_requested}
        for key in sorted(known.keys() - due.keys() - held):
            session.execute(delete(work).where(_is_key(key)))
        for key, row in due.items():
            if key in known:
                kept = {"is_requested": known[key].is_requested, "since_ms": known[key].since_ms}
                session.execute(update(work).where(_is_key(key)).values(**{**_values(row), **kept}))
        _add(session, [row for key, row in due.items() if key not in known])


def request_cloud_work(session: Session, rows: Sequence[WorkRow]) -> None:
    with session.writing_apart():
        known = _read_cloud(session)
        for row in rows:
            if row.key in known:
                session.execute(update(work).where(_is_key(row.key)).values(is_requested=True))
        _add(session, [replace(row, is_requested=True) for row in rows if row.key not in known])


def _read_cloud(session: Session) -> dict[WorkKey, WorkRow]:
    """Locked: two that publish at once wait for each other."""
    query = select(work).where(work.c.broker_id < 0).with_for_update()
    found = [_work_row(row) for row in session.execute(query).mappings()]
    return {row.key: row for row in found}


def _add(session: Session, rows: Sequence[WorkRow]) -> None:
    """Another may be adding the same at this moment: the first stays."""
    if rows:
        session.execute(_ADD, [{**row.key._asdict(), **_values(row)} for row in rows])


_ADDED: Final = [column for column in work.c if column.name != "holder"]
_ADD: Final = text(
    f"INSERT INTO {work.name} ({', '.join(column.name for column in _ADDED)}) "
    f"VALUES ({', '.join(':' + column.name for column in _ADDED)}) ON CONFLICT DO NOTHING"
).bindparams(*(bindparam(column.name, type_=column.type) for column in _ADDED))
"""Both databases know it; SQLAlchemy has it for each of them apart."""


def _values(row: WorkRow) -> dict[str, Any]:
    return {
        "topic": row.topic,
        "why": row.why,
        "dirty_ratio_ppm": row.dirty_ratio_ppm,
        "dirty_bytes": row.dirty_bytes,
        "total_bytes": row.total_bytes,
        "overdue_ms": row.overdue_ms,
        "is_requested": row.is_requested,
        "since_ms": row.since_ms,
    }


def read_work(session: Session) -> list[WorkRow]:
    found = session.execute(select(work).order_by(work.c.broker_id, work.c.topic_id, work.c.partition))
    return [_work_row(row) for row in found.mappings()]


def _work_row(row: RowMapping) -> WorkRow:
    fields: dict[str, Any] = dict(row)
    return WorkRow(key=WorkKey(*(fields.pop(name) for name in WorkKey._fields)), **fields)


def lease_work(session: Session, compactor_id: uuid.UUID, keys: Sequence[WorkKey]) -> list[WorkKey]:
    """Work that is held by a removed compactor is free; a compactor may take its own work again."""
    taken = []
    with session.writing_apart():
        is_free = or_(
            work.c.holder.is_(None),
            work.c.holder == compactor_id,
            work.c.holder.not_in(select(compactors.c.compactor_id)),
        )
        for key in keys:
            if session.execute(update(work).where(_is_key(key), is_free).values(holder=compactor_id)).rowcount:
                taken.append(key)
    return taken


def end_work(session: Session, compactor_id: uuid.UUID, keys: Sequence[WorkKey], ended: Sequence[RunRow]) -> None:
    with session.writing_apart():
        for key in keys:
            session.execute(delete(work).where(_is_key(key), work.c.holder == compactor_id))
        if ended:
            session.execute(insert(runs), [{name: getattr(row, name) for name in _RUN_NAMES} for row in ended])
            oldest = select(runs.c.finished_ms).order_by(runs.c.finished_ms.desc()).offset(RUNS_KEPT).limit(1)
            forgotten = session.execute(oldest).scalar()
            if forgotten is not None:
                session.execute(delete(runs).where(runs.c.finished_ms <= forgotten))


_RUN_NAMES = tuple(column.name for column in runs.c)


def register_compactor(session: Session, row: CompactorRow) -> None:
    with session.writing_apart():
        session.execute(delete(compactors).where(compactors.c.compactor_id == row.compactor_id))
        session.execute(
            insert(compactors),
            {
                "compactor_id": row.compactor_id,
                "name": row.name,
                "lease_ms": row.lease_ms,
                "renewals_count": row.renewals_count,
            },
        )


def renew_compactor(session: Session, compactor_id: uuid.UUID) -> None:
    renewed = session.execute(
        update(compactors)
        .where(compactors.c.compactor_id == compactor_id)
        .values(renewals_count=compactors.c.renewals_count + 1)
    )
    if renewed.rowcount == 0:
        raise LeaseLostError(f"compactor {compactor_id} was removed", remedy="Register it anew")


def read_compactors(session: Session) -> list[CompactorRow]:
    return [CompactorRow(*row) for row in session.execute(select(compactors).order_by(compactors.c.compactor_id))]


def remove_compactor(session: Session, compactor_id: uuid.UUID, renewals_count: int) -> None:
    with session.writing_apart():
        removed = session.execute(
            delete(compactors).where(
                compactors.c.compactor_id == compactor_id, compactors.c.renewals_count == renewals_count
            )
        )
        if removed.rowcount == 0:
            raise StaleError(f"compactor {compactor_id} has renewed its lease, or is gone")
        session.execute(update(work).where(work.c.holder == compactor_id).values(holder=None))


def read_runs(session: Session, limit: int, topic: str | None = None) -> list[RunRow]:
    newest = select(runs).order_by(runs.c.finished_ms.desc(), runs.c.run_id).limit(limit)
    if topic is not None:
        newest = newest.where(runs.c.topic == topic)
    return [RunRow(**row) for row in session.execute(newest).mappings()]


def _is_key(key: WorkKey) -> Any:
    return and_(work.c.broker_id == key.broker_id, work.c.topic_id == key.topic_id, work.c.partition == key.partition)
