"""Extents by offset and by time; and what those who follow the cluster are told."""

from __future__ import annotations

import uuid

import pytest

from sexton.ports.cloud import ExtentsPage, Level
from sexton.ports.metastore import Storage
from tests.adapters.metastore.cloud.world import (
    ACCEPTED,
    SETTINGS,
    TOPIC,
    A,
    B,
    World,
    aborts,
    l1,
    marker,
)
from tests.adapters.metastore.rows import partitions, topic

NOWHERE = (uuid.UUID(int=5), 0)


@pytest.fixture(autouse=True)
async def _broker_1_leads(world: World) -> None:
    await world.claim(1, 1)


def spans(page: ExtentsPage | None) -> list[tuple[int, int]]:
    assert page is not None
    return [(extent.base_offset, extent.end_offset) for extent in page.extents]


async def test_extents_are_read_from_the_one_that_has_the_offset_on(world: World) -> None:
    for base in range(0, 50, 10):
        await world.write(A, base, base + 10)
    assert spans(await world.store.read_extents(A, 15, 2)) == [(10, 20), (20, 30)]
    assert spans(await world.store.read_extents(A, 20, 1)) == [(20, 30)]
    assert spans(await world.store.read_extents(A, 40, 9)) == [(40, 50)]
    assert spans(await world.store.read_extents(A, 50, 9)) == []
    assert await world.store.read_extents(NOWHERE, 0, 9) is None
    await world.do("advance_start", A, 1, 25)
    page = await world.store.read_extents(A, 0, 9)
    assert page is not None
    assert (spans(page)[0], page.row.start_offset) == ((20, 30), 25)


async def test_a_page_has_both_levels_and_the_aborted_list_of_its_l0(world: World) -> None:
    await world.write(A, 0, 10)
    await world.write(A, 10, 20)
    for offset, first in ((20, 3), (21, 15)):
        await world.do("commit_inline", world.brokers[1], [marker(A, offset, aborted=[aborts(offset, first)])], 5)
    await world.leveled_to(A, 0, 10)
    page = await world.store.read_extents(A, 0, 9)
    assert page is not None
    assert spans(page) == [(0, 10), (10, 20), (20, 21), (21, 22)]
    assert [one.marker_offset for one in page.aborted] == [20, 21]
    assert page.row.leveled_offset == 10
    last = await world.store.read_extents(A, 21, 9)
    assert last is not None
    assert [one.marker_offset for one in last.aborted] == [21]
    assert last.extents[0].inline == b"marker at 21"
    first_only = await world.store.read_extents(A, 0, 1)
    assert first_only is not None
    assert [one.first_offset for one in first_only.aborted] == [3]  # its L1 needs none: readers look at the level


async def test_the_first_extent_of_a_time_is_found_in_one_snapshot_of_both_levels(world: World) -> None:
    await world.write(A, 0, 10, max_timestamp_ms=500)
    await world.write(A, 10, 20, max_timestamp_ms=300)
    await world.write(A, 20, 30, max_timestamp_ms=700)
    await world.write(A, 30, 40, max_timestamp_ms=700)
    found = {t: await world.store.find_time(A, t) for t in (0, 400, 500, 501, 701)}
    assert {t: one and one.base_offset for t, one in found.items()} == {0: 0, 400: 0, 500: 0, 501: 20, 701: None}
    latest = await world.store.find_max_time(A)
    assert latest is not None
    assert latest.base_offset == 20
    await world.do("advance_start", A, 1, 15)
    one = await world.store.find_time(A, 0)
    assert one is not None
    assert one.base_offset == 10
    assert await world.store.find_time(NOWHERE, 0) is None
    assert await world.store.find_max_time(NOWHERE) is None
    assert await world.store.find_max_time(B) is None


async def test_a_topic_has_cloud_partitions_if_it_was_made_so_and_gets_more_with_more_partitions(world: World) -> None:
    local = topic("local", 9)
    await world.store.create_topic(local, partitions(local, 1), {"storage.mode": "local"})
    await world.store.add_partitions(local.topic_id, 1, partitions(local, 1, first=1))
    await world.store.add_partitions(TOPIC.topic_id, 2, partitions(TOPIC, 2, first=2, storage=Storage.CLOUD))
    tables = await world.check()
    assert sorted(tables.partitions) == [(TOPIC.topic_id, number) for number in range(4)]


async def test_commits_are_no_change_of_the_cluster_and_what_moves_extents_is(world: World) -> None:
    async def told() -> list[int]:
        changes = await world.store.read_changes(seen)
        assert not changes.is_snapshot
        return [row.end_offset for row in changes.cloud_partitions]

    seen = (await world.store.read_changes(0)).revision
    await world.write(A, 0, 10)
    await world.write(A, 10, 20)
    await world.claim(1, 2)
    assert (await world.store.read_changes(seen)).revision == seen
    await world.leveled_to(A, 0, 20)
    assert await told() == [20]
    seen = (await world.store.read_changes(seen)).revision
    object_id = await world.pending(world.compactor, Level.L1)
    assert await world.replace(A, await world.l1_of(A), l1(0, 20, object_id)) is ACCEPTED
    assert await told() == [20]
    seen = (await world.store.read_changes(seen)).revision
    await world.do("advance_start", A, 2, 5)
    assert await told() == [20]
    seen = (await world.store.read_changes(seen)).revision
    await world.do("advance_start", A, 2, 5)
    assert (await world.store.read_changes(seen)).revision == seen
    snapshot = await world.store.read_changes(0)
    assert sorted(row.partition for row in snapshot.cloud_partitions) == [0, 1]
    assert dict(snapshot.configs[0].settings) == SETTINGS
