"""Consumed offsets in a transaction: told to the producer by most clients, a session's own business in franz-go."""

from __future__ import annotations

from functools import partial

import pytest
from confluent_kafka import Consumer as Group
from confluent_kafka import TopicPartition

from tests.interop.clients import Client
from tests.transactions.clients import SESSIONS, TOLD_OFFSETS
from tests.transactions.drivers.base import Record, Session
from tests.transactions.kit import Kit
from tests.transactions.reading import numbers, settled, values
from tests.transactions.steps import has_committed, take, transact
from tests.transactions.under_test import WAIT_S, UnderTest, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("together")]

RECORDS = 60


def each(clients: tuple[Client, ...]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("client", [pytest.param(client, id=client.label) for client in clients])


@each(TOLD_OFFSETS)
def test_records_are_copied_exactly_once_though_some_transactions_abort(kit: Kit, cluster: UnderTest) -> None:
    source, target = cluster.topic("source"), cluster.topic("target")
    transact(kit.ready(cluster.name("writer")), source, numbers(0, 60))
    copier = kit.ready(cluster.name("copier"))
    consumer = kit.consumer(cluster.name("group"))
    consumer.subscribe([source])
    copied, turn = 0, 0
    waiting: list[Record] = []
    while copied < 60:
        waiting = waiting or take(consumer, 1)
        assert waiting, "the rest of the source never came"
        part, waiting = waiting[:10], waiting[10:]
        end = part[-1].offset + 1
        copier.begin()
        copier.send(target, 0, values(part))
        copier.send_offsets({(source, 0): end}, consumer)
        turn += 1
        if turn % 2:
            copier.abort()
            assert consumer.committed((source, 0)) in (None, part[0].offset)
            waiting = part + waiting
        else:
            copier.commit()
            wait_until(partial(has_committed, consumer, source, end), "the group's new offset")
            copied += len(part)
    assert values(settled(cluster.bootstrap, [(target, 0)])) == numbers(0, 60)


@each(TOLD_OFFSETS)
def test_a_transaction_of_offsets_alone_moves_the_group(kit: Kit, cluster: UnderTest) -> None:
    source = cluster.topic()
    producer = kit.ready(cluster.name("writer"))
    transact(producer, source, numbers(0, 10))
    consumer = kit.consumer(cluster.name("group"))
    consumer.subscribe([source])
    assert len(take(consumer, 10)) == 10
    for offset, commit, expected in ((4, True, 4), (7, False, 4), (9, True, 9)):
        producer.begin()
        producer.send_offsets({(source, 0): offset}, consumer)
        producer.commit() if commit else producer.abort()
        wait_until(partial(has_committed, consumer, source, expected), "the group's new offset")


def committed_by(cluster: UnderTest, group: str, topic: str) -> int:
    """Where the group stands, as another client is told; negative if nowhere."""
    asking = Group({"bootstrap.servers": cluster.bootstrap, "group.id": group, "log_level": 2})
    try:
        return int(asking.committed([TopicPartition(topic, 0)], WAIT_S)[0].offset)
    finally:
        asking.close()


def stands_at(cluster: UnderTest, group: str, topic: str, offset: int) -> bool:
    return committed_by(cluster, group, topic) == offset


def session_of(kit: Kit, cluster: UnderTest, group: str, source: str) -> Session:
    session = kit.session(cluster.name("copier"), group)
    session.subscribe([source])
    return session


def some_of(session: Session) -> list[Record]:
    """What one poll returns, when something comes."""
    found: list[Record] = []

    def has_come() -> bool:
        found.extend(session.poll(0.5))
        return bool(found)

    wait_until(has_come, "records of the source")
    return found


@each(SESSIONS)
def test_sessions_copy_everything_once_though_some_of_them_abort(kit: Kit, cluster: UnderTest) -> None:
    """An abort rewinds the session to where its group stands."""
    source, target, group = cluster.topic("source"), cluster.topic("target"), cluster.name("group")
    writer = kit.ready(cluster.name("writer"))
    for start in range(0, RECORDS, 10):
        transact(writer, source, numbers(start, start + 10), commit=start != 20)
    expected = numbers(0, 20) + numbers(30, RECORDS)
    session = session_of(kit, cluster, group, source)
    copied, turn = 0, 0
    while copied < len(expected):
        part = some_of(session)
        assert values(part) == expected[copied : copied + len(part)]
        before = committed_by(cluster, group, source)
        session.begin()
        session.send(target, 0, values(part))
        turn += 1
        assert session.end(commit=turn % 2 == 0) == (turn % 2 == 0)
        if turn % 2 == 0:
            copied += len(part)
            end = part[-1].offset + 1
            wait_until(partial(stands_at, cluster, group, source, end), "the group's new offset")
        else:
            assert committed_by(cluster, group, source) == before
    assert values(settled(cluster.bootstrap, [(target, 0)])) == expected


@each(SESSIONS)
def test_a_session_without_records_moves_its_group(kit: Kit, cluster: UnderTest) -> None:
    source, group = cluster.topic("source"), cluster.name("group")
    transact(kit.ready(cluster.name("writer")), source, numbers(0, 10))
    session = session_of(kit, cluster, group, source)
    session.begin()
    end = some_of(session)[-1].offset + 1
    assert session.end(commit=True)
    wait_until(partial(stands_at, cluster, group, source, end), "the group's new offset")
