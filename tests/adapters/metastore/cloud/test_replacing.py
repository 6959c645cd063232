"""Leveling and compaction: they replace what they were planned on, to the offset, or nothing."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from sexton.ports.cloud import (
    Extent,
    Level,
    ObjectState,
    Outcome,
    WrittenObject,
    hash_of_settings,
)
from sexton.ports.metastore import ConfigScope
from sexton.settings.layers import CLUSTER_DEFAULT
from tests.adapters.metastore.cloud.world import (
    ACCEPTED,
    COMPACTOR,
    GONE,
    LOST,
    MISPLACED,
    NOW_MS,
    SETTINGS,
    TOPIC,
    A,
    B,
    World,
    aborts,
    gather,
    l1,
    leveled,
    marker,
    run,
)


@pytest.fixture(autouse=True)
async def _there_is_a_log(world: World) -> None:
    """A: 0 to 30 in three objects, stable up to 25. B: 0 to 10, in the first of them."""
    await world.claim(1, 1)
    await world.commit(gather(await world.pending(), run(A, 0, 10), run(B, 0, 10)))
    await world.write(A, 10, 20)
    await world.write(A, 20, 30, stable=25)


async def pending_l1(world: World) -> uuid.UUID:
    return await world.pending(world.compactor, Level.L1)


# Leveling


async def test_l0_becomes_l1_up_to_a_boundary_below_the_stable_offset(world: World) -> None:
    one = await pending_l1(world)
    parts = [leveled(A, l1(0, 20, one)), leveled(B, l1(0, 10, one, position=50))]
    assert await world.level(*parts) == [ACCEPTED, ACCEPTED]
    assert await world.extents(A) == [(0, 20, "L1"), (20, 30, "L0")]
    row = await world.row(A)
    assert (row.leveled_offset, row.l0_extents_count, row.l1_bytes, row.dirty_bytes) == (20, 1, 50, 50)
    assert row.dirty_since_ms == NOW_MS
    states = [found.state for found in (await world.check()).objects.values()]
    assert sorted(states) == [ObjectState.LIVE, ObjectState.LIVE, ObjectState.GARBAGE, ObjectState.GARBAGE]


@pytest.mark.parametrize("spans", [[(10, 20)], [(0, 30)], [(0, 15)], [(0, 20), (20, 25)]])
async def test_a_leveling_that_builds_on_something_else_is_refused(world: World, spans: list[tuple[int, int]]) -> None:
    """Not from the leveled offset; above the stable one; not up to a boundary."""
    one = await pending_l1(world)
    extents = [l1(*span, one, position=50 * number) for number, span in enumerate(spans)]
    assert await world.level(leveled(A, *extents), leveled(B, l1(0, 10, one, position=200))) == [MISPLACED, ACCEPTED]
    assert (await world.row(A)).leveled_offset == 0
    assert await world.state(one) is ObjectState.LIVE


async def test_of_two_levelers_the_second_is_refused_and_its_object_is_garbage(world: World) -> None:
    one, other = await pending_l1(world), await pending_l1(world)
    assert await world.level(leveled(A, l1(0, 20, one))) == [ACCEPTED]
    assert await world.level(leveled(A, l1(0, 20, other))) == [MISPLACED]
    assert [await world.state(id_) for id_ in (one, other)] == [ObjectState.LIVE, ObjectState.GARBAGE]
    assert await world.level(leveled(A, l1(0, 20, one))) == [ACCEPTED]
    assert await world.level(leveled(A, l1(0, 20, other))) == [MISPLACED]


async def test_a_leveling_whose_answer_was_lost_is_found_done(world: World) -> None:
    one = await pending_l1(world)
    parts = [leveled(A, l1(0, 20, one)), leveled((A[0], 9), l1(0, 5, one, position=50))]
    assert await world.level(*parts) == [ACCEPTED, GONE]
    before = await world.check()
    assert await world.level(*parts) == [ACCEPTED, GONE]
    assert await world.check() == before


async def test_a_leveling_of_a_removed_compactor_is_refused(world: World) -> None:
    one = await pending_l1(world)
    await world.store.remove_compactor(COMPACTOR, 0)
    await world.do("expire_owners", 100)
    assert await world.level(leveled(A, l1(0, 20, one))) == [LOST]
    assert (await world.row(A)).leveled_offset == 0


async def test_a_partition_that_was_trimmed_or_deleted_meanwhile_is_left_out(world: World) -> None:
    one = await pending_l1(world)
    await world.do("advance_start", A, 1, 12)
    assert await world.level(leveled(A, l1(0, 20, one)), leveled(B, l1(0, 10, one, position=50))) == [
        MISPLACED,
        ACCEPTED,
    ]
    await world.store.delete_topic(TOPIC.topic_id)
    assert await world.level(leveled(B, l1(10, 20, await pending_l1(world)))) == [GONE]


async def test_data_below_the_stable_offset_whose_marker_lies_above_keeps_its_aborted_row(world: World) -> None:
    await world.do("commit_inline", world.brokers[1], [marker(A, 30, stable=25, aborted=[aborts(30, 3)])], 5)
    await world.leveled_to(A, 0, 20)
    assert [one.marker_offset for one in (await world.check()).aborted[A]] == [30]
    await world.write(A, 31, 40)
    await world.leveled_to(A, 20, 31)
    assert A not in (await world.check()).aborted


@pytest.mark.parametrize(
    "extents",
    [
        [],
        [(0, 10), (11, 20)],
        [(0, 10), (9, 20)],
        [(0, 10), (10, 10), (10, 20)],
    ],
)
async def test_l1_that_overlaps_leaves_a_gap_or_is_empty_is_refused(
    world: World, extents: list[tuple[int, int]]
) -> None:
    one = await pending_l1(world)
    part = replace(leveled(A, l1(0, 20, one)), extents=[l1(*span, one) for span in extents])
    with pytest.raises(ValueError, match=r"."):
        await world.do("commit_level", world.compactor, [WrittenObject(one, 50)], [part], NOW_MS)


@pytest.mark.parametrize(
    "changed",
    [{"position": 1}, {"size_bytes": 0}, {"object_id": uuid.UUID(int=99)}, {"level": Level.L0}, {"inline": b"x"}],
)
async def test_outputs_outside_their_object_or_of_objects_that_were_not_written_are_refused(
    world: World, changed: dict[str, object]
) -> None:
    one = await pending_l1(world)
    bad: Extent = replace(l1(0, 20, one), **changed)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="output"):
        await world.do("commit_level", world.compactor, [WrittenObject(one, 50)], [leveled(A, bad)], NOW_MS)


# Compaction


async def test_a_compaction_replaces_its_inputs_and_cleans_up_to_its_bound(world: World) -> None:
    old = await world.leveled_to(A, 0, 10, 20)
    new = await pending_l1(world)
    assert await world.replace(A, await world.l1_of(A), l1(0, 20, new, size_bytes=30), horizon_ms=77) is ACCEPTED
    row = await world.row(A)
    assert (row.cleaned_offset, row.compaction_epoch, row.horizon_ms) == (20, 1, 77)
    assert (row.l1_bytes, row.dirty_bytes, row.dirty_since_ms) == (30, 0, 0)
    assert await world.extents(A) == [(0, 20, "L1"), (20, 30, "L0")]
    assert [await world.state(id_) for id_ in old] == [ObjectState.GARBAGE] * 2


async def test_what_did_not_change_keeps_its_extent(world: World) -> None:
    old = await world.leveled_to(A, 0, 10, 20)
    new = await pending_l1(world)
    inputs = await world.l1_of(A)
    assert await world.replace(A, inputs[:1], l1(0, 10, new), bound=20) is ACCEPTED
    assert (await world.row(A)).cleaned_offset == 20
    assert await world.state(old[1]) is ObjectState.LIVE


async def test_one_compaction_wins(world: World) -> None:
    """Rule 10: two compactors, or a compaction and a merge (T22), on the same partition."""
    await world.leveled_to(A, 0, 10, 20)
    one, other = await pending_l1(world), await pending_l1(world)
    inputs = await world.l1_of(A)
    assert await world.replace(A, inputs, l1(0, 20, one), epoch=0) is ACCEPTED
    assert await world.replace(A, inputs, l1(0, 20, other), epoch=0) is MISPLACED
    assert await world.state(other) is ObjectState.GARBAGE
    assert await world.replace(A, inputs, l1(0, 20, one), epoch=0) is ACCEPTED  # its answer was lost
    assert (await world.row(A)).compaction_epoch == 1


async def test_inputs_that_are_not_what_they_were_are_refused(world: World) -> None:
    await world.leveled_to(A, 0, 10, 20)
    inputs = await world.l1_of(A)
    for wrong in (
        [replace(inputs[0], size_bytes=49), inputs[1]],
        [replace(inputs[0], object_id=uuid.UUID(int=77)), inputs[1]],
    ):
        new = await pending_l1(world)
        assert await world.replace(A, wrong, l1(0, 20, new)) is MISPLACED
        assert await world.state(new) is ObjectState.GARBAGE
    l0 = (await world.check()).extents[A][2]
    assert await world.replace(A, [*inputs, l0], l1(0, 30, await pending_l1(world)), bound=20) is MISPLACED
    assert len(await world.l1_of(A)) == 2


async def test_outputs_that_do_not_tile_what_went_in_are_refused(world: World) -> None:
    await world.leveled_to(A, 0, 10, 20)
    inputs, new = await world.l1_of(A), await pending_l1(world)
    for outputs in ([l1(0, 19, new)], [l1(1, 20, new)], [l1(0, 10, new)], [l1(0, 12, new), l1(11, 20, new)]):
        with pytest.raises(ValueError, match=r"tile|overlap"):
            await world.replace(A, inputs, *outputs, bound=10)
    with pytest.raises(ValueError, match="tile"):
        await world.replace(A, inputs[:1], l1(0, 20, new))


@pytest.mark.parametrize("bound", [5, 25, 30])
async def test_what_is_clean_is_whole_extents_of_l1(world: World, bound: int) -> None:
    await world.leveled_to(A, 0, 20)
    assert await world.replace(A, await world.l1_of(A), l1(0, 20, await pending_l1(world)), bound=bound) is MISPLACED
    assert (await world.row(A)).cleaned_offset == 0


async def test_delete_records_during_compaction_keeps_what_is_above_and_nothing_below(world: World) -> None:
    """Not refused: retention every few minutes would starve a long pass."""
    await world.leveled_to(A, 0, 10, 20)
    inputs = await world.l1_of(A)
    below, above = await pending_l1(world), await pending_l1(world)
    await world.do("advance_start", A, 1, 15)
    assert await world.replace(A, inputs, l1(0, 10, below), l1(10, 20, above), epoch=0) is ACCEPTED
    assert await world.extents(A) == [(10, 20, "L1"), (20, 30, "L0")]
    assert [await world.state(id_) for id_ in (below, above)] == [ObjectState.GARBAGE, ObjectState.LIVE]
    await world.do("advance_start", A, 1, 20)
    assert await world.state(above) is ObjectState.GARBAGE


async def test_a_compaction_all_of_whose_log_is_gone_leaves_garbage_alone(world: World) -> None:
    await world.leveled_to(A, 0, 10, 20)
    inputs, new = await world.l1_of(A), await pending_l1(world)
    await world.do("advance_start", A, 1, 20)
    assert await world.replace(A, inputs, l1(0, 20, new), epoch=0) is ACCEPTED
    assert await world.state(new) is ObjectState.GARBAGE
    assert await world.extents(A) == [(20, 30, "L0")]


async def test_small_runs_are_merged_and_nothing_becomes_clean(world: World) -> None:
    await world.leveled_to(A, 0, 10, 20)
    await world.do("advance_start", A, 1, 12)
    await world.leveled_to(B, 0, 10)
    inputs = await world.l1_of(A)
    assert await world.replace(A, inputs, l1(10, 20, await pending_l1(world)), bound=0) is ACCEPTED
    row = await world.row(A)
    assert (row.cleaned_offset, row.compaction_epoch, row.dirty_bytes) == (10, 1, 50)


async def test_a_merge_over_what_is_clean_and_what_is_not_is_refused(world: World) -> None:
    await world.leveled_to(A, 0, 10, 20)
    inputs = await world.l1_of(A)
    assert await world.replace(A, inputs[:1], l1(0, 10, await pending_l1(world))) is ACCEPTED
    inputs = await world.l1_of(A)
    assert await world.replace(A, inputs, l1(0, 20, await pending_l1(world)), bound=0) is MISPLACED


@pytest.mark.parametrize(
    ("scope", "name", "setting", "told"),
    [
        (ConfigScope.TOPIC, TOPIC.name, "cleanup.policy", MISPLACED),
        (ConfigScope.BROKER, CLUSTER_DEFAULT, "log.cleanup.policy", MISPLACED),
        (ConfigScope.BROKER, "1", "log.cleanup.policy", ACCEPTED),
        (ConfigScope.BROKER, CLUSTER_DEFAULT, "cloud.gc.round.ms", ACCEPTED),
    ],
    ids=["the topic's", "all brokers'", "one broker's", "no topic's"],
)
async def test_a_plan_of_other_settings_is_refused(
    world: World, scope: ConfigScope, name: str, setting: str, told: Outcome
) -> None:
    await world.leveled_to(A, 0, 20)
    inputs, new = await world.l1_of(A), await pending_l1(world)
    change = await world.replacement(A, inputs, l1(0, 20, new))
    await world.store.change_settings(scope, name, {setting: "1000" if "ms" in setting else "compact"})
    assert await world.commit_replacement([WrittenObject(new, 50)], change) is told
    assert await world.state(new) is (ObjectState.LIVE if told is ACCEPTED else ObjectState.GARBAGE)


async def test_a_default_that_the_topic_has_its_own_value_for_changes_no_plan(world: World) -> None:
    settings = {**SETTINGS, "cleanup.policy": "compact"}
    await world.store.change_settings(ConfigScope.TOPIC, TOPIC.name, settings)
    await world.leveled_to(A, 0, 20)
    inputs, new = await world.l1_of(A), await pending_l1(world)
    change = await world.replacement(A, inputs, l1(0, 20, new), settings_hash=hash_of_settings(settings))
    await world.store.change_settings(ConfigScope.BROKER, CLUSTER_DEFAULT, {"log.cleanup.policy": "delete"})
    assert await world.commit_replacement([WrittenObject(new, 50)], change) is ACCEPTED


async def test_a_compactor_that_slept_for_hours_commits_nothing(world: World) -> None:
    """14.3: its lease is gone, its objects are garbage. Nothing is to be undone."""
    await world.leveled_to(A, 0, 20)
    inputs, new = await world.l1_of(A), await pending_l1(world)
    await world.store.remove_compactor(COMPACTOR, 0)
    await world.do("expire_owners", 100)
    assert await world.replace(A, inputs, l1(0, 20, new)) is LOST
    assert await world.l1_of(A) == inputs


async def test_a_compaction_of_a_deleted_topic_is_gone(world: World) -> None:
    await world.leveled_to(A, 0, 20)
    inputs, new = await world.l1_of(A), await pending_l1(world)
    change = await world.replacement(A, inputs, l1(0, 20, new))
    await world.store.delete_topic(TOPIC.topic_id)
    assert await world.commit_replacement([WrittenObject(new, 50)], change) is GONE
    assert await world.state(new) is ObjectState.GARBAGE


@pytest.mark.parametrize("again", [False, True])
async def test_a_compaction_that_found_nothing_to_change_moves_the_cleaned_offset(world: World, again: bool) -> None:
    await world.leveled_to(A, 0, 10)
    change = await world.replacement(A, [], bound=10)
    assert await world.commit_replacement([], change) is ACCEPTED
    if again:  # its answer was lost
        assert await world.commit_replacement([], change) is ACCEPTED
    row = await world.row()
    assert (row.cleaned_offset, row.compaction_epoch, row.dirty_bytes) == (10, 1, 0)
    assert await world.commit_replacement([], await world.replacement(A, [], bound=10, epoch=0)) is ACCEPTED
    assert await world.commit_replacement([], await world.replacement(A, [], bound=11)) is MISPLACED


async def test_partitions_that_share_an_object_are_compacted_together_and_refused_apart(world: World) -> None:
    for key in (A, B):
        await world.leveled_to(key, 0, 10)
    new = await world.pending(world.compactor, Level.L1)
    first = await world.replacement(A, await world.l1_of(A), l1(0, 10, new))
    second = await world.replacement(B, await world.l1_of(B), l1(0, 10, new, position=50), epoch=5)
    written = [WrittenObject(new, 100)]
    for _ in range(2):  # the answer of the first is lost
        told = await world.do("commit_compactions", world.compactor, written, [first, second], NOW_MS)
        assert told == [ACCEPTED, MISPLACED]
    assert (await world.row(A)).cleaned_offset == 10
    assert (await world.row(B)).cleaned_offset == 0
    assert await world.state(new) is ObjectState.LIVE
