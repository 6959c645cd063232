"""A leader takes partitions over: every writer of an earlier epoch is fenced, and all is read that a leader needs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Table, insert, select

from sexton.adapters.metastore.cloud.objects import require_live
from sexton.adapters.metastore.cloud.rows import (
    ABORTED_COLUMNS,
    EXTENT_COLUMNS,
    Values,
    among,
    chunks,
    extent_of,
    lock_partitions,
    partition_row,
    write_partitions,
)
from sexton.adapters.metastore.cloud_schema import aborted, cloud_partitions, epochs, extents, producer_deltas
from sexton.adapters.metastore.session import Session
from sexton.ports.cloud import (
    CLAIMS_MAX,
    AbortedRow,
    Claimed,
    EpochStart,
    Level,
    Outcome,
    Owner,
    ProducerDelta,
)
from sexton.types import LeaderEpoch, PartitionId


def claim_partitions(
    session: Session, broker_id: int, broker_epoch: int, wanted: Sequence[tuple[PartitionId, LeaderEpoch]]
) -> list[Claimed | Outcome]:
    """Takes no revision: who leads is told by the partitions' rows anyway. A claim that is repeated by the registration
    that made it changes nothing, and reads again."""
    keys = [key for key, _ in wanted]
    if len(set(keys)) != len(keys) or len(keys) > CLAIMS_MAX:
        raise ValueError(f"{len(keys)} partitions to claim: at most {CLAIMS_MAX}, each once")
    me = (broker_id, broker_epoch)
    with session.writing_apart():
        require_live(session, Owner.broker(broker_id, broker_epoch))
        rows = lock_partitions(session, keys)
        taken: list[Values] = []
        is_mine = {}
        for key, epoch in wanted:
            row = rows.get(key)
            if row is None:
                continue
            is_again = row["writer_epoch"] == epoch and (row["writer_id"], row["writer_broker_epoch"]) == me
            is_mine[key] = is_again or epoch > row["writer_epoch"]
            if is_mine[key] and not is_again:
                row.update(writer_epoch=epoch, writer_id=broker_id, writer_broker_epoch=broker_epoch)
                taken.append(row)
        write_partitions(session, taken, ("writer_epoch", "writer_id", "writer_broker_epoch"))
        if taken:
            session.execute(insert(epochs), [_epoch_of(row) for row in taken])
        claimed = _read(session, {key: rows[key] for key in keys if is_mine.get(key)})
        return [claimed.get(key) or (Outcome.FENCED if key in rows else Outcome.GONE) for key in keys]


def _epoch_of(row: Values) -> Values:
    return {
        "topic_id": row["topic_id"],
        "partition": row["partition"],
        "leader_epoch": row["writer_epoch"],
        "start_offset": row["end_offset"],
    }


def _read(session: Session, rows: dict[PartitionId, Values]) -> dict[PartitionId, Claimed]:
    keys = list(rows)

    def by_partition(
        table: Table, columns: Sequence[ColumnElement[Any]], order: ColumnElement[Any], *where: ColumnElement[bool]
    ) -> dict[PartitionId, list[Sequence[Any]]]:
        found: dict[PartitionId, list[Sequence[Any]]] = defaultdict(list)
        for some in chunks(keys):
            query = select(table.c.topic_id, table.c.partition, *columns).where(among(table, some), *where)
            for topic_id, index, *fields in session.execute(query.order_by(order)):
                found[topic_id, index].append(fields)
        return found

    snapshots = by_partition(cloud_partitions, (cloud_partitions.c.producers,), cloud_partitions.c.partition)
    deltas = by_partition(
        producer_deltas, (producer_deltas.c.end_offset, producer_deltas.c.batches), producer_deltas.c.end_offset
    )
    aborted_by = by_partition(aborted, ABORTED_COLUMNS, aborted.c.marker_offset)
    l0 = by_partition(extents, EXTENT_COLUMNS, extents.c.base_offset, extents.c.level == int(Level.L0))
    starts = by_partition(epochs, (epochs.c.leader_epoch, epochs.c.start_offset), epochs.c.leader_epoch)
    return {
        key: Claimed(
            row=partition_row(rows[key]),
            producers=snapshots[key][0][0],
            deltas=[ProducerDelta(*fields) for fields in deltas[key]],
            aborted=[AbortedRow(*fields) for fields in aborted_by[key]],
            extents=[extent_of(fields) for fields in l0[key]],
            epochs=[EpochStart(*fields) for fields in starts[key]],
        )
        for key in keys
    }
