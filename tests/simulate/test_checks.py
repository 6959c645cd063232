"""The judge: for each rule the smallest history that breaks it, and one that looks like it but proves nothing."""

from __future__ import annotations

import random
import uuid
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sexton.ports.metastore import PartitionRow
from sexton.records import batch as batches
from sexton.records.batch import Record
from sexton.simulate import final
from sexton.simulate.checks import Judge
from sexton.simulate.copies import Copy, Entry
from sexton.simulate.disk import VirtualDisk
from sexton.simulate.errors import SimulationFailure
from sexton.simulate.final import FoundLog, find_lost, find_repeated
from sexton.simulate.history import History, Outcome, Write
from sexton.simulate.ledger import Ledger
from sexton.simulate.loop import new_loop
from sexton.simulate.observe import Agreement
from sexton.simulate.snapshots import Snapshot, Watermarks
from sexton.simulate.trace import Trace
from sexton.types import LeaderEpoch, PartitionId, TopicPartition

PLACE: TopicPartition = ("t", 0)


def written(history: History, *values: bytes, base_offset: int = -1, **fields: object) -> Write:
    write = Write("w", PLACE, -1, True, values, 0)
    for name, value in {"outcome": Outcome.OK, "base_offset": base_offset, **fields}.items():
        setattr(write, name, value)
    return history.begin(write)


def value(number: int) -> bytes:
    return f"w:0:{number}:".encode()


# What consumers see


def test_an_offset_that_has_two_values_breaks_rule_2() -> None:
    history = History()
    written(history, value(1), value(2))
    history.saw("r", PLACE, 0, value(1))
    history.saw("another", PLACE, 0, value(1))
    with pytest.raises(SimulationFailure, match="rule 2"):
        history.saw("another", PLACE, 0, value(2))


def test_a_value_that_nobody_wrote_breaks_rule_2() -> None:
    with pytest.raises(SimulationFailure, match="rule 2"):
        History().saw("r", PLACE, 0, b"noise")


def test_a_record_whose_producer_was_told_that_it_failed_breaks_rule_9() -> None:
    history = History()
    written(history, value(1), outcome=Outcome.FAILED)
    with pytest.raises(SimulationFailure, match="rule 9"):
        history.saw("r", PLACE, 0, value(1))


def test_a_record_of_unknown_outcome_may_be_read() -> None:
    history = History()
    written(history, value(1), outcome=Outcome.UNKNOWN)
    history.saw("r", PLACE, 0, value(1))


# What is left at the end


def test_an_acknowledged_record_that_is_gone_breaks_rule_1() -> None:
    history = History()
    written(history, value(1), value(2), base_offset=0)
    failure = find_lost(PLACE, FoundLog(0, {0: value(1)}), history)
    assert failure is not None
    assert failure.rule == "rule 1"


def test_an_acknowledged_record_below_the_log_start_may_be_gone() -> None:
    history = History()
    written(history, value(1), value(2), base_offset=0)
    assert find_lost(PLACE, FoundLog(1, {1: value(2)}), history) is None


def test_an_acknowledged_record_of_acks_1_may_be_gone() -> None:
    history = History()
    written(history, value(1), base_offset=0, acks=1)
    assert find_lost(PLACE, FoundLog(0), history) is None


def test_an_acknowledged_record_somewhere_else_breaks_rule_2() -> None:
    history = History()
    written(history, value(1), base_offset=5)
    failure = find_lost(PLACE, FoundLog(0, {6: value(1)}), history)
    assert failure is not None
    assert failure.rule == "rule 2"


def test_a_record_that_is_there_twice_breaks_rule_2() -> None:
    history = History()
    written(history, value(1))
    failure = find_repeated(PLACE, FoundLog(0, {0: value(1), 1: value(1)}), history)
    assert failure is not None
    assert "twice" in failure.evidence


def test_an_idempotent_producers_records_in_another_order_break_rule_2() -> None:
    history = History()
    written(history, value(1))
    written(history, value(2))
    assert find_repeated(PLACE, FoundLog(0, {0: value(1), 7: value(2)}), history) is None
    failure = find_repeated(PLACE, FoundLog(0, {0: value(2), 7: value(1)}), history)
    assert failure is not None
    assert "order" in failure.evidence


def test_a_group_lacks_only_what_it_could_have_been_given() -> None:
    history = History(reads={PLACE: {0: value(1), 1: value(2)}})
    assert final.undelivered(history, {PLACE: {1}}) != []
    history.deleting_records(PLACE, 1)
    assert final.undelivered(history, {PLACE: {1}}) == []


# The ledger


def test_a_batch_at_a_committed_offset_must_be_the_committed_one() -> None:
    ledger = Ledger()
    ledger.add(Entry(0, 4, 1, 77))
    assert ledger.conflict(Entry(0, 4, 1, 77)) is None
    assert ledger.conflict(Entry(5, 9, 2, 88)) is None
    for other in (Entry(0, 4, 1, 78), Entry(0, 4, 2, 77), Entry(0, 3, 1, 77), Entry(2, 4, 1, 77)):
        assert ledger.conflict(other) is not None


# What files hold


def record_batch(base_offset: int, count: int) -> bytes:
    records = [Record(base_offset + index, 0, b"k", b"v") for index in range(count)]
    return batches.encode(batches.make_batch(records, leader_epoch=3))


def test_a_copy_is_read_batch_by_batch_up_to_what_is_torn() -> None:
    loop = new_loop(random.Random(1))
    volume = VirtualDisk(random.Random(1))
    disk = volume.of(loop.world, loop)
    disk.make_directory("/data/t-0")
    file = disk.open("/data/t-0/00000000000000000000.log", create=True)
    file.append([record_batch(0, 3), record_batch(3, 2)])
    copy = Copy(volume, "/data/t-0")
    copy.refresh()
    assert [(entry.base_offset, entry.last_offset) for entry in copy.entries_from(0)] == [(0, 2), (3, 4)]
    assert [entry.base_offset for entry in copy.entries_from(3)] == [3]
    assert copy.end_offset == 5

    file.append([record_batch(5, 1)[:-1]])
    copy.refresh()
    assert copy.end_offset == 5
    assert copy.version == 0

    file.truncate(0)
    file.append([record_batch(0, 1)])
    copy.refresh()
    assert copy.end_offset == 1
    assert copy.version == 1
    loop.close()


def test_a_batch_with_a_wrong_checksum_is_none() -> None:
    loop = new_loop(random.Random(1))
    volume = VirtualDisk(random.Random(1))
    disk = volume.of(loop.world, loop)
    disk.make_directory("/data/t-0")
    damaged = bytearray(record_batch(0, 1))
    damaged[-1] ^= 1
    disk.open("/data/t-0/00000000000000000000.log", create=True).append([damaged])
    copy = Copy(volume, "/data/t-0")
    copy.refresh()
    assert list(copy.entries_from(0)) == []
    loop.close()


class KeepsOne(random.Random):
    """Of two appends the first survives, and the second leaves nothing."""

    def randrange(self, *_: object) -> int:
        return 1

    def random(self) -> float:
        return 0.9


def test_what_follows_a_segment_whose_end_was_lost_is_not_left() -> None:
    """Each file loses its own end: a later segment may have kept all of its."""
    loop = new_loop(random.Random(1))
    volume = VirtualDisk(random.Random(1))
    disk = volume.of(loop.world, loop)
    disk.make_directory("/data/t-0")
    first = disk.open("/data/t-0/00000000000000000000.log", create=True)
    first.append([record_batch(0, 3)])
    first.append([record_batch(3, 2)])
    disk.open("/data/t-0/00000000000000000005.log", create=True).append([record_batch(5, 1)])
    copy = Copy(volume, "/data/t-0")
    copy.refresh()
    assert copy.intact_end == 6
    volume.files("/data/t-0")[0][1].lose_power(KeepsOne())
    copy.refresh()
    assert [entry.base_offset for entry in copy.entries_from(0)] == [0, 5]
    assert copy.intact_end == 3
    loop.close()


# Log starts


def test_who_asked_for_everything_to_be_deleted_may_find_any_committed_start_until_he_is_told() -> None:
    history = History(deleting_all=[PLACE])
    history.starts(PLACE, 7, high_watermark=6)
    assert history.start_bounds.get(PLACE, 0) == 0, "nobody deletes what is not committed"
    history.starts(PLACE, 5, high_watermark=6)
    assert history.start_bounds[PLACE] == 5
    assert history.may_start_at(PLACE, 6)
    history.deleting_all.clear()
    history.starts(PLACE, 6, high_watermark=6)
    assert history.may_start_at(PLACE, 5)
    assert not history.may_start_at(PLACE, 6)


# An empty copy


def snapshot(judge_key: PartitionId, **fields: Any) -> Snapshot:
    known = Watermarks(uuid.UUID(int=9))
    made = Snapshot(
        "t", judge_key[0], judge_key[1], "follower", False, 0, uuid.UUID(int=9), 8, 8, 5, 5, 5, known, known, False
    )
    return made._replace(**fields)


@pytest.mark.parametrize(
    ("deleted_below", "fields", "is_excused"),
    [
        (8, {}, True),
        (7, {}, False),
        (8, {"is_leader": True}, False),
        (8, {"start_offset": 4}, False),
    ],
)
def test_only_an_empty_copy_may_begin_below_the_start_that_somebody_asked_for(
    deleted_below: int, fields: dict[str, Any], is_excused: bool
) -> None:
    history = History()
    history.deleting_records(PLACE, deleted_below)
    judge, key, _ = judge_of_unflushed(history, 1, 2)
    node = judge.cluster.node_of(1)
    with nullcontext() if is_excused else pytest.raises(SimulationFailure, match="but ends at"):
        judge.look_at(node, snapshot(key, **fields))


# Topics that acknowledge before the flush


def judge_of_unflushed(history: History, *isr: int) -> tuple[Judge, PartitionId, PartitionRow]:
    """With one partition, whose in-sync replicas these are. No broker runs."""
    loop = new_loop(random.Random(1))
    trace = Trace(loop)
    agreement = Agreement(trace)
    row = PartitionRow(uuid.UUID(int=1), 0, (1, 2, 3), isr, isr[0], LeaderEpoch(0), 0)
    key = (row.topic_id, 0)
    agreement.topics[row.topic_id] = "t"
    agreement.rows[key] = row
    volume = VirtualDisk(random.Random(1))
    nodes = {
        f"broker-{number}": SimpleNamespace(
            name=f"broker-{number}",
            broker_id=number,
            broker=None,
            process=SimpleNamespace(name=f"broker-{number}.1"),
            is_wiped=True,
            volume=volume,
        )
        for number in (1, 2, 3)
    }
    cluster = SimpleNamespace(nodes=nodes, node_of=lambda number: nodes[f"broker-{number}"])
    return Judge(cast(Any, cluster), agreement, history, trace, unflushed=["t"]), key, row


def lose_power(judge: Judge, broker_id: int) -> None:
    judge.power_lost(judge.cluster.node_of(broker_id))


def test_what_is_not_flushed_may_be_lost_only_if_all_in_sync_replicas_lose_power() -> None:
    history = History()
    judge, _, _ = judge_of_unflushed(history, 1, 2)
    lose_power(judge, 1)
    lose_power(judge, 3)
    assert PLACE not in history.doubtful, "one in-sync replica still has it all"
    lose_power(judge, 2)
    assert PLACE in history.doubtful


@pytest.mark.parametrize(
    ("isr", "wiped", "expected"),
    [((1, 2), {2}, True), ((1, 2, 3), {2}, False), ((1,), {2}, False), ((2, 3), {2}, False)],
)
def test_who_is_in_sync_with_lost_disks_alone_depends_on_them(
    isr: tuple[int, ...], wiped: set[int], expected: bool
) -> None:
    """Seed 322: it lost power, and left the ISR to a machine whose disk had been replaced."""
    judge, _, _ = judge_of_unflushed(History(), *isr)
    for node in judge.cluster.nodes.values():
        node.is_wiped = node.broker_id in wiped
    assert judge.depends_on_lost_disks(judge.cluster.node_of(1)) is expected


def test_a_replica_that_has_joined_anew_has_copied_what_it_lost() -> None:
    history = History()
    judge, key, row = judge_of_unflushed(history, 1, 2)
    lose_power(judge, 1)
    judge.row_changed("broker-2.1", key, replace(row, isr=(2,)))
    judge.registered(1, 2)
    judge.row_changed("broker-2.1", key, row)
    lose_power(judge, 2)
    assert PLACE not in history.doubtful
    lose_power(judge, 1)
    assert PLACE in history.doubtful


@pytest.mark.parametrize(("who", "is_excused"), [("broker-1.0", True), ("broker-1.1", False), ("broker-2.1", False)])
def test_a_leaders_last_words_may_arrive_when_it_has_lost_power(who: str, is_excused: bool) -> None:
    """Before or after: nobody can tell. Whoever lives knows better than to keep one that has lost power alone."""
    history = History()
    judge, key, row = judge_of_unflushed(history, 1, 2, 3)
    lose_power(judge, 1)
    judge.row_changed(who, key, replace(row, isr=(1,)))
    assert (PLACE in history.doubtful) == is_excused


@pytest.mark.parametrize(("replicas", "is_excused"), [((1, 3), True), ((1, 2, 3), False)])
def test_an_operator_may_remove_the_replica_that_had_everything(replicas: tuple[int, ...], is_excused: bool) -> None:
    """Whoever lives and leaves it out of the ISR, though it is a replica still, makes a mistake."""
    history = History()
    judge, key, row = judge_of_unflushed(history, 1, 2)
    judge.row_changed("broker-2.1", key, row)
    lose_power(judge, 1)
    judge.row_changed("broker-2.1", key, replace(row, replicas=replicas, isr=(1,)))
    assert (PLACE in history.doubtful) == is_excused


@pytest.mark.parametrize(("broker_id", "high_watermark", "is_excused"), [(3, 5, True), (3, 4, False), (1, 5, False)])
def test_a_high_watermark_goes_back_with_a_loss_that_its_replica_has_not_followed_yet(
    broker_id: int, high_watermark: int, is_excused: bool
) -> None:
    """It has just started, and is not in sync; but never below what was lost, nor once it is in sync."""
    history = History()
    judge, key, _ = judge_of_unflushed(history, 1, 2)
    history.lost(PLACE, 5, 0)
    process = SimpleNamespace(name=f"broker-{broker_id}.2")
    volume = VirtualDisk(random.Random(1))
    node = cast(Any, SimpleNamespace(name=f"broker-{broker_id}", broker_id=broker_id, process=process, volume=volume))
    judge.look_at(node, snapshot(key, start_offset=0, end_offset=9))
    with nullcontext() if is_excused else pytest.raises(SimulationFailure, match="rule 7"):
        judge.look_at(node, snapshot(key, start_offset=0, end_offset=9, high_watermark=high_watermark))
