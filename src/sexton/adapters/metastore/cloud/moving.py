"""A partition that was local becomes a cloud partition (docs/decisions, 31).

While it is MOVING its leader writes a copy: a cloud partition like any other, claimed and committed to in the same way,
that nobody reads. Nothing of it is stable before the end, so nobody levels it. Its row goes when the copy is given up,
so what is copied next begins with a new one.

These change rows of both kinds: the cloud partition is locked first, and the revision is taken before the partition's
row is looked at, as everybody does who changes one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import delete, insert, update

from sexton.adapters.metastore.cloud.objects import release_references, require_live
from sexton.adapters.metastore.cloud.rows import (
    NEW_PARTITION,
    Values,
    is_partition,
    lock_partitions,
    write_partitions,
)
from sexton.adapters.metastore.cloud.trimming import drop_partition, remove_from_start
from sexton.adapters.metastore.cloud_schema import cloud_partitions, epochs, producer_deltas
from sexton.adapters.metastore.operations import read_partition, write_partition
from sexton.adapters.metastore.session import Session
from sexton.ports.cloud import Copied, EpochStart, Owner
from sexton.ports.metastore import PartitionRow, StaleError, Storage
from sexton.types import LeaderEpoch

EXTENTS_PER_CALL = 1000

_OFFSETS = ("start_offset", "end_offset", "stable_offset", "leveled_offset", "cleaned_offset", "producers_offset")


def begin_move(
    session: Session, broker_id: int, broker_epoch: int, row: PartitionRow, start_offset: int
) -> PartitionRow | None:
    with session.writing_apart():
        require_live(session, Owner.broker(broker_id, broker_epoch))
        revision = session.next_revision()
        if read_partition(session, row) != row or row.storage is not Storage.LOCAL or row.leader != broker_id:
            return None
        session.execute(
            insert(cloud_partitions),
            {
                **NEW_PARTITION,
                **dict.fromkeys(_OFFSETS, start_offset),
                "topic_id": row.topic_id,
                "partition": row.partition,
                "writer_epoch": row.leader_epoch,
                "writer_id": broker_id,
                "writer_broker_epoch": broker_epoch,
                "revision": revision,
            },
        )
        _insert_epochs(session, row, [EpochStart(row.leader_epoch, start_offset)])
        return write_partition(session, replace(row, storage=Storage.MOVING), revision)


def abandon_move(
    session: Session, broker_id: int, broker_epoch: int, row: PartitionRow
) -> tuple[PartitionRow | None, bool]:
    """Some extents with each call, and the row with the last of them."""
    key = (row.topic_id, row.partition)
    with session.writing_apart():
        require_live(session, Owner.broker(broker_id, broker_epoch))
        copy = lock_partitions(session, [key]).get(key)
        is_as_known = row.storage is Storage.MOVING and read_partition(session, row) == row
        if copy is None or not is_as_known or not _is_mine(copy, broker_id, broker_epoch, row):
            return None, False
        removed, is_empty = remove_from_start(session, key, copy, EXTENTS_PER_CALL)
        release_references(session, ((extent.object_id, extent.size_bytes) for extent in removed))
        if not is_empty:
            return None, True
        revision = session.next_revision()
        if read_partition(session, row) != row:
            raise StaleError(f"partition {row.partition} of topic {row.topic_id} has changed meanwhile")
        drop_partition(session, key)
        return write_partition(session, replace(row, storage=Storage.LOCAL), revision), False


def finish_move(
    session: Session, broker_id: int, broker_epoch: int, row: PartitionRow, copied: Copied
) -> PartitionRow | None:
    key = (row.topic_id, row.partition)
    with session.writing_apart():
        require_live(session, Owner.broker(broker_id, broker_epoch))
        copy = lock_partitions(session, [key]).get(key)
        revision = session.next_revision()
        found = read_partition(session, row)
        if found is not None and found.is_cloud:
            return found  # by the call that this one repeats, or by a later leader
        is_whole = copy is not None and (copy["start_offset"], copy["end_offset"]) == copied.offsets
        if found != row or row.storage is not Storage.MOVING or copy is None or not is_whole:
            return None
        if not _is_mine(copy, broker_id, broker_epoch, row):
            return None
        stable_offset = max(copy["stable_offset"], copied.stable_offset)
        copy.update(stable_offset=stable_offset, producers_offset=copied.end_offset, revision=revision)
        write_partitions(session, [copy], ("stable_offset", "producers_offset", "revision"))
        its_own = is_partition(cloud_partitions, key)
        session.execute(update(cloud_partitions).where(its_own).values(producers=copied.producers))
        if copied.earlier:
            delta = {"end_offset": copied.end_offset, "batches": copied.earlier}
            session.execute(insert(producer_deltas), {"topic_id": key[0], "partition": key[1], **delta})
        session.execute(delete(epochs).where(is_partition(epochs, key)))
        _insert_epochs(session, row, copied.epochs)
        led_anew = LeaderEpoch(row.leader_epoch + 1)
        moved = replace(row, storage=Storage.CLOUD, isr=row.replicas, leader_epoch=led_anew)
        return write_partition(session, moved, revision)


def _is_mine(copy: Values, broker_id: int, broker_epoch: int, row: PartitionRow) -> bool:
    """The writer alone would not do: who is still giving up its role may have claimed the epoch of its successor."""
    writer = (copy["writer_epoch"], copy["writer_id"], copy["writer_broker_epoch"])
    return writer == (row.leader_epoch, broker_id, broker_epoch) and row.leader == broker_id


def _insert_epochs(session: Session, row: PartitionRow, starts: Sequence[EpochStart]) -> None:
    key = {"topic_id": row.topic_id, "partition": row.partition}
    session.execute(insert(epochs), [{**key, "leader_epoch": epoch, "start_offset": start} for epoch, start in starts])
