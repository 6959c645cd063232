"""Consumers: slow ones that read from several replicas, and fetches whose two halves come from two states of a log."""

from __future__ import annotations

from tests.model.compaction import Compaction
from tests.model.errors import Violation
from tests.model.logs import (
    ABORT,
    DATA,
    KEYS,
    Records,
    below,
    fold,
    from_on,
    key_of,
    kind_of,
    offset_of,
    show_record,
    transactions,
    value_of,
)
from tests.model.state import Broker, Consumer, World


class Consumers(Compaction):
    def consume(self, world: World, index: int, count: int) -> bool:
        """The consumer reads on from this replica: `count` records, or all there are for 0."""
        broker = world.brokers[index]
        consumer = world.shared.consumer or Consumer(0, 0, (0,) * len(KEYS))
        if not serves(broker) or broker.log.start > 0:
            return False
        stable = self.stable(broker)
        if stable <= consumer.position:
            return False
        there = from_on(below(broker.log.records, stable), consumer.position)
        if count:
            there = there[:count]
        hidden = transactions(broker.log.records, not self.rules.settled_changes_nothing).aborted
        position = offset_of(there[-1]) + 1 if count and there else stable
        values = list(consumer.fold)
        for one in there:
            if kind_of(one) in DATA and offset_of(one) not in hidden:
                values[key_of(one)] = value_of(one)
        complete_from = max(consumer.complete_from, broker.marks.planned, broker.marks.mcco)
        world.share(consumer=Consumer(position, complete_from, tuple(values)))
        return True

    def begin_fetch(self, world: World, index: int) -> bool:
        """A fetch has its records. Its list of aborted transactions comes later, from what the log is then."""
        broker = world.brokers[index]
        if not serves(broker) or broker.reading or self.rules.one_snapshot_per_fetch:
            return False
        stable = self.stable(broker)
        world.set(index, reading=(broker.log.records, broker.log.start, stable))
        return True

    def end_fetch(self, world: World, index: int) -> bool:
        broker = world.brokers[index]
        if not broker.reading:
            return False
        records, _, stable = broker.reading
        world.set(index, reading=())
        listed = self._index(broker.log.records, records)
        for one in below(records, stable):
            offset = offset_of(one)
            marker = transactions(records).ended.get(offset, -1)
            if offset in transactions(records).aborted and marker not in listed:
                raise Violation("aborted visible", f"a fetch serves {show_record(one)}, which was aborted")
        return True

    def _index(self, current: Records, read: Records) -> set[int]:
        """Markers of the aborted transactions that the index lists."""
        markers = {offset_of(one) for one in current if kind_of(one) == ABORT}
        if self.rules.index_entry_leaves_with_marker:
            return markers
        held = {offset_of(one) for one in current}
        return {marker for offset, marker in transactions(read).ended.items() if marker in markers and offset in held}


def serves(broker: Broker) -> bool:
    """A replica that is catching up serves no consumer (rule 4)."""
    return broker.in_sync and broker.member


def check_consumer(consumer: Consumer, truth: Records) -> None:
    """Once it has passed everything that may have superseded what it could not read, it holds the truth."""
    aborted = transactions(truth).aborted
    by_value = {value_of(one): one for one in truth if kind_of(one) in DATA}
    for value in consumer.fold:
        if value and (value not in by_value or offset_of(by_value[value]) in aborted):
            raise Violation("aborted visible", f"the consumer at {consumer.position} was served what was not committed")
    if consumer.position >= consumer.complete_from:
        expected = fold(below(truth, consumer.position), aborted)
        if consumer.fold != expected:
            what = f"the consumer at {consumer.position} holds {consumer.fold} and not {expected}"
            raise Violation("consumer misled", what)
