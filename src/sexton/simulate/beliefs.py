"""What brokers believe, held against what is so, before anything is lost by it.

A loss needs a mistake and then a few deaths in the right order; most mistakes are followed by none. These look at the
mistake itself:

- rule 1: a leader counts every replica that is in sync by the metastore's own row, and lets nobody join but the process
  that it has heard of: another one on the same machine may hold less,
- rule 4: offsets of a log that is not compacted follow each other, on every disk, in sync or not,
- rule 11: a log is called damaged only where the disk has damaged it, and what says up to where a log was flushed (a
  producer snapshot) says so of a log that reaches there; nobody goes on by name in a directory that he has deleted,
  which may be the next log's by then, and what lies beside a log is about that log.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sexton.ports.metastore import PartitionRow
from sexton.simulate import snapshots
from sexton.simulate.cluster import Node
from sexton.simulate.copies import Copy
from sexton.simulate.errors import SimulationFailure
from sexton.simulate.snapshots import Snapshot
from sexton.types import PartitionId

SNAPSHOT_SUFFIX = ".snapshot"
WATERMARKS_FILE = "compaction-watermarks"
NAMES_ITS_LOG = "compaction-leftovers"
"""A note that no other log believes: beside the next one it costs one more pass, and nothing else."""


def check_counted(node: Node, replica: Snapshot, row: PartitionRow) -> None:
    """Only the leader adds replicas to its ISR, and it counts them before it asks for that: whatever became of what it
    asked, they count."""
    if replica.counted is None or row.leader != node.broker_id or row.leader_epoch != replica.leader_epoch:
        return
    forgotten = [member for member in row.isr if member != node.broker_id and member not in replica.counted]
    if forgotten:
        raise SimulationFailure(
            "rule 1",
            f"{node.name} leads {replica.name} and does not count {forgotten}, in sync are {list(row.isr)}",
        )


@dataclass(slots=True)
class Joins:
    """Of rows as they are carried out, and of the processes that are registered by then (KIP-903)."""

    _rows: dict[PartitionId, PartitionRow] = field(default_factory=dict)
    _processes: dict[int, int] = field(default_factory=dict)

    def registered(self, broker_id: int, broker_epoch: int) -> None:
        self._processes[broker_id] = broker_epoch

    def check(self, who: str, row: PartitionRow, leader: Snapshot | None) -> None:
        """`leader` is the replica of whoever asked for this, if that is its leader."""
        key = (row.topic_id, row.partition)
        before, self._rows[key] = self._rows.get(key), row
        if before is None or leader is None or leader.heard is None:
            return
        if not leader.leader_epoch == before.leader_epoch == row.leader_epoch:
            return
        for broker_id in row.isr:
            if broker_id in before.isr or broker_id not in self._processes:
                continue
            joins, heard = self._processes[broker_id], leader.heard.get(broker_id)
            if joins != heard:
                one = f"process {joins} of broker {broker_id}"
                raise SimulationFailure("rule 1", f"{who} lets {one} join {leader.name}, and has heard of {heard} only")


def check_damage(node: Node) -> None:
    """A torn or scattered write is no damage: what was not flushed is cut."""
    if node.is_disk_damaged:
        return
    for name, what in snapshots.damaged(node):
        raise SimulationFailure("rule 11", f"{node.name} calls {name} damaged, and nothing has damaged it: {what}")


def check_strays(node: Node) -> None:
    """Most find nothing there, and give up. One in many finds the next log of that name."""
    for process, path in node.volume.strays:
        if not path.endswith(NAMES_ITS_LOG):
            raise SimulationFailure("rule 11", f"{process} goes on with {path}, which it has deleted")


@dataclass(slots=True)
class _Followed:
    """How far a copy has been looked at, and at which version."""

    copy: Copy
    version: int
    end_offset: int | None = None


@dataclass(slots=True)
class Shapes:
    """Of logs that brokers have open: what lies on their disks has the shape of a log."""

    _followed: dict[tuple[str, PartitionId], _Followed] = field(default_factory=dict)

    def check(self, node: Node, replica: Snapshot, copy: Copy, *, is_compacted: bool) -> None:
        where = f"{node.name}: {replica.name}"
        if not is_compacted:
            self._check_gaps(where, (node.name, replica.key), replica, copy)
        certified = max((int(name.removesuffix(SNAPSHOT_SUFFIX)) for name in copy.names(SNAPSHOT_SUFFIX)), default=0)
        end = max(copy.end_offset, replica.start_offset)
        if certified > end:
            raise SimulationFailure(
                "rule 11", f"{where} ends at {end}, but a snapshot says that it reached {certified}"
            )
        about = b"incarnation %s\n" % str(replica.kept.incarnation).encode()
        watermarks = copy.content(WATERMARKS_FILE)
        if watermarks is not None and about not in watermarks:
            raise SimulationFailure("rule 11", f"{where}: the watermarks beside it are another log's")

    def _check_gaps(self, where: str, place: tuple[str, PartitionId], replica: Snapshot, copy: Copy) -> None:
        known = self._followed.get(place)
        if known is None or known.copy is not copy or known.version != copy.version:
            known = self._followed[place] = _Followed(copy, copy.version)
        for entry in copy.entries_from(max(replica.start_offset, known.end_offset or 0)):
            expected = known.end_offset
            if expected is not None and entry.base_offset > max(expected, replica.start_offset):
                raise SimulationFailure("rule 4", f"{where} has nothing from {expected} to {entry.base_offset - 1}")
            known.end_offset = entry.last_offset + 1
