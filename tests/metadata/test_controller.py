"""What the controller does next."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Sequence
from dataclasses import replace

import pytest

from sexton.adapters.metastore import InProcessMetastore
from sexton.metadata.controller import (
    ROWS_PER_ACTION_MAX,
    Action,
    Claim,
    ControllerMemory,
    ControllerSettings,
    Fence,
    UpdatePartitions,
    controller_steps,
)
from sexton.metadata.elections import LogState, restart
from sexton.metadata.leases import ExpiredLease, LeaseWatch
from sexton.metadata.reassignment import start
from sexton.metadata.topics import new_topic_rows
from sexton.metadata.view import ClusterView
from sexton.ports.metastore import (
    BrokerStatus,
    Changes,
    ControllerRow,
    PartitionRow,
    StaleError,
    TopicRow,
)
from sexton.types import NO_LEADER
from tests.metadata.rows import TOPIC, broker, brokers, log_id, partition, told

SETTINGS = ControllerSettings(allows_unclean=lambda topic: False)
IDLE = LeaseWatch()


def view_of(statuses: str, rows: Sequence[PartitionRow] = (), controller: int | None = 1) -> ClusterView:
    view = ClusterView()
    view.apply(
        Changes(
            5,
            True,
            brokers=list(brokers(statuses).values()),
            topics=[TOPIC],
            partitions=rows,
            controller=None if controller is None else ControllerRow(controller, 100 + controller, 3),
        )
    )
    return view


def steps(
    view: ClusterView,
    own: int = 1,
    *,
    watch: LeaseWatch = IDLE,
    now_ms: int = 0,
    settings: ControllerSettings = SETTINGS,
    memory: ControllerMemory | None = None,
) -> list[Action]:
    memory = memory or ControllerMemory()
    return controller_steps(view, watch, own, 100 + own, now_ms, settings, memory)[0]


def run_out(broker_id: int) -> LeaseWatch:
    watch = LeaseWatch()
    for now_ms in range(0, 7001, 500):
        leases = {id_: (100 + id_, now_ms if id_ != broker_id else 3) for id_ in (1, 2, 3)}
        watch.observe(leases, now_ms)
    return watch


def updates(actions: Sequence[Action]) -> list[PartitionRow]:
    return [row for action in actions if isinstance(action, UpdatePartitions) for row in action.rows]


def test_a_cluster_without_controller_is_claimed_by_every_active_broker() -> None:
    view = view_of("AAS", controller=None)
    assert steps(view, 1) == steps(view, 2) == [Claim(expected_term=0)]
    assert steps(view, 3) == []


def test_a_controller_that_lives_is_left_alone() -> None:
    assert steps(view_of("AAA"), 2) == []
    assert steps(view_of("SAA"), 2) == []


@pytest.mark.parametrize("statuses", ["FAA", "-AA", "DAA"])
def test_the_place_of_a_controller_that_is_gone_or_goes_is_claimed_with_its_term(statuses: str) -> None:
    assert steps(view_of(statuses), 2) == [Claim(expected_term=3)]


def test_a_controller_that_has_registered_anew_is_controller_no_more() -> None:
    view = view_of("AAA")
    view.apply_rows(brokers=[broker(1, epoch=900)])
    assert steps(view, 2) == [Claim(3)]
    assert controller_steps(view, IDLE, 1, 900, 0, SETTINGS, ControllerMemory())[0] == [Claim(3)]


def test_a_controller_whose_lease_has_run_out_is_replaced_before_it_is_fenced() -> None:
    assert steps(view_of("AAA"), 2, watch=run_out(1), now_ms=7000) == [Claim(3)]


def test_a_broker_that_is_not_active_or_not_the_process_it_thinks_does_nothing() -> None:
    assert steps(view_of("DAA", [partition()], controller=1)) == []
    assert controller_steps(view_of("AAA"), IDLE, 1, 55, 0, SETTINGS, ControllerMemory())[0] == []
    assert controller_steps(view_of("AAA"), IDLE, 9, 55, 0, SETTINGS, ControllerMemory())[0] == []


def test_the_controller_fences_a_broker_whose_lease_has_run_out_but_never_itself() -> None:
    assert steps(view_of("AAA"), 1, watch=run_out(2), now_ms=7000) == [Fence(ExpiredLease(2, 102, 3))]
    assert steps(view_of("AAA"), 1, watch=run_out(1), now_ms=7000) == []
    assert steps(view_of("AFA"), 1, watch=run_out(2), now_ms=7000) == []


def test_partitions_of_a_fenced_broker_get_leaders_who_are_named_as_alive() -> None:
    rows = [partition((2, 3, 1), index=0), partition((1, 2, 3), index=1), partition((3, 1), index=2)]
    actions = steps(view_of("AFA", rows))
    assert [(row.partition, *(told(row) or ())) for row in updates(actions)] == [(0, 3, 6, (3, 1)), (1, 1, 5, (1, 3))]
    assert [action.live for action in actions if isinstance(action, UpdatePartitions)] == [{1: 101, 3: 103}, {1: 101}]


def test_a_leader_other_than_the_controller_is_heard_of_first() -> None:
    """It may have lost its disk, or what was not flushed, since it last renewed its lease."""
    view = view_of("AFA", [partition((2, 3, 1), index=0), partition((2, 1), index=1)])
    actions = [action for action in steps(view) if isinstance(action, UpdatePartitions)]
    assert [action.relied_on for action in actions] == [view.broker(3), None]


def test_a_leader_that_is_not_that_process_any_more_stops_nobody_elses_election() -> None:
    rows = [partition((4, leader), index=leader) for leader in (1, 2, 3)]
    actions = steps(view_of("AAAF", rows))
    named = {
        tuple(action.live): [row.leader for row in action.rows]
        for action in actions
        if isinstance(action, UpdatePartitions)
    }
    assert named == {(1,): [1], (1, 2): [2], (1, 3): [3]}


def test_many_partitions_are_written_in_batches() -> None:
    rows = [partition((2, 3), index=index) for index in range(ROWS_PER_ACTION_MAX + 1)]
    actions = steps(view_of("AFA", rows))
    assert [len(action.rows) for action in actions if isinstance(action, UpdatePartitions)] == [ROWS_PER_ACTION_MAX, 1]


def test_an_unclean_election_waits_for_the_topics_leave() -> None:
    view = view_of("AFA", [partition((2, 3), isr=(2,), leader=2)])
    assert [told(row) for row in updates(steps(view))] == [(NO_LEADER, 6, (2,))]
    allowed = ControllerSettings(allows_unclean=lambda topic: topic == TOPIC.name)
    assert [told(row) for row in updates(steps(view, settings=allowed))] == [(3, 6, (3,))]


def test_a_reassignment_whose_replicas_are_in_sync_is_ended() -> None:
    moving = start(partition((1, 2)), (3, 2), brokers("AAA"))
    assert moving is not None
    assert steps(view_of("AAA", [moving])) == []
    (row,) = updates(steps(view_of("AAA", [replace(moving, isr=(1, 2, 3))])))
    assert (row.replicas, told(row)) == ((3, 2), (3, 6, (2, 3)))


def test_whoever_is_to_lead_when_a_reassignment_ends_is_heard_of_first() -> None:
    """Those who leave throw away what they have."""
    view = view_of("AAA", [partition((2, 3), leader=3, adding=(2,), removing=(3,))])
    (action,) = steps(view)
    assert isinstance(action, UpdatePartitions)
    assert [row.replicas for row in action.rows] == [(2,)]
    assert action.relied_on == view.broker(2)


def test_an_election_and_the_end_of_a_reassignment_are_one_change() -> None:
    moving = start(partition((1, 2)), (3, 2), brokers("AAA"))
    assert moving is not None
    (row,) = updates(steps(view_of("AFA", [replace(moving, isr=(1, 2, 3), leader=2)])))
    assert row.partition_epoch == moving.partition_epoch
    assert told(row) == (3, 6, (1, 3))


def test_preferred_leaders_get_their_place_back_once_an_interval() -> None:
    view = view_of("AAA", [partition((2, 1, 3), leader=1)])
    settings = replace(SETTINGS, rebalance_interval_ms=1000)
    actions, memory = controller_steps(view, IDLE, 1, 101, 5000, settings, ControllerMemory())
    assert actions == []  # it has only just become controller: the interval begins
    actions, memory = controller_steps(view, IDLE, 1, 101, 5999, settings, memory)
    assert actions == []
    actions, memory = controller_steps(view, IDLE, 1, 101, 6000, settings, memory)
    assert [told(row) for row in updates(actions)] == [(2, 6, (2, 1, 3))]
    assert controller_steps(view, IDLE, 1, 101, 6500, settings, memory)[0] == []
    off = replace(settings, rebalances_leaders=False)
    assert controller_steps(view, IDLE, 1, 101, 99_000, off, memory)[0] == []


def test_a_view_that_has_not_changed_is_not_looked_at_again_unless_something_was_due() -> None:
    view = view_of("AAA", [partition()])
    actions, memory = controller_steps(view, IDLE, 1, 101, 0, SETTINGS, ControllerMemory())
    assert (actions, memory.checked_version) == ([], view.version)
    view.apply_rows(brokers=[broker(2, BrokerStatus.FENCED)])
    for _ in range(2):  # the write may fail: it is due until the view shows it
        actions, memory = controller_steps(view, IDLE, 1, 101, 0, SETTINGS, memory)
        assert len(updates(actions)) == 1
    view.apply_rows([replace(row, partition_epoch=row.partition_epoch + 1) for row in updates(actions)])
    actions, memory = controller_steps(view, IDLE, 1, 101, 0, SETTINGS, memory)
    assert (actions, memory.checked_version) == ([], view.version)


class Cluster:
    """Brokers that come and go on a real metastore, with whoever is controller carrying the steps out. Time is a
    number."""

    def __init__(self, seed: int, size: int) -> None:
        self.rng = random.Random(seed)
        self.store = InProcessMetastore()
        self.now_ms = 0
        self.epochs: dict[int, int] = {}
        self.views = {id_: ClusterView() for id_ in range(1, size + 1)}
        self.watches = {id_: LeaseWatch() for id_ in self.views}
        self.memories = {id_: ControllerMemory() for id_ in self.views}

    async def start(self, own: int) -> None:
        snapshot = await self.store.read_changes(0)
        former = next((row for row in snapshot.brokers if row.broker_id == own), None)
        row = await self.store.register_broker(replace(broker(own), lease_ms=3000), former)
        view = ClusterView()
        view.apply(await self.store.read_changes(0))
        needed = [
            changed
            for held in view.replicas_on(own)
            if (
                changed := restart(
                    held, own, view.brokers, log=LogState.COMPLETE, on_disk=held.incarnations[own], fresh=log_id(1)
                )
            )
        ]
        await self.store.update_partitions(needed, {own: row.epoch})
        await self.store.set_broker_status(own, row.epoch, BrokerStatus.ACTIVE)
        self.epochs[own], self.views[own] = row.epoch, view
        self.watches[own], self.memories[own] = LeaseWatch(), ControllerMemory()

    async def tick(self) -> None:
        self.now_ms += 500
        for own, epoch in sorted(self.epochs.items()):
            await self.store.renew_lease(own, epoch)
            self.watches[own].observe(await self.store.read_leases(), self.now_ms)
            self.views[own].apply(await self.store.read_changes(self.views[own].revision))
        for own, epoch in sorted(self.epochs.items()):
            actions, self.memories[own] = controller_steps(
                self.views[own], self.watches[own], own, epoch, self.now_ms, SETTINGS, self.memories[own]
            )
            for action in actions:
                await self._carry_out(own, epoch, action)

    async def _carry_out(self, own: int, epoch: int, action: Action) -> None:
        try:
            if isinstance(action, Claim):
                self.views[own].apply_rows(
                    controller=await self.store.claim_controller(own, epoch, action.expected_term)
                )
            elif isinstance(action, Fence):
                lease = action.lease
                await self.store.fence_broker(lease.broker_id, lease.epoch, lease.renewals_count)
            else:
                rows = await self.store.update_partitions(action.rows, action.live)
                self.views[own].apply_rows([row for row in rows if row is not None])
        except StaleError:
            pass


@pytest.mark.parametrize("seed", range(5))
def test_whoever_comes_and_goes_every_partition_with_a_living_in_sync_replica_gets_a_leader(seed: int) -> None:
    asyncio.run(_come_and_go(seed))


async def _come_and_go(seed: int) -> None:
    cluster = Cluster(seed, size=5)
    await cluster.store.open_cluster(uuid.UUID(int=1))
    for own in cluster.views:
        await cluster.start(own)
    view = ClusterView()
    view.apply(await cluster.store.read_changes(0))
    topic, rows = new_topic_rows("t", 20, 3, view.brokers, cluster.rng)
    await cluster.store.create_topic(topic, rows, {})
    for _ in range(12):
        own = cluster.rng.randrange(1, 6)
        if own in cluster.epochs:
            del cluster.epochs[own]  # kill -9
        else:
            await cluster.start(own)
        for _ in range(cluster.rng.choice([1, 3, 12])):
            await cluster.tick()
    for _ in range(15):
        await cluster.tick()
    view = ClusterView()
    view.apply(await cluster.store.read_changes(0))
    alive = set(cluster.epochs)
    assert {row.broker_id for row in view.live_brokers()} == alive
    for row in view.partitions_of(topic.topic_id):
        assert row.leader in alive if alive & set(row.isr) else row.leader == NO_LEADER
        assert row.isr
    if alive:
        assert view.controller is not None
        assert view.controller.broker_id in alive


def test_topics_that_are_gone_need_no_leader() -> None:
    other = TopicRow(uuid.UUID(int=9), "gone", False)
    view = view_of("AFA", [])
    view.apply(Changes(6, False, topics=[other], partitions=[partition((2, 3), topic=other)]))
    view.apply(Changes(7, False, deleted_topics=[other.topic_id]))
    assert steps(view) == []
