"""What is lost for good is given up by an operator's word: consumers, leveling and compaction get on, and nothing that
can be read is touched."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from sexton.adapters.clock import SystemClock
from sexton.cli.broker import UsageError
from sexton.cloud import checking
from sexton.compactor.cloud.losses import Loss, LossError, accept, find_losses
from sexton.compactor.cloud.planning import plan_level
from sexton.compactor.cloud.plans import Writer
from sexton.ports.cloud import Level, ObjectState, Outcome
from sexton.ports.metastore import ConfigScope
from sexton.ports.object_names import claim_store
from sexton.ports.objects import StoreRefusedError, StoreUnavailableError
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.records.batch import ControlType
from sexton.types import LeaderEpoch
from tests.adapters.metastore.cloud.world import TOPIC, A, World
from tests.cloud.leveler import Leveler
from tests.cloud.test_leveled import keyed, records
from tests.cloud.test_looking import Place
from tests.cloud.test_replica import Broker, with_brokers
from tests.cloud.worlds import CLUSTER, NOW_MS, Forgetful, MemoryStore, away
from tests.log.helpers import marker, plain, sequenced

ALL = range(1 << 62)


class Scene:
    """A leader, one that leads after it and has nothing in memory, a compactor, and an operator."""

    def __init__(self, one: Broker, other: Broker) -> None:
        self.one, self.other = one, other
        self.world: World = one.host.world
        self.store: MemoryStore = one.host.objects
        self.leveler = Leveler(one.host)
        self.metastore: Any = self.leveler.metastore

    async def write(self, *values: bytes) -> None:
        for number, value in enumerate(values):
            await self.one.append(keyed(b"k%d" % (number % 2), value))

    async def lose(self, offset: int) -> uuid.UUID:
        page = await self.world.store.read_extents(A, offset, 1)
        assert page is not None
        object_id = page.extents[0].object_id
        assert object_id is not None
        for key in [key for key in self.store.objects if key.endswith(str(object_id))]:
            del self.store.objects[key]
        return object_id

    async def found(self, offsets: range = ALL) -> list[Loss]:
        return await find_losses(self.metastore, self.store, CLUSTER, A, offsets, random.Random(1))

    async def level_one(self) -> None:
        """The next extent alone."""
        plan = await self.leveler.plan_level()
        assert plan is not None
        (done,) = await self.leveler.jobs.level([replace(plan, extents=plan.extents[:1])], self.leveler.writer, 1 << 20)
        assert not done.error

    async def accept(self, found: list[Loss]) -> int:
        writer = Writer(CLUSTER, uuid.uuid4())
        count = await accept(self.metastore, self.store, writer, A, TOPIC.name, found, SystemClock(), random.Random(1))
        await self.world.check()
        compactors = await self.world.store.read_compactors()
        assert writer.compactor_id not in {row.compactor_id for row in compactors}
        return count

    async def read_by_the_next_leader(self, offset: int = 0) -> list[tuple[int, bytes | None, bytes | None]]:
        await self.other.lead(epoch=2)
        return records(await self.other.read_all(offset))


def with_scene(work: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
    async def go(one: Broker, other: Broker) -> None:
        await claim_store(one.host.objects, CLUSTER)
        await one.lead()
        await work(Scene(one, other))

    with_brokers(go)


def test_consumers_leveling_and_compaction_get_on_and_all_that_can_be_read_stays() -> None:
    async def work(scene: Scene) -> None:
        await scene.write(b"a", b"b", b"c", b"d", b"e")
        lost = await scene.lose(2)
        (before,) = await scene.leveler.level()
        assert "there is no such object" in before.error, "nothing can be leveled"
        found = await scene.found()
        assert [(one.extent.base_offset, one.extent.end_offset) for one in found] == [(2, 3)]
        await scene.accept(found)
        assert await scene.found() == []
        assert await scene.world.state(lost) is ObjectState.GARBAGE
        expected = [(0, b"k0", b"a"), (1, b"k1", b"b"), (3, b"k1", b"d"), (4, b"k0", b"e")]
        assert await scene.read_by_the_next_leader() == expected
        assert not (await scene.leveler.level())[0].error
        assert not (await scene.leveler.compact()).error
        scene.other.replica.note_leveled(await scene.world.row())
        assert records(await scene.other.read_all()) == [(3, b"k1", b"d"), (4, b"k0", b"e")]

    with_scene(work)


async def read_until_told(broker: Broker) -> None:
    while True:
        broker.read(1)
        await asyncio.sleep(0)


def test_a_consumer_that_waits_at_a_loss_goes_on_behind_it() -> None:
    async def work(scene: Scene) -> None:
        await scene.write(b"a", b"b", b"c")
        await scene.lose(1)
        await scene.other.lead(epoch=2)
        async with asyncio.timeout(10):
            with pytest.raises(KafkaError) as error:
                await read_until_told(scene.other)
        assert error.value.code is ErrorCode.kafka_storage_error
        await scene.accept(await scene.found())
        scene.other.replica.note_leveled(await scene.world.row())
        assert records(await scene.other.read_all(1)) == [(2, b"k0", b"c")]

    with_scene(work)


def test_a_run_of_l1_that_is_lost_is_replaced_and_its_neighbours_are_not() -> None:
    async def work(scene: Scene) -> None:
        for values in ((b"a", b"b"), (b"c", b"d"), (b"e", b"f")):
            await scene.write(*values)
            await scene.leveler.level()
        page = await scene.world.store.read_extents(A, 0, 10)
        assert page is not None
        assert [one.level for one in page.extents] == [Level.L1] * 3
        await scene.lose(2)
        await scene.world.store.change_settings(ConfigScope.BROKER, "", {"log.cleanup.policy": "compact"})
        await scene.accept(await scene.found(range(2, 3)))
        await scene.world.store.change_settings(ConfigScope.BROKER, "", {"log.cleanup.policy": None})
        now = await scene.world.store.read_extents(A, 0, 10)
        assert now is not None
        assert (now.extents[0], now.extents[2]) == (page.extents[0], page.extents[2])
        assert [offset for offset, _, _ in await scene.read_by_the_next_leader()] == [0, 1, 4, 5]
        assert not (await scene.leveler.compact()).error

    with_scene(work)


def test_only_the_offsets_that_were_named_are_given_up() -> None:
    async def work(scene: Scene) -> None:
        await scene.write(b"a", b"b", b"c", b"d")
        await scene.lose(1)
        await scene.lose(3)
        await scene.accept(await scene.found(range(1, 2)))
        assert [one.extent.base_offset for one in await scene.found()] == [3]
        assert (await scene.world.row()).leveled_offset == 2

    with_scene(work)


def test_what_a_store_that_is_away_has_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "pause_ms", lambda *_: 0)

    async def work(scene: Scene) -> None:
        await scene.write(b"a")
        scene.store.trouble = away
        with pytest.raises(StoreUnavailableError):
            await scene.found()
        scene.store.trouble = None

    with_scene(work)


def test_in_a_store_of_another_nothing_is_given_up() -> None:
    """Everything would look lost there."""

    async def work(scene: Scene) -> None:
        await scene.write(b"a")
        kept, scene.store.objects = scene.store.objects, {}
        with pytest.raises(StoreRefusedError, match="nothing here says"):
            await scene.found()
        scene.store.objects = kept

    with_scene(work)


def test_behind_an_open_transaction_nothing_is_given_up_yet() -> None:
    async def work(scene: Scene) -> None:
        await scene.one.append(sequenced(0, pid=3, is_open=True))
        await scene.write(b"a")
        await scene.lose(1)
        with pytest.raises(LossError, match="a transaction is open"):
            await scene.accept(await scene.found())

    with_scene(work)


@pytest.mark.parametrize("is_leveled", [False, True], ids=["L0", "L1"])
def test_what_is_back_when_the_operator_has_made_up_their_mind_is_kept(is_leveled: bool) -> None:
    """A question that is answered after lunch: meanwhile somebody has brought one of two objects back."""

    async def work(scene: Scene) -> None:
        await scene.write(b"a", b"b", b"c", b"d")
        if is_leveled:
            for _ in range(4):
                await scene.level_one()
        kept = dict(scene.store.objects)
        await scene.lose(1)
        await scene.lose(3)
        found = await scene.found()
        assert [one.extent.base_offset for one in found] == [1, 3]
        lost = {key for key in kept if key not in scene.store.objects}
        scene.store.objects |= {key: kept[key] for key in lost if key.endswith(str(found[0].extent.object_id))}
        assert await scene.accept(found) == 1
        assert [offset for offset, _, _ in await scene.read_by_the_next_leader()] == [0, 1, 2]

    with_scene(work)


def test_what_was_damaged_on_its_way_is_not_lost() -> None:
    async def work(scene: Scene) -> None:
        await scene.write(b"a", b"b")
        get, spoiled = scene.store.get, [1]

        async def get_badly(key: str, start: int, size_bytes: int) -> Any:
            data = bytearray(await get(key, start, size_bytes))
            if spoiled:
                data[-spoiled.pop()] ^= 1
            return bytes(data)

        scene.store.get = get_badly  # type: ignore[method-assign]
        assert await scene.found() == []
        assert not spoiled

    with_scene(work)


@pytest.mark.parametrize(
    ("is_leveled", "what"), [(False, "epoch"), (True, "epoch"), (True, "footer")], ids=["L0", "L1", "footer of L1"]
)
def test_records_around_which_something_is_damaged_are_written_anew(is_leveled: bool, what: str) -> None:
    """The CRC of a batch does not cover its leader epoch, and a large run of L1 is read by the footer: leaders refuse
    both, and no record is lost."""

    async def work(scene: Scene) -> None:
        await scene.write(b"a", b"b", b"c")
        if is_leveled:
            for _ in range(3):
                await scene.level_one()
        page = await scene.world.store.read_extents(A, 1, 1)
        assert page is not None
        (key,) = [key for key in scene.store.objects if key.endswith(str(page.extents[0].object_id))]
        data = bytearray(scene.store.objects[key])
        data[page.extents[0].position + 15 if what == "epoch" else -30] ^= 4
        scene.store.objects[key] = bytes(data)
        found = await scene.found()
        assert [one.extent.base_offset for one in found] == [1]
        assert await scene.accept(found) == 0
        assert await scene.found() == []
        assert [offset for offset, _, _ in await scene.read_by_the_next_leader()] == [0, 1, 2]

    with_scene(work)


@pytest.mark.parametrize("is_leveled", [False, True], ids=["L0", "L1"])
def test_a_log_that_begins_inside_what_is_lost_goes_on_behind_it(is_leveled: bool) -> None:
    async def work(scene: Scene) -> None:
        await scene.one.append(plain(b"a", b"b", b"c"))
        await scene.write(b"d", b"e")
        if is_leveled:
            for _ in range(3):
                await scene.level_one()
        assert (await scene.world.store.advance_start(A, LeaderEpoch(1), 2)).outcome is Outcome.ACCEPTED
        await scene.lose(2)
        found = await scene.found()
        assert [(one.extent.base_offset, one.extent.end_offset) for one in found] == [(0, 3)]
        assert await scene.accept(found) == 1
        assert await scene.found() == []
        row = await scene.world.row()
        assert (row.start_offset, row.leveled_offset) == (2, 5 if is_leveled else 3)
        assert [offset for offset, _, _ in await scene.read_by_the_next_leader(2)] == [3, 4]

    with_scene(work)


def test_of_a_transaction_that_was_aborted_nothing_comes_back_when_its_marker_is_lost() -> None:
    """And nothing of one that was committed goes: who was aborted is in the metastore."""

    async def work(scene: Scene) -> None:
        one = scene.one
        await one.append(sequenced(0, pid=3, is_open=True))
        await one.append(sequenced(0, pid=4, is_open=True))
        last = [one.replica.append(plain(b"a"), -1, NOW_MS)]  # with both markers in one object
        for how, pid in ((ControlType.ABORT, 3), (ControlType.COMMIT, 4)):
            last.append(one.replica.append(marker(how, pid=pid), -1, NOW_MS, from_client=False))
        await asyncio.gather(*(future for _, future in last if future is not None))
        await scene.write(b"b")
        await scene.lose(4)
        assert [(loss.extent.base_offset, loss.extent.end_offset) for loss in await scene.found()] == [(2, 5)]
        await scene.accept(await scene.found())
        assert [offset for offset, _, _ in await scene.read_by_the_next_leader()] == [1, 5]

    with_scene(work)


def test_a_compactor_that_levels_meanwhile_wins_and_the_loss_is_accepted_after_it() -> None:
    async def work(scene: Scene) -> None:
        await scene.write(b"a", b"b", b"c")
        await scene.lose(2)
        found = await scene.found()
        read, levels = scene.metastore.read_extents, [1]

        async def overtaken(*arguments: Any) -> Any:
            page = await read(*arguments)
            if levels and arguments[1] == 0:
                levels.pop()
                plan = await scene.leveler.plan_level()
                plan = type(plan)(topic=plan.topic, row=plan.row, extents=plan.extents[:1])
                assert not (await scene.leveler.jobs.level([plan], scene.leveler.writer, 1 << 20))[0].error
            return page

        scene.metastore.read_extents = overtaken
        await scene.accept(found)
        assert not levels
        assert (await scene.world.row()).leveled_offset == 3
        assert [offset for offset, _, _ in await scene.read_by_the_next_leader()] == [0, 1]

    with_scene(work)


# Whatever happens between two of its steps


async def cut_inside(scene: Scene) -> None:
    await scene.world.store.advance_start(A, (await scene.world.row()).writer_epoch, 4)


async def cut_all(scene: Scene) -> None:
    row = await scene.world.row()
    await scene.world.store.advance_start(A, row.writer_epoch, row.end_offset)


async def others_lead(scene: Scene) -> None:
    await scene.other.lead(epoch=2)
    await scene.other.append(keyed(b"new", b"new"))


async def a_compactor_works(scene: Scene) -> None:
    """As far as it can: what is lost stops it."""
    plan = await plan_level(scene.leveler.metastore, A, TOPIC.name)
    if plan is not None:
        await scene.leveler.jobs.level([replace(plan, extents=plan.extents[:1])], scene.leveler.writer, 1 << 20)
    compaction = await scene.leveler.plan_compaction()
    if compaction is not None:
        await scene.leveler.jobs.compact([compaction], scene.leveler.writer)


async def somebody_else_accepts_it(scene: Scene) -> None:
    found = await scene.found()
    if found:
        await scene.accept(found)


MEANWHILE = (cut_inside, cut_all, others_lead, a_compactor_works, somebody_else_accepts_it)


@pytest.mark.parametrize("meanwhile", MEANWHILE, ids=lambda one: one.__name__)
def test_whatever_happens_between_two_steps_nothing_else_is_given_up(
    meanwhile: Callable[[Scene], Coroutine[Any, Any, None]],
) -> None:
    """Before each call of the metastore, one after the other; and the answers of all commits are lost once."""
    calls_count = [1]

    async def go(scene: Scene, number: int) -> None:
        await scene.one.append(plain(b"0", b"1", b"2", key=b"a"), plain(b"3", b"4", b"5", key=b"b"))
        for offset in range(6, 11):
            await scene.one.append(keyed(b"k%d" % offset, b"v"))
        await scene.level_one()
        await scene.level_one()
        for offset in (3, 7, 9):
            await scene.lose(offset)
        found = await scene.found()
        made: list[str] = []
        lost: set[int] = set()

        def happens(operation: str) -> str | None:
            made.append(operation)
            if operation.startswith("commit") and len(made) not in lost:
                lost.update((len(made), len(made) + 1))
                return "after"
            return None

        class Meanwhile:
            def __getattr__(self, operation: str) -> Any:
                async def call(*arguments: Any) -> Any:
                    if len(made) == number:
                        made.append("")
                        await meanwhile(scene)
                    return await getattr(forgetful, operation)(*arguments)

                return call

        forgetful = Forgetful(scene.world)
        forgetful.loses = happens
        writer = Writer(CLUSTER, uuid.uuid4())
        await accept(cast(Any, Meanwhile()), scene.store, writer, A, TOPIC.name, found, SystemClock(), random.Random(1))
        calls_count[0] = len(made)
        await scene.world.check()
        assert await scene.found() == []
        row = await scene.world.row()
        kept = {0, 1, 2, 6, 8, *range(10, row.end_offset)}
        await scene.other.lead(epoch=3)
        got = {offset for offset, _, _ in records(await scene.other.read_all(row.start_offset))}
        wanted = {offset for offset in kept if offset >= row.start_offset}
        if meanwhile is a_compactor_works:
            wanted -= {0, 1} - got  # of a key the last stays
        assert got == wanted

    number = 0
    while number < calls_count[0]:

        async def work(scene: Scene) -> None:
            await go(scene, number)  # noqa: B023 - it is run here

        with_scene(work)
        number += 1
    assert number > 10


# The command


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path)
    asyncio.run(made.make())
    return made


def test_the_command_gives_up_what_is_lost_and_the_check_is_right_again(place: Place) -> None:
    nothing = place.run("accept-loss", "orders:0", "--from", "0", "--to", "2", "--yes")
    assert isinstance(nothing.exception, UsageError)
    assert "can be read: nothing is given up" in nothing.exception.what
    place.files()[1].unlink()
    lost = place.run("check")
    assert "accept-loss" in str(lost.exception)
    unsure = place.run("accept-loss", "orders:0", "--from", "0", "--to", "2")
    assert "--yes" in str(unsure.exception)
    done = place.run("accept-loss", "orders:0", "--from", "0", "--to", "2", "--yes")
    assert done.exit_code == 0, done.output
    assert "1 runs of orders:0 have no records any more" in " ".join(done.output.split())
    assert place.json("check", "--deep")["is_right"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["orders", "--from", "0", "--to", "1"], "names no partition"),
        (["orders:7", "--from", "0", "--to", "1"], "not in the store"),
        (["nobody:0", "--from", "0", "--to", "1"], "not in the store"),
        (["orders:0", "--from", "5", "--to", "1"], "lies below"),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_does(place: Place, words: list[str], told: str) -> None:
    done = place.run("accept-loss", *words)
    assert isinstance(done.exception, UsageError)
    assert told in str(done.exception)
