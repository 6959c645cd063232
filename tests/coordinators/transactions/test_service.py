"""The asyncio shell: loading, committing before markers and answers, failing, waiting. The log is in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest

from sexton.coordinators.hashing import partition_for
from sexton.coordinators.timers import Now
from sexton.coordinators.transactions import service
from sexton.coordinators.transactions.coordinator import LateEnd
from sexton.coordinators.transactions.messages import AddRequest, EndRequest, InitRequest, ListRequest
from sexton.coordinators.transactions.records import encode_key
from sexton.coordinators.transactions.service import CONCURRENT_WAIT_MS, DueMarkers, TransactionService
from sexton.coordinators.transactions.states import State
from sexton.log.checks import OWN_BATCH_BYTES_MAX
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.records import batch as batches
from sexton.settings.broker import TransactionSettings
from sexton.types import ProducerId, ProducerIdAndEpoch
from tests.coordinators.hosts import FakeHost
from tests.coordinators.transactions.harness import ID, NEW, P0, P1, TIMEOUT_MS, refused
from tests.producers import producer_at

T = TypeVar("T")
PARTITIONS = 4
PARTITION = partition_for(ID, PARTITIONS)
FIRST = producer_at(1000, 0)


@dataclass
class FakeLog:
    """Batches in memory. Appends wait while `gate` is closed, and fail with `error`."""

    batches: list[bytes] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    error: KafkaError | None = None
    records_count: int = 0
    has_too_few_in_sync: bool = False

    def __post_init__(self) -> None:
        self.gate.set()

    async def append(self, records: Sequence[tuple[bytes, bytes | None]], now_ms: int) -> None:
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        self.check_writable()
        start = self.records_count
        made = [batches.Record(start + index, now_ms, *record) for index, record in enumerate(records)]
        batch = batches.encode(batches.make_batch(made))
        if len(batch) > OWN_BATCH_BYTES_MAX:
            raise KafkaError(ErrorCode.message_too_large)
        self.records_count += len(records)
        self.batches.append(batch)

    def check_writable(self) -> None:
        if self.has_too_few_in_sync:
            raise KafkaError(ErrorCode.not_enough_replicas)

    async def read(self) -> AsyncIterator[bytes]:
        for data in list(self.batches):
            yield data


class World:
    """A service, its log, and the markers that it owes."""

    def __init__(self, log: FakeLog | None = None, concurrent_wait_ms: int = CONCURRENT_WAIT_MS) -> None:
        self.log = log or FakeLog()
        self.due: list[DueMarkers] = []
        self.ids = iter(range(1000, 2000))
        self.host = FakeHost(topic_size=PARTITIONS)
        self.service = TransactionService(
            self.host, TransactionSettings(), next_producer_id=self.next_id, send_markers=self.due.append
        )
        self.service.concurrent_wait_ms = concurrent_wait_ms

    async def next_id(self) -> ProducerId:
        await asyncio.sleep(0)
        return ProducerId(next(self.ids))

    async def loaded(self, epoch: int = 7) -> World:
        await self.service.load(PARTITION, epoch, self.log)
        return self

    def init(self, expected: ProducerIdAndEpoch | None = None) -> Awaitable[ProducerIdAndEpoch]:
        return self.service.init(InitRequest(ID, TIMEOUT_MS, expected))

    async def begun(self) -> World:
        await self.loaded()
        await self.init()
        await self.service.add(AddRequest(ID, FIRST, [P0, P1]))
        return self

    def commit(self) -> Coroutine[Any, Any, ProducerIdAndEpoch]:
        return self.service.end(EndRequest(ID, FIRST, is_commit=True))

    def write_markers(self) -> None:
        due, self.due = list(self.due), self.due
        self.due.clear()
        for one in due:
            for place in one.markers.partitions:
                self.service.marker_written(one, place)

    async def state(self) -> State:
        return (await self.service.describe(ID))[0].state


def run(test: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(test, 30))


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_a_transaction_from_begin_to_end() -> None:
    async def test() -> None:
        world = await World().begun()
        await world.commit()
        [due] = world.due
        assert (due.coordinator_partition, due.coordinator_epoch) == (PARTITION, 7)
        assert (due.markers.is_commit, due.markers.partitions) == (True, (P0, P1))
        assert await world.state() is State.PREPARE_COMMIT
        world.write_markers()
        assert await world.state() is State.COMPLETE_COMMIT

    run(test())


def test_a_late_end_that_waited_for_the_markers_does_not_end_the_transaction_that_began_meanwhile() -> None:
    async def test() -> None:
        world = await World().begun()
        await world.commit()
        late = asyncio.ensure_future(world.service.end(EndRequest(ID, FIRST, is_commit=True, may_be_late=True)))
        await settle()
        beginning = asyncio.ensure_future(world.service.add(AddRequest(ID, FIRST, [P0])))
        await settle()
        world.write_markers()
        await beginning
        await asyncio.wait([late])
        assert await world.state() is State.ONGOING
        assert isinstance(late.exception(), LateEnd) or late.result() == FIRST

    run(test())


def test_no_marker_leaves_before_the_decision_is_committed() -> None:
    async def test() -> None:
        world = await World().begun()
        world.log.gate.clear()
        committing = asyncio.create_task(world.commit())
        await settle()
        assert not committing.done()
        assert not world.due
        world.log.gate.set()
        await committing
        assert world.due

    run(test())


def test_a_decision_that_could_not_be_committed_is_undone_and_no_marker_leaves() -> None:
    async def test() -> None:
        world = await World().begun()
        world.log.error = KafkaError(ErrorCode.not_enough_replicas)
        with refused(ErrorCode.coordinator_not_available):
            await world.commit()
        world.log.error = None
        await settle()
        assert not world.due
        assert await world.state() is State.ONGOING
        await world.commit()
        assert world.due

    run(test())


def test_a_coordinator_that_lost_its_leadership_sends_clients_elsewhere() -> None:
    async def test() -> None:
        world = await World().begun()
        world.log.error = KafkaError(ErrorCode.not_leader_or_follower)
        with refused(ErrorCode.not_coordinator):
            await world.commit()
        world.service.unload(PARTITION)
        with refused(ErrorCode.not_coordinator):
            await world.commit()
        assert not world.due

    run(test())


def test_without_a_lease_not_even_reads_are_answered() -> None:
    async def test() -> None:
        world = await World().begun()
        world.host.may_serve = False
        with refused(ErrorCode.not_coordinator):
            await world.service.verify(AddRequest(ID, FIRST, [P0]))

    run(test())


def test_nobody_is_verified_by_a_state_that_may_be_lost() -> None:
    async def test() -> None:
        world = await World().loaded()
        await world.init()
        world.log.gate.clear()
        adding = asyncio.create_task(world.service.add(AddRequest(ID, FIRST, [P0])))
        await settle()
        verifying = asyncio.ensure_future(world.service.verify(AddRequest(ID, FIRST, [P0])))
        await settle()
        assert not verifying.done()
        world.log.gate.set()
        assert list((await verifying).values()) == [ErrorCode.none]
        await adding

    run(test())


def test_the_next_transaction_waits_for_the_markers_of_the_one_before() -> None:
    async def test() -> None:
        world = await World().begun()
        await world.commit()
        adding = asyncio.create_task(world.service.add(AddRequest(ID, FIRST, [P0])))
        await settle()
        assert not adding.done()
        world.write_markers()
        await adding
        assert await world.state() is State.ONGOING

    run(test())


def test_a_commit_that_is_ahead_of_its_records_is_never_kept_for_later() -> None:
    """Java's client (4.x) may send it before them. Kept until the markers of the last transaction are written, it would
    commit whatever is added first."""

    async def test() -> None:
        world = await World().loaded()
        first = await world.init()
        await world.service.add(AddRequest(ID, first, [P0], NEW))
        second = await world.service.end(EndRequest(ID, first, True, NEW))
        adding = asyncio.create_task(world.service.add(AddRequest(ID, second, [P0], NEW)))
        await settle()
        early = asyncio.create_task(world.service.end(EndRequest(ID, second, True, NEW)))
        await settle()
        world.write_markers()
        await adding
        with refused(ErrorCode.concurrent_transactions):
            await early
        assert await world.state() is State.ONGOING
        await world.service.add(AddRequest(ID, second, [P1], NEW))
        await world.service.end(EndRequest(ID, second, True, NEW))
        [due] = world.due
        assert due.markers.partitions == (P0, P1)

    run(test())


def test_nor_is_one_after_an_end_by_an_older_version_in_its_epoch() -> None:
    """The client has learnt of version 2 meanwhile, and goes on in its epoch."""

    async def test() -> None:
        world = await World().loaded()
        await world.init()
        await world.service.add(AddRequest(ID, FIRST, [P0]))
        await world.service.end(EndRequest(ID, FIRST, True))
        adding = asyncio.create_task(world.service.add(AddRequest(ID, FIRST, [P0], NEW)))
        await settle()
        early = asyncio.create_task(world.service.end(EndRequest(ID, FIRST, True, NEW)))
        await settle()
        world.write_markers()
        await adding
        with refused(ErrorCode.concurrent_transactions):
            await early
        assert await world.state() is State.ONGOING

    run(test())


def test_a_commit_of_nothing_is_answered_at_once() -> None:
    async def test() -> None:
        world = await World(concurrent_wait_ms=60_000).loaded()
        first = await world.init()
        with refused(ErrorCode.concurrent_transactions):
            await asyncio.wait_for(world.service.end(EndRequest(ID, first, True, NEW)), 20)

    run(test())


def test_it_does_not_wait_for_ever() -> None:
    async def test() -> None:
        world = await World(concurrent_wait_ms=20).begun()
        await world.commit()
        with refused(ErrorCode.concurrent_transactions):
            await world.service.add(AddRequest(ID, FIRST, [P0]))

    run(test())


def test_a_new_instance_waits_until_the_transaction_of_the_old_one_is_aborted() -> None:
    async def test() -> None:
        world = await World().begun()
        starting = asyncio.ensure_future(world.init())
        await settle()
        assert not starting.done()
        [due] = world.due
        assert not due.markers.is_commit
        world.write_markers()
        assert await starting == (1000, 2)

    run(test())


def test_a_coordinator_that_takes_over_sends_the_markers_again_under_its_own_epoch() -> None:
    async def test() -> None:
        before = await World().begun()
        await before.commit()
        after = await World(before.log).loaded(epoch=8)
        assert [due.coordinator_epoch for due in after.due] == [8]
        before.write_markers()
        assert await after.state() is State.PREPARE_COMMIT
        after.write_markers()
        assert await after.state() is State.COMPLETE_COMMIT

    run(test())


def test_what_was_sent_under_a_former_epoch_is_not_counted() -> None:
    async def test() -> None:
        world = await World().begun()
        await world.commit()
        [old] = world.due
        world.due.clear()
        await world.loaded(epoch=8)
        for place in old.markers.partitions:
            world.service.marker_written(old, place)
        assert await world.state() is State.PREPARE_COMMIT

    run(test())


def test_a_transaction_is_aborted_when_its_time_is_up() -> None:
    async def test() -> None:
        world = await World().loaded()
        await world.service.init(InitRequest(ID, 30))
        await world.service.add(AddRequest(ID, FIRST, [P0]))
        while not world.due:
            await asyncio.sleep(0.01)
        assert world.due[0].markers.producer == (1000, 1)
        assert not world.due[0].markers.is_commit

    run(test())


def test_a_transaction_whose_time_is_up_does_not_keep_the_coordinator_busy_while_nothing_can_be_written() -> None:
    """Found by the simulator: it failed, was loaded again, was due at once, and failed, without a pause."""

    async def test() -> None:
        world = await World().loaded()
        await world.service.init(InitRequest(ID, 30))
        await world.service.add(AddRequest(ID, FIRST, [P0]))
        tries = 0

        async def refuse(records: object, now_ms: int) -> None:
            nonlocal tries
            tries += 1
            raise KafkaError(ErrorCode.not_enough_replicas)

        world.log.append, take = refuse, world.log.append  # type: ignore[method-assign]
        while not tries:
            await asyncio.sleep(0.01)
        for _ in range(1_000):
            await asyncio.sleep(0)
        assert tries <= 2, "one more after the first, and then it waits"
        world.log.append = take  # type: ignore[method-assign]
        while not world.due:
            await asyncio.sleep(0.01)

    run(test())


def test_requests_before_and_without_a_role_are_refused() -> None:
    async def test() -> None:
        world = World()
        with refused(ErrorCode.not_coordinator):
            await world.init()
        with refused(ErrorCode.invalid_request):
            await world.service.describe("")
        await world.loaded()
        with refused(ErrorCode.transactional_id_not_found):
            await world.service.describe(ID)
        assert await world.service.list_all(ListRequest()) == []
        assert world.service.is_ready(ID)
        await world.service.close()
        assert not world.service.is_ready(ID)

    run(test())


def test_who_waits_when_the_coordinator_moves_is_told() -> None:
    async def test() -> None:
        world = await World().begun()
        await world.commit()
        adding = asyncio.create_task(world.service.add(AddRequest(ID, FIRST, [P0])))
        await settle()
        world.service.unload(PARTITION)
        with refused(ErrorCode.not_coordinator):
            await adding

    run(test())


def test_records_that_cannot_be_read_are_skipped_and_everything_else_is_served() -> None:
    async def test() -> None:
        world = await World().begun()
        await world.log.append([(b"\x00\x00\x00\x01", b"x"), (b"", b"x"), (encode_key("other"), b"\x00\x09")], 1)
        again = await World(world.log).loaded(8)
        assert await again.state() is State.ONGOING

    run(test())


def test_a_transactional_id_that_is_too_long_for_a_record_is_refused() -> None:
    async def test() -> None:
        world = await World().loaded()
        (led,) = world.service.led.values()
        with refused(ErrorCode.invalid_request):
            await world.service.init(InitRequest(on_this_partition("x" * 40_000), TIMEOUT_MS))
        assert world.service.led[PARTITION] is led
        assert not world.service.supervisor.bugs

    run(test())


def test_more_partitions_than_fit_into_a_record_are_refused_and_nobody_else_notices() -> None:
    async def test() -> None:
        world = await World().begun()
        (led,) = world.service.led.values()
        many = [(f"{number % 10_000:0100}", number) for number in range(10_000)]
        with refused(ErrorCode.unknown_server_error):
            await world.service.add(AddRequest(ID, FIRST, many))
        assert world.service.led[PARTITION] is led
        await world.commit()

    run(test())


def test_transactions_that_run_out_of_time_together_are_aborted_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        monkeypatch.setattr("sexton.coordinators.partition.LATE_MS", 10**9)
        world = await World().loaded()
        (led,) = world.service.led.values()
        names = [on_this_partition(f"{number:03}-") for number in range(300)]
        places = [(f"{number:0200}", 0) for number in range(25)]
        for name in names:
            producer = await world.service.init(InitRequest(name, 900_000))
            await world.service.add(AddRequest(name, producer, places))
        now = led.now()
        led.now = lambda: Now(now.wall_ms + 1_000_000, now.monotonic_ms + 1_000_000)
        led.ring()
        while await world.service.list_all(ListRequest([State.ONGOING])):
            await asyncio.sleep(0)
        assert world.service.led[PARTITION] is led, "it was loaded again"
        await led.committed()
        again = await World(world.log).loaded(8)
        assert {one.state for one in await again.service.list_all(ListRequest())} == {State.PREPARE_ABORT}

    run(test())


def test_while_too_few_replicas_are_in_sync_transactions_wait_and_nothing_is_loaded_again() -> None:
    async def test() -> None:
        world = await World().begun()
        (led,) = world.service.led.values()
        world.log.has_too_few_in_sync = True
        with refused(ErrorCode.coordinator_not_available):
            await world.commit()
        assert await world.state() is State.ONGOING
        led.now = lambda: Now(1_700_000_000_000, 10**9)
        led.ring()
        assert await world.state() is State.ONGOING
        assert world.service.led[PARTITION] is led
        world.log.has_too_few_in_sync = False
        await world.commit()

    run(test())


def test_markers_that_are_written_while_too_few_replicas_are_in_sync_count_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the end could not be recorded, and the coordinator would be loaded again and send all markers anew, each
    second."""
    monkeypatch.setattr(service, "UNWRITABLE_PAUSE_MS", 1)

    async def test() -> None:
        world = await World().begun()
        (led,) = world.service.led.values()
        await world.commit()
        world.log.has_too_few_in_sync = True
        world.write_markers()
        await asyncio.sleep(0.01)
        assert await world.state() is State.PREPARE_COMMIT
        assert world.service.led[PARTITION] is led
        world.log.has_too_few_in_sync = False
        while await world.state() is not State.COMPLETE_COMMIT:
            await asyncio.sleep(0.001)
        assert not world.due

    run(test())


def test_a_marker_that_is_to_count_later_does_not_count_for_one_that_was_sent_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The coordinator is loaded again, and has sent all markers anew. Were the transaction complete while they are on
    their way, they could end the next one of an older client, which has the same epoch."""
    monkeypatch.setattr(service, "UNWRITABLE_PAUSE_MS", 1)

    async def test() -> None:
        world = await World().begun()
        await world.commit()
        world.log.has_too_few_in_sync = True
        world.write_markers()
        await loaded_again(world)
        assert len(world.due) == 1, "sent again, and on their way"
        world.log.has_too_few_in_sync = False
        await asyncio.sleep(0.02)
        assert await world.state() is State.PREPARE_COMMIT
        world.write_markers()
        assert await world.state() is State.COMPLETE_COMMIT

    run(test())


def test_a_marker_that_is_to_count_later_is_not_sent_again_and_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was on its way while the coordinator was loaded again, so that it waits to be sent once more. Counted
    twice, it could stand for that of the next transaction of an older client, which has the same epoch."""
    monkeypatch.setattr(service, "UNWRITABLE_PAUSE_MS", 20)

    async def test() -> None:
        world = await World().begun()
        await world.commit()
        (first,) = world.due
        world.log.has_too_few_in_sync = True
        await loaded_again(world)
        for place in (P0, P1):
            world.service.marker_written(first, place)
            assert not world.service.owes(first, place)
        await asyncio.sleep(0.015)
        for place in (P0, P1):
            world.service.marker_written(first, place)
        world.log.has_too_few_in_sync = False
        while await world.state() is not State.COMPLETE_COMMIT:
            await asyncio.sleep(0.001)
        await world.service.add(AddRequest(ID, FIRST, [P0, P1]))
        await world.commit()
        await asyncio.sleep(0.05)
        assert await world.state() is State.PREPARE_COMMIT

    run(test())


def test_a_marker_that_is_to_count_later_counts_once_even_if_it_is_told_of_again_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whether its partition was deleted may be asked twice, on behalf of two loadings, and the metastore be slow the
    second time. The note that is left would count for the next transaction of an older client, unsent."""
    monkeypatch.setattr(service, "UNWRITABLE_PAUSE_MS", 20)

    async def test() -> None:
        world = await World().begun()
        await world.commit()
        (first,) = world.due
        world.log.has_too_few_in_sync = True
        for place in (P0, P1):
            world.service.marker_written(first, place)
        world.log.has_too_few_in_sync = False
        for place in (P0, P1):
            world.service.marker_written(first, place)
        while await world.state() is not State.COMPLETE_COMMIT:
            await asyncio.sleep(0.001)
        await world.service.add(AddRequest(ID, FIRST, [P0, P1]))
        await world.commit()
        assert world.service.owes(first, P0)
        await asyncio.sleep(0.05)
        assert await world.state() is State.PREPARE_COMMIT

    run(test())


async def loaded_again(world: World) -> None:
    world.due.clear()
    world.service.on_failed(world.service.led[PARTITION], KafkaError(ErrorCode.not_enough_replicas_after_append))
    while not world.service.led[PARTITION].is_loaded:
        await asyncio.sleep(0.001)


def on_this_partition(prefix: str) -> str:
    return next(
        name for name in (f"{prefix}{number}" for number in range(999)) if partition_for(name, PARTITIONS) == PARTITION
    )
