"""What brokers, clients and operators do to the partition: replication, elections, crashes, membership, coordination.

Every action is a method that changes a world, or returns False if it is not possible there.
"""

from __future__ import annotations

from sexton.watermarks.replica import NOTHING
from tests.model import real
from tests.model.arenas import Arena
from tests.model.errors import Violation
from tests.model.logs import (
    MARKERS,
    NO_LOG,
    SETTLED,
    TRANSACTIONAL,
    Log,
    Records,
    after_time,
    below,
    from_on,
    kind_of,
    offset_of,
    record,
    transactions,
    view,
)
from tests.model.real import UNKNOWN, History, Marks
from tests.model.state import NOT_HEARD, Broker, Image, Plan, Snapshot, World
from tests.model.switches import Rules

BATCHES_KNOWN = 2
"""Kafka's brokers know the last five batches of a producer. Two show the same."""


class Cluster:
    def __init__(self, arena: Arena, rules: Rules) -> None:
        self.arena = arena
        self.rules = rules

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
            self._hear(world, leader, index, self.report_of(world.brokers[index]), is_old=False)
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
        if not follower.log.records:
            self.set_marks(world, index, self.told_while_empty(follower.marks, leaders))
            return True
        if not self.rules.fetch_fence or not self.is_coordinated(world):
            return True
        in_sync = follower.in_sync or not self.rules.fence_asks_for_progress
        if real.may_copy(leaders, follower.log.end, self.report_of(follower), in_sync):
            return True
        if follower.in_sync:
            raise Violation("fence", f"the fence turns away broker {index}, which is in sync")
        return False

    def told_while_empty(self, marks: Marks, leaders: Marks) -> Marks:
        planned = leaders.planned if self.rules.join_waits_for_planned else 0
        fence = leaders.fence if self.rules.told_before_records else 0
        return real.told_while_empty(marks, leaders.generation, leaders.removable, fence, planned)

    def order_wipe(self, world: World, index: int) -> bool:
        """A replica out of sync starts again from nothing, as a new incarnation."""
        follower = world.brokers[index]
        if follower.registered >= self.arena.incarnations_max:
            return False
        leader = world.brokers[world.leader].marks
        number = follower.registered + 1
        self._empty(world, index, number)
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

    # Elections

    def elect(self, world: World, index: int) -> bool:
        broker = world.brokers[index]
        if broker.leads or not broker.in_sync or not self.is_replica(broker):
            return False
        return self._lead(world, index)

    def _lead(self, world: World, index: int) -> bool:
        epoch = world.shared.epoch + 1
        if epoch > self.arena.epochs_max:
            return False
        world.share(epoch=epoch)
        for other in range(3):
            world.set(other, leads=other == index, known=UNKNOWN, heard=False, progress=NOT_HEARD)
        broker = world.brokers[index]
        world.set(index, flushed=broker.log.end, history=real.begin_epoch(broker.history, epoch, broker.log.end))
        self.raise_high_watermark(world)
        return True

    def force(self, world: World, index: int) -> bool:
        """An operator elects a replica that is not in sync, because none that is will come back."""
        broker = world.brokers[index]
        if world.leader >= 0 or broker.in_sync or not self.is_replica(broker):
            return False
        if world.shared.generation >= self.arena.generations_max or world.shared.epoch >= self.arena.epochs_max:
            return False
        generation = world.shared.generation + 1
        world.share(generation=generation)
        for other in range(3):
            world.set(other, in_sync=other == index)
        if self.rules.generations:
            self.set_marks(world, index, real.with_forced_election(broker.marks, generation, broker.log.end))
            for other in range(3):
                if other != index and world.brokers[other].member:
                    self._empty(world, other, world.brokers[other].registered + 1)
        log = world.brokers[index].log
        world.set(index, high_watermark=log.end)
        world.share(truth=log.records, truth_end=log.end, consumer=())
        return self._lead(world, index)

    # Crashes and disks

    def crash(self, world: World, index: int) -> bool:
        """A broker dies and starts again. (One that is down is one that does nothing: that needs no state.)"""
        broker = world.brokers[index]
        if broker.leads:
            for other in range(3):
                world.set(other, known=UNKNOWN, heard=False, progress=NOT_HEARD)
        log = cut_log(broker.log, broker.flushed)
        recovered = recover(log.records, broker.snapshots)
        marks = broker.durable
        if not self.rules.planned_high_watermark:
            marks = marks._replace(planned=0)
        world.set(
            index,
            leads=False,
            log=log,
            history=real.cut_history(broker.history, log.end) if log.end < broker.log.end else broker.history,
            marks=marks,
            durable=marks,
            high_watermark=max(log.start, min(marks.planned, log.end)),
            progress=broker.progress if broker.in_sync else NOT_HEARD,
            phantom=phantom_of(recovered, log.records),
            batches=recovered.batches if self.arena.snapshots else (),
            plan=broker.plan if self.arena.plans else (),
            reading=(),
            heard=False,
            late_is_old=bool(broker.late),
        )
        if broker.leads:
            world.set(index, progress=NOT_HEARD)
        return True

    def lose_disk(self, world: World, index: int) -> bool:
        """A broker starts with a new, empty disk. Its replica leaves the ISR, never as its last member."""
        broker = world.brokers[index]
        if not broker.member or not broker.log.records:
            return False
        if broker.in_sync and sum(one.in_sync for one in world.brokers) == 1:
            return False
        if broker.registered >= self.arena.incarnations_max:
            return False
        number = broker.registered + 1 if self.rules.incarnations else broker.registered
        self.crash(world, index)
        known = world.brokers[index].known
        self._empty(world, index, number)
        if not self.rules.incarnations:
            world.set(index, known=known)
        return True

    def take_image(self, world: World, index: int) -> bool:
        broker = world.brokers[index]
        if broker.image or not broker.log.records:
            return False
        log = cut_log(broker.log, broker.flushed)
        world.set(index, image=Image(broker.incarnation, log, broker.history, broker.durable))
        return True

    def restore_image(self, world: World, index: int) -> bool:
        """A broker starts with an old disk. One in sync would lose what it acknowledged: no operator may do that."""
        broker = world.brokers[index]
        image = broker.image
        if broker.in_sync or not isinstance(image, Image):
            return False
        world.set(
            index,
            incarnation=image.incarnation,
            log=image.log,
            flushed=image.log.end,
            history=image.history,
            marks=image.marks,
            durable=image.marks,
            high_watermark=max(image.log.start, min(image.marks.planned, image.log.end)),
            image=(),
            snapshots=(),
            phantom=-1,
            batches=(),
            progress=NOT_HEARD,
            heard=False,
            late_is_old=bool(broker.late),
            reading=(),
        )
        if image.incarnation != broker.registered:
            self._open_other(world, index)
        return True

    def remove(self, world: World, index: int) -> bool:
        broker = world.brokers[index]
        if broker.leads or not broker.member:
            return False
        if broker.in_sync and sum(one.in_sync for one in world.brokers) == 1:
            return False
        self.crash(world, index)
        world.set(index, member=False, in_sync=False, known=UNKNOWN, heard=False, progress=NOT_HEARD)
        self.raise_high_watermark(world)
        return True

    def add(self, world: World, index: int) -> bool:
        broker = world.brokers[index]
        if broker.member or broker.registered >= self.arena.incarnations_max:
            return False
        world.set(index, member=True, registered=broker.registered + 1, known=UNKNOWN, progress=NOT_HEARD)
        self._open_other(world, index)
        return True

    def _open_other(self, world: World, index: int) -> None:
        """A broker opens a log that is not the one that the metastore means."""
        broker = world.brokers[index]
        number, generation = broker.registered, world.shared.generation
        if not self.rules.only_empty_starts_at_removable:
            leaders = world.brokers[world.leader].marks if world.leader >= 0 else broker.marks
            world.set(index, incarnation=number)
            self.set_marks(world, index, self.told_while_empty(Marks(number, generation), leaders))
        elif not self.rules.other_incarnation_is_wiped:
            world.set(index, incarnation=number)
            self.set_marks(world, index, broker.marks._replace(incarnation=number))
        else:
            self._empty(world, index, number)

    def _empty(self, world: World, index: int, number: int) -> None:
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

    # Coordination

    def report(self, world: World, index: int) -> bool:
        leader = world.leader
        follower = world.brokers[index]
        if leader in (-1, index) or not self.is_replica(follower) or not self.is_coordinated(world):
            return False
        self._hear(world, leader, index, self.report_of(follower), is_old=False)
        return True

    def delay_report(self, world: World, index: int) -> bool:
        follower = world.brokers[index]
        if not self.is_replica(follower) or follower.marks.compacted == NOTHING:
            return False
        world.set(index, late=self.report_of(follower), late_is_old=False)
        return True

    def deliver_report(self, world: World, index: int) -> bool:
        """However late, and any number of times."""
        late = world.brokers[index].late
        leader = world.leader
        if leader in (-1, index) or not late or not world.brokers[index].member:
            return False
        self._hear(world, leader, index, late, is_old=world.brokers[index].late_is_old)
        return True

    def _hear(self, world: World, leader: int, index: int, report: real.Report, is_old: bool) -> None:
        follower = world.brokers[index]
        if not self.rules.incarnations:
            report = (follower.registered, *report[1:])
        if not self.rules.generations:
            report = (report[0], world.brokers[leader].marks.generation, report[2])
        process, heard = int(not is_old), int(follower.heard)
        if not self.rules.reports_by_process:
            process = heard = 0
        leaders = world.brokers[leader].marks
        known = real.after_report(leaders, follower.registered, follower.known, heard, report, process)
        is_about_it = report[:2] == (follower.registered, leaders.generation)
        world.set(index, known=known, heard=follower.heard or (is_about_it and not is_old))
        self.coordinate(world)

    def coordinate(self, world: World) -> bool:
        leader = world.leader
        if leader < 0 or not self.is_coordinated(world):
            return False
        broker = world.brokers[leader]
        followers = [
            (one.registered, one.known)
            for index, one in enumerate(world.brokers)
            if index != leader and one.member and (one.known != UNKNOWN or self.rules.silent_replicas_count)
        ]
        removable = real.computed(broker.marks, tuple(followers))
        if removable == broker.marks.removable:
            return False
        self._tell(world, leader, broker.marks._replace(mtro=removable.keys, mxro=removable.transactions))
        return True

    def tell(self, world: World, index: int) -> bool:
        leader = world.leader
        if leader in (-1, index) or not self.is_replica(world.brokers[index]) or not self.is_coordinated(world):
            return False
        self._tell(world, index, world.brokers[leader].marks)
        return True

    def delay_telling(self, world: World) -> bool:
        leader = world.leader
        if leader < 0 or world.brokers[leader].marks.removable == NOTHING:
            return False
        world.share(telling=world.brokers[leader].marks)
        return True

    def deliver_telling(self, world: World, index: int) -> bool:
        telling = world.shared.telling
        if not telling or not self.is_replica(world.brokers[index]):
            return False
        self._tell(world, index, telling)
        return True

    def _tell(self, world: World, index: int, leaders: Marks) -> None:
        self.set_marks(world, index, self.told_by(world.brokers[index].marks, leaders))

    def told_by(self, marks: Marks, leaders: Marks) -> Marks:
        generation = leaders.generation if self.rules.generations else marks.generation
        return real.told(marks, generation, leaders.removable, leaders.fence)

    def leave_independent(self, world: World) -> bool:
        """From now on replicas are coordinated."""
        if not world.shared.independent:
            return False
        world.share(independent=False)
        if not self.rules.clean_offset_becomes_fence:
            for index, broker in enumerate(world.brokers):
                self.set_marks(world, index, broker.marks._replace(fence=0))
        return True

    # Time

    def wait(self, world: World) -> bool:
        """`delete.retention.ms` goes by: running horizons pass, and a consumer that has not finished is too slow."""
        before = world.frozen()
        for index, broker in enumerate(world.brokers):
            plan = broker.plan
            if isinstance(plan, Plan):
                plan = plan._replace(inputs=after_time(plan.inputs), outputs=after_time(plan.outputs))
            image = broker.image
            if isinstance(image, Image):
                image = image._replace(log=_aged(image.log))
            world.set(index, log=_aged(broker.log), plan=plan, image=image)
        offers = tuple(offer._replace(records=after_time(offer.records)) for offer in world.shared.offers)
        world.share(consumer=(), offers=offers)
        return world.frozen() != before

    # Helpers

    def is_coordinated(self, world: World) -> bool:
        return self.rules.coordinated and not world.shared.independent

    @staticmethod
    def is_replica(broker: Broker) -> bool:
        return broker.member and broker.incarnation == broker.registered

    @staticmethod
    def report_of(broker: Broker) -> real.Report:
        return broker.incarnation, broker.durable.generation, broker.durable.compacted

    def set_marks(self, world: World, index: int, marks: Marks) -> Broker:
        """Durable at once."""
        durable = marks
        if not self.rules.removable_durable_first:
            before = world.brokers[index].durable
            durable = marks._replace(mtro=before.mtro, mxro=before.mxro)
        return world.set(index, marks=marks, durable=durable)

    def stable(self, broker: Broker) -> int:
        settled_ends = not self.rules.settled_changes_nothing
        stable = view(broker.log.records, broker.log.start, broker.high_watermark, settled_ends).stable
        return min(stable, broker.phantom) if broker.phantom >= 0 else stable


def cut_log(log: Log, end: int) -> Log:
    return log if end >= log.end else Log(log.start, max(end, log.start), below(log.records, end))


def _aged(log: Log) -> Log:
    return log._replace(records=after_time(log.records))


def _accepted(held: Records, new: Records) -> Records:
    """The mistake of a follower that takes a settled batch of a producer with an open transaction for an error."""
    for count, one in enumerate(new):
        if kind_of(one) in SETTLED and transactions(held + new[:count]).first_open >= 0:
            return new[:count]
    return new


def known_batches(before: tuple[int, ...], new: Records) -> tuple[int, ...]:
    """Of the transactional producer."""
    return (*before, *(offset_of(one) for one in new if kind_of(one) in TRANSACTIONAL | SETTLED))[-BATCHES_KNOWN:]


def snapshot_at(broker: Broker, offset: int) -> Snapshot:
    first_open = transactions(below(broker.log.records, offset)).first_open
    return Snapshot(offset, first_open, tuple(one for one in broker.batches if one < offset))


def phantom_of(recovered: Snapshot, records: Records) -> int:
    return -1 if recovered.first_open == transactions(records).first_open else recovered.first_open


def recover(records: Records, snapshots: tuple[Snapshot, ...]) -> Snapshot:
    """A replica that starts takes its newest producer snapshot and replays the log from there."""
    offset, first_open, batches = max(snapshots, default=Snapshot(0, -1, ()))
    rest = from_on(records, offset)
    for one in rest:
        kind = kind_of(one)
        if kind in TRANSACTIONAL and first_open < 0:
            first_open = offset_of(one)
        elif kind in MARKERS:
            first_open = -1
    return Snapshot(offset, first_open, known_batches(batches, rest))
