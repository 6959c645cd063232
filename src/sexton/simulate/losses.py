"""When a partition may lose what was acknowledged, and what exactly.

Three things excuse a loss, and nothing else does:

- *power*: its topic acknowledges before the flush, and every in-sync replica has lost power (or its disk failed)
  since it joined, or an operator has removed those that have not. A join that its leader had decided on may be carried
  out when the process that it names has just lost power: that is as if it had been a moment later. What was left on the
  disk of whoever leads next must still be there.
- *an unclean election*: its topic allows those, and the controller has made a leader of a replica that was not in
  sync. What that replica shares with what was committed must still be there.
- *force*: an operator has made a leader of a replica that was not in sync: a new generation. What was on its disk by
  then must still be there.

From that moment on the partition is *in doubt*: nobody can tell what is left, until a leader of a later epoch goes on
with its own log. Where that parts from what had been committed begins a new *line*. What lies above, and was written
before, is lost; a replica may still hold it while it is not in sync. All the rest is promised as ever, and so is all
that follows. What the leader itself holds above belongs to its line, and is promised again: a second unclean election
may bring back what the first one lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from sexton.ports.metastore import PartitionRow
from sexton.simulate.errors import SimulationFailure
from sexton.simulate.history import History
from sexton.simulate.snapshots import Snapshot
from sexton.types import PartitionId, TopicPartition


class Line(NamedTuple):
    """From `offset` on, what is committed is of this leader epoch or a later one, or what its first leader had."""

    offset: int
    leader_epoch: int
    kept: frozenset[tuple[int, int]] = frozenset()
    """Base offset and leader epoch of the batches that its first leader held there when it began. A leader that was
    not in sync goes on with all it has: what nobody had committed, and what an earlier line had left behind."""


class Doubt(NamedTuple):
    first_epoch: int
    """The first leader epoch that shows what is left."""
    is_forced: bool


class Forced(NamedTuple):
    """A leader that an operator has chosen, and what it has to go on with."""

    broker_id: int
    first_epoch: int
    left_end: int
    """Where the log ended that was on its disk when it was chosen, or that a power loss has left of it since."""


@dataclass(slots=True)
class Losses:
    history: History
    doubts: dict[PartitionId, Doubt] = field(default_factory=dict)
    suspects: dict[PartitionId, dict[int, int]] = field(default_factory=dict)
    """Of topics that acknowledge before the flush: who lost power while in sync and has not joined anew, or caught up,
    since; and where the log ended that was left on its disk."""
    lines: dict[PartitionId, list[Line]] = field(default_factory=dict)
    _outside: dict[PartitionId, dict[int, int]] = field(default_factory=dict)
    """The same of those who lost power while not in sync, or have left the ISR since, until their next process has
    registered."""
    _dead: set[int] = field(default_factory=set)
    """Brokers that lost power and have not registered since."""
    _forced: dict[PartitionId, Forced] = field(default_factory=dict)
    """Forced elections, by the partition that is in doubt because of one."""

    def power_lost(self, key: PartitionId, row: PartitionRow, broker_id: int, left_end: int) -> None:
        self._dead.add(broker_id)
        known = self.suspects if broker_id in row.isr else self._outside
        known.setdefault(key, {})[broker_id] = left_end

    def registered(self, broker_id: int) -> None:
        """A process has: from here on nobody may take it for the one before."""
        self._dead.discard(broker_id)
        for outside in self._outside.values():
            outside.pop(broker_id, None)

    def isr_changed(self, key: PartitionId, row: PartitionRow) -> None:
        """Whoever is no longer in sync and comes back has copied what it lost: unless it is dead since."""
        outside = self._outside.setdefault(key, {})
        for broker_id in [broker for broker in self.suspects.get(key, ()) if broker not in row.isr]:
            left_end = self.suspects[key].pop(broker_id)
            if broker_id in self._dead:
                outside[broker_id] = left_end  # its leader may add it again before it hears that it is gone
        for broker_id in [broker for broker in row.isr if broker in outside]:
            self.suspects.setdefault(key, {})[broker_id] = outside.pop(broker_id)

    def is_suspect(self, key: PartitionId, broker_id: int) -> bool:
        return broker_id in self.suspects.get(key, ())

    def caught_up(self, key: PartitionId, broker_id: int) -> None:
        self.suspects.get(key, {}).pop(broker_id, None)

    def elected_uncleanly(self, key: PartitionId, broker_id: int, shared_end: int) -> None:
        """Of what is on its disk only that counts which had been committed: the rest may be of a line that was given up
        before, or that nobody has committed."""
        for known in (self.suspects.get(key, {}), self._outside.get(key, {})):
            if broker_id in known:
                known[broker_id] = min(known[broker_id], shared_end)

    def is_any_left(self, key: PartitionId, row: PartitionRow) -> bool:
        """Whether an in-sync replica has everything."""
        return not self.suspects.get(key, {}).keys() >= set(row.isr)

    def doubt(self, key: PartitionId, place: TopicPartition, first_epoch: int, *, is_forced: bool) -> None:
        known = self.doubts.get(key)
        is_forced = is_forced or (known is not None and known.is_forced)
        self.doubts[key] = Doubt(first_epoch, is_forced)
        self.history.doubtful.add(place)

    def is_shown_by(self, key: PartitionId, replica: Snapshot) -> bool:
        doubt = self.doubts.get(key)
        return doubt is not None and replica.is_leader and replica.leader_epoch >= doubt.first_epoch

    def settle(self, key: PartitionId, place: TopicPartition) -> Forced | None:
        """Returns who was forced on the partition, if somebody was."""
        del self.doubts[key]
        self.history.doubtful.discard(place)
        return self._forced.pop(key, None)

    def force(self, key: PartitionId, broker_id: int, first_epoch: int, left_end: int) -> None:
        self._forced[key] = Forced(broker_id, first_epoch, left_end)

    def forced_on(self, broker_id: int) -> list[PartitionId]:
        """The partitions that this broker was chosen for and does not lead yet."""
        return [key for key, forced in self._forced.items() if forced.broker_id == broker_id]

    def left(self, key: PartitionId, left_end: int) -> None:
        """A leader that was chosen has lost some of what it had."""
        forced = self._forced[key]
        self._forced[key] = forced._replace(left_end=min(forced.left_end, left_end))

    def left_on(self, key: PartitionId, broker_id: int) -> int:
        """Where the log ended that a loss of power left on that broker's disk."""
        return self.suspects.get(key, {}).get(broker_id, 0)

    @staticmethod
    def check_left(where: str, left_end: int, goes_on_from: int, committed_end: int) -> None:
        """Rule 1: a leader that lost power, or was forced, goes on from no less than its disk still had."""
        left = min(left_end, committed_end)
        if goes_on_from < left:
            raise SimulationFailure("rule 1", f"{where} goes on from {goes_on_from}, but {left} was left on its disk")

    def begin_line(self, key: PartitionId, place: TopicPartition, line: Line, at_ns: int) -> None:
        self.lines.setdefault(key, []).append(line)
        self.history.lost(place, line.offset, at_ns)

    def begin_generation(self, key: PartitionId) -> None:
        """All that a forced leader has counts from here on, also what was given up while it was away: it may never have
        heard of that."""
        self.lines.pop(key, None)

    def is_left_behind(self, key: PartitionId, offset: int, leader_epoch: int) -> bool:
        """Whether a batch is of a line that was given up. The latest line that reaches so far down decides."""
        for line in reversed(self.lines.get(key, ())):
            if offset >= line.offset:
                return leader_epoch < line.leader_epoch and (offset, leader_epoch) not in line.kept
        return False

    def brings_back(self, key: PartitionId, line: Line) -> bool:
        """Whether its leader goes on with something that was given up before."""
        return any(self.is_left_behind(key, offset, epoch) for offset, epoch in line.kept)
