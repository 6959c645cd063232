"""Objects: registered before they are used, garbage when nobody needs them, gone when their bytes are."""

from __future__ import annotations

import uuid

import pytest

from sexton.ports.cloud import Level, ObjectState
from sexton.ports.metastore import AlreadyExistsError, LeaseLostError, StaleError
from sexton.types import Round
from tests.adapters.metastore.cloud.world import ACCEPTED, COMPACTOR, A, B, World, gather, run

GRACE = 2


async def rounds(world: World, count: int) -> None:
    for _ in range(count):
        now = (await world.store.read_collection()).round
        assert await world.do("advance_round", now) == now + 1


async def collected(world: World) -> list[uuid.UUID]:
    return [row.object_id for row in await world.do("collect", GRACE, 100)]


async def test_an_object_is_pending_from_its_registration_on_and_that_can_be_repeated(world: World) -> None:
    ids = [world.id(), world.id()]
    for _ in range(2):
        await world.do("register_objects", world.brokers[1], Level.L0, ids)
    assert [await world.state(id_) for id_ in ids] == [ObjectState.PENDING] * 2
    (row, _) = await world.store.read_objects([ObjectState.PENDING], None, 10)
    assert (row.owner, row.level, row.size_bytes, row.refs_count) == (world.brokers[1], Level.L0, 0, 0)


async def test_an_id_that_was_used_is_refused(world: World) -> None:
    await world.claim(1, 1)
    mine = await world.pending()
    live = await world.write(A, 0, 10)
    for owner, id_ in ((world.brokers[2], mine), (world.brokers[1], live)):
        with pytest.raises(AlreadyExistsError):
            await world.do("register_objects", owner, Level.L0, [id_, world.id()])


async def test_only_the_living_register(world: World) -> None:
    old = world.brokers[1]
    await world.register(1)
    await world.fence(2)
    await world.store.remove_compactor(COMPACTOR, 0)
    for owner in (old, world.brokers[2], world.compactor):
        with pytest.raises(LeaseLostError):
            await world.do("register_objects", owner, Level.L0, [world.id()])


async def test_what_is_released_is_garbage_unless_it_was_committed_or_is_somebody_elses(world: World) -> None:
    await world.claim(1, 1)
    live, unused, foreign = await world.write(A, 0, 10), await world.pending(), await world.pending(world.brokers[2])
    for _ in range(2):
        await world.do("release_objects", world.brokers[1], [live, unused, foreign, uuid.UUID(int=999)])
    states = [await world.state(id_) for id_ in (live, unused, foreign)]
    assert states == [ObjectState.LIVE, ObjectState.GARBAGE, ObjectState.PENDING]


async def test_pending_objects_of_the_dead_expire_and_of_the_living_never(world: World) -> None:
    """T4: an upload or a job may take as long as it likes while its owner renews its lease."""
    replaced = await world.pending()
    compacted = await world.pending(world.compactor, Level.L1)
    living = await world.pending(world.brokers[2])
    await rounds(world, 50)
    assert await world.do("expire_owners", 100) == 0
    await world.register(1)
    assert await world.do("expire_owners", 100) == 1
    await world.store.remove_compactor(COMPACTOR, 0)
    assert await world.do("expire_owners", 100) == 1
    assert await world.do("expire_owners", 100) == 0
    states = [await world.state(id_) for id_ in (replaced, compacted, living)]
    assert states == [ObjectState.GARBAGE, ObjectState.GARBAGE, ObjectState.PENDING]
    await world.fence(2)
    assert await world.do("expire_owners", 100) == 1


async def test_expiry_goes_in_steps(world: World) -> None:
    await world.do("register_objects", world.brokers[1], Level.L0, [world.id() for _ in range(5)])
    await world.fence(1)
    assert [await world.do("expire_owners", 2) for _ in range(4)] == [2, 2, 1, 0]


async def test_an_object_that_expired_while_its_owner_slept_cannot_be_committed(world: World) -> None:
    """Whichever comes first, expiry or commit, wins; the other finds it so (T1, T2)."""
    await world.claim(1, 1)
    slept, awake = await world.pending(), await world.pending()
    await world.commit(gather(awake, run(B, 0, 10)))
    await world.fence(1)
    await world.do("expire_owners", 100)
    await world.commit(gather(slept, run(A, 0, 10)))
    assert await world.state(slept) is ObjectState.GARBAGE
    assert await world.state(awake) is ObjectState.LIVE
    assert (await world.row(A)).end_offset == 0


async def test_garbage_is_collected_after_its_grace_and_not_before(world: World) -> None:
    await world.claim(1, 1)
    await world.write(A, 0, 10)
    await rounds(world, 5)
    unused = await world.pending()
    await world.do("release_objects", world.brokers[1], [unused])
    for _ in range(GRACE):
        assert await collected(world) == []
        await rounds(world, 1)
    assert await collected(world) == [unused]
    await world.do("forget_objects", [unused])
    assert await world.state(unused) is None
    assert await collected(world) == []


async def test_only_garbage_is_forgotten(world: World) -> None:
    await world.claim(1, 1)
    live, pending = await world.write(A, 0, 10), await world.pending()
    await world.do("forget_objects", [live, pending, uuid.UUID(int=999)])
    assert [await world.state(id_) for id_ in (live, pending)] == [ObjectState.LIVE, ObjectState.PENDING]


async def test_an_object_is_garbage_when_its_last_extent_goes(world: World) -> None:
    await world.claim(1, 1)
    both = await world.pending()
    assert await world.commit(gather(both, run(A, 0, 10), run(B, 0, 5))) == [[ACCEPTED, ACCEPTED]]
    await world.do("advance_start", A, 1, 10)
    assert await world.state(both) is ObjectState.LIVE
    await rounds(world, 3)
    await world.do("advance_start", B, 1, 5)
    assert await world.state(both) is ObjectState.GARBAGE
    (row,) = await world.store.read_objects([ObjectState.GARBAGE], None, 10)
    assert (row.round, row.size_bytes, row.live_bytes) == (3, 200, 0)


async def test_a_pin_keeps_what_became_garbage_since(world: World) -> None:
    before, after = await world.pending(), await world.pending()
    await world.do("release_objects", world.brokers[1], [before])
    await rounds(world, 1)
    pin = await world.do("pin", uuid.UUID(int=1), "me", "a query", 4)
    assert pin == await world.do("pin", uuid.UUID(int=1), "me", "a query", 9)
    await world.do("release_objects", world.brokers[1], [after])
    await rounds(world, 4)
    assert await collected(world) == [before]
    renewed = await world.do("renew_pin", uuid.UUID(int=1), 3)
    assert (renewed.round, renewed.until_round) == (pin.round, 8)
    await rounds(world, 3)
    assert await collected(world) == [before]
    await world.do("unpin", uuid.UUID(int=1))
    assert await collected(world) == [before, after]


async def test_a_pin_that_is_not_renewed_ends_and_stays_so(world: World) -> None:
    unused = await world.pending()
    await world.do("pin", uuid.UUID(int=1), "me", "a query", 3)
    await world.do("release_objects", world.brokers[1], [unused])
    assert [(pin.owner, pin.what, pin.until_round) for pin in await world.do("read_pins")] == [("me", "a query", 3)]
    await rounds(world, 4)
    assert await collected(world) == [unused]
    assert await world.do("read_pins") == []
    for _ in range(2):
        with pytest.raises(StaleError, match="plan anew"):
            await world.do("renew_pin", uuid.UUID(int=1), 9)
        await world.do("pin", uuid.UUID(int=2), "another", "a query", 3)  # sweeps those that have ended


async def test_of_two_who_advance_the_round_one_does(world: World) -> None:
    assert [await world.do("advance_round", Round(0)) for _ in range(3)] == [1, 1, 1]
    assert await world.do("advance_round", Round(5)) == 1


async def test_ids_without_a_row_are_told(world: World) -> None:
    known, unknown = await world.pending(), uuid.UUID(int=12345)
    assert await world.do("find_unknown", [unknown, known]) == [unknown]


async def test_the_last_scrub_is_noted_and_an_earlier_one_that_comes_late_is_not(world: World) -> None:
    await world.do("note_scrub", Round(4), 77)
    await world.do("note_scrub", Round(3), 66)
    assert await world.store.read_collection() == (0, 4, 77)


async def test_objects_are_read_page_by_page(world: World) -> None:
    ids = sorted([await world.pending() for _ in range(5)])
    first = await world.store.read_objects([ObjectState.PENDING], None, 3)
    rest = await world.store.read_objects([ObjectState.PENDING], first[-1].object_id, 3)
    assert [row.object_id for row in (*first, *rest)] == ids
