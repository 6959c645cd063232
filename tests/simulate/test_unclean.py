"""Who may lead without being in sync, and who may not."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from sexton.ports.metastore import PartitionRow
from sexton.simulate.errors import SimulationFailure
from sexton.simulate.unclean import UncleanElections
from sexton.types import NO_LEADER, LeaderEpoch

ROW = PartitionRow(uuid.UUID(int=1), 0, (1, 2, 3), (1, 2), 1, LeaderEpoch(0), 0)


def after(elections: UncleanElections, *rows: PartitionRow) -> bool:
    """What the last of them is."""
    return [elections.is_one("t", row) for row in rows][-1]


def test_one_who_was_in_sync_leads_cleanly() -> None:
    alone = replace(ROW, isr=(2,), leader=NO_LEADER)
    assert not after(UncleanElections(()), ROW, alone, replace(alone, leader=2))


def test_one_who_was_not_in_sync_leads_where_the_topic_allows_it() -> None:
    alone = replace(ROW, isr=(1,), leader=NO_LEADER)
    assert after(UncleanElections({"t"}), ROW, alone, replace(alone, leader=3, isr=(3,)))
    assert not after(UncleanElections({"t"}), ROW, alone, replace(alone, leader=1))


@pytest.mark.parametrize("isr", [(3,), (1, 3)])
def test_one_who_was_not_in_sync_leads_nowhere_else(isr: tuple[int, ...]) -> None:
    with pytest.raises(SimulationFailure, match=r"3 leads t-0, in sync were \[1, 2\]"):
        after(UncleanElections({"another"}), ROW, replace(ROW, leader=3, isr=isr))


def test_an_operator_may_force_it_in_a_new_generation_and_only_then() -> None:
    forced = replace(ROW, leader=3, isr=(3,), generation=1)
    assert not after(UncleanElections(()), ROW, forced)
    with pytest.raises(SimulationFailure):
        after(UncleanElections(()), ROW, forced, replace(forced, leader=2, isr=(2,)))


@pytest.mark.parametrize(
    ("row", "is_one"),
    [
        (replace(ROW, replicas=(1, 3), isr=(1,)), True),
        (replace(ROW, replicas=(1, 2)), False),
        (replace(ROW, isr=(1,)), False),
    ],
    ids=["an in-sync one", "another", "nobody: it left the ISR"],
)
def test_only_who_is_no_replica_any_more_was_removed(row: PartitionRow, is_one: bool) -> None:
    elections = UncleanElections(())
    elections.is_one("t", ROW)
    assert elections.removes_in_sync(row) == is_one
