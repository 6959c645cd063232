"""A leader claims: earlier writers are fenced, and it is told all that it needs."""

from __future__ import annotations

import uuid

import pytest

from sexton.ports.cloud import CLAIMS_MAX, Claimed, EpochStart, Level, ProducerDelta, ProducersSnapshot
from sexton.ports.metastore import LeaseLostError
from sexton.types import LeaderEpoch
from tests.adapters.metastore.cloud.world import (
    ACCEPTED,
    FENCED,
    GONE,
    A,
    B,
    World,
    aborts,
    gather,
    marker,
    run,
)
from tests.adapters.metastore.rows import partitions, topic


async def test_a_new_partition_is_empty_and_claimed_from_its_start(world: World) -> None:
    (claimed,) = await world.claim(1, 0, A)
    assert isinstance(claimed, Claimed)
    row = claimed.row
    assert (row.start_offset, row.end_offset, row.writer_epoch, row.writer_id) == (0, 0, 0, 1)
    assert (claimed.producers, claimed.deltas, claimed.aborted, claimed.extents) == (None, [], [], [])
    assert claimed.epochs == [EpochStart(LeaderEpoch(0), 0)]


async def test_a_claim_needs_a_higher_epoch_than_the_last_one(world: World) -> None:
    await world.claim(1, 4)
    assert await world.claim(2, 3) == [FENCED, FENCED]
    assert await world.claim(2, 4) == [FENCED, FENCED]
    assert (await world.row(A)).writer_id == 1
    (taken, kept) = await world.claim(2, 5, A, B)
    assert isinstance(taken, Claimed)
    assert isinstance(kept, Claimed)
    assert (taken.row.writer_epoch, taken.row.writer_id) == (5, 2)


async def test_a_claim_whose_answer_was_lost_is_repeated_and_nothing_happens_twice(world: World) -> None:
    await world.claim(1, 4)
    await world.write(A, 0, 10, epoch=4)
    (again,) = await world.claim(1, 4, A)
    assert isinstance(again, Claimed)
    assert (again.row.end_offset, again.epochs) == (10, [EpochStart(LeaderEpoch(4), 0)])
    await world.register(1)
    assert await world.claim(1, 4, A) == [FENCED]  # another process of the same broker is somebody else


async def test_what_is_no_cloud_partition_is_gone(world: World) -> None:
    local = topic("local", 8)
    await world.store.create_topic(local, partitions(local, 1), {})
    claimed = await world.claim(1, 1, (local.topic_id, 0), (uuid.UUID(int=5), 0), (A[0], 2), A)
    assert claimed[:3] == [GONE] * 3
    assert isinstance(claimed[3], Claimed)


async def test_the_fenced_claim_nothing(world: World) -> None:
    await world.fence(1)
    with pytest.raises(LeaseLostError):
        await world.claim(1, 1)
    assert (await world.row(A)).writer_epoch == -1


async def test_a_claim_is_bounded_and_names_each_partition_once(world: World) -> None:
    for keys in ([A, A], [(A[0], number) for number in range(CLAIMS_MAX + 1)]):
        with pytest.raises(ValueError, match="at most"):
            await world.claim(1, 1, *keys)


async def test_a_leader_is_told_what_the_one_before_it_knew(world: World) -> None:
    await world.claim(1, 1)
    first, second = await world.pending(), await world.pending()
    await world.commit(gather(first, run(A, 0, 10, delta=b"one"), run(B, 0, 3, delta=b"b")))
    snapshot = ProducersSnapshot(10, b"snapshot")
    await world.commit(gather(second, run(A, 10, 20, stable=15, delta=b"two", snapshot=snapshot)))
    ended = aborts(20, 15)
    assert await world.do("commit_inline", world.brokers[1], [marker(A, 20, aborted=[ended], delta=b"end")], 5) == [
        ACCEPTED
    ]
    (claimed, other) = await world.claim(2, 7, A, B)
    assert isinstance(claimed, Claimed)
    assert isinstance(other, Claimed)
    assert (claimed.producers, claimed.row.producers_offset) == (b"snapshot", 10)
    assert claimed.deltas == [ProducerDelta(20, b"two"), ProducerDelta(21, b"end")]
    assert claimed.aborted == [ended]
    assert [(one.base_offset, one.end_offset, one.object_id, one.inline) for one in claimed.extents] == [
        (0, 10, first, None),
        (10, 20, second, None),
        (20, 21, None, b"marker at 20"),
    ]
    assert claimed.epochs == [EpochStart(LeaderEpoch(1), 0), EpochStart(LeaderEpoch(7), 21)]
    assert (other.row.end_offset, other.producers, other.deltas) == (3, None, [ProducerDelta(3, b"b")])


async def test_a_leader_is_told_of_l0_alone(world: World) -> None:
    await world.claim(1, 1)
    await world.write(A, 0, 10)
    await world.write(A, 10, 20)
    await world.leveled_to(A, 0, 10)
    (claimed,) = await world.claim(2, 2, A)
    assert isinstance(claimed, Claimed)
    assert [(one.base_offset, one.level) for one in claimed.extents] == [(10, Level.L0)]
    assert claimed.row.leveled_offset == 10
