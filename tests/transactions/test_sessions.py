"""franz-go's sessions: one client reads as a member of a group, writes, and commits what it read with what it wrote."""

from __future__ import annotations

from functools import partial

import pytest
from confluent_kafka import Consumer, TopicPartition

from sexton.verify.clients.base import Record, Session
from tests.transactions.clients import SESSIONS
from tests.transactions.kit import Kit
from tests.transactions.reading import numbers, settled, values
from tests.transactions.steps import transact
from tests.transactions.under_test import WAIT_S, UnderTest, wait_until

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.usefixtures("together"),
    pytest.mark.parametrize("client", [pytest.param(each, id=each.label) for each in SESSIONS]),
]

RECORDS = 60


def committed_by(cluster: UnderTest, group: str, topic: str) -> int:
    """Where the group stands, as another client is told; negative if nowhere."""
    asking = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group, "log_level": 2})
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
        assert session.end(turn % 2 == 0) == (turn % 2 == 0)
        if turn % 2 == 0:
            copied += len(part)
            end = part[-1].offset + 1
            wait_until(partial(stands_at, cluster, group, source, end), "the group's new offset")
        else:
            assert committed_by(cluster, group, source) == before
    assert values(settled(cluster.bootstrap, [(target, 0)])) == expected


def test_a_session_without_records_moves_its_group(kit: Kit, cluster: UnderTest) -> None:
    source, group = cluster.topic("source"), cluster.name("group")
    transact(kit.ready(cluster.name("writer")), source, numbers(0, 10))
    session = session_of(kit, cluster, group, source)
    session.begin()
    end = some_of(session)[-1].offset + 1
    assert session.end(True)
    wait_until(partial(stands_at, cluster, group, source, end), "the group's new offset")
