"""A local partition becomes a cloud partition: begun, given up, finished, by its leader and nobody else."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from sexton.adapters.metastore.cloud import moving
from sexton.ports.cloud import Claimed, Copied, EpochStart, ObjectState, ProducerDelta
from sexton.ports.metastore import LeaseLostError, PartitionRow, StaleError, Storage
from sexton.types import LeaderEpoch, PartitionId
from tests.adapters.metastore.cloud.world import ACCEPTED, FENCED, GONE, World, aborts, gather, marker, run
from tests.adapters.metastore.rows import partitions, topic

LOCAL = topic("local", 9)
P: PartitionId = (LOCAL.topic_id, 0)


@pytest.fixture
async def row(world: World) -> PartitionRow:
    """Led by broker 1 in epoch 4, and local."""
    (made,) = partitions(LOCAL, 1)
    await world.store.create_topic(LOCAL, [replace(made, isr=(1, 2), leader_epoch=LeaderEpoch(4))], {})
    return await stored(world)


async def stored(world: World) -> PartitionRow:
    return next(one for one in (await world.store.read_changes(0)).partitions if one.topic_id == LOCAL.topic_id)


async def begin(world: World, row: PartitionRow, start_offset: int = 0, broker_id: int = 1) -> Any:
    return await world.do("begin_move", broker_id, world.brokers[broker_id].epoch, row, start_offset)


async def abandon(world: World, row: PartitionRow, broker_id: int = 1) -> Any:
    return await world.do("abandon_move", broker_id, world.brokers[broker_id].epoch, row)


async def finish(world: World, row: PartitionRow, copied: Copied, broker_id: int = 1) -> Any:
    return await world.do("finish_move", broker_id, world.brokers[broker_id].epoch, row, copied)


async def copy(world: World, base: int, end: int, **more: Any) -> uuid.UUID:
    return await world.write(P, base, end, epoch=more.pop("epoch", 4), stable=0, **more)


def copied(end: int, start: int = 0, **more: Any) -> Copied:
    epochs: Sequence[EpochStart] = [EpochStart(LeaderEpoch(1), 0), EpochStart(LeaderEpoch(4), 5)]
    fields = {"stable_offset": end, "producers": b"all", "earlier": b"", "epochs": epochs, **more}
    return Copied(start_offset=start, end_offset=end, **fields)


async def test_a_move_from_its_beginning_to_its_end(world: World, row: PartitionRow) -> None:
    moving_row = await begin(world, row)
    assert moving_row == replace(row, storage=Storage.MOVING, partition_epoch=row.partition_epoch + 1)
    assert await stored(world) == moving_row
    await copy(world, 0, 10, aborted=[aborts(3, 1)])
    await copy(world, 10, 15)
    moved = await finish(world, moving_row, copied(15, stable_offset=11, earlier=b"before"))
    assert moved == replace(
        row,
        storage=Storage.CLOUD,
        isr=row.replicas,
        leader_epoch=LeaderEpoch(5),
        partition_epoch=row.partition_epoch + 2,
    )
    assert await stored(world) == moved
    (claimed,) = await world.claim(1, 5, P)
    assert isinstance(claimed, Claimed)
    found = claimed.row
    assert (found.start_offset, found.end_offset, found.stable_offset, found.leveled_offset) == (0, 15, 11, 0)
    assert (found.producers_offset, claimed.producers) == (15, b"all")
    assert claimed.deltas == [ProducerDelta(15, b"before")]
    assert [one.marker_offset for one in claimed.aborted] == [3]
    assert claimed.epochs == [
        EpochStart(LeaderEpoch(1), 0),
        EpochStart(LeaderEpoch(4), 5),
        EpochStart(LeaderEpoch(5), 15),
    ]
    assert await world.extents(P) == [(0, 10, "L0"), (10, 15, "L0")]


async def test_who_asks_again_is_told_the_same(world: World, row: PartitionRow) -> None:
    begun = await begin(world, row)
    assert await begin(world, row) is None
    assert await stored(world) == begun
    await copy(world, 0, 10)
    moved = await finish(world, begun, copied(10))
    assert await finish(world, begun, copied(10)) == moved
    assert await stored(world) == moved
    await world.claim(2, 6, P)
    assert await finish(world, begun, copied(10)) == moved


async def test_only_a_row_as_it_is_stored_is_moved(world: World, row: PartitionRow) -> None:
    await world.store.update_partitions([replace(row, isr=(1,))])
    assert await begin(world, row) is None
    assert (await stored(world)).storage is Storage.LOCAL
    assert P not in (await world.check()).partitions
    now = await stored(world)
    begun = await begin(world, now)
    await copy(world, 0, 10)
    (changed,) = await world.store.update_partitions([replace(begun, isr=(1, 2))])
    assert changed is not None
    assert changed.storage is Storage.MOVING
    assert await finish(world, begun, copied(10)) is None
    assert await abandon(world, begun) == (None, False)
    assert (await finish(world, changed, copied(10))).is_cloud


async def test_only_a_whole_copy_is_taken(world: World, row: PartitionRow) -> None:
    begun = await begin(world, row)
    await copy(world, 0, 10)
    for other in (copied(9), copied(11), copied(10, start=2)):
        assert await finish(world, begun, other) is None
    await world.do("advance_start", P, 4, 2)
    assert await finish(world, begun, copied(10)) is None
    assert (await finish(world, begun, copied(10, start=2))).is_cloud
    assert (await world.row(P)).start_offset == 2


async def test_a_leader_that_was_replaced_can_neither_copy_nor_finish_nor_give_up(
    world: World, row: PartitionRow
) -> None:
    begun = await begin(world, row)
    await copy(world, 0, 10)
    (led_by_2,) = await world.store.update_partitions([replace(begun, leader=2, leader_epoch=LeaderEpoch(5))])
    assert led_by_2 is not None
    assert await finish(world, led_by_2, copied(10), broker_id=2) is None, "it has not claimed the copy"
    (claimed,) = await world.claim(2, 5, P)
    assert isinstance(claimed, Claimed)
    assert claimed.row.end_offset == 10
    late = await world.pending()
    assert await world.commit(gather(late, run(P, 10, 20, epoch=4, stable=0))) == [[FENCED]]
    for asked in (begun, led_by_2):
        assert await finish(world, asked, copied(10)) is None
        assert await abandon(world, asked) == (None, False)
    epochs = [EpochStart(LeaderEpoch(4), 0), EpochStart(LeaderEpoch(5), 10)]
    assert (await finish(world, led_by_2, copied(10, epochs=epochs), broker_id=2)).leader_epoch == 6


async def test_who_claims_in_the_name_of_its_successor_finishes_nothing(world: World, row: PartitionRow) -> None:
    """A broker that has read the row of the next epoch and not given up its role yet."""
    begun = await begin(world, row)
    await copy(world, 0, 10)
    (led_by_2,) = await world.store.update_partitions([replace(begun, leader=2, leader_epoch=LeaderEpoch(5))])
    assert led_by_2 is not None
    await world.claim(1, 5, P)
    epochs = [EpochStart(LeaderEpoch(4), 0), EpochStart(LeaderEpoch(5), 10)]
    assert await finish(world, led_by_2, copied(10, epochs=epochs)) is None
    assert await abandon(world, led_by_2) == (None, False)
    assert await stored(world) == led_by_2


async def test_only_its_leader_begins_to_move_a_partition(world: World, row: PartitionRow) -> None:
    assert await begin(world, row, broker_id=2) is None
    assert await stored(world) == row


@pytest.mark.parametrize("operation", [begin, abandon])
async def test_a_broker_that_is_fenced_does_nothing(world: World, row: PartitionRow, operation: Any) -> None:
    begun = row if operation is begin else await begin(world, row)
    await world.fence(1)
    with pytest.raises(LeaseLostError):
        await operation(world, begun)
    assert await stored(world) == begun


async def test_a_broker_that_is_fenced_finishes_nothing(world: World, row: PartitionRow) -> None:
    begun = await begin(world, row)
    await copy(world, 0, 10)
    old = world.brokers[1].epoch
    await world.register(1)
    with pytest.raises(LeaseLostError):
        await world.do("finish_move", 1, old, begun, copied(10))
    assert await finish(world, begun, copied(10)) is None, "the copy is that of its former registration"


async def test_a_copy_is_given_up_in_steps_and_another_one_begins(
    world: World, row: PartitionRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moving, "EXTENTS_PER_CALL", 2)
    begun = await begin(world, row)
    ids = [await copy(world, base, base + 10) for base in range(0, 50, 10)]
    told = [await abandon(world, begun) for _ in range(3)]
    assert [has_more for _, has_more in told] == [True, True, False]
    assert told[-1][0] == replace(row, partition_epoch=row.partition_epoch + 2)
    assert await stored(world) == told[-1][0]
    assert [await world.state(id_) for id_ in ids] == [ObjectState.GARBAGE] * 5
    assert P not in (await world.check()).partitions
    assert await abandon(world, begun) == (None, False)
    again = await begin(world, told[-1][0], 30)
    await copy(world, 30, 40)
    assert (await finish(world, again, copied(40, start=30))).is_cloud


async def test_a_copy_that_is_half_given_up_is_never_taken_for_whole(
    world: World, row: PartitionRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moving, "EXTENTS_PER_CALL", 2)
    begun = await begin(world, row)
    for base in range(0, 50, 10):
        await copy(world, base, base + 10)
    assert await abandon(world, begun) == (None, True)
    assert (await world.row(P)).start_offset == 20
    assert await finish(world, begun, copied(50)) is None


async def test_a_row_that_changes_while_the_last_of_its_copy_goes_keeps_it(
    world: World, row: PartitionRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = await begin(world, row)
    object_id = await copy(world, 0, 10)
    reads = iter((begun, replace(begun, isr=(1,))))
    with monkeypatch.context() as racing:
        racing.setattr(moving, "read_partition", lambda *_: next(reads))
        with pytest.raises(StaleError):
            await abandon(world, begun)
    assert await world.extents(P) == [(0, 10, "L0")]
    assert await world.state(object_id) is ObjectState.LIVE


async def test_a_topic_that_is_deleted_takes_its_copy_along(world: World, row: PartitionRow) -> None:
    begun = await begin(world, row)
    object_id = await copy(world, 0, 10)
    await world.store.delete_topic(LOCAL.topic_id)
    assert await begin(world, row) is None
    assert await finish(world, begun, copied(10)) is None
    assert await abandon(world, begun) == (None, False)
    assert (await world.claim(1, 5, P)) == [GONE]
    assert await world.do("find_purgeable", 10) == [LOCAL.topic_id]
    assert not await world.do("purge_topic", LOCAL.topic_id, 100)
    assert await world.state(object_id) is ObjectState.GARBAGE


async def test_a_moved_partition_goes_on_as_a_cloud_partition(world: World, row: PartitionRow) -> None:
    begun = await begin(world, row)
    await copy(world, 0, 10)
    await finish(world, begun, copied(10, stable_offset=4, epochs=[EpochStart(LeaderEpoch(4), 0)]))
    await world.claim(2, 5, P)
    await world.write(P, 10, 20, broker_id=2, epoch=5, stable=4)
    told = await world.do("commit_inline", world.brokers[2], [marker(P, 20, epoch=5, aborted=[aborts(20, 4)])], 5)
    assert told == [ACCEPTED]
    found = await world.row(P)
    assert (found.end_offset, found.stable_offset, found.l0_extents_count) == (21, 21, 3)
