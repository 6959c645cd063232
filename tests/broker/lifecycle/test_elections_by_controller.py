"""Nobody is taken for a complete copy, by the controller or for an operator, who was not heard of: that a lease has not
run out says nothing of the last seconds, in which a disk may have gone, or what was not flushed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from sexton.broker.api import elect_leaders
from sexton.ports.metastore import BrokerRow
from sexton.protocol.errors import ErrorCode
from sexton.simulate.broken import breaking
from sexton.simulate.metastore import HOST as METASTORE
from tests.simulated import TOPIC, Ledger, Story

CONTROLLER, CUT_OFF, DEAD = 1, 2, 3
SETTINGS = {"flush.before.ack": "false", "min.insync.replicas": "2"}
SEEDS = range(1, 9)
"""What a power loss takes is drawn from them."""


async def begin(story: Story, ledger: Ledger, leader: int, settings: dict[str, str] = SETTINGS) -> None:
    """Broker 1 starts first, and so is the controller. It holds no replica."""
    await story.start(CONTROLLER)
    await story.start(CUT_OFF, DEAD)
    await story.create_topic([leader, CUT_OFF + DEAD - leader], settings)
    await story.in_sync(CUT_OFF, DEAD)
    await ledger.write(40)


def lost(seed: int, leader: int) -> list[int]:
    """One of two in-sync replicas cannot reach the metastore; when its lease has almost run out the other one loses
    power, and is the first to be back."""
    story = Story(3, seed)
    ledger = Ledger(story)
    found: list[int] = []

    async def told() -> None:
        await begin(story, ledger, leader)
        story.fabric.cut(story.node(CUT_OFF).name, METASTORE)
        await asyncio.sleep(3)
        story.cluster.kill(story.node(DEAD), power_lost=True)
        await asyncio.sleep(15)
        await story.start(DEAD)
        story.fabric.heal(story.node(CUT_OFF).name, METASTORE)
        await story.in_sync(CUT_OFF, DEAD)
        await story.led_by(story.row().leader)
        found.extend(ledger.lost(story.row().leader))

    story.run(told())
    return found


@pytest.mark.parametrize("leader", [CUT_OFF, DEAD], ids=["the one that is cut off leads", "the dead one led"])
def test_a_complete_copy_is_not_passed_over_for_one_that_lost_power_a_moment_ago(leader: int) -> None:
    for seed in SEEDS[:4]:
        assert lost(seed, leader) == []


@pytest.mark.parametrize("leader", [CUT_OFF, DEAD], ids=["the one that is cut off leads", "the dead one led"])
def test_it_is_lost_with_the_defect_put_back(leader: int) -> None:
    with breaking("elects-the-dead"):
        assert any(lost(seed, leader) for seed in SEEDS)


def test_one_that_the_controller_cannot_reach_leads_when_it_has_renewed_its_lease() -> None:
    story = Story(3)
    ledger = Ledger(story)

    async def told() -> None:
        await begin(story, ledger, CUT_OFF)
        story.fabric.cut(story.node(CONTROLLER).name, story.node(DEAD).name)
        story.cluster.kill(story.node(CUT_OFF), power_lost=False)
        await story.until(lambda: story.row().leader == DEAD)
        await story.led_by(DEAD)
        assert ledger.lost(DEAD) == []

    story.run(told())


def test_another_broker_that_answers_at_its_address_is_not_taken_for_it() -> None:
    """Addresses are given out again, in Kubernetes within seconds."""
    story = Story(2)

    async def told() -> None:
        await story.start()
        news, row = story.broker(1).news, story.broker(1).view.brokers[2]
        process = story.node(1).process
        assert process is not None

        async def is_answered(row: BrokerRow) -> bool:
            return await story.loop.spawn(process, news.is_answered_by(row, 1_000))

        assert await is_answered(row)
        assert not await is_answered(replace(row, broker_id=3))
        assert not await is_answered(replace(row, epoch=row.epoch - 1))
        assert await is_answered(row)

    story.run(told())


@pytest.mark.parametrize("leader", [CUT_OFF, DEAD], ids=["the one that is cut off leads", "the dead one led"])
def test_a_complete_copy_is_not_passed_over_for_one_whose_disk_is_gone(leader: int) -> None:
    """Of a topic that flushes before it acknowledges: what was flushed can be lost with the disk."""
    story = Story(3)
    ledger = Ledger(story)

    async def told() -> None:
        await begin(story, ledger, leader, {"min.insync.replicas": "2"})
        story.fabric.cut(story.node(CUT_OFF).name, METASTORE)
        await asyncio.sleep(3)
        story.cluster.kill(story.node(DEAD), power_lost=True)
        story.cluster.replace_disk(story.node(DEAD))
        await asyncio.sleep(15)
        story.fabric.heal(story.node(CUT_OFF).name, METASTORE)
        await story.start(DEAD)
        await story.in_sync(CUT_OFF, DEAD)
        await story.led_by(story.row().leader)
        assert len(ledger.acknowledged) == 40
        assert ledger.lost(story.row().leader) == []

    story.run(told())


async def elected_for_an_operator(story: Story) -> ErrorCode:
    """Asked of the controller, whichever brokers clients would try first."""
    body = SimpleNamespace(
        election_type=elect_leaders.PREFERRED, topic_partitions=[SimpleNamespace(topic=TOPIC, partitions=[0])]
    )
    process = story.node(CONTROLLER).process
    assert process is not None
    request: Any = SimpleNamespace(body=body)
    answer = await story.loop.spawn(process, elect_leaders.handle(story.broker(CONTROLLER), request))
    return ErrorCode(answer["replica_election_results"][0]["partition_result"][0]["error_code"])


@pytest.mark.parametrize("is_disk_gone", [False, True], ids=["it lost power", "its disk is gone"])
def test_an_operator_who_asks_for_the_preferred_leader_does_not_get_one_that_died_a_moment_ago(
    is_disk_gone: bool,
) -> None:
    """The leader cannot reach the metastore, and is fenced. The preferred replica's lease has not run out yet."""
    story = Story(3, seed=3)
    ledger = Ledger(story)

    async def told() -> None:
        await begin(story, ledger, DEAD, {"min.insync.replicas": "2"} if is_disk_gone else SETTINGS)
        story.cluster.kill(story.node(DEAD), power_lost=False)
        await story.led_by(CUT_OFF)
        await story.start(DEAD)
        await story.in_sync(CUT_OFF, DEAD)
        await ledger.write(40)
        story.fabric.cut(story.node(CUT_OFF).name, METASTORE)
        await asyncio.sleep(3)
        story.cluster.kill(story.node(DEAD), power_lost=True)
        if is_disk_gone:
            story.cluster.replace_disk(story.node(DEAD))
        brokers = story.broker(CONTROLLER).view.brokers
        await story.until(lambda: not brokers[CUT_OFF].is_live)
        assert brokers[DEAD].is_live
        assert story.row().leader == CUT_OFF
        assert await elected_for_an_operator(story) is ErrorCode.preferred_leader_not_available
        assert sorted(story.row().isr) == [CUT_OFF, DEAD]
        await asyncio.sleep(10)
        story.fabric.heal(story.node(CUT_OFF).name, METASTORE)
        await story.start(DEAD)
        await story.in_sync(CUT_OFF, DEAD)
        await story.led_by(story.row().leader)
        assert len(ledger.acknowledged) > 40
        assert ledger.lost(story.row().leader) == []

    story.run(told())
