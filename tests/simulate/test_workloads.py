"""What seeds let clients do: sizes to the byte, and every kind of topic among the plans of a few hundred seeds."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, cast

import pytest

from sexton.records.batch import encode, make_batch
from sexton.simulate.faults import Kind
from sexton.simulate.formats import batch_limits
from sexton.simulate.history import History, Outcome, Write, identity
from sexton.simulate.plan import Plan, Profile
from sexton.simulate.planning import make_plan
from sexton.simulate.values import Values
from sexton.simulate.writers import ACKS_ALL, Lane, SentBatch, Writer, WriterPlan


@pytest.fixture(scope="module")
def plans() -> list[Plan]:
    return [make_plan(seed, 3, 1) for seed in range(300)]


@pytest.mark.parametrize("size", [150, 2_000, 16_500, 100_000])
@pytest.mark.parametrize("compacted", [[], ["t"]])
def test_a_batch_is_as_large_as_it_is_asked_to_be(size: int, compacted: list[str]) -> None:
    values = Values("w", random.Random(1), 5, compacted)
    for _ in range(10):
        records, identities = values.sized(("t", 0), size, 1_700_000_000_000)
        assert size - 2 <= len(encode(make_batch(records))) <= size
        assert [identity(record) for record in records] == list(identities)


def test_a_topic_that_may_change_promises_only_what_every_change_leaves() -> None:
    settings = {"segment.bytes": "100000"}
    assert batch_limits(settings, may_change=False) == (100_000, 100_001)
    assert batch_limits(settings, may_change=True) == (20_000, None)
    assert batch_limits(settings | {"max.message.bytes": "15000"}, may_change=True) == (15_000, None)
    assert batch_limits({"segment.bytes": str(1 << 20)}, may_change=False) is None


def test_seeds_have_topics_of_every_kind(plans: list[Plan]) -> None:
    topics = [topic for plan in plans for topic in plan.topics]
    assert any(topic.replicas_count == 1 for topic in topics)
    assert any(topic.settings["min.insync.replicas"] == "3" for topic in topics)
    assert any("max.message.bytes" in topic.settings for topic in topics)
    unflushed = [topic for topic in topics if not topic.flushes]
    assert {topic.is_compacted for topic in unflushed} == {False, True}
    assert any(plan.transactors and plan.unflushed_topics for plan in plans)
    stamped = [topic for topic in topics if topic.settings.get("message.timestamp.type") == "LogAppendTime"]
    assert {topic.is_compacted for topic in stamped} == {False, True}


def test_where_compacted_topics_acknowledge_before_the_flush_all_brokers_lose_power_and_nobody_is_only_killed() -> None:
    """One that is killed keeps what it has, and leaves the ISR to others that may have lost it."""
    drawn = [make_plan(seed, 3, 0.5, Profile.COMPACTION) for seed in range(200)]
    unflushed = [plan for plan in drawn if any(each.is_compacted and not each.flushes for each in plan.topics)]
    dark = [plan for plan in unflushed if len({f.targets for f in plan.faults if f.kind is Kind.POWER}) == 3]
    assert len(dark) > len(unflushed) // 2 > 10
    assert any(not any(fault.kind is Kind.KILL for fault in plan.faults) for plan in dark)


def test_seeds_have_clients_of_every_kind(plans: list[Plan]) -> None:
    assert {writer.codec for plan in plans for writer in plan.writers} == {0, 1, 2, 3, 4}
    assert {each.codec for plan in plans for each in plan.transactors} == {0, 1, 2, 3, 4}
    assert any(writer.large_probability for plan in plans for writer in plan.writers)
    assert any(writer.refused_probability for plan in plans for writer in plan.writers)
    readers = [reader for plan in plans for reader in plan.readers]
    assert {reader.rack for reader in readers if reader.group is None} == {"", "rack-0", "rack-1"}
    assert {reader.is_consumer_protocol for reader in readers if reader.group is not None} == {False, True}


def test_no_topic_asks_for_more_replicas_in_sync_than_it_may_have(plans: list[Plan]) -> None:
    """A writer could wait for ever."""
    for plan in plans:
        for topic in plan.topics:
            assert int(topic.settings["min.insync.replicas"]) <= topic.replicas_count


def forgets(
    lane: Lane,
    sequence: int,
    sent_in_epoch: int | None,
    deleted_below: int = 0,
    history: History | None = None,
    started_ns: int = 0,
) -> bool:
    """Whether the leader of epoch 2 may have forgotten a batch of that lane."""
    history = history or History(leader_epochs={lane.place: 2}, start_bounds={lane.place: deleted_below})
    return writer_to(lane, history).is_forgotten(lane, batch_of(lane, sequence, sent_in_epoch, started_ns=started_ns))


def writer_to(lane: Lane, history: History) -> Writer:
    plan = WriterPlan("w", (lane.place,), ACKS_ALL, True, 100, 1, 5, 5)
    rng, nobody = random.Random(1), cast(Any, None)
    values = Values("w", rng, 5, ["compacted"])
    return Writer(
        plan=plan,
        client=nobody,
        history=history,
        trace=nobody,
        loop=nobody,
        rng=rng,
        values=values,
        is_over=lambda: False,
    )


def batch_of(
    lane: Lane, sequence: int, sent_in_epoch: int | None, base_offset: int = -1, started_ns: int = 0
) -> SentBatch:
    write = Write("w", lane.place, ACKS_ALL, True, (b"v",), started_ns, base_offset=base_offset)
    return SentBatch(write, sequence, b"", sent_in_epoch)


@pytest.mark.parametrize(
    ("topic", "sequence", "sent_in_epoch", "is_forgotten"),
    [
        ("compacted", 3, 1, True),
        ("plain", 3, 1, False),  # nothing is dropped there
        ("compacted", 7, 1, False),  # nothing later was taken
        ("compacted", 3, 2, False),  # its leader has been there all the time
        ("compacted", 3, None, False),  # it was never sent before
    ],
)
def test_a_batch_out_of_order_was_taken_only_if_a_later_one_was_and_compaction_may_have_dropped_it(
    topic: str, sequence: int, sent_in_epoch: int | None, is_forgotten: bool
) -> None:
    assert forgets(Lane((topic, 0), newest_known=5), sequence, sent_in_epoch) == is_forgotten


@pytest.mark.parametrize(
    ("sequence", "sent_in_epoch", "deleted_below", "is_forgotten"),
    [
        (3, 1, 80, True),  # all before the later one
        (3, 1, 87, True),
        (3, 1, 79, False),  # it may lie where nothing was deleted
        (3, 1, 0, False),
        (7, 1, 87, False),  # nothing later was taken
        (3, 2, 87, False),  # its leader has been there all the time
        (3, None, 87, False),  # it was never sent before
    ],
)
def test_a_batch_out_of_order_was_taken_only_if_a_later_one_was_and_all_before_that_one_may_be_deleted(
    sequence: int, sent_in_epoch: int | None, deleted_below: int, is_forgotten: bool
) -> None:
    lane = Lane(("plain", 0), newest_known=5)
    lane.overtaking = [batch_of(lane, 1, 1, base_offset=10), batch_of(lane, 5, 1, base_offset=80)]
    assert forgets(lane, sequence, sent_in_epoch, deleted_below) == is_forgotten


def test_a_later_batch_that_was_taken_at_an_unknown_offset_does_not_show_that_an_older_one_is_deleted() -> None:
    lane = Lane(("plain", 0), newest_known=5)
    lane.overtaking = [batch_of(lane, 5, 1)]
    assert not forgets(lane, 3, 1, deleted_below=87)


@pytest.mark.parametrize(
    ("newest_end_offset", "deleted_below", "may_be_unknown"),
    [(80, 80, True), (80, 81, True), (80, 79, False), (-1, 87, False)],
)
def test_a_leader_may_not_know_a_producer_whose_newest_batch_is_deleted(
    newest_end_offset: int, deleted_below: int, may_be_unknown: bool
) -> None:
    lane = Lane(("plain", 0), newest_known=5, newest_end_offset=newest_end_offset)
    history = History(start_bounds={lane.place: deleted_below})
    assert writer_to(lane, history).may_be_unknown(lane) == may_be_unknown


def test_a_leader_may_not_know_a_producer_that_was_never_acknowledged_if_something_is_deleted() -> None:
    lane = Lane(("plain", 0))
    assert writer_to(lane, History(start_bounds={lane.place: 1})).may_be_unknown(lane)
    assert not writer_to(lane, History()).may_be_unknown(lane)


@pytest.mark.parametrize(
    ("sequence", "sent_in_epoch", "changes", "is_forgotten"),
    [
        (3, 1, {}, True),
        (7, 1, {}, False),  # nothing later was taken
        (3, 2, {}, False),  # its leader has been there all the time
        (3, 1, {"values": (bytes(1_000_000),)}, False),  # it lies within what a leader looks through
        (3, 1, {"place": ("plain", 1)}, False),
        (3, 1, {"outcome": Outcome.FAILED}, False),
        (3, 1, {"started_ns": 9}, False),  # it lies before
    ],
)
def test_a_batch_out_of_order_was_taken_only_if_a_later_one_was_and_it_may_lie_too_far_from_the_end_of_the_log(
    sequence: int, sent_in_epoch: int, changes: dict[str, Any], is_forgotten: bool
) -> None:
    lane = Lane(("plain", 0), newest_known=5)
    followed = Write("another", lane.place, ACKS_ALL, True, (bytes(1 << 20),), 10, Outcome.OK)
    history = History(leader_epochs={lane.place: 2}, writes=[replace(followed, **changes)])
    assert forgets(lane, sequence, sent_in_epoch, history=history, started_ns=10) == is_forgotten
