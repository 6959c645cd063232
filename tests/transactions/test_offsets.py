"""Consumed offsets in a transaction, for clients whose producers are told them (test_sessions.py has the others)."""

from __future__ import annotations

from functools import partial

import pytest

from sexton.verify.clients.base import Record
from tests.transactions.clients import TOLD_OFFSETS
from tests.transactions.kit import Kit
from tests.transactions.reading import numbers, settled, values
from tests.transactions.steps import has_committed, take, transact
from tests.transactions.under_test import UnderTest, wait_until

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.usefixtures("together"),
    pytest.mark.parametrize("client", [pytest.param(each, id=each.label) for each in TOLD_OFFSETS]),
]


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
