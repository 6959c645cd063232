"""The start of a log, and the end of a topic."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sexton.adapters.metastore import operations
from sexton.adapters.metastore.cloud import trimming
from sexton.ports.cloud import Level, ObjectState
from sexton.ports.metastore import StaleError
from tests.adapters.metastore.cloud.world import (
    ACCEPTED,
    FENCED,
    GONE,
    MISPLACED,
    TOPIC,
    A,
    B,
    World,
    aborts,
    gather,
    l1,
    marker,
    run,
)


@pytest.fixture(autouse=True)
async def _broker_1_leads(world: World) -> None:
    await world.claim(1, 1)


async def test_the_start_moves_at_once_and_extents_wholly_below_it_go(world: World) -> None:
    ids = [await world.write(A, base, base + 10) for base in (0, 10, 20)]
    for _ in range(2):
        assert await world.do("advance_start", A, 1, 15) == (ACCEPTED, 15, False)
        assert await world.extents(A) == [(10, 20, "L0"), (20, 30, "L0")]
    assert [await world.state(id_) for id_ in ids] == [ObjectState.GARBAGE, ObjectState.LIVE, ObjectState.LIVE]
    row = await world.row(A)
    assert (row.start_offset, row.leveled_offset, row.cleaned_offset) == (15, 10, 10)
    assert await world.do("advance_start", A, 1, 12) == (ACCEPTED, 15, False)


async def test_all_of_a_log_may_go_and_it_goes_on_where_it_was(world: World) -> None:
    await world.write(A, 0, 10, stable=3)
    assert await world.do("advance_start", A, 1, 10) == (ACCEPTED, 10, False)
    row = await world.row(A)
    assert (row.start_offset, row.stable_offset, row.leveled_offset, row.end_offset) == (10, 10, 10, 10)
    assert (row.l0_bytes, row.l0_extents_count, row.l0_since_ms) == (0, 0, 0)
    await world.write(A, 10, 20)
    assert await world.extents(A) == [(10, 20, "L0")]


async def test_the_start_is_moved_by_the_leader_alone_and_not_beyond_the_end(world: World) -> None:
    await world.write(A, 0, 10)
    assert await world.do("advance_start", A, 1, 11) == (MISPLACED, 0, False)
    await world.claim(2, 2, A)
    assert await world.do("advance_start", A, 1, 5) == (FENCED, 0, False)
    assert await world.do("advance_start", (A[0], 9), 1, 5) == (GONE, 0, False)
    await world.store.delete_topic(TOPIC.topic_id)
    assert await world.do("advance_start", A, 2, 5) == (GONE, 0, False)


async def test_many_extents_go_in_steps(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trimming, "TRIMMED_PER_CALL", 2)
    for base in range(0, 50, 10):
        await world.write(A, base, base + 10)
    told = [await world.do("advance_start", A, 1, 45) for _ in range(3)]
    assert told == [(ACCEPTED, 20, True), (ACCEPTED, 40, True), (ACCEPTED, 45, False)]
    assert await world.extents(A) == [(40, 50, "L0")]


async def test_a_leader_that_ends_between_two_steps_leaves_a_log_that_can_be_leveled(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody takes the step after it: the start is not moved again before somebody deletes more."""
    monkeypatch.setattr(trimming, "TRIMMED_PER_CALL", 2)
    for base in range(0, 50, 10):
        await world.write(A, base, base + 10)
    await world.do("advance_start", A, 1, 45)
    await world.claim(2, 2, A)
    page = await world.store.read_extents(A, (await world.row(A)).leveled_offset, 10)
    assert page is not None
    assert page.extents[0].base_offset == page.row.leveled_offset == page.row.start_offset == 20
    await world.leveled_to(A, 20, 30, 40, 50)


async def test_a_compaction_between_two_steps_leaves_no_hole(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it makes below the start is left out, and an extent that it did not change may be left below that."""
    monkeypatch.setattr(trimming, "TRIMMED_PER_CALL", 1)
    await world.write(A, 0, 50)
    await world.leveled_to(A, 0, 10, 20, 30, 40, 50)
    change = (await world.l1_of(A))[2]
    await world.do("advance_start", A, 1, 45)
    new = await world.pending(world.compactor, Level.L1)
    assert await world.replace(A, [change], l1(20, 30, new), bound=50) is ACCEPTED
    assert [span[:2] for span in await world.extents(A)] == [(10, 20), (20, 30), (30, 40), (40, 50)]
    while (await world.do("advance_start", A, 1, 45)).has_more:
        pass
    assert await world.extents(A) == [(40, 50, "L1")]


async def test_aborted_transactions_go_with_their_markers(world: World) -> None:
    await world.write(A, 0, 10, stable=0)
    for offset in (10, 11):
        await world.do("commit_inline", world.brokers[1], [marker(A, offset, aborted=[aborts(offset, 0)])], 5)
    await world.do("advance_start", A, 1, 11)
    assert [one.marker_offset for one in (await world.check()).aborted[A]] == [11]


async def test_l1_goes_as_l0_does_and_what_is_dirty_is_counted(world: World) -> None:
    await world.write(A, 0, 30)
    await world.leveled_to(A, 0, 10, 20, 30)
    assert (await world.row(A)).dirty_bytes == 150
    await world.do("advance_start", A, 1, 25)
    row = await world.row(A)
    assert (row.l1_bytes, row.dirty_bytes, row.cleaned_offset, row.leveled_offset) == (50, 50, 20, 30)


async def test_a_deleted_topic_is_purged_in_steps_and_its_objects_become_garbage(world: World) -> None:
    both = await world.pending()
    await world.commit(gather(both, run(A, 0, 10), run(B, 0, 5)))
    for base in (10, 20):
        await world.write(A, base, base + 10)
    await world.leveled_to(A, 0, 10)
    assert await world.do("find_purgeable", 10) == []
    with pytest.raises(StaleError):
        await world.do("purge_topic", TOPIC.topic_id, 10)
    await world.store.delete_topic(TOPIC.topic_id)
    assert await world.do("find_purgeable", 10) == [TOPIC.topic_id]
    told = [await world.do("purge_topic", TOPIC.topic_id, 2) for _ in range(3)]
    assert told == [True, True, False]
    tables = await world.check()
    assert (tables.partitions, tables.extents, tables.epochs) == ({}, {}, {})
    assert {row.state for row in tables.objects.values()} == {ObjectState.GARBAGE}
    assert await world.do("purge_topic", TOPIC.topic_id, 2) is False
    assert await world.do("find_purgeable", 10) == []


async def test_a_topic_of_the_same_name_is_empty_meanwhile(world: World) -> None:
    await world.write(A, 0, 10)
    await world.store.delete_topic(TOPIC.topic_id)
    again = replace(TOPIC, topic_id=world.id())
    await world.make_topic(again, 1)
    key = (again.topic_id, 0)
    await world.claim(1, 1, key)
    await world.write(key, 0, 3)
    await world.do("purge_topic", TOPIC.topic_id, 100)
    assert await world.extents(key) == [(0, 3, "L0")]


async def test_a_topic_whose_deletion_is_no_longer_remembered_is_purged_too(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "REMEMBERED_DELETIONS_MAX", 0)
    await world.write(A, 0, 10)
    await world.store.delete_topic(TOPIC.topic_id)
    assert list((await world.store.read_changes(0)).deleted_topics) == []
    assert await world.do("find_purgeable", 10) == [TOPIC.topic_id]
    assert await world.do("purge_topic", TOPIC.topic_id, 100) is False
