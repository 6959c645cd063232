"""When a broker looks again, and whether anybody compacts."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from sexton.adapters.metastore import InProcessMetastore
from sexton.broker.compaction.compactors import LOOK_MS, LiveCompactors
from sexton.compactor.engines.reference import carry_out
from sexton.ports.metastore import MetastoreUnavailableError
from sexton.ports.work_queue import CompactorRow
from sexton.protocol.private import PrivateApi
from tests.adapters.metastore.rows import CLUSTER
from tests.broker.compaction.harness import CONFIG, TOPIC, Broker
from tests.broker.compaction.test_leftovers import Hands

ONE, OTHER = uuid.UUID(int=1), uuid.UUID(int=2)
LEASE_MS = 15_000


async def test_a_closed_segment_and_a_pass_are_news_and_nothing_else_is(broker: Broker) -> None:
    service = broker.service
    assert service.publisher.has_news(), "nobody has looked yet"
    await service.look()
    assert not service.publisher.has_news()
    await broker.write(1)
    await service.look()
    assert not service.publisher.has_news()
    await broker.write(1)
    assert not service.publisher.has_news(), "it went into the active segment"
    await broker.write(30)
    assert service.publisher.has_news(), "segments were closed"
    await service.look()
    assert not service.publisher.has_news()
    plan = await service.plans.plan(TOPIC, 0)
    await service.plans.commit(carry_out(broker.disk, plan))
    assert service.publisher.has_news(), "what waited for replicas may go on"


async def test_a_lag_that_passes_is_news(tmp_path: Path) -> None:
    clock = Hands()
    broker = Broker(tmp_path, config=replace(CONFIG, max_compaction_lag_ms=5000))
    broker.clock = cast(Any, clock)
    clock.ms = 1000
    await broker.start()
    await broker.write(1)
    await broker.service.look()
    clock.ms = 6000
    assert not broker.service.publisher.has_news()
    clock.ms = 6001
    assert broker.service.publisher.has_news()
    await broker.service.look()
    assert len(await broker.metastore.read_work()) == 1, "its segment was closed, and it is overdue"


async def watch(live: LiveCompactors, clock: Hands, for_ms: int) -> None:
    until_ms = clock.ms + for_ms
    while clock.ms < until_ms:
        await live.look()
        clock.ms += LOOK_MS
    await live.look()


async def test_a_compactor_that_was_killed_counts_no_longer_when_its_lease_has_run_out() -> None:
    metastore, clock = InProcessMetastore(), Hands()
    await metastore.open_cluster(CLUSTER)
    live = LiveCompactors(metastore, cast(Any, clock))
    assert live.count is None
    await live.look()
    assert live.count == 0
    await metastore.register_compactor(CompactorRow(ONE, "one", LEASE_MS, 0))
    await metastore.register_compactor(CompactorRow(OTHER, "other", LEASE_MS, 0))
    await watch(live, clock, 2 * LOOK_MS)
    assert live.count == 2
    for _ in range(5):
        await metastore.renew_compactor(OTHER)
        await watch(live, clock, LOOK_MS)
    assert live.count == 1
    await watch(live, clock, 2 * LEASE_MS)
    assert live.count == 0


async def test_a_compactor_that_is_dead_is_removed_and_one_that_renewed_meanwhile_is_not() -> None:
    """Though it was the only one: what it had registered would never be collected."""
    metastore, clock = InProcessMetastore(), Hands()
    await metastore.open_cluster(CLUSTER)
    live = LiveCompactors(metastore, cast(Any, clock))
    for compactor_id, name in ((ONE, "one"), (OTHER, "other")):
        await metastore.register_compactor(CompactorRow(compactor_id, name, LEASE_MS, 0))
    await watch(live, clock, 2 * LEASE_MS)
    await metastore.renew_compactor(OTHER)
    await live.remove_dead()
    assert [row.name for row in await metastore.read_compactors()] == ["other"]
    await watch(live, clock, LOOK_MS)
    assert live.count == 1


async def test_while_the_metastore_is_away_nobody_is_taken_for_dead() -> None:
    metastore, clock = InProcessMetastore(), Hands()
    await metastore.open_cluster(CLUSTER)
    await metastore.register_compactor(CompactorRow(ONE, "one", LEASE_MS, 0))
    live = LiveCompactors(metastore, cast(Any, clock))
    await watch(live, clock, LOOK_MS)
    read = metastore.read_compactors

    async def away() -> Any:
        raise MetastoreUnavailableError("connection refused")

    metastore.read_compactors = away  # type: ignore[method-assign]
    await watch(live, clock, 10 * LEASE_MS)
    metastore.read_compactors = read  # type: ignore[method-assign]
    await watch(live, clock, LOOK_MS)
    assert live.count == 1


async def test_while_the_metastore_can_only_be_read_nobody_is_taken_for_dead() -> None:
    """This broker sees the compactors' counts, and cannot renew its own lease: nor can they."""
    metastore, clock = InProcessMetastore(), Hands()
    await metastore.open_cluster(CLUSTER)
    await metastore.register_compactor(CompactorRow(ONE, "one", LEASE_MS, 0))
    can_renew = True
    live = LiveCompactors(metastore, cast(Any, clock), lambda: can_renew)
    await watch(live, clock, LOOK_MS)
    can_renew = False
    await watch(live, clock, 10 * LEASE_MS)
    can_renew = True
    await watch(live, clock, LOOK_MS)
    await live.remove_dead()
    assert live.count == 1
    assert len(await metastore.read_compactors()) == 1


async def test_status_says_how_many_compact(broker: Broker) -> None:
    assert (await broker.ask_for(PrivateApi.COMPACTION_STATUS, {}))["compactors_count"] is None
    await broker.service.look()
    assert (await broker.ask_for(PrivateApi.COMPACTION_STATUS, {}))["compactors_count"] == 0
