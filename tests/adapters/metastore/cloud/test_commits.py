"""L0 commits: what continues the log is in it, once; what does not is refused, partition by partition."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sexton.ports.cloud import INLINE_BYTES_MAX, Gather, ObjectState, ProducersSnapshot
from tests.adapters.metastore.cloud.world import (
    ACCEPTED,
    FENCED,
    GONE,
    LOST,
    MISPLACED,
    NOW_MS,
    SKIPPED,
    TOPIC,
    A,
    B,
    World,
    aborts,
    gather,
    marker,
    run,
)


@pytest.fixture(autouse=True)
async def _broker_1_leads(world: World) -> None:
    await world.claim(1, 1)


async def test_what_continues_the_log_is_committed(world: World) -> None:
    object_id = await world.pending()
    assert await world.commit(gather(object_id, run(A, 0, 10, stable=7), run(B, 0, 3))) == [[ACCEPTED, ACCEPTED]]
    assert await world.state(object_id) is ObjectState.LIVE
    row = await world.row(A)
    assert (row.end_offset, row.stable_offset, row.l0_bytes, row.l0_extents_count) == (10, 7, 100, 1)
    assert row.l0_since_ms == NOW_MS
    assert await world.extents(B) == [(0, 3, "L0")]


@pytest.mark.parametrize("base", [9, 11])
async def test_what_overlaps_or_leaves_a_gap_is_refused(world: World, base: int) -> None:
    await world.write(A, 0, 10)
    object_id = await world.pending()
    assert await world.commit(gather(object_id, run(A, base, 20), run(B, 0, 5))) == [[MISPLACED, ACCEPTED]]
    assert await world.extents(A) == [(0, 10, "L0")]
    assert await world.state(object_id) is ObjectState.LIVE


async def test_an_object_of_which_nothing_is_accepted_is_garbage(world: World) -> None:
    object_id = await world.pending()
    assert await world.commit(gather(object_id, run(A, 5, 10), run((A[0], 9), 0, 1))) == [[MISPLACED, GONE]]
    assert await world.state(object_id) is ObjectState.GARBAGE


async def test_a_leader_that_was_replaced_is_fenced_for_that_partition(world: World) -> None:
    await world.claim(2, 2, A)
    object_id = await world.pending()
    assert await world.commit(gather(object_id, run(A, 0, 10), run(B, 0, 10))) == [[FENCED, ACCEPTED]]
    assert (await world.row(A)).end_offset == 0


async def test_a_leader_that_never_claimed_is_fenced(world: World) -> None:
    object_id = await world.pending(world.brokers[2])
    assert await world.commit(gather(object_id, run(A, 0, 10, epoch=2)), broker_id=2) == [[FENCED]]


async def test_an_object_of_somebody_else_is_not_committed(world: World) -> None:
    foreign = await world.pending(world.brokers[2])
    assert await world.commit(gather(foreign, run(A, 0, 10))) == [[LOST]]
    assert await world.state(foreign) is ObjectState.PENDING


async def test_the_partitions_of_a_deleted_topic_are_gone_and_the_others_go_on(world: World) -> None:
    other = replace(TOPIC, topic_id=world.id(), name="other")
    await world.make_topic(other, 1)
    key = (other.topic_id, 0)
    await world.claim(1, 1, key)
    await world.store.delete_topic(TOPIC.topic_id)
    object_id = await world.pending()
    assert await world.commit(gather(object_id, run(A, 0, 10), run(key, 0, 10))) == [[GONE, ACCEPTED]]


# Asked again


async def test_a_commit_that_was_answered_too_late_is_found_done(world: World) -> None:
    object_id = await world.pending()
    sent = gather(object_id, run(A, 0, 10, delta=b"d"), run(B, 4, 10))
    assert await world.commit(sent) == [[ACCEPTED, MISPLACED]]
    before = await world.check()
    assert await world.commit(sent) == [[ACCEPTED, MISPLACED]]
    assert await world.check() == before
    await world.write(A, 10, 20)
    assert await world.commit(sent) == [[ACCEPTED, MISPLACED]]


async def test_a_commit_that_was_answered_too_late_is_found_done_after_another_has_claimed(world: World) -> None:
    """The answer comes from where the next epoch began."""
    done, undone = await world.pending(), await world.pending()
    assert await world.commit(gather(done, run(A, 0, 10))) == [[ACCEPTED]]
    await world.claim(2, 2, A)
    await world.claim(1, 3, A)
    await world.write(A, 10, 30, epoch=3)
    assert await world.commit(gather(done, run(A, 0, 10))) == [[ACCEPTED]]
    # Sent before the claim, and carried out for other partitions alone:
    assert await world.commit(gather(undone, run(A, 10, 20), run(B, 0, 5))) == [[FENCED, ACCEPTED]]
    assert await world.commit(gather(undone, run(A, 10, 20), run(B, 0, 5))) == [[FENCED, ACCEPTED]]


async def test_a_commit_is_found_done_after_its_object_was_leveled_and_collected(world: World) -> None:
    object_id = await world.pending()
    sent = gather(object_id, run(A, 0, 10))
    assert await world.commit(sent) == [[ACCEPTED]]
    await world.leveled_to(A, 0, 10)
    assert await world.state(object_id) is ObjectState.GARBAGE
    assert await world.commit(sent) == [[ACCEPTED]]
    await world.do("forget_objects", [object_id])
    assert await world.commit(sent) == [[ACCEPTED]]
    await world.claim(2, 2, A)
    assert await world.commit(sent) == [[ACCEPTED]]
    assert await world.extents(A) == [(0, 10, "L1")]


async def test_an_object_that_expired_is_lost_and_its_bytes_are_committed_under_another_id(world: World) -> None:
    """A broker that was fenced for a moment, and that nobody has replaced as a leader."""
    expired = await world.pending()
    await world.do("release_objects", world.brokers[1], [expired])
    sent = gather(expired, run(A, 0, 10))
    assert await world.commit(sent) == [[LOST]]
    await world.do("forget_objects", [expired])
    assert await world.commit(sent) == [[LOST]]
    again = await world.pending()
    assert await world.commit(replace(sent, object_id=again)) == [[ACCEPTED]]


async def test_other_bytes_at_the_same_offsets_are_not_taken_for_a_repetition(world: World) -> None:
    await world.write(A, 0, 10)
    other = await world.pending()
    await world.commit(gather(other, run(A, 0, 10), run(B, 0, 5)))
    assert await world.commit(gather(other, run(A, 0, 10), run(B, 0, 5))) == [[MISPLACED, ACCEPTED]]


# Several objects at once


async def test_objects_are_committed_in_order_in_one_transaction(world: World) -> None:
    ids = [await world.pending() for _ in range(3)]
    told = await world.commit(
        gather(ids[0], run(A, 0, 10), run(B, 0, 5)),
        gather(ids[1], run(A, 10, 20)),
        gather(None, marker(A, 20), marker(B, 5)),
        gather(ids[2], run(B, 6, 9), run(A, 21, 22)),
    )
    assert told == [[ACCEPTED, ACCEPTED], [ACCEPTED], [ACCEPTED, ACCEPTED], [ACCEPTED, ACCEPTED]]
    assert await world.extents(A) == [(0, 10, "L0"), (10, 20, "L0"), (20, 21, "L0"), (21, 22, "L0")]
    assert await world.extents(B) == [(0, 5, "L0"), (5, 6, "L0"), (6, 9, "L0")]


async def test_what_lies_behind_a_lost_object_is_not_looked_at(world: World) -> None:
    """T6: what was to follow it is not committed in its place."""
    lost, behind = await world.pending(), await world.pending()
    await world.do("release_objects", world.brokers[1], [lost])
    gathers = [gather(lost, run(A, 0, 10)), gather(behind, run(A, 10, 20), run(B, 0, 5)), gather(None, marker(B, 5))]
    assert await world.commit(*gathers) == [[LOST], [SKIPPED, SKIPPED], [SKIPPED]]
    assert await world.state(behind) is ObjectState.PENDING


async def test_a_partition_of_which_something_was_refused_takes_nothing_behind_it(world: World) -> None:
    await world.write(A, 0, 10)
    ids = [await world.pending() for _ in range(2)]
    told = await world.commit(gather(ids[0], run(A, 5, 12), run(B, 0, 5)), gather(ids[1], run(A, 10, 20), run(B, 5, 9)))
    assert told == [[MISPLACED, ACCEPTED], [MISPLACED, ACCEPTED]]
    assert (await world.row(A)).end_offset == 10


async def test_a_group_of_which_a_part_was_done_before_is_finished(world: World) -> None:
    ids = [await world.pending() for _ in range(2)]
    gathers = [gather(ids[0], run(A, 0, 10)), gather(ids[1], run(A, 10, 20))]
    assert await world.commit(gathers[0]) == [[ACCEPTED]]
    assert await world.commit(*gathers) == [[ACCEPTED], [ACCEPTED]]
    assert await world.extents(A) == [(0, 10, "L0"), (10, 20, "L0")]


async def test_an_upload_that_was_sent_twice_is_released_with_the_commit_of_the_other(world: World) -> None:
    used, hedged = await world.pending(), await world.pending()
    assert await world.commit(gather(used, run(A, 0, 10), released=[hedged])) == [[ACCEPTED]]
    assert [await world.state(id_) for id_ in (used, hedged)] == [ObjectState.LIVE, ObjectState.GARBAGE]


# Markers


async def test_markers_are_committed_inline_and_found_done_when_they_are_asked_for_again(world: World) -> None:
    for _ in range(2):
        assert await world.do("commit_inline", world.brokers[1], [marker(A, 0), marker(B, 0)], 5) == [ACCEPTED] * 2
    assert (await world.row(A)).l0_extents_count == 1
    await world.claim(2, 2, A)
    assert await world.do("commit_inline", world.brokers[1], [marker(A, 0), marker(A, 0)][:1], 5) == [ACCEPTED]
    assert await world.do("commit_inline", world.brokers[1], [marker(A, 1)], 5) == [FENCED]


async def test_a_marker_that_does_not_continue_the_log_is_misplaced(world: World) -> None:
    assert await world.do("commit_inline", world.brokers[1], [marker(A, 1)], 5) == [MISPLACED]
    await world.write(A, 0, 1)
    assert await world.do("commit_inline", world.brokers[1], [marker(A, 0)], 5) == [MISPLACED]


async def test_markers_of_a_deleted_topic_are_gone(world: World) -> None:
    await world.store.delete_topic(TOPIC.topic_id)
    assert await world.do("commit_inline", world.brokers[1], [marker(A, 0)], 5) == [GONE]


# Offsets and producers


async def test_the_stable_offset_never_goes_back(world: World) -> None:
    await world.write(A, 0, 10, stable=8)
    await world.write(A, 10, 20, stable=5)
    assert (await world.row(A)).stable_offset == 8


async def test_a_snapshot_replaces_the_deltas_below_it(world: World) -> None:
    await world.write(A, 0, 10, delta=b"1")
    await world.write(A, 10, 20, delta=b"2")
    await world.write(B, 0, 10, delta=b"b")
    await world.write(A, 20, 30, delta=b"3", snapshot=ProducersSnapshot(20, b"s"))
    tables = await world.check()
    assert (tables.deltas[A], tables.deltas[B]) == ((30,), (10,))
    await world.write(A, 30, 40, delta=b"4", snapshot=ProducersSnapshot(40, b"t"))
    assert A not in (await world.check()).deltas
    old = await world.pending()
    late = run(A, 40, 50, snapshot=ProducersSnapshot(30, b"older"))
    assert await world.commit(gather(old, late)) == [[MISPLACED]]


BAD: dict[str, dict[str, Any]] = {
    "empty": {"end_offset": 0},
    "backwards": {"base_offset": 20},
    "stable beyond its end": {"stable_offset": 11},
    "no bytes": {"size_bytes": 0},
    "outside its object": {"position": 1},
    "before its object": {"position": -1},
    "inline and in an object": {"inline": b"x" * 100},
    "a snapshot of what is not there": {"snapshot": ProducersSnapshot(11, b"")},
    "a marker outside it": {"aborted": [aborts(10, 0)]},
}


@pytest.mark.parametrize("name", BAD)
async def test_a_run_that_makes_no_sense_is_refused(world: World, name: str) -> None:
    object_id = await world.pending()
    bad = replace(run(A, 0, 10), **BAD[name])
    with pytest.raises(ValueError, match="partition 0"):
        await world.commit(Gather(object_id=object_id, size_bytes=100, runs=[bad]))
    assert await world.state(object_id) is ObjectState.PENDING


async def test_a_gather_that_makes_no_sense_is_refused(world: World) -> None:
    object_id = await world.pending()
    big = run(A, 0, 1, inline=b"x" * (INLINE_BYTES_MAX + 1), size_bytes=INLINE_BYTES_MAX + 1)
    for gathers in (
        [gather(object_id)],
        [gather(object_id, run(A, 0, 1), run(A, 1, 2))],
        [gather(object_id, run(A, 0, 1)), gather(object_id, run(A, 1, 2))],
        [gather(None, run(A, 0, 1))],
        [Gather(object_id=None, size_bytes=0, runs=[big])],
    ):
        with pytest.raises(ValueError, match=r"."):
            await world.commit(*gathers)
