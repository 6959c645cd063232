"""A simulated run as a history: what the judge of real clusters makes of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import pytest

from sexton.history.op import NEMESIS, UNKNOWN, F, Op, Send, Span, Type
from sexton.records.batch import Record
from sexton.simulate import testimony
from sexton.simulate.errors import SimulationFailure
from sexton.simulate.history import History, Loss, Outcome, Transaction, Write
from sexton.simulate.journal import Given, Journal, Look
from sexton.simulate.plan import Plan, Profile
from sexton.simulate.planning import make_plan
from sexton.simulate.run import Options, workers

HEALED_NS = 1_000


@pytest.fixture
def plan() -> Plan:
    made = make_plan(0, 3, 0.1, Profile.PLAIN)
    assert not made.topics[0].is_compacted
    return made


class Story:
    """A journal whose clock goes on by one with each entry."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.place = plan.topics[0].places[0]
        self.now_ns = 0
        self.history = History(journal=Journal(self._tick))

    def _tick(self) -> int:
        self.now_ns += 1
        return self.now_ns

    def sends(self, value: bytes, outcome: Outcome = Outcome.OK, offset: int = -1, acks: int = -1) -> Write:
        write = self.history.begin(Write("w", self.place, acks, True, (value,), 0))
        write.outcome, write.base_offset = outcome, offset
        self.history.journal.ended(write)
        return write

    def transacts(self, value: bytes, outcome: Outcome, *, is_ended: bool = True) -> Transaction:
        transaction = Transaction("txn", 1, 1, is_commit_asked=outcome is not Outcome.FAILED)
        self.history.journal.began(transaction)
        write = Write("txn.1", self.place, -1, True, (value,), 0, Outcome.OK, transaction=transaction)
        transaction.writes.append(self.history.begin(write))
        transaction.outcome = outcome
        if is_ended:
            self.history.journal.ended(transaction)
        return transaction

    def reads(self, *values: bytes, reader: str = "r", start: int = 0) -> None:
        look = Look(reader, is_committed=True)
        self.history.journal.began(look)
        look.given = [Given(self.place, start + number, value, None, False) for number, value in enumerate(values)]
        look.positions = {self.place: (start, start + len(values))}
        self.history.journal.ended(look)

    def operations(self) -> list[Op]:
        found = testimony.operations(self.plan, self.history, HEALED_NS)
        return [op for op in found if op.process != NEMESIS and op.f != F.DELETE_RECORDS]

    def check(self) -> None:
        testimony.check(self.plan, self.history, HEALED_NS)


@pytest.fixture
def story(plan: Plan) -> Story:
    return Story(plan)


def test_a_batch_and_a_poll_become_operations(story: Story) -> None:
    story.sends(b"a", offset=0)
    story.reads(b"a")
    sent, polled = [op for op in story.operations() if op.is_completion]
    assert (sent.type, sent.f, sent.micro_ops[0][1:3]) == (Type.OK, F.SEND, (0, 0))
    assert (polled.type, polled.f) == (Type.OK, F.POLL)
    assert list(polled.spans.values()) == [Span(0, 1)]
    story.check()


def test_what_only_the_leader_has_acknowledged_is_not_known_to_be_in_the_log(story: Story) -> None:
    story.sends(b"a", offset=0, acks=1)
    assert [op.type for op in story.operations()] == [Type.INVOKE, Type.INFO]


def test_a_client_that_does_two_things_at_once_is_two_processes(story: Story) -> None:
    first = story.history.begin(Write("w", story.place, -1, True, (b"a",), 0))
    story.sends(b"b", offset=1)
    first.outcome, first.base_offset = Outcome.OK, 0
    story.history.journal.ended(first)
    story.sends(b"c", offset=2)
    invoked = [op.process for op in story.operations() if op.type is Type.INVOKE]
    assert invoked[0] != invoked[1]
    assert invoked[2] in invoked[:2]


def test_a_process_of_which_nobody_knows_what_it_did_is_not_heard_of_again(story: Story) -> None:
    story.sends(b"a", Outcome.UNKNOWN)
    story.sends(b"b", offset=0)
    unknown, ok = [op for op in story.operations() if op.is_completion]
    assert unknown.type is Type.INFO
    assert unknown.process != ok.process


def test_a_transaction_that_was_never_asked_to_commit_has_failed_though_its_client_was_killed(story: Story) -> None:
    story.transacts(b"a", Outcome.FAILED, is_ended=False)
    assert [op.type for op in story.operations()] == [Type.INVOKE, Type.FAIL]


def loses_a_record(story: Story) -> None:
    story.sends(b"a", offset=0)
    story.sends(b"b", offset=1)
    story.sends(b"c", offset=2)
    story.reads(b"a")
    story.reads(b"c", start=2)


def gives_two_values_at_one_offset(story: Story) -> None:
    story.sends(b"a", Outcome.UNKNOWN)
    story.sends(b"b", Outcome.UNKNOWN)
    story.reads(b"a")
    story.reads(b"b", reader="another")


def gives_what_was_aborted(story: Story) -> None:
    story.transacts(b"a", Outcome.FAILED)
    story.reads(b"a")


def gives_what_nobody_sent(story: Story) -> None:
    story.reads(b"a")


@pytest.mark.parametrize(
    ("happens", "anomaly"),
    [
        (loses_a_record, "lost-write"),
        (gives_two_values_at_one_offset, "inconsistent-offsets"),
        (gives_what_was_aborted, "G1a"),
        (gives_what_nobody_sent, "unwritten-read"),
    ],
)
def test_what_may_not_be_fails_the_seed_unless_the_partition_may_have_lost_something(
    story: Story, happens: Callable[[Story], None], anomaly: str
) -> None:
    happens(story)
    with pytest.raises(SimulationFailure) as failure:
        story.check()
    assert failure.value.rule.startswith(testimony.RULE)
    assert anomaly in failure.value.rule + failure.value.evidence
    story.history.losses[story.place] = [Loss(0, 0)]
    story.check()


def test_what_somebody_asked_to_be_deleted_is_not_lost(story: Story) -> None:
    loses_a_record(story)
    story.history.deleting_records(story.place, 2)
    story.check()


@pytest.mark.parametrize(
    ("may_be_second", "deleted_below", "is_clean"), [(True, 1, True), (False, 1, False), (True, 0, False)]
)
def test_only_a_deleted_copy_of_a_batch_that_was_taken_once_more_may_have_been_read(
    story: Story, may_be_second: bool, deleted_below: int, is_clean: bool
) -> None:
    story.reads(b"a")
    story.sends(b"a", offset=1).may_be_second = may_be_second
    story.reads(b"a", start=1, reader="other")
    story.history.start_bounds[story.place] = deleted_below
    with nullcontext() if is_clean else pytest.raises(SimulationFailure, match="duplicate"):
        story.check()


def test_a_deleted_key_that_comes_back_fails_the_seed() -> None:
    made = make_plan(0, 3, 0.1, Profile.COMPACTION)
    topic = next(each for each in made.topics if each.is_compacted and not each.deletes)
    story = Story(replace(made, topics=(topic,)))
    value, tombstone = Record(0, 0, b"k", b"a"), Record(0, 0, b"k", None)
    for offset, (identity, record) in enumerate(((b"a", value), (b"t", tombstone))):
        write = story.history.begin(Write("w", story.place, -1, True, (identity,), 0, records=[record]))
        write.outcome, write.base_offset = Outcome.OK, offset
        story.history.journal.ended(write)
    for given in (Given(story.place, 1, b"t", b"k", True), None, Given(story.place, 0, b"a", b"k", False)):
        look = Look("r", is_committed=True, is_table=True, given=[given] if given else [])
        look.positions = {story.place: (0, 2)}
        story.history.journal.began(look)
        story.history.journal.ended(look)
    sent = [op.micro_ops[0] for op in story.operations() if op.f == F.SEND and op.is_completion]
    assert all(isinstance(send, Send) and send.key != UNKNOWN for send in sent)
    with pytest.raises(SimulationFailure, match="resurrected-key"):
        story.check()


ONLY_TOLD = Options(minutes=0.5, broken="5", profile=Profile.COMPACTION, is_only_history_judged=True)
"""Nobody looks into the brokers, and a tombstone goes at once."""


def test_a_rule_that_is_broken_is_found_by_what_clients_were_told_and_by_nothing_else() -> None:
    """It is seen by a consumer that should have been given the tombstone."""
    with workers(1) as pool:
        found = pool.submit(3, ONLY_TOLD).result()
    assert found.rule is not None
    assert found.rule.startswith(testimony.RULE)
    assert "tombstone-too-early" in found.evidence


@pytest.mark.soak
def test_what_clients_were_told_is_judged_alike_in_every_process() -> None:
    with workers(2) as pool:
        found, again = (run.result() for run in [pool.submit(3, ONLY_TOLD), pool.submit(3, ONLY_TOLD)])
    assert (found.rule, found.evidence, found.digest) == (again.rule, again.evidence, again.digest)
