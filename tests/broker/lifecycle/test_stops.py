"""A broker that is stopped in good order leaves its partitions to others that live, or to nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytest

from sexton.broker.broker import Broker
from sexton.broker.lifecycle import handover
from sexton.ports.metastore import PartitionRow
from sexton.protocol.errors import KafkaError
from sexton.simulate.broken import breaking
from sexton.simulate.metastore import HOST as METASTORE
from tests.simulated import Ledger, Story

DEAD, STOPPED, WITNESS = 1, 2, 3
SEEDS = range(1, 9)
"""What a power loss takes is drawn from them."""


async def stop(story: Story, broker_id: int) -> None:
    stopped = asyncio.Event()
    story.cluster.stop_orderly(story.node(broker_id), stopped.set)
    async with asyncio.timeout(120):
        await stopped.wait()


def lost(seed: int, leader: int) -> list[int]:
    """One of two in-sync replicas loses power; the other one's broker is stopped before anybody has noticed. The dead
    one comes back first."""
    story = Story(3, seed)
    ledger = Ledger(story)
    found: list[int] = []

    async def told() -> None:
        await story.start()
        brokers = [leader, DEAD + STOPPED - leader]
        await story.create_topic(brokers, {"flush.before.ack": "false", "min.insync.replicas": "2"})
        await story.in_sync(DEAD, STOPPED)
        await ledger.write(40)
        story.cluster.kill(story.node(DEAD), power_lost=True)
        await asyncio.sleep(0.2)
        await stop(story, STOPPED)
        await story.start(DEAD)
        await asyncio.sleep(15)
        await story.start(STOPPED)
        await story.in_sync(DEAD, STOPPED)
        await story.until(lambda: story.row().leader > 0)
        await story.led_by(story.row().leader)
        found.extend(ledger.lost(story.row().leader))

    story.run(told())
    return found


@pytest.mark.parametrize("leader", [STOPPED, DEAD], ids=["which leads", "which follows"])
def test_the_only_complete_copy_is_not_given_up_for_a_broker_that_lost_power_a_moment_ago(leader: int) -> None:
    for seed in SEEDS[:4]:
        assert lost(seed, leader) == []


def test_an_answer_that_came_before_the_wait_for_others_is_no_reason_to_hand_over() -> None:
    """One that answers at once loses power while another is waited for that is dead already."""
    for seed in SEEDS[:4]:
        story = Story(3, seed)
        ledger = Ledger(story)

        async def told(story: Story = story, ledger: Ledger = ledger) -> None:
            await story.start()
            await story.create_topic([STOPPED, DEAD], {"flush.before.ack": "false", "min.insync.replicas": "2"})
            await story.in_sync(DEAD, STOPPED)
            await ledger.write(40)
            story.cluster.kill(story.node(WITNESS), power_lost=True)
            stopping = asyncio.ensure_future(stop(story, STOPPED))
            await asyncio.sleep(0.3)
            story.cluster.kill(story.node(DEAD), power_lost=True)
            await stopping
            await story.start(DEAD)
            await asyncio.sleep(15)
            await story.start(STOPPED)
            await story.in_sync(DEAD, STOPPED)
            await story.until(lambda: story.row().leader > 0)
            await story.led_by(story.row().leader)
            assert ledger.lost(story.row().leader) == []

        story.run(told())


@pytest.mark.parametrize("leader", [STOPPED, DEAD], ids=["which leads", "which follows"])
def test_it_is_lost_with_the_defect_put_back(leader: int) -> None:
    with breaking("hands-over-to-the-dead"):
        assert any(lost(seed, leader) for seed in SEEDS)


def test_a_partition_is_handed_over_to_the_replica_that_answers() -> None:
    """The first in order of preference does not."""
    story = Story(3)

    async def told() -> None:
        await story.start()
        await story.create_topic([STOPPED, DEAD, WITNESS])
        await story.in_sync(DEAD, STOPPED, WITNESS)
        story.cluster.kill(story.node(DEAD), power_lost=True)
        await stop(story, STOPPED)
        assert (story.row().leader, set(story.row().isr)) == (WITNESS, {DEAD, WITNESS})

    story.run(told())


def test_a_partition_is_handed_over_before_the_broker_is_gone() -> None:
    story = Story(2)

    async def told() -> None:
        await story.start()
        await story.create_topic([1, 2])
        await story.in_sync(1, 2)
        await stop(story, 1)
        assert (story.row().leader, story.row().isr) == (2, (2,))
        await story.write((b"k", b"v"))

    story.run(told())


def test_brokers_that_are_all_stopped_at_once_come_back_with_everything() -> None:
    story = Story(3)
    ledger = Ledger(story)

    async def told() -> None:
        await story.start()
        await story.create_topic([1, 2, 3], {"flush.before.ack": "false"})
        await story.in_sync(1, 2, 3)
        await ledger.write(20)
        await asyncio.gather(*(stop(story, broker_id) for broker_id in (1, 2, 3)))
        await story.start()
        await story.in_sync(1, 2, 3)
        await story.until(lambda: story.row().leader > 0)
        await story.led_by(story.row().leader)
        assert ledger.lost(story.row().leader) == []

    story.run(told())


def test_a_broker_that_cannot_reach_the_metastore_stops_in_good_order_all_the_same() -> None:
    """It knows nothing of the others then, and leaves its place to its lease."""
    story = Story(2)
    ledger = Ledger(story)

    async def told() -> None:
        await story.start()
        await story.create_topic([1, 2], {"flush.before.ack": "false"})
        await story.in_sync(1, 2)
        await ledger.write(20)
        story.fabric.cut("broker-1", METASTORE)
        await stop(story, 1)
        assert not story.node(1).is_up
        story.fabric.heal("broker-1", METASTORE)
        await story.in_sync(2)
        await story.start(1)
        await story.in_sync(1, 2)
        assert ledger.lost(1) == ledger.lost(2) == []

    story.run(told())


@pytest.mark.parametrize("step", [handover.rebuild, handover.resolve_doubts], ids=["damaged", "doubtful"])
def test_a_log_that_is_not_trusted_is_left_only_to_the_process_that_answered(
    step: Callable[[Broker], Coroutine[Any, Any, None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """That the brokers named are still those processes is for the metastore to check."""
    story = Story(2)
    named: list[Mapping[int, int] | None] = []

    async def told() -> None:
        await story.start()
        await story.create_topic([STOPPED, DEAD])
        await story.in_sync(DEAD, STOPPED)
        broker, process = story.broker(STOPPED), story.node(STOPPED).process
        assert process is not None
        for found in ("damaged", "doubtful"):
            monkeypatch.setattr(broker.replicas, found, lambda: [story.replica(STOPPED)])
        write = broker.metastore.update_partitions

        async def update(rows: Sequence[PartitionRow], live: Mapping[int, int] | None) -> Sequence[PartitionRow | None]:
            named.append(live)
            return await write(rows, live)

        monkeypatch.setattr(broker.metastore, "update_partitions", update)
        await story.loop.spawn(process, step(broker))
        await story.in_sync(DEAD)
        epochs = {id_: row.epoch for id_, row in broker.view.brokers.items()}
        assert named[0] == {STOPPED: epochs[STOPPED], DEAD: epochs[DEAD]}

    story.run(told())


@pytest.mark.parametrize("flushes_first", ["false", "true"], ids=["what was not flushed is gone", "its disk is gone"])
def test_a_log_that_can_still_be_read_is_not_left_to_a_broker_that_died_a_moment_ago(flushes_first: str) -> None:
    """The disk fails under the only complete copy."""

    def lost_with(seed: int) -> list[int]:
        story = Story(3, seed)
        ledger = Ledger(story)
        found: list[int] = []

        async def told() -> None:
            await story.start()
            await story.create_topic([STOPPED, DEAD], {"flush.before.ack": flushes_first, "min.insync.replicas": "2"})
            await story.in_sync(DEAD, STOPPED)
            await ledger.write(40)
            story.cluster.kill(story.node(DEAD), power_lost=True)
            if flushes_first == "true":
                story.cluster.replace_disk(story.node(DEAD))
            node, replica = story.node(STOPPED), story.replica(STOPPED)
            assert node.process is not None
            node.volume.weather.flush_failure_probability = 1
            late = asyncio.ensure_future(ledger.write(1, timeout_ms=500))
            await story.until(lambda: replica.log.end_offset > 40)
            with suppress(KafkaError):
                await story.loop.spawn(node.process, replica.log.flush())
            assert replica.log.failure is not None
            node.volume.weather.flush_failure_probability = 0
            await late
            await asyncio.sleep(3)
            await story.start(DEAD)
            await story.led_by(DEAD)
            found.extend(ledger.lost(DEAD))

        story.run(told())
        return found

    for seed in SEEDS[:4]:
        assert lost_with(seed) == []
