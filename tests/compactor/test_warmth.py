"""The engine runs while topics are compacted, so that no pass waits for it, and not for nothing."""

from __future__ import annotations

import asyncio
import re
import uuid
from pathlib import Path
from typing import Any

from sexton.adapters.metastore import InProcessMetastore
from sexton.compactor import worker
from sexton.compactor.compacted_topics import CompactedTopics
from sexton.compactor.metrics import CompactorMetrics
from sexton.compactor.schedule import Lane
from sexton.http.process_pages import ProcessPages
from sexton.http.server import Request
from sexton.ports.metastore import ConfigScope, TopicRow
from tests.adapters.metastore.rows import CLUSTER
from tests.compactor.test_worker import World

DOCS = Path(__file__).parents[2] / "docs"
TOPIC, INTERNAL = uuid.UUID(int=7), uuid.UUID(int=8)
COMPACT = {"cleanup.policy": "compact,delete"}


async def test_topics_of_users_count_and_internal_ones_do_not() -> None:
    metastore = InProcessMetastore()
    await metastore.open_cluster(CLUSTER)
    topics = CompactedTopics(metastore)
    await metastore.create_topic(TopicRow(INTERNAL, "__consumer_offsets", True), [], COMPACT)
    assert not await topics.exist()
    await metastore.create_topic(TopicRow(TOPIC, "t", False), [], {})
    assert not await topics.exist()
    await metastore.change_settings(ConfigScope.TOPIC, "t", COMPACT)
    assert await topics.exist()
    assert await topics.exist(), "nothing has changed"
    assert await CompactedTopics(metastore).exist(), "whoever comes later reads all of it"
    await metastore.change_settings(ConfigScope.TOPIC, "t", {"cleanup.policy": None})
    assert not await topics.exist()
    await metastore.change_settings(ConfigScope.BROKER, "", {"log.cleanup.policy": "compact"})
    assert await topics.exist()
    await metastore.change_settings(ConfigScope.TOPIC, "t", {"cleanup.policy": "delete"})
    assert not await topics.exist()
    await metastore.change_settings(ConfigScope.TOPIC, "t", COMPACT)
    await metastore.delete_topic(TOPIC)
    assert not await topics.exist()
    await metastore.create_topic(TopicRow(uuid.UUID(int=9), "t", False), [], {"cleanup.policy": "delete"})
    assert not await topics.exist(), "the same name again"


async def test_the_engine_is_warm_while_topics_are_compacted_and_rests_without(world: World) -> None:
    compactor = await world.start()
    done: list[str] = []
    engine: Any = world
    turned = asyncio.Event()

    async def warm() -> None:
        done.append("warm")
        turned.set()

    async def rest() -> None:
        done.append("rest")
        turned.set()

    engine.warm, engine.rest = warm, rest

    async def next_step() -> str:
        turned.clear()
        task = asyncio.ensure_future(compactor.keep_warm_or_rest())
        await asyncio.wait_for(turned.wait(), 10)
        task.cancel()
        return done[-1]

    world.time_ms += worker.REST_AFTER_MS + 1
    assert await next_step() == "rest"
    await world.metastore.create_topic(TopicRow(TOPIC, "t", False), [], COMPACT)
    world.time_ms += worker.REST_AFTER_MS + 1
    assert await next_step() == "warm", "however long there has been nothing to do"


async def test_a_compactor_tells_what_it_has_done(world: World) -> None:
    compactor = await world.start(0, 1, 2)
    world.failing = {2}
    await compactor.turn(Lane.SMALL)
    pages = ProcessPages(CompactorMetrics(compactor), compactor=compactor.name)
    text = (await pages.answer(Request("/metrics"))).body.decode()
    samples = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    told = {name: float(value) for name, value in samples}
    assert told['sexton_compactor_passes_total{outcome="committed"}'] == 2
    assert told['sexton_compactor_passes_total{outcome="failed"}'] == 1
    assert told["sexton_compactor_jobs_total"] == 1
    assert told["sexton_compactor_input_bytes_total"] == 200
    assert told["sexton_compactor_output_bytes_total"] == 80
    assert told["sexton_compactor_due"] == 3
    assert told["sexton_compactor_underway"] == 0
    assert told["sexton_compactor_due_to_done_seconds_total"] == 2 * world.time_ms / 1000
    manual = "".join(page.read_text() for page in DOCS.glob("*.md"))
    named = set(re.findall(r"sexton_compactor_[a-z_]*[a-z]", manual))
    assert len(named) > 2
    assert named <= {name.partition("{")[0] for name in told}
    assert (await pages.answer(Request("/live"))).status == 200
