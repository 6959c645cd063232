"""Compactions: worked out, committed, adopted, and what a rebuild is filled with."""

from __future__ import annotations

from collections.abc import Iterable

from sexton.compaction.watermarks.replica import NOTHING, Pair
from tests.model import real
from tests.model.cluster import Cluster
from tests.model.deferral import NONE, Pass, choices, left_by
from tests.model.errors import Violation
from tests.model.logs import (
    DATA,
    EMPTIES,
    MARKERS,
    NO_HORIZON,
    PASSED,
    RUNNING,
    SETTLED,
    TOMBSTONES,
    TRANSACTIONAL,
    Log,
    Records,
    below,
    from_on,
    horizon_of,
    key_of,
    kind_of,
    offset_of,
    transactions,
)
from tests.model.producers import known_batches, snapshot_at
from tests.model.real import Marks
from tests.model.state import NOT_HEARD, Broker, Offer, Plan, World


class Compaction(Cluster):
    def bounds(self, broker: Broker) -> range:
        """Where a compaction may end: a bound of its own progress cleans again what has become removable since."""
        low = max(broker.marks.mcco, broker.log.start, 1)
        return range(low, self.stable(broker) + 1)

    def result(self, world: World, records: Records, bound: int, marks: Marks, deferred: int = NONE) -> Records:
        """`deferred`: which of the records that may be left where they are, are. (Of an `independent` topic none.)"""
        task = self._pass(records, bound, marks)
        if not self.is_coordinated(world):
            task, deferred = task._replace(removable=None), NONE
        left, removable = left_by(task, self.rules, deferred), task.removable
        if removable is not None:
            check_removals(records, left, bound, removable)
        if not self.rules.horizon_below_removable:
            left = tuple(_with_horizon(one, bound) for one in left)
        if not self.rules.last_batch_stays:
            kept = below(left, bound)
            if kept and kind_of(kept[-1]) in EMPTIES:
                left = kept[:-1] + from_on(left, bound)
        return left

    def choices(self, broker: Broker, bound: int) -> Iterable[int]:
        """Of what a pass may leave where it is."""
        if not self.arena.defers:
            return (NONE,)
        return choices(self._pass(broker.log.records, bound, broker.marks), self.rules)

    def _pass(self, records: Records, bound: int, marks: Marks) -> Pass:
        last_data = _last_data(records) if self.arena.live_producer else -1
        removable = Pair(min(marks.mtro, bound), min(marks.mxro, bound))
        return Pass(records, bound, removable, self.rules.strong_mxfo, last_data, min(marks.compacted))

    # Own compactions

    def compact(self, world: World, index: int, bound: int, deferred: int = NONE) -> bool:
        """Worked out and committed at once."""
        broker = world.brokers[index]
        if not self.is_replica(broker) or bound not in self.bounds(broker):
            return False
        outputs = self.result(world, broker.log.records, bound, broker.marks, deferred)
        if bound <= min(broker.marks.compacted) and outputs == broker.log.records:
            return False
        self._plan(world, index)
        self._swap(world, index, outputs, bound)
        self._raise(world, index, bound)
        return True

    def compact_and_crash(self, world: World, index: int, bound: int, deferred: int = NONE) -> bool:
        """The broker dies between the swap and the new MCCO and MXFO."""
        broker = world.brokers[index]
        if not self.is_replica(broker) or bound not in self.bounds(broker):
            return False
        outputs = self.result(world, broker.log.records, bound, broker.marks, deferred)
        if outputs == broker.log.records:
            return False
        self._plan(world, index)
        if self.rules.swap_before_compacted:
            self._swap(world, index, outputs, bound)
        else:
            self._raise(world, index, bound)
        return self.crash(world, index)

    def plan(self, world: World, index: int, bound: int, deferred: int = NONE) -> bool:
        broker = world.brokers[index]
        if broker.plan or not self.is_replica(broker) or bound not in self.bounds(broker):
            return False
        records = broker.log.records
        outputs = below(self.result(world, records, bound, broker.marks, deferred), bound)
        inputs = below(records, bound)
        if outputs == inputs and bound <= broker.marks.mcco:
            return False
        self._plan(world, index)
        generation = broker.marks.generation
        world.set(index, plan=Plan(broker.incarnation, generation, broker.log.start, bound, inputs, outputs))
        return True

    def commit(self, world: World, index: int) -> bool:
        """A plan that does not fit any more is refused whole (rule 10)."""
        broker = world.brokers[index]
        plan = broker.plan
        if not isinstance(plan, Plan) or not broker.member:
            return False
        world.set(index, plan=())
        log = broker.log
        if self.rules.commit_names_inputs:
            current = (broker.incarnation, log.start, below(log.records, plan.bound))
            if current != (plan.incarnation, plan.start, plan.inputs):
                return True
        if self.rules.commit_judged and not real.may_commit(
            broker.marks, plan.generation, plan.bound, self.stable(broker)
        ):
            return True
        start = log.start if self.rules.commit_names_inputs else min(log.start, plan.start)
        world.set(index, log=log._replace(start=start))
        self._swap(world, index, plan.outputs + from_on(log.records, plan.bound), plan.bound)
        self._raise(world, index, plan.bound)
        return True

    def _plan(self, world: World, index: int) -> None:
        broker = world.brokers[index]
        self.set_marks(world, index, real.with_plan(broker.marks, broker.high_watermark))

    def _swap(self, world: World, index: int, outputs: Records, bound: int) -> None:
        broker = world.brokers[index]
        snapshots = self.snapshots_from(broker, bound)
        world.set(index, log=broker.log._replace(records=outputs), snapshots=snapshots)
        if self.arena.adopts and broker.leads:
            self._offer(world, world.brokers[index], bound)

    def _offer(self, world: World, broker: Broker, bound: int) -> None:
        offer = Offer(
            broker.marks.generation,
            bound,
            broker.log.start,
            below(broker.log.records, bound),
            broker.marks.removable,
            broker.marks.fence,
            broker.marks.planned,
            broker.history,
        )
        offers = [one for one in world.shared.offers if one != offer]
        world.share(offers=(*offers, offer)[-self.arena.offers_max :])

    def _raise(self, world: World, index: int, bound: int, carried: Pair = NOTHING, fence: int = 0) -> None:
        marks = world.brokers[index].marks
        if not self.is_coordinated(world):
            marks = real.with_independent_compaction(marks, bound)
        elif not self.rules.strong_mxfo:
            marks = marks._replace(mcco=max(bound, marks.mcco))
        elif bound < marks.mcco:  # only where a switch lets it
            marks = real.told(marks, marks.generation, carried)
        else:
            marks = real.with_compaction(marks, bound, carried, fence)
        self.set_marks(world, index, marks)

    def resolve(self, world: World, index: int) -> bool:
        """The weaker reading of MXFO: every transaction below it has ended."""
        broker = world.brokers[index]
        stable = self.stable(broker)
        if self.rules.strong_mxfo or not self.is_replica(broker) or stable <= broker.marks.mxfo:
            return False
        self._plan(world, index)
        self.set_marks(world, index, world.brokers[index].marks._replace(mxfo=stable))
        return True

    def snapshot(self, world: World, index: int) -> bool:
        """Of the producers, at the log's end: when a segment is rolled."""
        broker = world.brokers[index]
        one = snapshot_at(broker, broker.log.end)
        if not broker.member or one in broker.snapshots or broker.flushed < broker.log.end:
            return False
        world.set(index, snapshots=tuple(sorted({*broker.snapshots, one}))[-self.arena.snapshots :])
        return True

    # Compact once

    def offer(self, world: World, index: int) -> bool:
        """A leader offers what lies below its MCCO, wherever it has it from: after a restart, or a change of leader, it
        does not know any more."""
        broker = world.brokers[index]
        bound = min(broker.marks.compacted)
        if not broker.leads or not self.is_coordinated(world) or not broker.log.start < bound <= self.stable(broker):
            return False
        before = world.shared.offers
        self._offer(world, broker, bound)
        return world.shared.offers != before

    def adopt_and_crash(self, world: World, index: int, number: int, cut: int) -> bool:
        """The broker dies between two segments: those below `cut` are the leader's by then. MCCO has not moved."""
        broker = world.brokers[index]
        if number >= len(world.shared.offers) or not self.is_replica(broker):
            return False
        offer = world.shared.offers[number]
        log = broker.log
        if not log.start < cut <= offer.bound or not self._may_adopt(broker, offer, offer.bound):
            return False
        self._plan(world, index)
        marks = world.brokers[index].marks
        if offer.start > log.start:
            marks = self.started_at(marks, offer.start)
        self.set_marks(world, index, real.told(marks, offer.generation, offer.removable, offer.fence, offer.planned))
        start = max(log.start, offer.start)
        world.set(
            index,
            log=Log(start, log.end, from_on(below(offer.records, cut) + from_on(log.records, cut), start)),
            high_watermark=max(broker.high_watermark, start),
            snapshots=self.kept_snapshots(broker, offer.bound),
        )
        if self.arena.snapshots:
            self.snapshot(world, index)
        return self.crash(world, index)

    def adopt(self, world: World, index: int, number: int, cut: int) -> bool:
        """A replica swaps in the leader's finished compaction for all that it holds below the bound. `cut` is a lower
        bound at which to cut it, 0 for none."""
        broker = world.brokers[index]
        if number >= len(world.shared.offers) or not self.is_replica(broker):
            return False
        offer = world.shared.offers[number]
        bound = cut or offer.bound
        if cut and (self.rules.adopt_whole or cut >= offer.bound):
            return False
        if not self._may_adopt(broker, offer, bound):
            return False
        rules, log = self.rules, broker.log
        start = max(log.start, offer.start) if rules.adopt_carries_start else log.start
        records = from_on(below(offer.records, bound) + from_on(log.records, bound), start)
        if rules.adopt_durable_first:
            self._plan(world, index)
        marks = world.brokers[index].marks
        if start > log.start:
            self.set_marks(world, index, self.started_at(marks, start))
        end = max(log.end, bound)
        world.set(
            index,
            log=Log(start, end, records),
            flushed=max(broker.flushed, bound),
            high_watermark=max(broker.high_watermark, start),
            snapshots=self.kept_snapshots(broker, bound),
        )
        if self.arena.snapshots and rules.snapshot_at_end:
            self.snapshot(world, index)
        carried = offer.removable if rules.adopt_carries_removable else NOTHING
        self._raise(world, index, bound, carried, offer.fence if rules.adopt_carries_fence else 0)
        return True

    def _may_adopt(self, broker: Broker, offer: Offer, bound: int) -> bool:
        """The real judgement, with each of its conditions as a switch."""
        rules, marks = self.rules, broker.marks
        generation = offer.generation if rules.adopt_same_generation else marks.generation
        if not rules.adopt_above_own:
            marks = marks._replace(mcco=0)
        stable = self.stable(broker) if rules.adopt_stable else broker.high_watermark
        planned = offer.planned if rules.adopt_at_planned else 0
        if not rules.adopt_committed and broker.log.records:
            stable, planned = bound, 0
        return real.may_adopt(marks, generation, bound, planned, stable, broker.high_watermark)

    def rebuild(self, world: World, index: int, number: int) -> bool:
        """A replica that was turned away, and starts from nothing, is filled with a finished compaction."""
        broker = world.brokers[index]
        if number >= len(world.shared.offers) or not self.is_replica(broker) or broker.in_sync:
            return False
        offer = world.shared.offers[number]
        rules, marks = self.rules, broker.marks
        if rules.rebuild_only_empty and broker.log.records:
            return False
        if not broker.log.records and marks.removable == NOTHING != offer.removable:
            # It has not heard of MTRO and MXRO yet; those that the offer carries are as good.
            marks = real.told_while_empty(marks, offer.generation, offer.removable)
        judged = marks if rules.rebuild_reaches_compacted else marks._replace(mcco=0, mxfo=0)
        content_end = offset_of(offer.records[-1]) + 1 if offer.records else offer.start
        if not rules.rebuild_ends_in_batch:
            content_end = offer.bound
        if not real.may_rebuild(judged, offer.generation, offer.bound, content_end):
            return False
        if offer.bound <= broker.log.start:
            return False
        planned = offer.planned if rules.rebuild_sets_high_watermark else marks.planned
        self.set_marks(world, index, real.with_plan(marks, planned))
        end = max(offer.bound, broker.log.end)
        start = max(offer.start, broker.log.start)
        records = from_on(offer.records, start) + from_on(broker.log.records, offer.bound)
        world.set(
            index,
            log=Log(start, end, records),
            flushed=end,
            history=real.cut_history(offer.history, end) if rules.rebuild_brings_history else (),
            high_watermark=offer.bound if rules.rebuild_sets_high_watermark else broker.high_watermark,
            progress=NOT_HEARD,
            batches=known_batches((), records) if self.arena.snapshots else (),
        )
        self._raise(world, index, offer.bound, offer.removable, offer.fence)
        return True


def _last_data(records: Records) -> int:
    """Of the transactional producer: its last batch carries its sequence."""
    return max((offset_of(one) for one in records if kind_of(one) in TRANSACTIONAL | SETTLED), default=-1)


def _with_horizon(one: int, bound: int) -> int:
    is_waiting = kind_of(one) in TOMBSTONES | MARKERS and horizon_of(one) == NO_HORIZON and offset_of(one) < bound
    return one + RUNNING if is_waiting else one


def check_removals(before: Records, after: Records, bound: int, removable: Pair) -> None:
    """Rules 5 and 6, said again in the model's own words; and nothing above the bound changes."""
    if from_on(before, bound) != from_on(after, bound):
        raise Violation("rule 2", "a compaction changed what lies above its bound")
    left = {offset_of(one): one for one in after}
    aborted = transactions(before).aborted
    newest = {
        key_of(one): one for one in below(before, bound) if kind_of(one) in DATA and offset_of(one) not in aborted
    }
    for one in below(before, bound):
        offset, kind = offset_of(one), kind_of(one)
        if offset in left and kind_of(left[offset]) not in EMPTIES:
            continue
        if kind in TOMBSTONES and newest.get(key_of(one)) == one:
            if not (offset < removable.keys and horizon_of(one) == PASSED):
                raise Violation("rule 5", f"the tombstone at {offset} left before its time")
        elif kind in MARKERS and not (offset < removable.transactions and horizon_of(one) == PASSED):
            raise Violation("rule 6", f"the marker at {offset} left before its time")
