"""The judge of transactions: for each way to break rule 8 the smallest log, and one that looks like it but is right."""

from __future__ import annotations

import pytest

from sexton.records.batch import Batch, ControlType, Record, make_batch, make_marker
from sexton.records.header import TRANSACTIONAL
from sexton.simulate.errors import SimulationFailure
from sexton.simulate.history import History, Outcome, Transaction, Write
from sexton.simulate.transaction_checks import TransactionJudge
from sexton.types import TopicPartition

HERE: TopicPartition = ("t", 0)
THERE: TopicPartition = ("t", 1)
PRODUCER = 7


class Story:
    """A transaction with one record in each of two partitions, and the logs that it gets into."""

    def __init__(self) -> None:
        self.history = History()
        self.judge = TransactionJudge(self.history)
        self._ends: dict[TopicPartition, int] = {}

    def begin(self, number: int, *, offset: int | None = None) -> Transaction:
        transaction = Transaction("txn", 1, number, offset=offset)
        self.history.transactions.append(transaction)
        for place in (HERE, THERE):
            value = f"txn:{place[1]}:{number}:".encode()
            write = Write("txn.1", place, -1, True, (value,), 0, Outcome.OK, transaction=transaction)
            transaction.writes.append(self.history.begin(write))
        return transaction

    def write(self, place: TopicPartition, transaction: Transaction) -> None:
        (value,) = transaction.writes[place[1]].values
        record = Record(self._next(place), 0, b"k", value)
        self._put(place, make_batch([record], attributes=TRANSACTIONAL, producer_id=PRODUCER))

    def mark(self, place: TopicPartition, control_type: ControlType) -> None:
        self._put(place, make_marker(self._next(place), control_type, PRODUCER, 0, 0))

    def _next(self, place: TopicPartition) -> int:
        return self._ends.get(place, 0)

    def _put(self, place: TopicPartition, batch: Batch) -> None:
        self._ends[place] = batch.next_offset
        self.judge.committed(place, batch)


def asked(transaction: Transaction, outcome: Outcome = Outcome.OK) -> Transaction:
    transaction.is_commit_asked, transaction.outcome = True, outcome
    return transaction


def test_a_transaction_that_is_committed_everywhere_is_whole() -> None:
    story = Story()
    transaction = asked(story.begin(1))
    for place in (HERE, THERE):
        story.write(place, transaction)
        story.mark(place, ControlType.COMMIT)
    story.judge.check_whole()
    assert story.judge.ended_count == 2


def test_a_commit_that_nobody_asked_for_breaks_rule_8() -> None:
    story = Story()
    story.write(HERE, story.begin(1))
    with pytest.raises(SimulationFailure, match="never asked"):
        story.mark(HERE, ControlType.COMMIT)


def test_an_abort_of_what_was_acknowledged_breaks_rule_8() -> None:
    story = Story()
    story.write(HERE, asked(story.begin(1)))
    with pytest.raises(SimulationFailure, match="acknowledged"):
        story.mark(HERE, ControlType.ABORT)


def test_a_transaction_of_unknown_outcome_may_end_either_way_but_not_both() -> None:
    story = Story()
    transaction = asked(story.begin(1), Outcome.UNKNOWN)
    for place in (HERE, THERE):
        story.write(place, transaction)
    story.mark(HERE, ControlType.ABORT)
    with pytest.raises(SimulationFailure, match="torn"):
        story.mark(THERE, ControlType.COMMIT)


def test_a_record_that_slid_into_the_next_transaction_breaks_rule_8() -> None:
    story = Story()
    late, following = story.begin(1), asked(story.begin(2))
    late.outcome = Outcome.FAILED
    story.write(HERE, following)
    story.write(HERE, late)
    with pytest.raises(SimulationFailure, match=r"transaction 1 of .*, which was never asked"):
        story.mark(HERE, ControlType.COMMIT)


def test_a_committed_transaction_that_lacks_a_partition_is_torn() -> None:
    story = Story()
    transaction = asked(story.begin(1))
    story.write(HERE, transaction)
    story.mark(HERE, ControlType.COMMIT)
    with pytest.raises(SimulationFailure, match="not in t-1"):
        story.judge.check_whole()
    story.history.lost(THERE, 0, transaction.writes[0].started_ns)
    story.judge.check_whole()


def test_a_group_stands_where_the_last_transaction_that_counts_has_put_it() -> None:
    story = Story()
    assert story.judge.offsets_possible("txn") == {-1}
    first, second = asked(story.begin(1, offset=1)), asked(story.begin(2, offset=2), Outcome.UNKNOWN)
    first.fates[HERE] = True
    assert story.judge.offsets_possible("txn") == {1, 2}
    second.fates[HERE] = False
    assert story.judge.offsets_possible("txn") == {1}
    second.fates[HERE] = True
    assert story.judge.offsets_possible("txn") == {2}


def test_an_instance_that_was_started_first_may_be_the_last_to_become_the_producer() -> None:
    """It stood still before it began. Seed 251."""
    story = Story()
    for number, instance in ((1, 2), (2, 1)):
        transaction = asked(story.begin(number, offset=number))
        transaction.instance = instance
        transaction.fates[HERE] = True
    assert story.judge.offsets_possible("txn") == {2}


def test_what_read_committed_shows_must_have_been_asked_to_commit() -> None:
    story = Story()
    transaction = story.begin(1)
    (value,) = transaction.writes[0].values
    story.history.saw("r", HERE, 0, value)
    with pytest.raises(SimulationFailure, match="rule 8"):
        story.history.saw("r", HERE, 0, value, is_committed=True)
    asked(transaction, Outcome.PENDING)
    story.history.saw("r", HERE, 0, value, is_committed=True)
