"""What a reader may see of transactions, and when: docs/transactions.md asks, these tests answer."""

from __future__ import annotations

from itertools import pairwise

import pytest

from sexton.verify.clients.base import Record
from tests.transactions.kit import Kit
from tests.transactions.reading import UNCOMMITTED, numbers, settled, values
from tests.transactions.steps import take, take_none, transact, write
from tests.transactions.under_test import UnderTest

pytestmark = pytest.mark.cluster


def test_offsets_rise_within_a_poll_and_between_polls_and_leave_gaps(rdkafka: Kit, cluster: UnderTest) -> None:
    """Markers take offsets, and so do records that were aborted."""
    topic = cluster.topic()
    producer = rdkafka.ready(cluster.name("writer"))
    for turn in range(4):
        transact(producer, topic, numbers(0, 5), commit=turn % 2 == 0)
    consumer = rdkafka.consumer()
    consumer.assign({(topic, 0): 0})
    offsets = [record.offset for record in take(consumer, 10)]
    assert all(one < two for one, two in pairwise(offsets))
    assert offsets == [0, 1, 2, 3, 4, 12, 13, 14, 15, 16]


def test_read_committed_skips_acknowledged_records_if_and_only_if_they_were_aborted(
    rdkafka: Kit, cluster: UnderTest
) -> None:
    topic = cluster.topic()
    producer = rdkafka.ready(cluster.name("writer"))
    producer.begin()
    acknowledged = write(producer, (topic, 0), [b"aborted"])
    producer.abort()
    transact(producer, topic, [b"committed"])
    assert acknowledged == [0]
    assert values(settled(cluster.bootstrap, [(topic, 0)])) == [b"committed"]


def test_a_producer_writes_to_a_partition_in_the_order_of_its_sends(rdkafka: Kit, cluster: UnderTest) -> None:
    """Within a transaction and from one to the next, with at least one offset between them for the marker."""
    topic = cluster.topic()
    producer = rdkafka.ready(cluster.name("writer"))
    ends = []
    for turn in range(3):
        producer.begin()
        offsets = write(producer, (topic, 0), numbers(turn * 5, turn * 5 + 5))
        assert offsets == list(range(offsets[0], offsets[0] + 5))
        producer.commit()
        ends.append((offsets[0], offsets[-1]))
    assert [after[0] - before[1] for before, after in pairwise(ends)] == [2, 2]
    assert values(settled(cluster.bootstrap, [(topic, 0)])) == numbers(0, 15)


def test_transactions_of_two_producers_interleave_in_a_partition(rdkafka: Kit, cluster: UnderTest) -> None:
    topic = cluster.topic()
    first, second = rdkafka.ready(cluster.name("first")), rdkafka.ready(cluster.name("second"))
    first.begin()
    second.begin()
    for turn in range(3):
        write(first, (topic, 0), [b"first %d" % turn])
        write(second, (topic, 0), [b"second %d" % turn])
    second.commit()
    first.commit()
    seen = values(settled(cluster.bootstrap, [(topic, 0)]))
    assert seen == [b"first 0", b"second 0", b"first 1", b"second 1", b"first 2", b"second 2"]


def test_write_cycles_happen(rdkafka: Kit, cluster: UnderTest) -> None:
    """G0: each of two committed transactions precedes the other in one partition."""
    topic = cluster.topic(partitions=2)
    first, second = rdkafka.ready(cluster.name("first")), rdkafka.ready(cluster.name("second"))
    first.begin()
    second.begin()
    write(first, (topic, 0), [b"first"])
    write(second, (topic, 0), [b"second"])
    write(second, (topic, 1), [b"second"])
    write(first, (topic, 1), [b"first"])
    first.commit()
    second.commit()
    seen = settled(cluster.bootstrap, [(topic, 0), (topic, 1)])
    assert values(seen) == [b"first", b"second", b"second", b"first"]


def test_one_poll_may_return_a_part_of_a_transaction(java: Kit, cluster: UnderTest) -> None:
    """Of one that is committed: a poll has a limit, and knows nothing of transactions."""
    topic = cluster.topic()
    transact(java.ready(cluster.name("writer")), topic, numbers(0, 10))
    settled(cluster.bootstrap, [(topic, 0)])
    consumer = java.consumer(settings={"max.poll.records": 4})
    consumer.assign({(topic, 0): 0})
    polls: list[list[Record]] = []
    while sum(len(each) for each in polls) < 10:
        polls.append(consumer.poll(1))
    assert max(len(each) for each in polls) == 4
    assert values(record for each in polls for record in each) == numbers(0, 10)


def test_two_open_transactions_do_not_read_each_other(rdkafka: Kit, cluster: UnderTest) -> None:
    """So there is no cycle of reads alone (G1c without writes), and no read of what may yet be aborted."""
    topic = cluster.topic(partitions=2)
    first, second = rdkafka.ready(cluster.name("first")), rdkafka.ready(cluster.name("second"))
    reader = rdkafka.consumer()
    reader.assign({(topic, 0): 0, (topic, 1): 0})
    first.begin()
    second.begin()
    write(first, (topic, 0), [b"first"])
    write(second, (topic, 1), [b"second"])
    take_none(reader)
    first.commit()
    assert values(take(reader, 1)) == [b"first"]
    take_none(reader)
    second.commit()
    assert values(take(reader, 1)) == [b"second"]


def test_a_cycle_with_a_write_dependency_can_be_read(rdkafka: Kit, cluster: UnderTest) -> None:
    """G1c: the first writes before the second does, in one partition, and reads what the second wrote to another."""
    topic = cluster.topic(partitions=2)
    first, second = rdkafka.ready(cluster.name("first")), rdkafka.ready(cluster.name("second"))
    reader = rdkafka.consumer()
    reader.assign({(topic, 1): 0})
    first.begin()
    write(first, (topic, 0), [b"first"])
    second.begin()
    write(second, (topic, 0), [b"second"])
    write(second, (topic, 1), [b"second"])
    second.commit()
    assert values(take(reader, 1)) == [b"second"]
    first.commit()
    assert values(settled(cluster.bootstrap, [(topic, 0)])) == [b"first", b"second"]


def test_a_transaction_may_be_seen_in_one_partition_and_not_yet_in_another(rdkafka: Kit, cluster: UnderTest) -> None:
    """A fractured read: someone else's open transaction holds readers of the other partition back."""
    topic = cluster.topic(partitions=2)
    blocking, writer = rdkafka.ready(cluster.name("blocking")), rdkafka.ready(cluster.name("writer"))
    blocking.begin()
    write(blocking, (topic, 1), [b"open"])
    writer.begin()
    write(writer, (topic, 0), [b"half"])
    write(writer, (topic, 1), [b"other half"])
    writer.commit()
    reader = rdkafka.consumer()
    reader.assign({(topic, 0): 0, (topic, 1): 0})
    assert values(take(reader, 1)) == [b"half"]
    take_none(reader)
    blocking.abort()
    assert values(take(reader, 1)) == [b"other half"]


@pytest.mark.parametrize("is_committed_only", [True, False], ids=["read_committed", "read_uncommitted"])
def test_what_the_current_transaction_wrote_is_read_by_read_uncommitted_alone(
    is_committed_only: bool, rdkafka: Kit, cluster: UnderTest
) -> None:
    topic = cluster.topic()
    producer = rdkafka.ready(cluster.name("writer"))
    producer.begin()
    write(producer, (topic, 0), [b"own"])
    reader = rdkafka.consumer() if is_committed_only else rdkafka.consumer(isolation=UNCOMMITTED)
    reader.assign({(topic, 0): 0})
    if is_committed_only:
        take_none(reader)
    else:
        assert values(take(reader, 1)) == [b"own"]
    producer.commit()
