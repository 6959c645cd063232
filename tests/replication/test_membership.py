"""Changes of the in-sync sets, with a metastore that refuses, loses its answers, or carries a request out late.

The rule behind all of them: whoever may be in the ISR by the metastore is counted by the leader.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sexton.metadata.view import ClusterView
from sexton.ports.metastore import (
    BrokerRow,
    BrokerStatus,
    Changes,
    MetastoreUnavailableError,
    PartitionRow,
    StaleError,
    TopicRow,
)
from sexton.replication import membership as membership_module
from sexton.replication.leadership import Leadership
from sexton.replication.membership import Membership
from sexton.types import LeaderEpoch
from tests.replication.hosts import LoneHost

TOPIC = uuid.UUID(int=1)
IDS = {broker: uuid.UUID(int=10 + broker, version=4) for broker in (1, 2, 3)}
END_OFFSET = 20

Attempt = tuple[Sequence[PartitionRow], Mapping[int, int]]


class Scripted:
    """A metastore with broker 1 as the leader of some partitions. Each attempt is answered as the script says."""

    def __init__(self, *isrs: tuple[int, ...], lag_max_ms: int = 1 << 40) -> None:
        self.epochs = {1: 1, 2: 2, 3: 3}
        rows = [
            PartitionRow(TOPIC, index, (1, 2, 3), isr, 1, LeaderEpoch(5), 7, incarnations=IDS)
            for index, isr in enumerate(isrs)
        ]
        self.rows = {row.partition: row for row in rows}
        self.script: list[Callable[[Attempt], list[PartitionRow | None]]] = []
        self.attempts: list[Attempt] = []
        self.commits: list[set[int]] = []
        """Whom each attempt of a replica to commit would count."""
        self.view = ClusterView()
        self.poll()
        self.view.apply_rows(topics=[TopicRow(TOPIC, "t", False)], partitions=rows)
        self.replicas = [self._led(row) for row in rows]
        self.membership = Membership(LoneHost(view=self.view, metastore=cast(Any, self)), self, lag_max_ms)

    def all(self) -> list[Any]:
        return self.replicas

    def rows_written(self, rows: Sequence[PartitionRow]) -> None:
        self.saw(rows)

    def _led(self, row: PartitionRow) -> Any:
        leadership = Leadership(row, 1, 0, 0)
        for follower in (2, 3):
            leadership.fetched(follower, self.epochs[follower], END_OFFSET, END_OFFSET, 1, 0, IDS[follower])
        return SimpleNamespace(
            topic="t",
            topic_id=TOPIC,
            partition=row.partition,
            row=row,
            leadership=leadership,
            high_watermark=END_OFFSET,
            log=SimpleNamespace(end_offset=END_OFFSET, failure=None),
            flush_and_commit=lambda: self.commits.append(set(leadership.counted())),
        )

    def leadership(self, partition: int = 0) -> Leadership:
        found: Leadership = self.replicas[partition].leadership
        return found

    def counted(self, partition: int = 0) -> set[int]:
        return set(self.leadership(partition).counted())

    # The metastore's side

    async def update_partitions(self, rows: Sequence[PartitionRow], live: Mapping[int, int]) -> list[Any]:
        attempt = rows, live
        self.attempts.append(attempt)
        answer = self.script.pop(0) if self.script else self.carry_out
        return list(answer(attempt))

    def carry_out(self, attempt: Attempt) -> list[PartitionRow | None]:
        rows, live = attempt
        if any(self.epochs[broker] != epoch for broker, epoch in live.items()):
            raise StaleError("another process")
        stored: list[PartitionRow | None] = []
        for row in rows:
            is_current = self.rows[row.partition].partition_epoch == row.partition_epoch
            if is_current:
                self.rows[row.partition] = replace(row, partition_epoch=row.partition_epoch + 1)
            stored.append(self.rows[row.partition] if is_current else None)
        return stored

    def carry_out_and_lose_the_answer(self, attempt: Attempt) -> list[PartitionRow | None]:
        self.carry_out(attempt)
        raise MetastoreUnavailableError("the answer was lost")

    def lose_the_request(self, attempt: Attempt) -> list[PartitionRow | None]:
        raise MetastoreUnavailableError("on its way, perhaps")

    # The leader's side

    def poll(self) -> None:
        """Brokers alone: rows are seen by `saw`."""
        brokers = [
            BrokerRow(id_, epoch, "host", 9092, None, uuid.UUID(int=id_), 5000, 0, BrokerStatus.ACTIVE)
            for id_, epoch in self.epochs.items()
        ]
        self.view.apply(Changes(self.view.revision + 1, False, brokers=brokers))

    def saw(self, rows: Sequence[PartitionRow]) -> None:
        for row in rows:
            replica = self.replicas[row.partition]
            if row.partition_epoch > replica.row.partition_epoch:
                replica.row = row
                replica.leadership.follow_row(row, now_ms=2)

    def turn(self) -> None:
        asyncio.run(self.membership.step())

    def check_counted(self) -> None:
        for partition, row in self.rows.items():
            self.leadership(partition).check_invariants()
            assert self.counted(partition) >= set(row.isr) - {1}


def test_a_join_that_was_carried_out_is_counted_after_its_repetition_was_refused() -> None:
    world = Scripted((1, 2))
    world.script = [world.carry_out_and_lose_the_answer]
    world.turn()
    world.epochs[3] = 8
    world.turn()
    assert len(world.attempts) == 2
    assert world.rows[0].isr == (1, 2, 3)
    world.check_counted()
    world.turn()
    world.check_counted()
    world.saw(list(world.rows.values()))
    assert world.leadership().pending is None


def test_a_join_that_may_be_carried_out_late_is_counted_until_it_no_longer_can() -> None:
    """Several connections to the database: a request may arrive after the answers to those that were sent later."""
    world = Scripted((1, 2))
    world.script = [world.lose_the_request]
    world.turn()
    late = world.attempts[0]
    world.epochs[3] = 8
    world.turn()
    assert world.counted() == {2, 3}
    world.turn()
    assert world.rows[0] == replace(world.attempts[0][0][0], isr=(1, 2), partition_epoch=8), "the row as it was"
    assert world.counted() == {2}
    world.epochs[3] = 3
    assert world.carry_out(late) == [None], "even if nothing but the partition epoch stood in its way"


def test_a_join_that_was_refused_at_its_only_attempt_is_over() -> None:
    world = Scripted((1, 2))
    world.epochs[3] = 8
    world.turn()
    assert len(world.attempts) == 1
    assert world.leadership().pending is None
    assert world.counted() == {2}
    assert world.commits == [{2}], "what waited for the one that does not join is committed at once. Seed 891"


def test_a_leader_whose_disk_has_failed_lets_others_join_and_removes_nobody() -> None:
    """It would be left alone, with a log that it cannot keep; others may need it to copy from. Seed 1333."""
    world = Scripted((1, 2), lag_max_ms=-1)
    log = world.replicas[0].log
    log.failure = OSError("the disk failed")
    world.turn()
    assert list(world.rows[0].isr) == [1, 2, 3], "it can still be copied"
    log.end_offset = END_OFFSET + 1
    world.turn()
    assert len(world.attempts) == 1
    log.failure = None
    world.turn()
    assert list(world.rows[0].isr) == [1]


def test_a_join_is_repeated_with_the_process_that_caught_up() -> None:
    world = Scripted((1, 2))
    world.script = [world.lose_the_request]
    world.turn()
    world.epochs[3] = 8
    world.poll()
    world.leadership().fetched(3, 8, 3, END_OFFSET, 2, 0, IDS[3])
    world.turn()
    assert [live[3] for _, live in world.attempts] == [3, 3]
    assert world.rows[0].isr == (1, 2), "the process that is there now holds less"
    world.turn()
    assert world.leadership().pending is None
    world.leadership().fetched(3, 8, END_OFFSET, END_OFFSET, 3, 0, IDS[3])
    world.turn()
    assert list(world.rows[0].isr) == [1, 2, 3], "it has caught up by itself"


def test_while_nobody_knows_every_further_loss_keeps_it_counted_and_the_first_answer_ends_it() -> None:
    world = Scripted((1, 2))
    world.script = [world.lose_the_request]
    world.turn()
    world.epochs[3] = 8
    world.turn()
    world.script = [world.lose_the_request] * 3
    for _ in range(3):
        world.turn()
        assert world.counted() == {2, 3}
    world.turn()
    assert world.counted() == {2}
    assert world.rows[0].partition_epoch == 8


def test_a_leader_that_is_not_the_registered_process_learns_nothing_from_being_refused() -> None:
    world = Scripted((1, 2))
    world.script = [world.carry_out_and_lose_the_answer]
    world.turn()
    world.epochs[1] = 9
    for _ in range(3):
        world.turn()
        world.check_counted()


def test_a_broker_that_is_gone_stops_only_the_changes_that_name_it() -> None:
    world = Scripted((1, 2), (1, 3), (1, 2))
    world.epochs[3] = 8
    world.turn()
    assert [list(world.rows[index].isr) for index in range(3)] == [[1, 2], [1, 3, 2], [1, 2]]
    world.check_counted()


def test_changes_that_name_the_same_processes_go_in_few_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership_module, "BATCH_ROWS_MAX", 2)
    world = Scripted(*[(1, 2)] * 5)
    world.turn()
    assert [len(rows) for rows, _ in world.attempts] == [2, 2, 1]
    assert all(row.isr == (1, 2, 3) for row in world.rows.values())


def test_whatever_the_metastore_does_all_who_may_be_in_sync_are_counted() -> None:
    """Requests are lost, answers are lost, requests are carried out late and in any order, processes come and go."""
    for seed in range(300):
        rng = random.Random(seed)
        world = Scripted((1, 2), (1,), (1, 3))
        late: list[Attempt] = []

        def answer(attempt: Attempt) -> list[PartitionRow | None]:
            kind = rng.choice(["done", "done", "lost answer", "late"])  # noqa: B023
            if kind == "done":
                return world.carry_out(attempt)  # noqa: B023
            if kind == "late":
                late.append(attempt)  # noqa: B023
                raise MetastoreUnavailableError("late")
            return world.carry_out_and_lose_the_answer(attempt)  # noqa: B023

        for step in range(40):
            world.script = [answer] * 10
            chance = rng.random()
            if chance < 0.2:
                restarted = rng.choice([2, 3])
                world.epochs[restarted] = 100 + step
            elif chance < 0.4 and late:
                with suppress(StaleError):
                    world.carry_out(late.pop(rng.randrange(len(late))))
            elif chance < 0.6:
                world.saw(list(world.rows.values()))
                world.poll()
            elif chance < 0.8:
                follower = rng.choice([2, 3])
                for index in range(3):
                    end = rng.choice([END_OFFSET, END_OFFSET, 3])
                    epoch = world.epochs[follower]
                    world.leadership(index).fetched(follower, epoch, end, END_OFFSET, step, 0, IDS[follower])
            else:
                world.turn()
            world.check_counted()
        world.script = []
        for _ in range(3):
            world.saw(list(world.rows.values()))
            world.poll()
            world.turn()
        world.saw(list(world.rows.values()))
        assert all(replica.leadership.pending is None for replica in world.replicas), f"seed {seed}"
