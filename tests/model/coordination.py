"""Reports, tellings, and what leaders make of them. What is decided is decided by `sexton.compaction.watermarks`."""

from __future__ import annotations

from sexton.compaction.watermarks.replica import NOTHING
from tests.model import real
from tests.model.arenas import Arena
from tests.model.logs import (
    view,
)
from tests.model.real import UNKNOWN, Marks
from tests.model.state import Broker, World
from tests.model.switches import Rules


class Coordination:
    def __init__(self, arena: Arena, rules: Rules) -> None:
        self.arena = arena
        self.rules = rules

    def report(self, world: World, index: int) -> bool:
        leader = world.leader
        follower = world.brokers[index]
        if leader in (-1, index) or not self.is_replica(follower) or not self.is_coordinated(world):
            return False
        self.hear(world, leader, index, self.report_of(follower), is_old=False)
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
        self.hear(world, leader, index, late, is_old=world.brokers[index].late_is_old)
        return True

    def hear(self, world: World, leader: int, index: int, report: real.Report, is_old: bool) -> None:
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

    def told_while_empty(self, marks: Marks, leaders: Marks) -> Marks:
        planned = leaders.planned if self.rules.join_waits_for_planned else 0
        fence = leaders.fence if self.rules.told_before_records else 0
        return real.told_while_empty(marks, leaders.generation, leaders.removable, fence, planned)

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
