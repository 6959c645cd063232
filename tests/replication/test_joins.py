"""Nothing acknowledged is lost when a replica joins the in-sync set while things go wrong: whole clusters.

Each story is also told with its defect put back: then it must end in a loss, or it would show nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, cast

import pytest

from sexton.client import apis
from sexton.ports.metastore import MetastoreUnavailableError, PartitionRow
from sexton.protocol.errors import ErrorCode
from sexton.simulate.broken import breaking
from tests.simulated import TOPIC, Ledger, Story

pytestmark = pytest.mark.long

LEADER, FOLLOWER, JOINING = 1, 2, 3


class Mouth:
    """One broker's way to the metastore: the answers to changes of an in-sync set, or to polls, get lost as told."""

    def __init__(self, story: Story, broker_id: int) -> None:
        broker = story.broker(broker_id)
        self._inner: Any = broker.metastore
        self.loses_request: Callable[[PartitionRow], bool] = lambda row: False
        self.loses_answer: Callable[[PartitionRow], bool] = lambda row: False
        self.is_blind = False
        broker.metastore = cast(Any, self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def read_changes(self, after_revision: int) -> Any:
        changes = await self._inner.read_changes(after_revision)
        if self.is_blind:
            raise MetastoreUnavailableError("blind")
        return changes

    async def update_partitions(self, rows: Sequence[PartitionRow], live: Any = None) -> Any:
        if any(self.loses_request(row) for row in rows):
            raise MetastoreUnavailableError("the request was lost")
        is_lost = any(self.loses_answer(row) for row in rows)
        answer = await self._inner.update_partitions(rows, live)
        if is_lost:
            raise MetastoreUnavailableError("the answer was lost")
        return answer


async def reassign(story: Story, replicas: list[int]) -> None:
    """Through a broker that has nothing to do with it."""
    peer = await story.admin.client.peer(JOINING)
    partition = {"partition_index": 0, "replicas": replicas}
    body = {"timeout": 5_000, "topics": [{"name": TOPIC, "partitions": [partition]}]}
    answer = await peer.call(apis.ALTER_PARTITION_REASSIGNMENTS, body)
    assert answer.responses[0].partitions[0].error_code is ErrorCode.none


async def goes_through_a_lost_answer(story: Story, ledger: Ledger) -> None:
    """Defect 1. A join is carried out and its answer is lost; the broker that joined dies and registers anew, so that
    the repetition is refused. The leader, which sees no poll meanwhile, goes on writing with the other follower."""
    await story.start()
    await story.create_topic([LEADER, FOLLOWER, JOINING], {"min.insync.replicas": "2"})
    await story.in_sync(LEADER, FOLLOWER, JOINING)
    story.cluster.kill(story.node(JOINING), power_lost=False)
    await story.in_sync(LEADER, FOLLOWER)
    await ledger.write(20)

    mouth = Mouth(story, LEADER)

    def loses(row: PartitionRow) -> bool:
        mouth.is_blind = mouth.is_blind or JOINING in row.isr
        return JOINING in row.isr

    mouth.loses_answer = loses
    story.cluster.start(story.node(JOINING))
    await story.in_sync(LEADER, FOLLOWER, JOINING)
    story.cluster.kill(story.node(JOINING), power_lost=False)
    story.isolate(JOINING)
    await story.start(JOINING)
    mouth.loses_answer = lambda row: False
    await asyncio.sleep(2)
    await ledger.write(10, timeout_ms=3_000)

    for broker_id in (LEADER, FOLLOWER):
        story.cluster.kill(story.node(broker_id), power_lost=True)
    story.reconnect(JOINING)
    await story.led_by(JOINING)
    await story.start(LEADER, FOLLOWER)
    await story.in_sync(LEADER, FOLLOWER, JOINING)


async def goes_through_a_lost_process(story: Story, ledger: Ledger) -> None:
    """Defect 6. A join does not get through; the process that had caught up loses power, and with it what it had not
    flushed; the join is repeated. Then the leader dies, which never lost anything."""
    await story.start()
    await story.create_topic([LEADER, FOLLOWER], {"flush.before.ack": "false"})
    await story.in_sync(LEADER, FOLLOWER)
    story.cluster.kill(story.node(FOLLOWER), power_lost=True)
    await story.in_sync(LEADER)
    await ledger.write(40)

    mouth = Mouth(story, LEADER)
    asked: list[PartitionRow] = []

    def loses(row: PartitionRow) -> bool:
        if FOLLOWER in row.isr:
            asked.append(row)
        return FOLLOWER in row.isr

    mouth.loses_request = loses
    story.cluster.start(story.node(FOLLOWER))
    await story.until(lambda: bool(asked))
    story.cluster.kill(story.node(FOLLOWER), power_lost=True)
    story.isolate(LEADER)
    await story.start(FOLLOWER)
    mouth.loses_request = lambda row: False
    await asyncio.sleep(3)
    story.cluster.kill(story.node(LEADER), power_lost=False)
    story.reconnect(LEADER)
    await asyncio.sleep(20)
    await story.start(LEADER)
    await story.in_sync(LEADER, FOLLOWER)


async def goes_through_a_new_log(story: Story, ledger: Ledger) -> None:
    """Defect 2. While the leader reaches neither the metastore nor its follower, that one is removed and added again,
    with an empty log (by a third broker, which hears that the leader is there). The leader hears of both as of one
    change, before it hears of the follower. Then it dies."""
    await story.start()
    await story.create_topic([LEADER, FOLLOWER])
    await story.in_sync(LEADER, FOLLOWER)
    await ledger.write(50)
    first_id = story.row().incarnations[FOLLOWER]

    mouth = Mouth(story, LEADER)
    mouth.is_blind = True
    story.isolate(LEADER, but_for=JOINING)
    await story.client_does(reassign(story, [LEADER]))
    await story.client_does(reassign(story, [LEADER, FOLLOWER]))
    second_id = story.row().incarnations[FOLLOWER]
    assert second_id != first_id
    mouth.is_blind = False
    leader = story.replica(LEADER)
    await story.until(lambda: leader.row.incarnations.get(FOLLOWER) == second_id)
    await asyncio.sleep(1)
    story.cluster.kill(story.node(LEADER), power_lost=False)
    story.reconnect(LEADER, but_for=JOINING)
    await asyncio.sleep(20)
    await story.start(LEADER)
    await story.in_sync(LEADER, FOLLOWER)


Plot = Callable[[Story, Ledger], Coroutine[Any, Any, None]]

PLOTS: list[tuple[Plot, str]] = [
    (goes_through_a_lost_answer, "isr-join-forgotten"),
    (goes_through_a_lost_process, "join-names-another-process"),
    (goes_through_a_new_log, "progress-outlives-incarnation"),
]


SEEDS = range(1, 9)
"""What a power loss takes is drawn from them."""


def lost_in(plot: Plot, seed: int) -> list[int]:
    """Acknowledged offsets that the leader of the healed cluster does not hold."""
    story = Story(3, seed)
    ledger = Ledger(story)
    lost: list[int] = []

    async def told() -> None:
        await plot(story, ledger)
        assert len(ledger.acknowledged) >= 20
        await story.until(lambda: story.row().leader >= 0)
        await story.led_by(story.row().leader)
        lost.extend(ledger.lost(story.row().leader))
        written = len(ledger.acknowledged)
        await ledger.write(10)
        assert len(ledger.acknowledged) >= written + 5, "the partition goes on"

    story.run(told())
    return lost


@pytest.mark.parametrize("plot", [plot for plot, _ in PLOTS], ids=lambda plot: plot.__name__)
def test_nothing_acknowledged_is_lost_when_a_join(plot: Plot) -> None:
    for seed in SEEDS[:3]:
        assert lost_in(plot, seed) == []


@pytest.mark.parametrize(("plot", "switch"), PLOTS, ids=[switch for _, switch in PLOTS])
def test_it_is_lost_with_the_defect_put_back(plot: Plot, switch: str) -> None:
    with breaking(switch):
        assert any(len(lost_in(plot, seed)) >= 5 for seed in SEEDS)
