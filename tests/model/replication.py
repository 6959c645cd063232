"""Clients write, followers copy, replicas fall out of sync and come back."""

from __future__ import annotations

from tests.model import real
from tests.model.coordination import Coordination
from tests.model.errors import Violation
from tests.model.logs import (
    MARKERS,
    NO_LOG,
    SETTLED,
    Log,
    Records,
    below,
    from_on,
    kind_of,
    offset_of,
    record,
    transactions,
)
from tests.model.producers import known_batches, phantom_of, recover, snapshot_at
from tests.model.real import UNKNOWN, History, Marks
from tests.model.state import NOT_HEARD, Broker, Snapshot, World


class Replication(Coordination):
    # Clients

    def append(self, world: World, kind: int, key: int) -> bool:
        leader = world.leader
        if leader < 0 or world.shared.written >= len(self.arena.script):
            return False
        broker = world.brokers[leader]
        if kind in MARKERS and transactions(broker.log.records).first_open < 0:
            return False
        log = broker.log
        one = record(log.end, world.shared.epoch, kind, key)
        world.set(leader, log=Log(log.start, log.end + 1, (*log.records, one)))
        if kind in MARKERS:
            world.set(leader, phantom=-1)
        if self.arena.snapshots:
            world.set(leader, batches=known_batches(broker.batches, (one,)))
        world.share(written=world.shared.written + 1)
        if not self.arena.lazy_flush:
            self.flush(world, leader)
        return True

    def flush(self, world: World, index: int) -> bool:
        broker = world.brokers[index]
        if broker.flushed == broker.log.end:
            return False
        world.set(index, flushed=broker.log.end)
        self.raise_high_watermark(world)
        return True

    def raise_high_watermark(self, world: World) -> None:
        leader = world.leader
        if leader < 0:
            return
        broker = world.brokers[leader]
        others = [one for index, one in enumerate(world.brokers) if index != leader]
        committed = real.committed_end(
            broker.flushed, tuple(one.progress for one in others), tuple(one.in_sync for one in others)
        )
        if committed > broker.high_watermark:
            world.set(leader, high_watermark=committed)
            if committed > world.shared.truth_end:
                new = from_on(below(broker.log.records, committed), world.shared.truth_end)
                world.share(truth=world.shared.truth + new, truth_end=committed)

    # Replication

    def history_of(self, broker: Broker) -> History:
        return broker.history if self.rules.history_copied_whole else real.derived_history(broker.log.records)

    def fetch(self, world: World, index: int, count: int) -> bool:
        """`count` records at most, 0 for all. One request and its answer: what the follower holds then, the leader
        hears at the next one."""
        leader = world.leader
        follower = world.brokers[index]
        if leader in (-1, index) or not self.is_replica(follower):
            return False
        if follower.flushed < follower.log.end:
            follower = world.set(index, flushed=follower.log.end)
        source = world.brokers[leader]
        ours, theirs = self.history_of(follower), self.history_of(source)
        if not real.lies_on(follower.log.end, ours, source.log.start, theirs, source.log.end):
            self._truncate(world, index, follower, source)
            return True
        if not self._passes_fence(world, index, source.marks):
            return self.order_wipe(world, index)
        world.set(index, progress=world.brokers[index].log.end)
        if not follower.heard and self.is_coordinated(world):
            self.hear(world, leader, index, self.report_of(world.brokers[index]), is_old=False)
        self.raise_high_watermark(world)
        self._copy(world, index, world.brokers[leader], count)
        return True

    def _truncate(self, world: World, index: int, follower: Broker, source: Broker) -> None:
        log, theirs = follower.log, source.log
        shared = real.common_end(
            self.history_of(follower), log.start, log.end, self.history_of(source), theirs.start, theirs.end
        )
        shared = min(shared, log.end)
        cut = cut_log(log, shared)
        marks = follower.marks
        if shared < theirs.start:
            cut = Log(theirs.start, theirs.start, ())
            marks = self.started_at(marks, theirs.start)
            follower = world.set(index, snapshots=(), batches=())
        elif theirs.start > log.start and self.rules.start_before_history:
            cut = Log(theirs.start, cut.end, from_on(cut.records, theirs.start))
            marks = self.started_at(marks, theirs.start)
            follower = world.set(index, snapshots=self.snapshots_from(follower, theirs.start))
        high_watermark = max(min(follower.high_watermark, shared), cut.start)
        snapshots = tuple(one for one in follower.snapshots if one.offset <= cut.end)
        recovered = recover(cut.records, snapshots)
        world.set(
            index,
            log=cut,
            flushed=cut.end,
            history=source.history,
            high_watermark=high_watermark,
            snapshots=snapshots,
            batches=recovered.batches if self.arena.snapshots else (),
            phantom=phantom_of(recovered, cut.records),
        )
        self.set_marks(world, index, marks)

    def _passes_fence(self, world: World, index: int, leaders: Marks) -> bool:
        follower = world.brokers[index]
        is_empty = not follower.log.records
        if is_empty:
            self.set_marks(world, index, self.told_while_empty(follower.marks, leaders))
            follower = world.brokers[index]
        if not self.rules.fetch_fence or not self.is_coordinated(world):
            return True
        in_sync = follower.in_sync or not self.rules.fence_asks_for_progress
        if real.may_copy(leaders, follower.log.end, is_empty, self.report_of(follower), in_sync):
            return True
        if follower.in_sync:
            raise Violation("fence", f"the fence turns away broker {index}, which is in sync")
        return False

    def order_wipe(self, world: World, index: int) -> bool:
        """A replica out of sync starts again from nothing, as a new incarnation."""
        follower = world.brokers[index]
        if follower.registered >= self.arena.incarnations_max:
            return False
        leader = world.brokers[world.leader].marks
        number = follower.registered + 1
        self.empty(world, index, number)
        self.set_marks(world, index, self.told_while_empty(Marks(number, leader.generation), leader))
        return True

    def _copy(self, world: World, index: int, source: Broker, count: int) -> None:
        follower = world.brokers[index]
        log, leaders = follower.log, source.log
        new = from_on(leaders.records, log.end)
        if count:
            new = new[:count]
        if not self.rules.settled_is_no_error:
            new = _accepted(log.records, new)
        end = offset_of(new[-1]) + 1 if new else log.end
        start = max(log.start, leaders.start)
        marks = follower.marks
        if self.rules.told_before_records:
            marks = self.told_by(marks, source.marks)
        if self.rules.join_waits_for_planned:
            marks = real.with_plan(marks, source.marks.planned)
        if start > log.start:
            marks = self.started_at(marks, start)
        reached = min(source.high_watermark, end)
        if self.rules.high_watermark_never_back:
            planned = marks.planned if self.rules.planned_high_watermark else 0
            reached = max(reached, follower.high_watermark, min(planned, end))
        world.set(
            index,
            log=Log(start, end, from_on(log.records + new, start)),
            flushed=end,
            history=real.cut_history_start(source.history, start) if start else source.history,
            high_watermark=max(reached, start),
            phantom=-1 if any(kind_of(one) in MARKERS for one in new) else follower.phantom,
            batches=known_batches(follower.batches, new) if self.arena.snapshots else (),
        )
        if start > log.start:
            world.set(index, snapshots=self.snapshots_from(world.brokers[index], start))
        self.set_marks(world, index, marks)

    def shrink(self, world: World, index: int) -> bool:
        follower = world.brokers[index]
        if world.leader in (-1, index) or not follower.in_sync:
            return False
        world.set(index, in_sync=False)
        self.raise_high_watermark(world)
        return True

    def join(self, world: World, index: int) -> bool:
        leader = world.leader
        follower = world.brokers[index]
        if leader in (-1, index) or follower.in_sync or not self.is_replica(follower) or follower.progress < 0:
            return False
        source = world.brokers[leader]
        epoch_start = source.history[-1][1] if source.history else 0
        joins_at = follower.marks.planned if self.rules.join_waits_for_planned else 0
        if not real.has_caught_up(follower.progress, source.high_watermark, epoch_start, joins_at):
            return False
        world.set(index, in_sync=True)
        return True

    def move_start(self, world: World, offset: int) -> bool:
        """Retention, or DeleteRecords."""
        leader = world.leader
        if leader < 0:
            return False
        broker = world.brokers[leader]
        if not broker.log.start < offset <= self.stable(broker):
            return False
        self.set_marks(world, leader, self.started_at(broker.marks, offset))
        world.set(
            leader,
            log=Log(offset, broker.log.end, from_on(broker.log.records, offset)),
            history=real.cut_history_start(broker.history, offset),
            snapshots=self.snapshots_from(broker, offset),
        )
        return True

    def started_at(self, marks: Marks, offset: int) -> Marks:
        return real.with_log_start(marks, offset) if self.rules.compacted_not_below_start else marks

    def kept_snapshots(self, broker: Broker, offset: int) -> tuple[Snapshot, ...]:
        if not self.rules.snapshots_below_bound_go:
            return broker.snapshots
        return tuple(one for one in broker.snapshots if one.offset >= offset)

    def snapshots_from(self, broker: Broker, offset: int) -> tuple[Snapshot, ...]:
        """Where a segment of one's own starts, a producer snapshot was taken."""
        kept = self.kept_snapshots(broker, offset)
        return tuple(sorted({*kept, snapshot_at(broker, offset)})) if self.arena.snapshots else kept

    def empty(self, world: World, index: int, number: int) -> None:
        marks = Marks(number, world.shared.generation)
        world.set(
            index,
            registered=number,
            incarnation=number,
            in_sync=False,
            log=NO_LOG,
            flushed=0,
            history=(),
            high_watermark=0,
            snapshots=(),
            phantom=-1,
            batches=(),
            known=UNKNOWN,
            heard=False,
            progress=NOT_HEARD,
            reading=(),
            marks=marks,
            durable=marks,
        )


def cut_log(log: Log, end: int) -> Log:
    return log if end >= log.end else Log(log.start, max(end, log.start), below(log.records, end))


def _accepted(held: Records, new: Records) -> Records:
    """The mistake of a follower that takes a settled batch of a producer with an open transaction for an error."""
    for count, one in enumerate(new):
        if kind_of(one) in SETTLED and transactions(held + new[:count]).first_open >= 0:
            return new[:count]
    return new
