"""Objects from registration to their end, and what the collector keeps."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import bindparam, delete, func, insert, select, update

from sexton.adapters.metastore.cloud.rows import (
    OBJECT_COLUMNS,
    chunks,
    current_round,
    lock_objects,
    object_row,
)
from sexton.adapters.metastore.cloud_schema import collection, objects, pins
from sexton.adapters.metastore.operations import read_leases
from sexton.adapters.metastore.schema import ONLY_ROW, compactors
from sexton.adapters.metastore.session import Session
from sexton.ports.cloud import (
    CollectionRow,
    Level,
    ObjectId,
    ObjectRow,
    ObjectsSum,
    ObjectState,
    Owner,
    OwnerKind,
    PinRow,
)
from sexton.ports.metastore import AlreadyExistsError, LeaseLostError, StaleError
from sexton.types import Round

_UPDATE = (
    update(objects)
    .where(objects.c.object_id == bindparam("id"))
    .values(
        state=bindparam("new_state"),
        size_bytes=bindparam("new_size_bytes"),
        refs_count=bindparam("new_refs_count"),
        live_bytes=bindparam("new_live_bytes"),
        round=bindparam("new_round"),
    )
)


# Owners


def live_owners(session: Session) -> set[Owner]:
    brokers = {Owner.broker(broker_id, epoch) for broker_id, (epoch, _) in read_leases(session).items()}
    leased = session.execute(select(compactors.c.compactor_id)).scalars()
    return brokers | {Owner.compactor(compactor_id) for compactor_id in leased}


def require_live(session: Session, owner: Owner) -> None:
    if owner not in live_owners(session):
        who = "broker" if owner.kind is OwnerKind.BROKER else "compactor"
        raise LeaseLostError(f"{who} {owner.id} was fenced, replaced or removed", remedy="Register it anew")


# From pending to live or to garbage


def register_objects(session: Session, owner: Owner, level: Level, ids: Sequence[ObjectId]) -> None:
    """Takes the collector's row first: two attempts of the same registration come one after the other."""
    with session.writing_apart():
        round_ = current_round(session, for_update=True)
        require_live(session, owner)
        known = _read(session, ids)
        for row in known.values():
            if (row.owner, row.level, row.state) != (owner, level, ObjectState.PENDING):
                raise AlreadyExistsError(f"object {row.object_id} was used before", remedy="Take another id")
        new = [id_ for id_ in dict.fromkeys(ids) if id_ not in known]
        if new:
            session.execute(
                insert(objects),
                [
                    {
                        "object_id": id_,
                        "level": int(level),
                        "state": int(ObjectState.PENDING),
                        "owner_kind": int(owner.kind),
                        "owner_id": owner.id,
                        "owner_epoch": owner.epoch,
                        "size_bytes": 0,
                        "refs_count": 0,
                        "live_bytes": 0,
                        "round": round_,
                    }
                    for id_ in new
                ],
            )


def _read(session: Session, ids: Sequence[ObjectId]) -> dict[ObjectId, ObjectRow]:
    found: dict[ObjectId, ObjectRow] = {}
    for some in chunks(ids):
        query = select(*OBJECT_COLUMNS).where(objects.c.object_id.in_(some))
        found.update({row["object_id"]: object_row(row) for row in session.execute(query).mappings()})
    return found


def release_objects(session: Session, owner: Owner, ids: Sequence[ObjectId]) -> None:
    with session.writing_apart():
        discard(session, lock_objects(session, ids).values(), owner)


def discard(session: Session, rows: Iterable[ObjectRow], owner: Owner) -> None:
    """Of rows that are locked, those of the owner's that are pending become garbage."""
    pending = [row for row in rows if row.owner == owner and row.state is ObjectState.PENDING]
    if pending:
        round_ = current_round(session)
        session.execute(_UPDATE, [_new(row, ObjectState.GARBAGE, round_) for row in pending])


def make_live(session: Session, row: ObjectRow, size_bytes: int, sizes: Sequence[int]) -> None:
    """Commits a pending object to which extents of these sizes refer; without any it is garbage at once (C2, C3)."""
    assert row.state is ObjectState.PENDING
    if sizes:
        counted = {"refs_count": len(sizes), "live_bytes": sum(sizes)}
        session.execute(_UPDATE, [_new(row, ObjectState.LIVE, row.round, size_bytes=size_bytes, **counted)])
    else:
        session.execute(_UPDATE, [_new(row, ObjectState.GARBAGE, current_round(session), size_bytes=size_bytes)])


def _new(row: ObjectRow, state: ObjectState, round_: Round, **changed: int) -> dict[str, Any]:
    values = {"size_bytes": row.size_bytes, "refs_count": row.refs_count, "live_bytes": row.live_bytes, **changed}
    return {
        "id": row.object_id,
        "new_state": int(state),
        "new_round": round_,
        **{f"new_{name}": value for name, value in values.items()},
    }


def release_references(session: Session, removed: Iterable[tuple[ObjectId | None, int]]) -> None:
    """For extents that were removed, by object and size. An object that nothing refers to any more is garbage, in the
    transaction that removed the last one."""
    counts: Counter[ObjectId] = Counter()
    sizes: Counter[ObjectId] = Counter()
    for object_id, size_bytes in removed:
        if object_id is not None:
            counts[object_id] += 1
            sizes[object_id] += size_bytes
    if not counts:
        return
    rows = lock_objects(session, counts)
    is_last = {id_ for id_, row in rows.items() if row.refs_count == counts[id_]}
    round_ = current_round(session) if is_last else Round(0)
    changed = []
    for id_, count in sorted(counts.items()):
        row = rows[id_]
        assert row.state is ObjectState.LIVE, f"C2: {row} had references"
        assert row.refs_count >= count, f"C2: {row} has lost {count} references"
        state, new_round = (ObjectState.GARBAGE, round_) if id_ in is_last else (ObjectState.LIVE, row.round)
        left = {"refs_count": row.refs_count - count, "live_bytes": row.live_bytes - sizes[id_]}
        changed.append(_new(row, state, new_round, **left))
    session.execute(_UPDATE, changed)


def expire_owners(session: Session, limit: int) -> int:
    """An owner that is dead stays dead, so what is read of owners before the objects are locked is true afterwards.
    A commit that was faster has made its object live; then it is left alone."""
    with session.writing_apart():
        is_pending = objects.c.state == int(ObjectState.PENDING)
        columns = (objects.c.owner_kind, objects.c.owner_id, objects.c.owner_epoch)
        found = session.execute(select(*columns).where(is_pending).distinct()).all()
        dead = sorted({Owner(OwnerKind(kind), id_, epoch) for kind, id_, epoch in found} - live_owners(session))
        expired = 0
        for owner in dead:
            its = [column == value for column, value in zip(columns, owner, strict=True)]
            query = select(*OBJECT_COLUMNS).where(is_pending, *its).order_by(objects.c.object_id).limit(limit - expired)
            rows = [object_row(row) for row in session.execute(query.with_for_update()).mappings()]
            discard(session, rows, owner)
            expired += len(rows)
        return expired


# Collecting


def read_collection(session: Session) -> CollectionRow:
    columns = (collection.c.round, collection.c.scrub_round, collection.c.scrub_ms)
    found = session.execute(select(*columns).where(collection.c.id == ONLY_ROW)).one()
    return CollectionRow(*found)


def advance_round(session: Session, seen: Round) -> Round:
    with session.writing_apart():
        session.execute(
            update(collection).where(collection.c.id == ONLY_ROW, collection.c.round == seen).values(round=seen + 1)
        )
        return current_round(session)


def collect(session: Session, grace_rounds: int, limit: int) -> list[ObjectRow]:
    """Reads alone. What is garbage stays garbage, so it does not matter when the bytes are deleted."""
    with session.reading():
        round_ = read_collection(session).round
        oldest_pin = session.execute(select(func.min(pins.c.round)).where(pins.c.until_round >= round_)).scalar()
        query = select(*OBJECT_COLUMNS).where(objects.c.state == int(ObjectState.GARBAGE))
        query = query.where(objects.c.round <= round_ - grace_rounds)
        if oldest_pin is not None:
            query = query.where(objects.c.round < oldest_pin)
        found = session.execute(query.order_by(objects.c.round, objects.c.object_id).limit(limit))
        return [object_row(row) for row in found.mappings()]


def forget_objects(session: Session, ids: Sequence[ObjectId]) -> None:
    with session.writing_apart():
        for some in chunks(ids):
            is_garbage = objects.c.state == int(ObjectState.GARBAGE)
            session.execute(delete(objects).where(objects.c.object_id.in_(some), is_garbage))


def find_unknown(session: Session, ids: Sequence[ObjectId]) -> list[ObjectId]:
    with session.reading():
        known = _read(session, ids)
        return [id_ for id_ in ids if id_ not in known]


def note_scrub(session: Session, round_: Round, now_ms: int) -> None:
    with session.writing_apart():
        session.execute(
            update(collection)
            .where(collection.c.id == ONLY_ROW, collection.c.scrub_round < round_)
            .values(scrub_round=round_, scrub_ms=now_ms)
        )


def read_objects(
    session: Session, states: Sequence[ObjectState], after: ObjectId | None, limit: int
) -> list[ObjectRow]:
    query = select(*OBJECT_COLUMNS).where(objects.c.state.in_([int(state) for state in states]))
    if after is not None:
        query = query.where(objects.c.object_id > after)
    found = session.execute(query.order_by(objects.c.object_id).limit(limit))
    return [object_row(row) for row in found.mappings()]


def read_object(session: Session, object_id: ObjectId) -> ObjectRow | None:
    return _read(session, [object_id]).get(object_id)


def sum_objects(session: Session) -> list[ObjectsSum]:
    sums = (func.count(), func.sum(objects.c.size_bytes), func.sum(objects.c.live_bytes))
    query = select(objects.c.level, objects.c.state, *sums).group_by(objects.c.level, objects.c.state)
    found = session.execute(query.order_by(objects.c.level, objects.c.state))
    return [
        ObjectsSum(Level(level), ObjectState(state), count, int(size_bytes), int(live_bytes))
        for level, state, count, size_bytes, live_bytes in found
    ]


# Pins


def pin(session: Session, pin_id: uuid.UUID, owner: str, what: str, rounds: int) -> PinRow:
    with session.writing_apart():
        round_ = current_round(session, for_update=True)
        session.execute(delete(pins).where(pins.c.until_round < round_))
        found = _pin(session, pin_id)
        if found is not None:
            return found
        row = PinRow(pin_id, round_, Round(round_ + rounds), owner, what)
        session.execute(insert(pins), row._asdict())
        return row


def renew_pin(session: Session, pin_id: uuid.UUID, rounds: int) -> PinRow:
    with session.writing_apart():
        round_ = current_round(session, for_update=True)
        found = _pin(session, pin_id)
        if found is None or found.until_round < round_:
            raise StaleError(
                f"pin {pin_id} has ended", remedy="What it protected may be gone: plan anew, with another pin"
            )
        until = max(found.until_round, Round(round_ + rounds))
        session.execute(update(pins).where(pins.c.pin_id == pin_id).values(until_round=until))
        return found._replace(until_round=until)


def read_pins(session: Session) -> list[PinRow]:
    round_ = select(collection.c.round).where(collection.c.id == ONLY_ROW).scalar_subquery()
    columns = (pins.c.pin_id, pins.c.round, pins.c.until_round, pins.c.owner, pins.c.what)
    query = select(*columns).where(pins.c.until_round >= round_).order_by(pins.c.round, pins.c.pin_id)
    return [PinRow(*fields) for fields in session.execute(query)]


def _pin(session: Session, pin_id: uuid.UUID) -> PinRow | None:
    columns = (pins.c.pin_id, pins.c.round, pins.c.until_round, pins.c.owner, pins.c.what)
    found = session.execute(select(*columns).where(pins.c.pin_id == pin_id)).first()
    return None if found is None else PinRow(*found)


def unpin(session: Session, pin_id: uuid.UUID) -> None:
    session.execute(delete(pins).where(pins.c.pin_id == pin_id))
