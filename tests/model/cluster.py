"""What befalls brokers: elections, crashes, disks that are lost or put back, membership, time."""

from __future__ import annotations

from tests.model import real
from tests.model.logs import (
    Log,
    after_time,
)
from tests.model.producers import phantom_of, recover
from tests.model.real import UNKNOWN, Marks
from tests.model.replication import Replication, cut_log
from tests.model.state import NOT_HEARD, Image, Plan, World


class Cluster(Replication):
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
            marks = real.with_forced_election(broker.marks, generation, broker.log.end)
            if self.arena.defers and self.rules.forced_election_forgets_mcco:
                marks = marks._replace(mcco=broker.log.start)
            if self.arena.defers and self.rules.forced_election_forgets_mtro:
                marks = marks._replace(mtro=0)
            self.set_marks(world, index, marks)
            for other in range(3):
                if other != index and world.brokers[other].member:
                    self.empty(world, other, world.brokers[other].registered + 1)
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
        self.empty(world, index, number)
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
            self.empty(world, index, number)

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


def _aged(log: Log) -> Log:
    return log._replace(records=after_time(log.records))
