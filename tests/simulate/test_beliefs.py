"""Mistakes that are found before anything is lost by them, each with something that looks like it and is none."""

from __future__ import annotations

import random
import uuid
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sexton.compaction.watermarks.checkpoint import encode
from sexton.compaction.watermarks.replica import ReplicaWatermarks
from sexton.ports.metastore import PartitionRow
from sexton.records import batch as batches
from sexton.records.batch import Record
from sexton.simulate import snapshots
from sexton.simulate.beliefs import Joins, Shapes, check_counted, check_damage
from sexton.simulate.copies import Copy
from sexton.simulate.disk import VirtualDisk
from sexton.simulate.errors import SimulationFailure
from sexton.simulate.loop import new_loop
from sexton.simulate.snapshots import Snapshot, Watermarks
from sexton.types import LeaderEpoch

TOPIC = uuid.UUID(int=1)
NODE = cast(Any, SimpleNamespace(name="broker-1", broker_id=1, is_disk_damaged=False, broker=None))


def snapshot(epoch: int, counted: tuple[int, ...] | None, start_offset: int = 0) -> Snapshot:
    known = Watermarks(uuid.UUID(int=9))
    role = "leader" if counted is not None else "follower"
    offsets = (0, 0, start_offset, 0, 0)
    return Snapshot("t", TOPIC, 0, role, counted is not None, epoch, None, *offsets, known, known, False, counted)


def row(isr: tuple[int, ...], leader: int = 1, epoch: int = 4) -> PartitionRow:
    return PartitionRow(TOPIC, 0, (1, 2, 3), isr, leader, LeaderEpoch(epoch), 0)


def test_a_leader_that_does_not_count_one_in_sync_breaks_rule_1() -> None:
    with pytest.raises(SimulationFailure, match=r"does not count \[3\]"):
        check_counted(NODE, snapshot(4, (2,)), row((1, 2, 3)))


@pytest.mark.parametrize(
    ("seen", "agreed"),
    [
        (snapshot(4, (2, 3)), row((1, 2))),
        (snapshot(3, (2,)), row((1, 2, 3))),
        (snapshot(4, (2,)), row((1, 2, 3), leader=2)),
        (snapshot(4, None), row((1, 2, 3))),
    ],
    ids=["counts more than are in sync", "was replaced", "leads no longer", "does not lead"],
)
def test_others_may_be_behind_the_row(seen: Snapshot, agreed: PartitionRow) -> None:
    check_counted(NODE, seen, agreed)


def leads(epoch: int, **heard: int) -> Snapshot:
    """Has heard of these processes, by follower."""
    return snapshot(epoch, (2,))._replace(heard={int(broker.removeprefix("of_")): heard[broker] for broker in heard})


def joins(leader: Snapshot | None, *, before: PartitionRow, after: PartitionRow) -> None:
    """Broker 3, whose present process is 8, joins."""
    known = Joins()
    known.registered(3, 5)
    known.registered(3, 8)
    known.check("broker-1.1", before, leader)
    known.check("broker-1.1", after, leader)


def test_one_that_joins_as_another_process_than_its_leader_has_heard_of_breaks_rule_1() -> None:
    with pytest.raises(SimulationFailure, match="lets process 8 of broker 3 join t-0, and has heard of 5 only"):
        joins(leads(4, of_2=6, of_3=5), before=row((1, 2)), after=row((1, 2, 3)))


@pytest.mark.parametrize(
    ("leader", "before", "after"),
    [
        (leads(4, of_2=6, of_3=8), row((1, 2)), row((1, 2, 3))),
        (leads(4, of_2=6, of_3=5), row((1, 2, 3)), row((1, 2, 3))),
        (leads(4, of_2=6, of_3=5), row((1, 3)), row((1, 2, 3))),
        (leads(4, of_2=6, of_3=5), row((1, 2)), row((1, 2, 3), epoch=5)),
        (leads(3, of_2=6, of_3=5), row((1, 2)), row((1, 2, 3))),
        (None, row((1, 2)), row((1, 2, 3))),
        (snapshot(4, None), row((1, 2)), row((1, 2, 3))),
    ],
    ids=[
        "joins as the one that was heard of",
        "was in sync before",
        "is another one, of which nobody saw the process",
        "comes with another leader",
        "is let in by one that has been replaced",
        "is let in by one that is dead",
        "is let in by an administrator",
    ],
)
def test_others_may_join(leader: Snapshot | None, before: PartitionRow, after: PartitionRow) -> None:
    joins(leader, before=before, after=after)


@pytest.mark.parametrize("is_disk_damaged", [False, True])
def test_only_a_disk_that_did_damage_is_a_reason_to_call_a_log_damaged(
    monkeypatch: pytest.MonkeyPatch, is_disk_damaged: bool
) -> None:
    monkeypatch.setattr(snapshots, "damaged", lambda node: [("t-0", "the CRC does not match")])
    node = cast(Any, SimpleNamespace(name="broker-1", is_disk_damaged=is_disk_damaged))
    if is_disk_damaged:
        check_damage(node)
    else:
        with pytest.raises(SimulationFailure, match="rule 11"):
            check_damage(node)


class Logs:
    """A log on a disk, a record a batch."""

    def __init__(self, *offsets: int) -> None:
        self.loop = new_loop(random.Random(1))
        volume = VirtualDisk(random.Random(1))
        self.disk = volume.of(self.loop.world, self.loop)
        self.disk.make_directory("/data/t-0")
        self.file = self.disk.open("/data/t-0/00000000000000000000.log", create=True)
        self.copy = Copy(volume, "/data/t-0")
        self.shapes = Shapes()
        self.append(*offsets)

    def append(self, *offsets: int) -> None:
        for offset in offsets:
            self.file.append([batches.encode(batches.make_batch([Record(offset, 0, b"k", b"v")], leader_epoch=0))])

    def check(self, *, start_offset: int = 0, is_compacted: bool = False) -> None:
        self.copy.refresh()
        self.shapes.check(NODE, snapshot(0, None, start_offset), self.copy, is_compacted=is_compacted)


def test_a_log_that_is_not_compacted_and_has_a_gap_breaks_rule_4() -> None:
    with pytest.raises(SimulationFailure, match=r"rule 4: .*nothing from 2 to 4"):
        Logs(0, 1, 5).check()


def test_a_gap_is_found_in_what_was_appended_since_the_last_look() -> None:
    logs = Logs(0, 1)
    logs.check()
    logs.append(5)
    with pytest.raises(SimulationFailure, match=r"rule 4: .*nothing from 2 to 4"):
        logs.check()


def test_compaction_may_leave_gaps_and_a_log_may_start_late() -> None:
    Logs(0, 1, 5).check(is_compacted=True)
    Logs(5, 6, 7).check()
    Logs(0, 1, 5).check(start_offset=5)


@pytest.mark.parametrize(("certified", "start_offset", "is_broken"), [(2, 0, False), (3, 0, True), (3, 3, False)])
def test_a_snapshot_above_the_end_of_its_log_breaks_rule_11(certified: int, start_offset: int, is_broken: bool) -> None:
    """A log that starts empty has one where it starts."""
    logs = Logs(0, 1)
    logs.disk.open(f"/data/t-0/{certified:020}.snapshot", create=True)
    if is_broken:
        with pytest.raises(SimulationFailure, match=r"rule 11: .*reached 3"):
            logs.check(start_offset=start_offset)
    else:
        logs.check(start_offset=start_offset)


@pytest.mark.parametrize(("incarnation", "is_broken"), [(9, False), (8, True)])
def test_watermarks_that_are_about_another_log_break_rule_11(incarnation: int, is_broken: bool) -> None:
    logs = Logs(0, 1)
    file = logs.disk.open("/data/t-0/compaction-watermarks", create=True)
    file.append([encode(ReplicaWatermarks(uuid.UUID(int=incarnation)))])
    if is_broken:
        with pytest.raises(SimulationFailure, match=r"rule 11: .*another log's"):
            logs.check()
    else:
        logs.check()
