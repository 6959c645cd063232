"""What the judge excuses, each with something that looks like it and is not excused."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Collection
from contextlib import nullcontext as no_error
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sexton.ports.metastore import PartitionRow
from sexton.records import batch as batches
from sexton.records.batch import ControlType, Record, make_batch, make_marker
from sexton.records.header import TRANSACTIONAL
from sexton.simulate import final
from sexton.simulate.checks import Judge
from sexton.simulate.compaction_checks import CompactionJudge
from sexton.simulate.copies import Copy
from sexton.simulate.disk import VirtualDisk
from sexton.simulate.errors import SimulationFailure
from sexton.simulate.final import FoundLog, find_lost
from sexton.simulate.history import History, Outcome, Transaction, Write
from sexton.simulate.loop import new_loop
from sexton.simulate.observe import Agreement
from sexton.simulate.snapshots import Snapshot, Watermarks
from sexton.simulate.trace import Trace
from sexton.simulate.transaction_checks import TransactionJudge
from sexton.simulate.truth import Truth
from sexton.types import LeaderEpoch, TopicPartition

PLACE: TopicPartition = ("t", 0)
TOPIC = uuid.UUID(int=1)
KEY = (TOPIC, 0)


class World:
    """One partition that acknowledges before the flush, on two machines; logs are put on their disks by hand. It may
    be one that allows unclean elections instead, or as well."""

    def __init__(self, *, compacted: bool = False, unclean: bool = False, unflushed: bool | None = None) -> None:
        self.loop = new_loop(random.Random(1))
        self.history = History()
        self.trace = Trace(self.loop)
        self.agreement = Agreement(self.trace)
        self.agreement.topics[TOPIC] = "t"
        self.row = self.agreement.rows[KEY] = PartitionRow(TOPIC, 0, (1, 2), (1, 2), 1, LeaderEpoch(1), 0)
        self.nodes = {f"broker-{number}": self._node(number) for number in (1, 2)}
        cluster = SimpleNamespace(nodes=self.nodes, node_of=lambda n: self.nodes[f"broker-{n}"], loop=self.loop)
        self.judge = Judge(
            cast(Any, cluster),
            self.agreement,
            self.history,
            self.trace,
            compacted=["t"] if compacted else [],
            unflushed=["t"] if (not unclean if unflushed is None else unflushed) else [],
            unclean=["t"] if unclean else [],
        )

    def _node(self, number: int) -> SimpleNamespace:
        process = SimpleNamespace(name=f"broker-{number}.1")
        volume = VirtualDisk(random.Random(number))
        fields = {"is_wiped": False, "is_started": True, "is_up": True, "broker": None}
        return SimpleNamespace(name=f"broker-{number}", broker_id=number, process=process, volume=volume, **fields)

    def hold(self, broker_id: int, *epochs: int, without: Collection[int] = ()) -> None:
        """The log on a disk from now on: a record an offset, each of a leader epoch."""
        node = self.nodes[f"broker-{broker_id}"]
        node.volume = VirtualDisk(random.Random(broker_id))
        disk = node.volume.of(self.loop.world, self.loop)
        disk.make_directory("/data/t-0")
        file = disk.open("/data/t-0/00000000000000000000.log", create=True)
        for offset, epoch in enumerate(epochs):
            record = Record(offset, 0, f"k{offset}".encode(), value(epoch, offset))
            if offset in without:
                continue
            file.append([batches.encode(make_batch([record], leader_epoch=epoch))])

    def show(
        self, broker_id: int, high_watermark: int, end_offset: int, epoch: int | None = None, generation: int = 0
    ) -> None:
        """A replica as its broker sees it; with an epoch it leads."""
        known = Watermarks(uuid.UUID(int=9), generation=generation)
        role = "follower" if epoch is None else "leader"
        offsets = (high_watermark, high_watermark, 0, end_offset, end_offset)
        seen = Snapshot(
            "t", TOPIC, 0, role, epoch is not None, epoch or 0, uuid.UUID(int=9), *offsets, known, known, False
        )
        self.judge.look_at(cast(Any, self.nodes[f"broker-{broker_id}"]), seen)

    def lose_power(self, *broker_ids: int) -> None:
        for broker_id in broker_ids:
            self.judge.power_lost(cast(Any, self.nodes[f"broker-{broker_id}"]))

    def elect(self, broker_id: int, epoch: int) -> None:
        """It alone is in sync from now on, whether it was before or not."""
        self.row = self.agreement.rows[KEY] = PartitionRow(
            TOPIC, 0, (1, 2), (broker_id,), broker_id, LeaderEpoch(epoch), 0
        )
        self.judge.row_changed(f"broker-{broker_id}.1", KEY, self.row)

    def change(self, row: PartitionRow) -> None:
        self.row = self.agreement.rows[KEY] = row
        self.judge.row_changed("broker-1.1", KEY, row)

    def sweep(self) -> None:
        self.judge.sweep_partition(KEY, self.row)


def value(epoch: int, offset: int) -> bytes:
    return f"w:{epoch}:{offset}:".encode()


def written(history: History, *values: bytes, base_offset: int = -1, started_ns: int = 0) -> Write:
    write = Write("w", PLACE, -1, True, values, started_ns, Outcome.OK, base_offset)
    return history.begin(write)


# Power: which partitions


@pytest.fixture(params=[False, True], ids=["not compacted", "compacted"])
def world(request: pytest.FixtureRequest) -> World:
    """Four records are committed."""
    made = World(compacted=request.param)
    for broker_id in (1, 2):
        made.hold(broker_id, 1, 1, 1, 1)
        made.show(broker_id, 4, 4, 1 if broker_id == 1 else None)
    made.sweep()
    return made


def test_a_replica_that_lost_power_may_have_kept_its_end_and_lost_what_lies_before(world: World) -> None:
    """Pages are written in any order. Until it has started nobody has read it; from then on it is in sync."""
    node = world.nodes["broker-2"]
    node.is_started = False
    world.lose_power(2)
    world.hold(2, 1, 1, 1, 1, without=(1,))
    world.judge.compaction.disk_replaced("broker-2")
    world.sweep()
    node.is_started = True
    with pytest.raises(SimulationFailure, match=r"rule [14]"):
        world.sweep()


def test_what_one_replica_lost_is_missed_if_it_leads(world: World) -> None:
    """The other one has it all: nothing may be lost."""
    world.hold(1, 1, 1)
    world.lose_power(1)
    world.hold(1, 1, 1, 2)
    world.hold(2, 1, 1, 2)
    with pytest.raises(SimulationFailure, match=r"rule 7|rule 2"):
        world.show(1, 3, 3, 2)
    assert not world.history.losses


def test_what_all_in_sync_replicas_lost_is_excused_and_what_was_left_is_not(world: World) -> None:
    world.hold(1, 1, 1, 1)
    world.hold(2, 1, 1)
    world.lose_power(1, 2)
    assert PLACE in world.history.doubtful
    world.hold(1, 1, 1, 1, 2)
    world.show(1, 3, 4, 2)
    assert PLACE not in world.history.doubtful
    assert [loss.offset for loss in world.history.losses[PLACE]] == [3]
    world.sweep()  # broker 2, in sync, has still to catch up


def test_a_leader_that_drops_what_was_left_on_its_disk_breaks_rule_1(world: World) -> None:
    world.hold(1, 1, 1, 1)
    world.hold(2, 1, 1)
    world.lose_power(1, 2)
    world.hold(1, 1, 1, 2)
    with pytest.raises(SimulationFailure, match="3 was left on its disk"):
        world.show(1, 2, 3, 2)


def test_who_leads_next_may_have_less_than_another(world: World) -> None:
    world.hold(1, 1, 1, 1)
    world.hold(2, 1, 1)
    world.lose_power(1, 2)
    world.hold(2, 1, 1, 2)
    world.show(2, 2, 3, 2)
    assert [loss.offset for loss in world.history.losses[PLACE]] == [2]


def test_a_loss_of_power_that_took_nothing_excuses_nothing(world: World) -> None:
    world.lose_power(1, 2)
    world.show(1, 4, 4, 2)
    assert not world.history.losses
    assert PLACE not in world.history.doubtful


@pytest.mark.parametrize("is_back", [False, True], ids=["still down", "back, and in sync all the while"])
def test_a_disk_that_kept_everything_counts_once_its_broker_has_started(world: World, is_back: bool) -> None:
    """Until then it may leave the ISR to one that loses power next, and has less."""
    world.lose_power(2)
    world.nodes["broker-2"].is_started = is_back
    world.sweep()
    world.hold(1, 1, 1)
    world.lose_power(1)
    world.elect(1, 2)
    with pytest.raises(SimulationFailure, match=r"rule 7|rule 1") if is_back else no_error():
        world.show(1, 2, 2, 2)
    assert bool(world.history.losses) is not is_back


def test_a_leader_of_the_epoch_before_shows_nothing(world: World) -> None:
    """It is what was there before the loss: a look back."""
    world.lose_power(1, 2)
    world.show(1, 4, 4, 1)
    assert PLACE in world.history.doubtful


@pytest.mark.parametrize("is_registered", [False, True], ids=["same process", "next process"])
def test_a_join_may_be_carried_out_when_its_process_has_lost_power(world: World, is_registered: bool) -> None:
    """Its leader had decided on it before. Whoever lets the next process join had to see that it lacks something."""
    world.change(PartitionRow(TOPIC, 0, (1, 2), (1,), 1, LeaderEpoch(1), 0))
    world.hold(2, 1, 1)
    world.lose_power(2)
    if is_registered:
        world.judge.registered(2, 1)
    with pytest.raises(SimulationFailure, match="lacks the committed offsets 2 to 3") if is_registered else no_error():
        world.change(PartitionRow(TOPIC, 0, (1, 2), (1, 2), 1, LeaderEpoch(1), 0))
    assert PLACE not in world.history.doubtful, "broker 1 has it all"


@pytest.mark.parametrize("is_registered", [False, True], ids=["same process", "next process"])
def test_so_may_a_second_join_of_that_process(world: World, is_registered: bool) -> None:
    """Its leader drops it for its lag, and adds it again by what it had told. Seed 1329."""
    world.hold(2, 1, 1)
    world.lose_power(2)
    world.change(PartitionRow(TOPIC, 0, (1, 2), (1,), 1, LeaderEpoch(1), 0))
    if is_registered:
        world.judge.registered(2, 1)
    with pytest.raises(SimulationFailure, match="lacks the committed offsets 2 to 3") if is_registered else no_error():
        world.change(PartitionRow(TOPIC, 0, (1, 2), (1, 2), 1, LeaderEpoch(1), 0))


# Force


@pytest.mark.parametrize("is_registered", [False, True])
@pytest.mark.parametrize("isr", [(1,), (1, 2)])
def test_what_was_placed_on_a_replaced_disk_alone_is_an_operators_business(
    isr: tuple[int, ...], is_registered: bool
) -> None:
    """The cluster had not heard that its only broker has an empty disk. Seed 933."""
    world = World()
    world.judge.disk_replaced(cast(Any, world.nodes["broker-1"]))
    if is_registered:
        world.judge.registered(1, 2)
    world.change(PartitionRow(TOPIC, 0, isr, isr, 1, LeaderEpoch(0), 0))
    assert world.judge.unborn == ({PLACE} if isr == (1,) and not is_registered else set())


def test_a_leader_forced_from_nothing_that_dies_at_once_lacks_only_what_it_has_committed_itself() -> None:
    world = World(compacted=True)
    world.row = PartitionRow(TOPIC, 0, (1, 2), (1,), 1, LeaderEpoch(1), 0)
    world.hold(1, 1, 1, 1, 1)
    world.hold(2)
    world.show(2, 0, 0)
    world.show(1, 4, 4, 1)
    world.change(PartitionRow(TOPIC, 0, (1, 2), (2,), 2, LeaderEpoch(2), 0, generation=1))
    world.show(2, 0, 0, 2, generation=1)
    world.sweep()
    world.hold(2, 2)
    world.show(2, 1, 1, 2, generation=1)
    world.hold(2)
    with pytest.raises(SimulationFailure, match="lacks the committed offsets 0 to 0"):
        world.sweep()


def forced(left: int, power_lost: bool = False) -> World:
    """Broker 1, which has four records, is gone; broker 2, which lacks the last one, was chosen. So much is on its disk
    when it begins to lead, and one more record, its own."""
    world = World(compacted=True)
    world.row = PartitionRow(TOPIC, 0, (1, 2), (1,), 1, LeaderEpoch(1), 0)
    world.hold(1, 1, 1, 1, 1)
    world.hold(2, 1, 1, 1)
    world.show(1, 4, 4, 1)
    world.show(2, 3, 3)
    world.change(PartitionRow(TOPIC, 0, (1, 2), (2,), 2, LeaderEpoch(2), 0, generation=1))
    if power_lost:
        world.hold(2, *[1] * left)
        world.lose_power(2)
    world.hold(2, *[1] * left, 2)
    return world


def test_a_forced_leader_lacks_what_it_did_not_have() -> None:
    world = forced(left=3)
    world.show(2, 4, 4, 2, generation=1)
    world.sweep()


@pytest.mark.parametrize("left", [0, 2])
def test_a_forced_leader_that_drops_what_its_disk_had_breaks_rule_1(left: int) -> None:
    world = forced(left)
    with pytest.raises(SimulationFailure, match=f"goes on from {left}, but 3 was left on its disk"):
        world.show(2, left + 1, left + 1, 2, generation=1)


def test_a_forced_leader_may_bring_back_what_was_given_up_while_it_was_away() -> None:
    world = World(compacted=True)
    world.hold(1, 1, 1, 1, 1)
    world.hold(2, 1, 1, 1, 1)
    world.change(PartitionRow(TOPIC, 0, (1, 2), (1,), 1, LeaderEpoch(1), 0))
    world.show(1, 4, 4, 1)
    world.hold(1, 1, 1, 1)
    world.lose_power(1)
    world.elect(1, 2)
    world.hold(1, 1, 1, 1, 2)
    world.show(1, 4, 4, 2)
    world.sweep()
    world.change(PartitionRow(TOPIC, 0, (1, 2), (2,), 2, LeaderEpoch(3), 0, generation=1))
    world.show(2, 4, 4, 3, generation=1)
    assert world.judge.compaction.truths[KEY].end_offset == 4, "all that it has is committed"
    world.sweep()


def test_a_forced_leader_that_loses_power_before_it_leads_goes_on_with_what_that_left() -> None:
    world = forced(left=2, power_lost=True)
    world.show(2, 3, 3, 2, generation=1)
    world.sweep()


# Power: what follows a loss is judged as ever


@pytest.fixture
def after_a_loss(world: World) -> World:
    """Offset 3 is lost, and written again in epoch 2 with all that follows."""
    for broker_id in (1, 2):
        world.hold(broker_id, 1, 1, 1)
    world.lose_power(1, 2)
    world.hold(1, 1, 1, 1, 2, 2)
    world.show(1, 3, 5, 2)
    return world


def test_a_replica_out_of_sync_may_hold_what_was_lost_and_one_in_sync_may_not(after_a_loss: World) -> None:
    world = after_a_loss
    world.row = PartitionRow(TOPIC, 0, (1, 2), (1,), 1, LeaderEpoch(2), 0)
    world.show(1, 5, 5, 2)
    world.hold(2, 1, 1, 1, 1)
    world.sweep()
    world.show(2, 4, 4)
    world.row = PartitionRow(TOPIC, 0, (1, 2), (1, 2), 1, LeaderEpoch(2), 0)
    world.hold(2, 1, 1, 1, 1, 1)
    with pytest.raises(SimulationFailure, match=r"rule 4|rule 2"):
        world.sweep()


def test_what_is_committed_after_a_loss_must_be_on_every_replica_in_sync(after_a_loss: World) -> None:
    world = after_a_loss
    world.hold(2, 1, 1, 1, 2, 2)
    world.show(1, 5, 5, 2)
    world.sweep()
    world.hold(2, 1, 1, 1, 2)
    with pytest.raises(SimulationFailure, match="rule 1"):
        world.sweep()


def test_a_high_watermark_goes_back_with_a_loss_and_no_further(world: World) -> None:
    for broker_id in (1, 2):
        world.hold(broker_id, 1, 1, 1)
    world.lose_power(1, 2)
    world.hold(1, 1, 1, 1, 2)
    world.show(1, 3, 4, 2)
    world.hold(2, 1, 1, 1)
    world.show(2, 3, 3)
    with pytest.raises(SimulationFailure, match="rule 7"):
        world.show(2, 2, 3)


# Unclean elections: what whoever leads next had


@pytest.fixture(params=[(), (2, 2)], ids=["nothing was written meanwhile", "something was"])
def brought_back(request: pytest.FixtureRequest) -> World:
    """Broker 2 had nothing and led in epoch 2. In epoch 3 broker 1 leads again, with all that had been lost."""
    world = World(unclean=True)
    world.elect(1, 1)
    world.hold(1, 1, 1, 1, 1)
    world.show(1, 4, 4, 1)
    world.elect(2, 2)
    world.hold(2, *request.param)
    world.show(2, len(request.param), len(request.param), 2)
    assert [loss.offset for loss in world.history.losses[PLACE]] == [0]
    world.elect(1, 3)
    world.hold(1, 1, 1, 1, 1, 3)
    world.show(1, 5, 5, 3)
    world.sweep()
    return world


@pytest.mark.parametrize("left", [(1, 1, 1), (1, 1, 1, 1)], ids=["of what came back", "of what came after it"])
def test_what_a_second_unclean_election_brings_back_is_promised_again(
    brought_back: World, left: tuple[int, ...]
) -> None:
    brought_back.hold(1, *left)
    with pytest.raises(SimulationFailure, match="rule 1"):
        brought_back.sweep()


def test_what_a_second_unclean_election_has_lost_may_be_held_only_out_of_sync(brought_back: World) -> None:
    brought_back.hold(2, 2, 2)
    brought_back.show(2, 2, 2)
    brought_back.sweep()
    brought_back.row = PartitionRow(TOPIC, 0, (1, 2), (1, 2), 1, LeaderEpoch(3), 0)
    with pytest.raises(SimulationFailure, match="rule 4"):
        brought_back.sweep()


@pytest.fixture
def led_by_the_other() -> World:
    """Broker 1 had committed four records when broker 2, which has none of them, was made the leader, and committed two
    of its own."""
    world = World(unclean=True, unflushed=True)
    world.elect(1, 1)
    world.hold(1, 1, 1, 1, 1)
    world.show(1, 4, 4, 1)
    world.elect(2, 2)
    world.hold(2, 2, 2)
    world.show(2, 2, 2, 2)
    return world


def test_an_unclean_leader_that_had_lost_power_need_not_share_what_is_on_its_disk(led_by_the_other: World) -> None:
    led_by_the_other.lose_power(1)
    led_by_the_other.elect(1, 3)
    led_by_the_other.show(1, 4, 4, 3)
    assert [loss.offset for loss in led_by_the_other.history.losses[PLACE]] == [0, 0]


def test_what_an_unclean_leader_that_had_lost_power_shared_must_still_be_there(led_by_the_other: World) -> None:
    led_by_the_other.hold(1, 2, 1, 1)
    led_by_the_other.lose_power(1)
    led_by_the_other.elect(1, 3)
    led_by_the_other.hold(1, 1, 1, 1)
    with pytest.raises(SimulationFailure, match="goes on from 0, but 1 was left"):
        led_by_the_other.show(1, 3, 3, 3)


def test_what_had_not_been_committed_counts_once_an_unclean_leader_goes_on_with_it() -> None:
    world = World(unclean=True)
    world.elect(1, 2)
    world.hold(1, 1, 2)
    world.hold(2, 1, 1, 1)
    world.show(1, 2, 2, 2)
    world.elect(2, 3)
    world.show(2, 3, 3, 3)
    assert [loss.offset for loss in world.history.losses[PLACE]] == [1]
    world.hold(2, 1, 1)
    with pytest.raises(SimulationFailure, match="rule 1"):
        world.sweep()


@pytest.mark.parametrize("is_replaced", [False, True])
def test_what_a_leader_takes_that_has_not_heard_of_an_unclean_election_is_lost_too(is_replaced: bool) -> None:
    """Another record stands at its offset then, in the log of the one that leads. Seed 751."""
    world = World(unclean=True)
    world.elect(1, 1)
    world.hold(1, 1, 1)
    world.show(1, 2, 2, 1)
    if is_replaced:
        world.elect(2, 2)
        world.hold(2, 2)
        world.show(2, 1, 1, 2)
    world.loop.run_until_complete(asyncio.sleep(0.000001))
    written(world.history, b"w:1:2:", started_ns=500)
    written(world.history, b"w:2:2:", started_ns=2000)
    world.hold(1, 1, 1, 1)
    world.show(1, 3, 3, 1)
    world.history.saw("reader", PLACE, 2, b"w:1:2:")
    with no_error() if is_replaced else pytest.raises(SimulationFailure, match="rule 2"):
        world.history.saw("reader", PLACE, 2, b"w:2:2:")


# What clients were promised, and saw


def test_only_what_was_promised_at_or_above_a_loss_and_before_it_is_excused() -> None:
    history = History()
    written(history, b"w:0:1:", base_offset=2)
    written(history, b"w:0:2:", base_offset=3, started_ns=50)
    history.lost(PLACE, 3, at_ns=100)
    written(history, b"w:0:3:", base_offset=3, started_ns=101)
    whole = {2: b"w:0:1:", 3: b"w:0:3:"}
    assert find_lost(PLACE, FoundLog(0, whole), history) is None
    for missing in (2, 3):
        failure = find_lost(PLACE, FoundLog(0, {at: each for at, each in whole.items() if at != missing}), history)
        assert failure is not None
        assert failure.rule == "rule 1"


def test_after_a_loss_an_offset_has_one_value_again() -> None:
    history = History()
    written(history, b"w:0:1:", b"w:0:2:")
    written(history, b"w:0:3:", b"w:0:4:", started_ns=101)
    history.saw("r", PLACE, 3, b"w:0:1:")
    history.lost(PLACE, 3, at_ns=100)
    history.saw("r", PLACE, 3, b"w:0:3:")
    history.saw("late", PLACE, 3, b"w:0:1:")
    with pytest.raises(SimulationFailure, match="rule 2"):
        history.saw("r", PLACE, 3, b"w:0:4:")


def test_below_a_loss_an_offset_keeps_its_value() -> None:
    history = History()
    written(history, b"w:0:1:", b"w:0:2:")
    history.saw("r", PLACE, 2, b"w:0:1:")
    history.lost(PLACE, 3, at_ns=100)
    with pytest.raises(SimulationFailure, match="rule 2"):
        history.saw("r", PLACE, 2, b"w:0:2:")


def test_a_loss_does_not_excuse_what_a_producer_was_told_had_failed() -> None:
    history = History()
    written(history, b"w:0:1:").outcome = Outcome.FAILED
    history.lost(PLACE, 0, at_ns=100)
    with pytest.raises(SimulationFailure, match="rule 9"):
        history.saw("r", PLACE, 3, b"w:0:1:")


def test_a_group_need_not_be_given_again_what_it_may_have_passed_and_must_have_the_rest() -> None:
    history = History(reads={PLACE: {0: b"a", 1: b"b"}})
    history.lost(PLACE, 2, at_ns=1)
    history.reads[PLACE] |= {2: b"c"}
    assert final.undelivered(history, {PLACE: {0, 1}}) == []
    assert final.undelivered(history, {PLACE: {1}}) != []


# Transactions whose end was lost


def test_a_transaction_is_excused_only_where_it_wrote_before_a_loss() -> None:
    for started_ns, is_excused in ((100, True), (101, False)):
        history = History()
        judge = TransactionJudge(history)
        transaction = Transaction("txn", 1, 1, is_commit_asked=True, outcome=Outcome.OK)
        history.transactions.append(transaction)
        write = Write("txn.1", PLACE, -1, True, (b"v",), started_ns, Outcome.OK, transaction=transaction)
        transaction.writes.append(history.begin(write))
        history.lost(PLACE, 0, at_ns=100)
        judge.committed(PLACE, make_batch([Record(0, 0, b"k", b"v")], attributes=TRANSACTIONAL, producer_id=7))
        abort = make_marker(1, ControlType.ABORT, 7, 0, 0)
        if is_excused:
            judge.committed(PLACE, abort)
            judge.check_whole()
        else:
            with pytest.raises(SimulationFailure, match="rule 8"):
                judge.committed(PLACE, abort)


def test_aborted_data_below_a_loss_may_be_read_only_if_its_end_may_be_lost() -> None:
    """The record is left, its ABORT is not: the next marker of its producer ends it as well."""
    for started_ns, is_excused in ((100, True), (101, False)):
        history = History()
        transaction = Transaction("txn", 1, 1, outcome=Outcome.FAILED)
        write = Write("txn.1", PLACE, -1, True, (b"v",), started_ns, Outcome.OK, transaction=transaction)
        transaction.writes.append(history.begin(write))
        history.lost(("elsewhere", 0), 0, at_ns=200)
        history.lost(PLACE, 38, at_ns=100)
        if is_excused:
            history.saw("r", PLACE, 37, b"v", is_committed=True)
        else:
            with pytest.raises(SimulationFailure, match="rule 8"):
                history.saw("r", PLACE, 37, b"v", is_committed=True)


def test_what_a_lost_marker_had_ended_is_open_again() -> None:
    history = History()
    judge = TransactionJudge(history)
    transaction = Transaction("txn", 1, 1, is_commit_asked=True)
    write = history.begin(Write("txn.1", PLACE, -1, True, (b"v",), 0, transaction=transaction))
    transaction.writes.append(write)
    data = make_batch([Record(0, 0, b"k", b"v")], attributes=TRANSACTIONAL, producer_id=7)
    judge.committed(PLACE, data)
    judge.committed(PLACE, make_marker(1, ControlType.COMMIT, 7, 0, 0))
    judge.committed(PLACE, make_marker(2, ControlType.COMMIT, 7, 0, 0))
    assert judge.ended_count == 1
    judge.begin_anew(PLACE, [data])
    judge.committed(PLACE, make_marker(1, ControlType.COMMIT, 7, 0, 0))
    assert judge.ended_count == 2


# Replicas of compacted partitions that are down


def copy_of(*records: Record) -> Copy:
    loop = new_loop(random.Random(1))
    volume = VirtualDisk(random.Random(1))
    disk = volume.of(loop.world, loop)
    disk.make_directory("/data/t-0")
    file = disk.open("/data/t-0/00000000000000000000.log", create=True)
    for record in records:
        file.append([batches.encode(make_batch([record]))])
    copy = Copy(volume, "/data/t-0")
    copy.refresh()
    return copy


def test_a_replica_that_is_down_is_judged_by_what_its_disk_holds() -> None:
    first, second, last = (
        Record(0, 0, b"a", b"1"),
        Record(1, 0, b"b", b"2"),
        Record(2, 0, b"c", b"3"),
    )
    judge = CompactionJudge(lambda place, batch: None)
    truth = judge.truths[KEY] = Truth()
    for record in (first, second, last):
        truth.add(make_batch([record]))
    judge.check_stopped("broker-1", KEY, PLACE, copy_of(first, second, last), 0)
    with pytest.raises(SimulationFailure, match="rule 4"):
        judge.check_stopped("broker-2", KEY, PLACE, copy_of(first, last), 0)
    judge.check_stopped("broker-2", KEY, PLACE, copy_of(second, last), 1)
    with pytest.raises(SimulationFailure, match="rule 2"):
        judge.check_stopped("broker-2", KEY, PLACE, copy_of(first, Record(1, 0, b"b", b"x"), last), 0)
