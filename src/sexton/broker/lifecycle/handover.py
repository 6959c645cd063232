"""Partition-row updates a broker makes for its own replicas: at startup, at shutdown, on disk failure."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from sexton.broker.admin import serving_brokers
from sexton.broker.lifecycle.folder import Folder, Past
from sexton.metadata import elections
from sexton.metadata.cloud_elections import hand_over_cloud, restart_cloud
from sexton.metadata.elections import LogState
from sexton.metadata.incarnations import is_missing, new_id
from sexton.ports.metastore import BrokerRow, PartitionRow, StaleError
from sexton.types import LeaderEpoch

if TYPE_CHECKING:
    from sexton.broker.broker import Broker

logger = logging.getLogger(__name__)

ROWS_AT_ONCE = 1000
HAND_OVER_ATTEMPTS = 5

ANSWER_SHARE = 0.25
"""How long a broker that stops waits for the other brokers' answers, as a share of its lease."""

ROUNDS_MAX = 3
"""Number of rounds in which the other brokers are asked. Each round but the last finds one more broker silent: few
clusters lose more at a time."""


async def reconcile(broker: Broker, former: BrokerRow | None, folder: Folder) -> None:
    """Makes the rows of this broker's replicas agree with its logs (docs/decisions, 8). Raises StaleError if a row has
    changed meanwhile: read again and retry."""
    own_id = broker.config.node_id
    past = folder.past(former)
    if past is Past.OLD:
        logger.error(
            "%s is an old copy of this broker's data directory: what it lacks is fetched from other replicas",
            folder.path,
        )
    changed = []
    for row in broker.view.replicas_on(own_id):
        topic = broker.view.topic_by_id(row.topic_id)
        assert topic is not None
        if row.is_cloud:
            led_anew = restart_cloud(row, own_id)
            changed += [led_anew] if led_anew is not None else []
            continue
        try:
            state, on_disk = _found(broker, topic.name, row, folder, past)
        except OSError as error:
            logger.error("%s-%d: cannot read its directory: %s", topic.name, row.partition, error)
            if is_missing(row, own_id):
                continue
            state, on_disk = LogState.UNCERTAIN, None
        new_row = elections.restart(
            row, own_id, broker.view.brokers, log=state, on_disk=on_disk, fresh=new_id(broker.rng)
        )
        if new_row is not None:
            changed.append(new_row)
    stored = await write_rows(broker, changed)
    broker.view.apply_rows(stored)
    if len(stored) < len(changed):
        raise StaleError("partitions changed while the broker was starting")


def _found(
    broker: Broker, topic: str, row: PartitionRow, folder: Folder, past: Past
) -> tuple[LogState, uuid.UUID | None]:
    """Returns the state of the log in this directory, and its incarnation."""
    own_id = broker.config.node_id
    on_disk = broker.replicas.folder.incarnation_on_disk(topic, row.partition)
    if broker.replicas.folder.holds_a_former_topic(topic, row):
        on_disk, is_lost = None, past is not Past.WHOLE
    else:
        is_lost = past is Past.LOST or broker.replicas.folder.was_lost(topic, row, own_id, on_disk)
    if past is Past.OLD and on_disk is None and any(member != own_id for member in row.isr):
        is_lost = True  # it was created after the image was made
    if is_lost:
        logger.warning("%s-%d: its log is missing from this data directory", topic, row.partition)
        return LogState.LOST, on_disk
    return _log_state(broker, topic, row.partition, folder, past), on_disk


def _log_state(broker: Broker, topic: str, partition: int, folder: Folder, past: Past) -> LogState:
    """Judges by the configs that were in force when the last process ended, which the log itself records, and not by
    today's configs alone: those may have changed while the broker was down."""
    if past is Past.OLD:
        return LogState.UNCERTAIN
    if folder.stopped_cleanly:
        return LogState.COMPLETE
    flushed_first = broker.topic_config(topic).flush_before_ack
    if flushed_first and not broker.replicas.folder.acknowledged_unflushed(topic, partition):
        return LogState.COMPLETE
    return LogState.COMPLETE if broker.replicas.folder.keeps_unflushed(topic, partition) else LogState.UNCERTAIN


async def answering(broker: Broker) -> dict[int, int]:
    """Returns the other brokers that answer right now, with the broker epoch of the process that answered. A broker
    that is ACTIVE in the metastore may be dead: its lease has only not expired yet. An answer grows old while silent
    brokers are waited for, so those that have answered are asked again, until all answer in the same round."""
    own_id = broker.config.node_id
    wait_ms = int(broker.config.broker_lease_ms * ANSWER_SHARE)
    asked = [row for row in serving_brokers(broker.view) if row.broker_id != own_id]
    for _ in range(ROUNDS_MAX):
        answers = await asyncio.gather(*(broker.news.is_answered_by(row, wait_ms) for row in asked))
        heard = [row for row, is_answered in zip(asked, answers, strict=True) if is_answered]
        if len(heard) == len(asked):
            break
        asked = heard
    return {row.broker_id: row.epoch for row in heard}


async def heard_of(broker: Broker) -> dict[int, int]:
    """Returns the brokers that an operator's change of rows may rely on, with their epochs: those that answer, and this
    one."""
    own = broker.view.broker(broker.config.node_id)
    return {**await answering(broker), **({} if own is None else {own.broker_id: own.epoch})}


def first_heard(broker: Broker, heard: Mapping[int, int], candidates: Iterable[int]) -> dict[int, int]:
    """Returns the first candidate that has answered and not been replaced by another process since; empty if there is
    none."""
    for id_ in candidates:
        row = broker.view.broker(id_)
        if row is not None and heard.get(id_) == row.epoch:
            return {id_: row.epoch}
    return {}


async def resolve_doubts(broker: Broker) -> None:
    """Lets logs leave the ISR that recovery truncated where it could not tell what had been flushed (docs/decisions,
    15), if another member of the ISR answers. Raises StaleError if a row has changed meanwhile: read again and
    retry."""
    doubtful = broker.replicas.doubtful()
    if not doubtful:
        return
    own_id, brokers = broker.config.node_id, broker.view.brokers
    heard = await answering(broker)
    changed = [
        new_row
        for replica in doubtful
        if (row := broker.view.partition_by_id(replica.topic_id, replica.partition)) is not None
        and (new_row := elections.hand_over(row, own_id, brokers, heard)) is not None
    ]
    stored = await write_rows(broker, changed, _relied_on(broker, changed, heard))
    broker.view.apply_rows(stored)
    if len(stored) < len(changed):
        raise StaleError("partitions changed while the broker stepped back")
    await broker.replicas.apply(stored)
    for replica in doubtful:
        logger.warning(
            "%r was truncated where records may have been flushed; the ISR is %s", replica, list(replica.row.isr)
        )
        replica.resolve_doubt()


async def hand_over(broker: Broker, answering: Mapping[int, int]) -> None:
    """Called before a stop: makes other replicas lead, and takes this broker out of the ISR. Each partition is left to
    a process that has just answered, and only if it is still that process: one that restarts may have lost its log."""
    own_id = broker.config.node_id
    for _ in range(HAND_OVER_ATTEMPTS):
        brokers = broker.view.brokers
        changed: dict[int, list[PartitionRow]] = {}
        for row in broker.view.replicas_on(own_id):
            if row.is_cloud:
                led_elsewhere = hand_over_cloud(row, own_id, brokers, answering)
                if led_elsewhere is not None:
                    changed.setdefault(led_elsewhere.leader, []).append(led_elsewhere)
                continue
            new_row = elections.hand_over(row, own_id, brokers, answering)
            if new_row is not None:
                successor = elections.successors(row, own_id, brokers, answering)[0]
                changed.setdefault(successor, []).append(new_row)
        if not changed:
            return
        for successor, rows in changed.items():
            logger.info("handing over %d partitions to in-sync replicas, broker %d among them", len(rows), successor)
            try:
                await write_rows(broker, rows, {successor: answering[successor]})
            except StaleError as error:
                logger.info("cannot hand over %d partitions to broker %d: %s", len(rows), successor, error)
        await broker.catch_up()
        await broker.news.tell()


def is_needed(broker: Broker, answering: Collection[int]) -> bool:
    """Whether this broker must not be fenced before its lease has expired, because all other in-sync replicas of some
    partition may be dead."""
    own_id, brokers = broker.config.node_id, broker.view.brokers
    local = [row for row in broker.view.replicas_on(own_id) if not row.is_cloud]
    needed = [row for row in local if elections.is_needed(row, own_id, brokers, answering)]
    if needed:
        logger.warning(
            "no other in-sync replica of %d partitions answers: not fencing this broker, its lease will expire",
            len(needed),
        )
    return bool(needed)


async def retreat(broker: Broker) -> None:
    """Leaves partitions whose log this broker cannot keep to other replicas, and takes this broker out of their ISR. If
    no other replica has everything, a log that can still be read stays, and one that cannot is marked as missing. A
    readable log is left only to a broker that answers: one that died a moment ago may have lost its unflushed records,
    or its disk."""
    await resolve_doubts(broker)
    await rebuild(broker)
    own_id, brokers = broker.config.node_id, broker.view.brokers
    unkept = [
        (row, is_readable)
        for key, is_readable in broker.replicas.unkept()
        if (row := broker.view.partition_by_id(*key)) is not None and own_id in row.isr
    ]
    heard = await answering(broker) if any(is_readable for _, is_readable in unkept) else {}
    changed = [
        new_row
        for row, is_readable in unkept
        if (
            new_row := elections.give_up(
                row, own_id, brokers, is_readable=is_readable, answering=heard if is_readable else None
            )
        )
        is not None
    ]
    if not changed:
        return
    for row in changed:
        topic = broker.view.topic_by_id(row.topic_id)
        logger.warning(
            "%s-%d: this broker cannot keep its log: the ISR is %s, broker %d leads. Repair the disk and restart",
            topic.name if topic is not None else row.topic_id,
            row.partition,
            list(row.isr),
            row.leader,
        )
    await write_rows(broker, changed, _relied_on(broker, changed, heard))
    await broker.catch_up()


async def leave_unkept(broker: Broker) -> None:
    """Called before this broker becomes ACTIVE: leaves partitions that it cannot open or keep to the other members of
    the ISR, dead or alive. Once it is ACTIVE, members that are not back yet would not count, and the partition would
    wait for a log that cannot be read. A damaged log is marked as missing. One that could not be opened now, and
    perhaps can later, is treated like one whose directory cannot be read (`reconcile`). Raises StaleError if a row has
    changed meanwhile: read again and retry."""
    own_id, brokers = broker.config.node_id, broker.view.brokers
    damaged = {key for key, is_readable in broker.replicas.unkept() if not is_readable}
    changed = []
    for key in broker.replicas.unserved():
        row = broker.view.partition_by_id(*key)
        if row is None or own_id not in row.isr or is_missing(row, own_id):
            continue
        if not elections.others_have_it(row, own_id):
            continue  # the last member of the ISR stays; `retreat` handles it
        if key in damaged:
            new_row = elections.give_up(row, own_id, brokers, is_readable=False)
        else:
            fresh = new_id(broker.rng)
            new_row = elections.restart(row, own_id, brokers, log=LogState.UNCERTAIN, on_disk=None, fresh=fresh)
        if new_row is not None:
            logger.error(
                "partition %d of topic %s cannot be opened here and leaves the ISR, which was %s",
                key[1],
                key[0],
                list(row.isr),
            )
            changed.append(new_row)
    stored = await write_rows(broker, changed)
    broker.view.apply_rows(stored)
    if len(stored) < len(changed):
        raise StaleError("partitions changed while the broker was starting")
    await broker.replicas.apply(stored)


async def rebuild(broker: Broker) -> None:
    """Rebuilds logs in which flushed data is damaged: if another member of the ISR answers, that one leads, and the
    damaged log is replaced by an empty one, which copies everything. Otherwise the damaged log is kept: it is better
    than none."""
    damaged = broker.replicas.damaged()
    if not damaged:
        return
    own_id, brokers = broker.config.node_id, broker.view.brokers
    heard = await answering(broker)
    changed = []
    for replica in damaged:
        row = broker.view.partition_by_id(replica.topic_id, replica.partition)
        new_row = None if row is None else elections.rebuild(row, own_id, brokers, heard, fresh=new_id(broker.rng))
        if new_row is not None:
            logger.error("%r is damaged and is rebuilt from other replicas: the ISR is %s", replica, list(new_row.isr))
            changed.append(new_row)
    if changed:
        await write_rows(broker, changed, _relied_on(broker, changed, heard))
        await broker.catch_up()


def _relied_on(broker: Broker, left: Sequence[PartitionRow], heard: Mapping[int, int]) -> dict[int, int]:
    """Returns the brokers that these rows are left to and that have just answered, with their epochs: one that has
    restarted meanwhile may have lost its log."""
    own_id, brokers = broker.config.node_id, broker.view.brokers
    relied_on = (id_ for row in left for id_ in elections.successors(row, own_id, brokers, heard)[:1])
    return {id_: heard[id_] for id_ in relied_on}


async def begin_anew(broker: Broker, *, is_starting: bool = False) -> None:
    """Begins a new generation for partitions that this broker should lead with a log that has lost its end
    (docs/decisions, 16). At startup this covers all partitions for which it is in the ISR: once it is ACTIVE it could
    be elected, and members that are not back yet would not count. Raises StaleError if a row has changed meanwhile:
    retry."""
    own_id = broker.config.node_id
    changed = [
        elections.begin_anew(row, own_id, broker.view.brokers, fresh=new_id(broker.rng))
        for key in broker.replicas.outlived()
        if (row := broker.view.partition_by_id(*key)) is not None
        and own_id in row.isr
        and (row.leader == own_id or is_starting)
    ]
    if not changed:
        return
    for row in changed:
        topic = broker.view.topic_by_id(row.topic_id)
        logger.error(
            "%s-%d: this log has lost records that its compaction relied on: %s",
            topic.name if topic is not None else row.topic_id,
            row.partition,
            f"generation {row.generation} begins with it" if row.leader == own_id else "others in sync go on",
        )
    stored = await write_rows(broker, changed)
    broker.view.apply_rows(stored)
    await broker.replicas.apply(stored)
    if len(stored) < len(changed):
        raise StaleError("partitions changed meanwhile")


async def lead_again(broker: Broker) -> None:
    """Raises the leader epoch of partitions that this broker led until a role change hit a bug, or that it should lead
    in an epoch that is over: it leads them again, as after a restart."""
    own_id = broker.config.node_id
    changed = [
        replace(row, leader_epoch=LeaderEpoch(max(row.leader_epoch, latest) + 1))
        for key, latest in broker.replicas.stranded().items()
        if (row := broker.view.partition_by_id(*key)) is not None and row.leader == own_id
    ]
    stored = await write_rows(broker, changed)
    broker.view.apply_rows(stored)
    await broker.replicas.apply(stored)


async def write_rows(
    broker: Broker, rows: Sequence[PartitionRow], named: Mapping[int, int] = MappingProxyType({})
) -> list[PartitionRow]:
    """Writes the rows if this broker's epoch and those in `named` (by broker id) are still registered. Returns the rows
    that were stored."""
    own_id, own_epoch = broker.identity
    live = {own_id: own_epoch, **named}
    written: list[PartitionRow] = []
    for start in range(0, len(rows), ROWS_AT_ONCE):
        stored = await broker.metastore.update_partitions(rows[start : start + ROWS_AT_ONCE], live)
        written += [row for row in stored if row is not None]
    return written
