"""A replica with bytes that no pass can read: when it is tried again, and when it would be in vain."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from sexton.broker.compaction.plans import NotDueError
from sexton.broker.compaction.uncleanable import RETRY_MS, UncleanableReplicas
from sexton.compactor.engines.reference import carry_out
from sexton.protocol.private import PrivateApi
from sexton.settings.topic import TopicConfig
from tests.broker.compaction.harness import LOG, TOPIC, Broker
from tests.broker.compaction.test_leftovers import Hands

OTHER = uuid.UUID(int=5)
READ = frozenset({(0, 100), (10, 90)})
CONFIG = TopicConfig(cleanup_policy=frozenset({"compact"}))


def failed() -> UncleanableReplicas:
    known = UncleanableReplicas()
    known.failed(LOG, READ, CONFIG, "a CRC", 5000, 100)
    return known


def test_another_attempt_is_in_vain_until_something_has_changed() -> None:
    known = failed()
    assert known.bars(LOG, READ, CONFIG, 100)
    assert known.bars(LOG, READ | {(20, 50)}, CONFIG, 100), "what was damaged is still there"
    assert not known.bars(LOG, READ - {(0, 100)}, CONFIG, 100), "retention took it"
    assert not known.bars(LOG, frozenset({(0, 80), (10, 90)}), CONFIG, 100), "it was replaced"
    assert not known.bars(LOG, READ, replace(CONFIG, segment_bytes=5), 100)
    assert not known.bars(OTHER, READ, CONFIG, 100), "another log"
    assert known.bars(LOG, READ, CONFIG, 99 + RETRY_MS)
    assert not known.bars(LOG, READ, CONFIG, 100 + RETRY_MS)


def test_it_is_known_since_the_first_failure_and_until_a_pass_succeeds() -> None:
    known = failed()
    known.requested(LOG)
    assert not known.bars(LOG, READ, CONFIG, 100)
    assert known.of(LOG) is not None, "an attempt is no success"
    known.failed(LOG, READ, CONFIG, "another CRC", 9000, 200)
    found = known.of(LOG)
    assert found is not None
    assert (found.why, found.since_ms, found.attempts_count) == ("another CRC", 5000, 2)
    assert known.bars(LOG, READ, CONFIG, 200)
    known.succeeded(LOG)
    assert known.of(LOG) is None
    known = failed()
    known.keep_only({OTHER})
    assert known.of(LOG) is None


async def give_up(broker: Broker) -> None:
    plan = await broker.service.plans.plan(TOPIC, 0)
    assert (
        await broker.ask_for(
            PrivateApi.COMPACTION_ABANDON, {"plan_id": plan.plan_id, "uncleanable": "its CRC does not match"}
        )
        == {}
    )


async def test_what_cannot_be_compacted_is_not_due_and_is_shown(broker: Broker) -> None:
    await broker.write(30)
    await broker.service.look()
    assert len(await broker.metastore.read_work()) == 1
    await give_up(broker)
    await broker.service.look()
    assert await broker.metastore.read_work() == []
    assert not broker.service.plans.is_coming(broker.replica), "its followers need not wait for it"
    with pytest.raises(NotDueError, match="cannot be compacted"):
        await broker.service.plans.plan(TOPIC, 0)
    (shown,) = (await broker.ask_for(PrivateApi.COMPACTION_STATUS, {}))["replicas"]
    assert shown["uncleanable"]["why"] == "its CRC does not match"
    await broker.write(30)
    await broker.service.look()
    assert await broker.metastore.read_work() == [], "more of it heals nothing"


async def test_it_is_tried_again_when_somebody_asks_and_healed_by_a_pass(broker: Broker) -> None:
    await broker.write(30)
    await give_up(broker)
    await broker.ask_for(PrivateApi.COMPACTION_REQUEST, {"topic": "t"})
    assert len(await broker.metastore.read_work()) == 1
    plan = await broker.service.plans.plan(TOPIC, 0)
    await broker.service.plans.commit(carry_out(broker.disk, plan))
    assert broker.service.memory.uncleanable.of(broker.replica.coordination.watermarks.incarnation) is None


async def test_a_plan_that_is_given_up_for_another_reason_is_due_again(broker: Broker) -> None:
    await broker.write(30)
    plan = await broker.service.plans.plan(TOPIC, 0)
    await broker.ask_for(PrivateApi.COMPACTION_ABANDON, {"plan_id": plan.plan_id})
    await broker.service.look()
    assert len(await broker.metastore.read_work()) == 1


async def test_what_is_known_of_a_log_goes_with_it(tmp_path: Path) -> None:
    """Topics are deleted and replicas move."""

    broker = Broker(tmp_path)
    await broker.start()
    await broker.write(30)
    await broker.service.request("t", None)
    await give_up(broker)
    service, gone = broker.service, broker.replica
    assert service.memory.uncleanable.of(gone.coordination.watermarks.incarnation) is not None
    broker.all = list  # type: ignore[method-assign]
    await service.look()
    assert service.memory.uncleanable.of(gone.coordination.watermarks.incarnation) is None
    assert service.memory.last(gone) is None
    kept = (
        service.memory.requested,
        service.memory.due_since_ms,
        service.memory.leftovers._known,
    )
    assert not any(kept)


async def test_when_it_was_last_compacted_is_known_after_a_restart(tmp_path: Path) -> None:
    clock = Hands()
    broker = Broker(tmp_path)
    broker.clock = cast(Any, clock)
    await broker.start()
    await broker.write(30)
    assert broker.service.memory.leftovers.compacted_ms(broker.replica) is None
    plan = await broker.service.plans.plan(TOPIC, 0)
    clock.ms = 77_000
    await broker.service.plans.commit(carry_out(broker.disk, plan))
    again = Broker(tmp_path)
    again.clock = cast(Any, clock)
    await again.start()
    (shown,) = (await again.ask_for(PrivateApi.COMPACTION_STATUS, {}))["replicas"]
    assert shown["compacted_ms"] == 77_000
