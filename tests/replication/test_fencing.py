"""A follower that the fence turned away leaves the in-sync set and gets a new id, in one compare-and-set."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from sexton.ports.metastore import MetastoreUnavailableError, PartitionRow
from sexton.replication.leadership import Leadership
from sexton.replication.membership import Membership
from sexton.types import LeaderEpoch
from tests.replication.hosts import LoneHost

TOPIC = uuid.UUID(int=1)
IDS = {broker: uuid.UUID(int=10 + broker, version=4) for broker in (1, 2, 3)}
ROW = PartitionRow(TOPIC, 0, (1, 2, 3), (1, 2, 3), 1, LeaderEpoch(5), 7, incarnations=IDS)


class Fenced:
    def __init__(self) -> None:
        self.row = ROW
        self.written: list[PartitionRow] = []
        self.is_away = False
        self.replica: Any = SimpleNamespace(
            topic="t",
            topic_id=TOPIC,
            partition=0,
            row=ROW,
            leadership=Leadership(ROW, 1, 0, 0),
            high_watermark=0,
            log=SimpleNamespace(end_offset=0),
        )
        self.membership = Membership(LoneHost(metastore=cast(Any, self)), self, 1 << 40)

    def all(self) -> list[Any]:
        return [self.replica]

    def rows_written(self, rows: Sequence[PartitionRow]) -> None:
        pass

    async def update_partitions(self, rows: Sequence[PartitionRow], live: Any) -> list[PartitionRow | None]:
        self.written += rows
        if self.is_away:
            raise MetastoreUnavailableError("away")
        return [replace(row, partition_epoch=row.partition_epoch + 1) for row in rows]

    def turn(self) -> list[PartitionRow]:
        before = len(self.written)
        asyncio.run(self.membership.step())
        return self.written[before:]


def test_it_leaves_the_isr_and_its_log_gets_a_new_id() -> None:
    fenced = Fenced()
    fenced.membership.fence(fenced.replica, 2)
    (row,) = fenced.turn()
    assert row.isr == (1, 3)
    assert row.incarnations[2] not in IDS.values()
    assert {1: row.incarnations[1], 3: row.incarnations[3]} == {1: IDS[1], 3: IDS[3]}
    assert row.partition_epoch == ROW.partition_epoch, "what compare-and-set compares"


def test_a_change_whose_answer_was_lost_is_asked_for_again_with_the_same_id() -> None:
    fenced = Fenced()
    fenced.is_away = True
    fenced.membership.fence(fenced.replica, 2)
    (first,) = fenced.turn()
    (second,) = fenced.turn()
    assert first == second


def test_one_that_has_a_new_log_already_is_left_alone() -> None:
    fenced = Fenced()
    fenced.membership.fence(fenced.replica, 2)
    fenced.replica.row = replace(ROW, partition_epoch=8, incarnations={**IDS, 2: uuid.UUID(int=99, version=4)})
    fenced.replica.leadership.follow_row(fenced.replica.row, now_ms=1)
    assert fenced.turn() == []


def test_what_one_leadership_turned_away_is_no_business_of_the_next() -> None:
    """Under another leader it may have caught up, and be in sync by now."""
    fenced = Fenced()
    fenced.membership.fence(fenced.replica, 2)
    fenced.replica.row = replace(ROW, partition_epoch=9, leader_epoch=LeaderEpoch(6))
    fenced.replica.leadership = Leadership(fenced.replica.row, 1, 0, 0)
    assert fenced.turn() == []


def test_the_leader_itself_is_never_sent_away() -> None:
    fenced = Fenced()
    fenced.membership.fence(fenced.replica, 1)
    assert fenced.turn() == []
