"""The compare-and-set operations of `sexton.ports.metastore`, as functions of a `Session`.

Each is one transaction, written once for both databases. Whether an expectation still holds is read inside the
transaction and decided in Python: there is no other writer meanwhile (see `session`), so that is as good as a WHERE
clause, and gives a better error message.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import bindparam, delete, func, insert, select, tuple_, update

from sexton.adapters.metastore.cloud.rows import make_partitions
from sexton.adapters.metastore.schema import ONLY_ROW, brokers, cluster, configs, deleted_topics, partitions, topics
from sexton.adapters.metastore.session import Session
from sexton.ports.metastore import (
    AlreadyExistsError,
    BrokerRow,
    BrokerStatus,
    ConfigRow,
    ConfigScope,
    ControllerRow,
    LeaseLostError,
    PartitionRow,
    StaleError,
    TopicRow,
)
from sexton.protocol.errors import ErrorCode, KafkaError

REMEMBERED_DELETIONS_MAX = 10_000
"""Number of deleted topics that are listed one by one in `read_changes`. A broker that has missed more than that reads
a snapshot, which costs it a moment; keeping them for ever would cost space."""

KEYS_PER_QUERY = 1000
"""Number of partition keys in one SELECT: well below the number of parameters that either database accepts."""

NEXT_STATUSES: Mapping[BrokerStatus, tuple[BrokerStatus, ...]] = {
    BrokerStatus.STARTING: (BrokerStatus.ACTIVE, BrokerStatus.DRAINING, BrokerStatus.FENCED),
    BrokerStatus.ACTIVE: (BrokerStatus.DRAINING, BrokerStatus.FENCED),
    BrokerStatus.DRAINING: (BrokerStatus.FENCED,),
    BrokerStatus.FENCED: (),
}
"""A status only moves forward; the way back is a new registration, with a new epoch. Readers of changes may rely on
it."""

BROKER_COLUMNS = (
    brokers.c.broker_id,
    brokers.c.epoch,
    brokers.c.host,
    brokers.c.port,
    brokers.c.rack,
    brokers.c.data_id,
    brokers.c.lease_ms,
    brokers.c.renewals_count,
    brokers.c.status,
    brokers.c.start_id,
)

_READ_LEASES = select(brokers.c.broker_id, brokers.c.epoch, brokers.c.renewals_count).where(
    brokers.c.status != BrokerStatus.FENCED.value
)
_RENEW = (
    update(brokers)
    .where(brokers.c.broker_id == bindparam("id"), brokers.c.epoch == bindparam("of_epoch"))
    .where(brokers.c.status != BrokerStatus.FENCED.value)
    .values(renewals_count=brokers.c.renewals_count + 1)
    .returning(brokers.c.renewals_count)
)
PARTITION_COLUMNS = [column for column in partitions.c if column.name != "revision"]
_UPDATE_PARTITION = update(partitions).where(
    partitions.c.topic_id == bindparam("key_topic"), partitions.c.partition == bindparam("key_partition")
)


def broker_row(row: Sequence[Any]) -> BrokerRow:
    broker_id, epoch, host, port, rack, data_id, lease_ms, renewals_count, status, start_id = row
    return BrokerRow(
        broker_id=broker_id,
        epoch=epoch,
        host=host,
        port=port,
        rack=rack,
        data_id=data_id,
        lease_ms=lease_ms,
        renewals_count=renewals_count,
        status=BrokerStatus(status),
        start_id=start_id,
    )


# Brokers and the controller


def read_broker(session: Session, broker_id: int) -> BrokerRow | None:
    return _broker(session, broker_id)


def read_leases(session: Session) -> Mapping[int, tuple[int, int]]:
    return {broker_id: (epoch, count) for broker_id, epoch, count in session.execute(_READ_LEASES)}


def register_broker(session: Session, row: BrokerRow, replaces: BrokerRow | None) -> BrokerRow:
    """The epoch is the transaction's revision: higher than that of any earlier registration. Renewals do not take the
    revision's lock: one may come between the look and the replacement, so that compares as it writes."""
    with session.writing() as write:
        found = _broker(session, row.broker_id)
        if _claim_of(found) != _claim_of(replaces):
            raise _registration_changed(row.broker_id)
        values: dict[str, Any] = {
            "broker_id": row.broker_id,
            "epoch": write.revision,
            "host": row.host,
            "port": row.port,
            "rack": row.rack,
            "data_id": row.data_id,
            "lease_ms": row.lease_ms,
            "renewals_count": 0,
            "status": BrokerStatus.STARTING.value,
            "start_id": row.start_id,
        }
        if found is not None:
            replaced = session.execute(
                delete(brokers)
                .where(brokers.c.broker_id == row.broker_id, brokers.c.epoch == found.epoch)
                .where(brokers.c.renewals_count == found.renewals_count)
            )
            if replaced.rowcount == 0:
                raise _registration_changed(row.broker_id)
        session.execute(insert(brokers), {**values, "revision": write.revision})
        return BrokerRow(**{**values, "status": BrokerStatus.STARTING})


def _registration_changed(broker_id: int) -> StaleError:
    return StaleError(f"the registration of broker {broker_id} has changed since it was read", remedy="Read it again")


def _claim_of(row: BrokerRow | None) -> tuple[int, int, BrokerStatus] | None:
    return None if row is None else (row.epoch, row.renewals_count, row.status)


def renew_lease(session: Session, broker_id: int, epoch: int) -> int:
    """Renews in one statement, a transaction by itself. Repeating it, because the first response was lost, does no
    harm."""
    count = session.execute(_RENEW, {"id": broker_id, "of_epoch": epoch}).scalar()
    if count is None:
        raise _lease_lost(broker_id)
    return int(count)


def set_broker_status(session: Session, broker_id: int, epoch: int, status: BrokerStatus) -> BrokerRow:
    with session.writing() as write:
        found = _live_broker(session, broker_id, epoch)
        if found.status is status:
            write.discard()
            return found
        if status not in NEXT_STATUSES[found.status]:
            raise ValueError(f"a broker that is {found.status} does not become {status}")
        session.execute(
            update(brokers).where(brokers.c.broker_id == broker_id).values(status=status.value, revision=write.revision)
        )
        renewed = _broker(session, broker_id)
        assert renewed is not None
        return renewed


def fence_broker(session: Session, broker_id: int, epoch: int, renewals_count: int) -> None:
    """One statement, because renewals do not take the revision's lock: it compares the count as it writes."""
    with session.writing() as write:
        fenced = session.execute(
            update(brokers)
            .where(brokers.c.broker_id == broker_id, brokers.c.epoch == epoch)
            .where(brokers.c.renewals_count == renewals_count, brokers.c.status != BrokerStatus.FENCED.value)
            .values(status=BrokerStatus.FENCED.value, revision=write.revision)
        )
        if fenced.rowcount == 0:
            raise StaleError(f"broker {broker_id} has renewed its lease, registered anew, or is fenced already")


def remove_broker(session: Session, broker_id: int, epoch: int) -> None:
    """Rare, so removed brokers are not listed in `read_changes`: every reader gets a snapshot next."""
    with session.writing() as write:
        found = _broker(session, broker_id)
        if found is None or found.epoch != epoch or found.is_live:
            raise StaleError(f"broker {broker_id} is not there any more, or is not fenced")
        if any(broker_id in replicas for (replicas,) in session.execute(select(partitions.c.replicas))):
            raise StaleError(f"broker {broker_id} has replicas")
        session.execute(delete(brokers).where(brokers.c.broker_id == broker_id))
        _forget_before(session, write.revision)


def claim_controller(session: Session, broker_id: int, broker_epoch: int, expected_term: int) -> ControllerRow:
    with session.writing() as write:
        _live_broker(session, broker_id, broker_epoch)
        term = session.execute(select(cluster.c.controller_term)).scalar_one()
        if term != expected_term:
            raise StaleError(f"the controller's term is {term}, not {expected_term}: another broker was faster")
        session.execute(
            update(cluster)
            .where(cluster.c.id == ONLY_ROW)
            .values(
                controller_id=broker_id,
                controller_epoch=broker_epoch,
                controller_term=term + 1,
                controller_revision=write.revision,
            )
        )
        return ControllerRow(broker_id, broker_epoch, term + 1)


def _broker(session: Session, broker_id: int) -> BrokerRow | None:
    row = session.execute(select(*BROKER_COLUMNS).where(brokers.c.broker_id == broker_id)).first()
    return None if row is None else broker_row(row)


def _live_broker(session: Session, broker_id: int, epoch: int) -> BrokerRow:
    row = _broker(session, broker_id)
    if row is None or row.epoch != epoch or not row.is_live:
        raise _lease_lost(broker_id)
    return row


def _lease_lost(broker_id: int) -> LeaseLostError:
    return LeaseLostError(
        f"broker {broker_id} was fenced or another process has taken its place", remedy="Register the broker anew"
    )


# Topics and partitions


def create_topic(session: Session, topic: TopicRow, rows: Sequence[PartitionRow], settings: Mapping[str, str]) -> None:
    with session.writing() as write:
        is_taken = (topics.c.name == topic.name) | (topics.c.topic_id == topic.topic_id)
        if session.execute(select(topics.c.topic_id).where(is_taken)).first() is not None:
            raise AlreadyExistsError(f"topic '{topic.name}' already exists")
        session.execute(
            insert(topics),
            {
                "topic_id": topic.topic_id,
                "name": topic.name,
                "is_internal": topic.is_internal,
                "revision": write.revision,
            },
        )
        _insert_partitions(session, topic.topic_id, rows, write.revision)
        if settings:
            _write_settings(session, ConfigScope.TOPIC, topic.name, settings, write.revision)


def delete_topic(session: Session, topic_id: uuid.UUID) -> None:
    with session.writing() as write:
        name = session.execute(select(topics.c.name).where(topics.c.topic_id == topic_id)).scalar()
        if name is None:
            raise StaleError(f"there is no topic {topic_id}: it has been deleted")
        session.execute(delete(partitions).where(partitions.c.topic_id == topic_id))
        session.execute(delete(topics).where(topics.c.topic_id == topic_id))
        session.execute(delete(configs).where(configs.c.scope == ConfigScope.TOPIC.value, configs.c.name == name))
        session.execute(insert(deleted_topics), {"topic_id": topic_id, "revision": write.revision})
        _forget_old_deletions(session)


def _forget_old_deletions(session: Session) -> None:
    oldest = (
        select(deleted_topics.c.revision)
        .order_by(deleted_topics.c.revision.desc())
        .offset(REMEMBERED_DELETIONS_MAX)
        .limit(1)
    )
    forgotten = session.execute(oldest).scalar()
    if forgotten is not None:
        session.execute(delete(deleted_topics).where(deleted_topics.c.revision <= forgotten))
        _forget_before(session, forgotten)


def _forget_before(session: Session, revision: int) -> None:
    """A reader that asks from an earlier revision gets a snapshot."""
    session.execute(
        update(cluster)
        .where(cluster.c.id == ONLY_ROW, cluster.c.forgotten_revision < revision)
        .values(forgotten_revision=revision)
    )


def add_partitions(session: Session, topic_id: uuid.UUID, expected_count: int, rows: Sequence[PartitionRow]) -> None:
    with session.writing() as write:
        counted = select(func.count()).select_from(partitions).where(partitions.c.topic_id == topic_id)
        known = session.execute(select(topics.c.topic_id).where(topics.c.topic_id == topic_id)).first()
        if known is None or session.execute(counted).scalar_one() != expected_count:
            raise StaleError(f"topic {topic_id} is gone, or has no longer {expected_count} partitions")
        _insert_partitions(session, topic_id, rows, write.revision)


def _insert_partitions(session: Session, topic_id: uuid.UUID, rows: Sequence[PartitionRow], revision: int) -> None:
    if any(row.topic_id != topic_id for row in rows):
        raise ValueError(f"a partition of another topic among those of {topic_id}")
    if rows:
        session.execute(
            insert(partitions),
            [{"topic_id": topic_id, "partition": row.partition, **_values(row), "revision": revision} for row in rows],
        )
    make_partitions(session, ((topic_id, row.partition) for row in rows if row.is_cloud), revision)


def _values(row: PartitionRow) -> dict[str, Any]:
    return {
        "replicas": row.replicas,
        "isr": row.isr,
        "leader": row.leader,
        "leader_epoch": row.leader_epoch,
        "partition_epoch": row.partition_epoch,
        "adding": row.adding,
        "removing": row.removing,
        "incarnations": row.incarnations,
        "generation": row.generation,
        "storage": row.storage,
    }


def update_partitions(
    session: Session, rows: Sequence[PartitionRow], live: Mapping[int, int] | None
) -> Sequence[PartitionRow | None]:
    """Uses few statements for any number of rows: a broker that starts may have thousands to write."""
    with session.writing() as write:
        _require_live(session, live)
        stored = _partition_epochs(session, rows)
        results: list[PartitionRow | None] = []
        writes: list[dict[str, Any]] = []
        for row in rows:
            key = (row.topic_id, row.partition)
            if stored.get(key) != row.partition_epoch:
                results.append(None)
                continue
            stored[key] = row.partition_epoch + 1
            written = PartitionRow(row.topic_id, row.partition, **{**_values(row), "partition_epoch": stored[key]})
            results.append(written)
            keys = {"key_topic": row.topic_id, "key_partition": row.partition}
            writes.append({**keys, **_values(written), "revision": write.revision})
        if writes:
            session.execute(_UPDATE_PARTITION, writes)
        else:
            write.discard()
        return results


def read_partition(session: Session, row: PartitionRow) -> PartitionRow | None:
    """The row of this partition as it is stored."""
    key = (partitions.c.topic_id == row.topic_id, partitions.c.partition == row.partition)
    found = session.execute(select(*PARTITION_COLUMNS).where(*key)).first()
    return None if found is None else PartitionRow(*found)


def write_partition(session: Session, row: PartitionRow, revision: int) -> PartitionRow:
    """Writes a row that was just read, with the next partition epoch."""
    written = replace(row, partition_epoch=row.partition_epoch + 1)
    keys = {"key_topic": row.topic_id, "key_partition": row.partition}
    session.execute(_UPDATE_PARTITION, [{**keys, **_values(written), "revision": revision}])
    return written


def _require_live(session: Session, live: Mapping[int, int] | None) -> None:
    if not live:
        return
    found = {broker_id: epoch for broker_id, (epoch, _) in read_leases(session).items()}
    for broker_id, epoch in live.items():
        if found.get(broker_id) != epoch:
            raise StaleError(f"broker {broker_id} is no longer the process with epoch {epoch}, or is fenced")


def _partition_epochs(session: Session, rows: Sequence[PartitionRow]) -> dict[tuple[uuid.UUID, int], int]:
    epochs: dict[tuple[uuid.UUID, int], int] = {}
    for start in range(0, len(rows), KEYS_PER_QUERY):
        keys = [(row.topic_id, row.partition) for row in rows[start : start + KEYS_PER_QUERY]]
        asked = tuple_(partitions.c.topic_id, partitions.c.partition).in_(keys)
        columns = select(partitions.c.topic_id, partitions.c.partition, partitions.c.partition_epoch)
        epochs.update({(topic_id, index): epoch for topic_id, index, epoch in session.execute(columns.where(asked))})
    return epochs


# Configs and producer ids


def change_settings(
    session: Session,
    scope: ConfigScope,
    name: str,
    changes: Mapping[str, str | None],
    expected: Mapping[str, str] | None,
) -> ConfigRow:
    _require_storable(name)
    with session.writing() as write:
        if scope is ConfigScope.TOPIC:
            known = session.execute(select(topics.c.topic_id).where(topics.c.name == name)).first()
            if known is None:
                raise StaleError(f"there is no topic '{name}'")
        key = (configs.c.scope == scope.value, configs.c.name == name)
        before: Mapping[str, str] = session.execute(select(configs.c.settings).where(*key)).scalar() or {}
        if expected is not None and dict(expected) != dict(before):
            raise StaleError(f"the settings of {scope} '{name}' have changed since they were read")
        after = dict(before)
        for setting, value in changes.items():
            if value is None:
                after.pop(setting, None)
            else:
                after[setting] = value
        if after == before:
            write.discard()
        else:
            session.execute(delete(configs).where(*key))
            _write_settings(session, scope, name, after, write.revision)
        return ConfigRow(scope, name, after)


def _require_storable(name: str) -> None:
    """A group's name comes from a client, and PostgreSQL stores neither NUL nor half a surrogate pair."""
    if "\0" in name or any("\ud800" <= character <= "\udfff" for character in name):
        raise KafkaError(ErrorCode.invalid_request, f"{name!r} has a character that no name may have")


def _write_settings(
    session: Session, scope: ConfigScope, name: str, settings: Mapping[str, str], revision: int
) -> None:
    session.execute(insert(configs), {"scope": scope.value, "name": name, "settings": settings, "revision": revision})


_ALLOCATE = (
    update(cluster)
    .where(cluster.c.id == ONLY_ROW)
    .values(next_producer_id=cluster.c.next_producer_id + bindparam("how_many"))
    .returning(cluster.c.next_producer_id)
)


def allocate_producer_ids(session: Session, count: int) -> int:
    """If a response is lost, so are its ids, which does no harm: there are 2^63 of them."""
    if count <= 0:
        raise ValueError(f"{count} is no number of producer ids")
    return int(session.execute(_ALLOCATE, {"how_many": count}).scalar_one()) - count
