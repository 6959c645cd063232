"""Small steps that many tests take."""

from __future__ import annotations

import time
from collections.abc import Sequence

from sexton.verify.clients.base import ABORT, Consumer, Failure, Place, Producer, Record
from tests.transactions.under_test import WAIT_S


def write(producer: Producer, place: Place, sent: Sequence[bytes]) -> list[int]:
    """In the transaction that is open: the records' offsets."""
    producer.send(*place, sent)
    return producer.flush()


def transact(producer: Producer, topic: str, sent: Sequence[bytes], partition: int = 0, commit: bool = True) -> None:
    producer.begin()
    write(producer, (topic, partition), sent)
    producer.commit() if commit else producer.abort()


def take(consumer: Consumer, count: int, timeout_s: float = WAIT_S) -> list[Record]:
    """The next `count` records, or a few more; fewer only when time is up."""
    records: list[Record] = []
    deadline_s = time.monotonic() + timeout_s
    while len(records) < count and time.monotonic() < deadline_s:
        records += consumer.poll(0.1)
    return records


def take_none(consumer: Consumer) -> None:
    """A moment in which something would come if it could."""
    assert take(consumer, 1, timeout_s=0.6) == []


def has_committed(consumer: Consumer, topic: str, offset: int) -> bool:
    return consumer.committed((topic, 0)) == offset


def failed_commit(producer: Producer, topic: str, sent: Sequence[bytes]) -> Failure:
    """What the client says when it goes on with a transaction that is lost."""
    try:
        producer.send(topic, 0, sent)
        producer.flush()
        producer.commit()
    except Failure as failure:
        return failure
    raise AssertionError("the commit succeeded")


def verdict(producer: Producer, failure: Failure) -> str:
    """What the application is to do in the end: some clients find out by the abort whether they are fenced, some when
    they begin again."""
    if failure.todo != ABORT:
        return failure.todo
    try:
        producer.abort()
        producer.begin()
        producer.abort()
    except Failure as last:
        return last.todo
    return ABORT
