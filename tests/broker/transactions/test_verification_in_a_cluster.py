"""Batches of a client before transaction version 2 that are on the way while the first is verified stay in order."""

from __future__ import annotations

import asyncio
import random

import pytest

from sexton.metadata.topics import TRANSACTIONS_TOPIC
from sexton.records.batch import Record
from sexton.simulate.broken import breaking
from sexton.simulate.errors import SimulationFailure
from sexton.simulate.history import Outcome
from sexton.simulate.transactional import TransactionalProducer
from tests.log.helpers import read_all
from tests.simulated import TOPIC, Story

PLACE = (TOPIC, 0)
TRANSACTIONS_COUNT = 40
"""Each has one moment at which a batch may be overtaken, and not every one is met."""

BATCHES_COUNT = 12


async def write_all(producer: TransactionalProducer) -> None:
    for number in range(TRANSACTIONS_COUNT):
        await producer.add([PLACE])
        sends = []
        for each in range(BATCHES_COUNT):
            record = Record(0, 1, b"k", b"%d" % (BATCHES_COUNT * number + each))
            sends.append(asyncio.ensure_future(producer.send(PLACE, [record])))
            await asyncio.sleep(0)  # so that they begin in this order
        await asyncio.gather(*sends)
        assert await producer.commit() is Outcome.OK


def coordinator_of(story: Story, transactional_id: str) -> int:
    broker = story.broker(1)
    row = broker.view.partition(TRANSACTIONS_TOPIC, broker.transactions.service.partition_of(transactional_id))
    assert row is not None
    return row.leader


def written(defect: str | None) -> list[bytes | None]:
    """By many transactions, whose coordinator is another broker than the leader: it is asked over the network."""
    story = Story(2)
    values: list[bytes | None] = []

    async def told() -> None:
        await story.start()
        app = TransactionalProducer(
            client=story.admin.client,
            transactional_id="app",
            version=1,
            timeout_ms=60_000,
            patience_s=60,
            rng=random.Random(1),
            may_start_at=lambda place, offset: False,
        )
        await story.client_does(app.init())
        coordinator = coordinator_of(story, "app")
        leader = 3 - coordinator
        await story.create_topic([leader, coordinator])
        await story.client_does(write_all(app))
        batches = read_all(story.replica(leader).log)
        values.extend(batch.records[0].value for batch in batches if not batch.is_control)

    with breaking(defect):
        story.run(told())
    return values


def test_no_batch_overtakes_one_that_waits_for_its_transaction_to_be_verified() -> None:
    assert written(None) == [b"%d" % number for number in range(TRANSACTIONS_COUNT * BATCHES_COUNT)]


def test_a_batch_overtakes_those_that_are_resumed_a_turn_later() -> None:
    """As they once were: the story shows the defect if it is there."""
    with pytest.raises(SimulationFailure, match="refused as out of order"):
        written("batch-overtakes-verification")
