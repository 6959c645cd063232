"""The asyncio shell: loading, committing before answering, failing, timers. Under a loop whose time the tests move."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import pytest

from sexton.coordinators import partition
from sexton.coordinators.groups import records as r
from sexton.coordinators.groups.messages import (
    CommittedOffset,
    ConsumerHeartbeatRequest,
    HeartbeatRequest,
    JoinAnswer,
    JoinRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncRequest,
)
from sexton.coordinators.groups.service import GroupService
from sexton.coordinators.hashing import partition_for
from sexton.coordinators.log import EndMarker
from sexton.coordinators.partition import APPEND_BYTES_MAX
from sexton.errors import EnvironmentFailure
from sexton.log.checks import OWN_BATCH_BYTES_MAX
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.records import batch as batches
from sexton.records.header import CONTROL, TRANSACTIONAL
from sexton.settings.broker import GroupSettings
from sexton.types import ProducerIdAndEpoch
from tests.coordinators.groups.harness import CLIENT, GROUP, FakeTopics, refused, subscription
from tests.coordinators.hosts import FakeHost

T = TypeVar("T")
PARTITIONS = 4
PARTITION = partition_for(GROUP, PARTITIONS)
SETTINGS = GroupSettings(group_initial_rebalance_delay_ms=20, group_min_session_timeout_ms=1)


@dataclass
class FakeLog:
    """Batches in memory. Appends wait while `gate` is closed, and fail with `error`."""

    batches: list[bytes] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    read_gate: asyncio.Event = field(default_factory=asyncio.Event)
    error: Exception | None = None
    read_error: Exception | None = None
    refused: set[ProducerIdAndEpoch] = field(default_factory=set)
    records_count: int = 0
    has_too_few_in_sync: bool = False

    def __post_init__(self) -> None:
        self.gate.set()
        self.read_gate.set()

    def append(self, records: Sequence[tuple[bytes, bytes | None]], now_ms: int) -> Awaitable[None]:
        return self._append(list(records), now_ms)

    async def _append(self, records: list[tuple[bytes, bytes | None]], now_ms: int, **fields: int) -> None:
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        self.check_writable()
        start = self.records_count
        made = [batches.Record(start + index, now_ms, *record) for index, record in enumerate(records)]
        batch = batches.encode(batches.make_batch(made, **fields))
        if len(batch) > OWN_BATCH_BYTES_MAX:
            raise KafkaError(ErrorCode.message_too_large)
        self.records_count += len(records)
        self.batches.append(batch)

    def append_in_transaction(
        self, owner: ProducerIdAndEpoch, records: Sequence[tuple[bytes, bytes | None]], now_ms: int
    ) -> Awaitable[None]:
        fields = {"producer_id": owner.producer_id, "producer_epoch": owner.epoch}
        return self._append(list(records), now_ms, attributes=TRANSACTIONAL, **fields)

    def append_marker(self, marker: EndMarker, now_ms: int) -> Awaitable[None]:
        kind = batches.ControlType.COMMIT if marker.is_commit else batches.ControlType.ABORT
        record = batches.marker_key(kind), batches.marker_value(marker.coordinator_epoch)
        fields = {"producer_id": marker.owner.producer_id, "producer_epoch": marker.owner.epoch}
        return self._append([record], now_ms, attributes=TRANSACTIONAL | CONTROL, **fields)

    def check_owner(self, owner: ProducerIdAndEpoch) -> None:
        if owner in self.refused:
            raise KafkaError(ErrorCode.invalid_producer_epoch)

    def check_marker(self, marker: EndMarker) -> bool:
        if marker.owner in self.refused:
            raise KafkaError(ErrorCode.transaction_coordinator_fenced)
        return True

    def check_writable(self) -> None:
        if self.has_too_few_in_sync:
            raise KafkaError(ErrorCode.not_enough_replicas)

    async def read(self) -> AsyncIterator[bytes]:
        await self.read_gate.wait()
        if self.read_error is not None:
            raise self.read_error
        for data in list(self.batches):
            yield data


def new_service() -> GroupService:
    return GroupService(FakeHost(topic_size=PARTITIONS), SETTINGS, FakeTopics({"t": 2}))


async def loaded(log: FakeLog) -> GroupService:
    service = new_service()
    await service.load(PARTITION, log)
    return service


def run(test: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(test, 30))


def commit(offset: int, group: str = GROUP, metadata: str = "") -> OffsetCommitRequest:
    return OffsetCommitRequest(group, "", None, -1, [("t", [CommittedOffset(0, offset, -1, metadata)])], 9)


async def offset_of(service: GroupService) -> int:
    ((_, (fetched,)),) = await service.fetch_offsets(OffsetFetchRequest(GROUP, topics=[("t", [0])]))
    return fetched.offset


def join(member_id: str = "") -> JoinRequest:
    protocols = (("range", subscription("t")),)
    return JoinRequest(GROUP, member_id, None, CLIENT, "consumer", protocols, 60_000, 60_000, requires_member_id=False)


def test_what_is_committed_is_there_after_loading_again() -> None:
    async def test() -> None:
        log = FakeLog()
        await (await loaded(log)).commit_offsets(commit(5))
        assert await offset_of(await loaded(log)) == 5

    run(test())


def test_a_partition_that_is_not_led_or_not_loaded_yet_says_so() -> None:
    async def test() -> None:
        log = FakeLog()
        service = new_service()
        with refused(ErrorCode.not_coordinator):
            await service.commit_offsets(commit(1))
        log.read_gate.clear()
        task = service.load(PARTITION, log)
        with refused(ErrorCode.coordinator_load_in_progress):
            await service.commit_offsets(commit(1))
        with refused(ErrorCode.coordinator_load_in_progress):
            await service.list_groups((), ())
        log.read_gate.set()
        await task
        await service.commit_offsets(commit(1))
        service.unload(PARTITION)
        with refused(ErrorCode.not_coordinator):
            await offset_of(service)

    run(test())


def test_who_is_elected_and_has_not_begun_to_load_says_that_it_loads() -> None:
    """NOT_COORDINATOR is for others: clients that found this one would be sent to it again."""

    async def test() -> None:
        elected = {(GroupService.topic, PARTITION)}
        host = FakeHost(topic_size=PARTITIONS, elected=elected)
        service = GroupService(host, SETTINGS, FakeTopics({"t": 2}))
        with refused(ErrorCode.coordinator_load_in_progress):
            await offset_of(service)
        elected.clear()
        with refused(ErrorCode.not_coordinator):
            await offset_of(service)

    run(test())


def test_without_the_topic_there_is_no_coordinator() -> None:
    service = GroupService(FakeHost(topic_size=0), SETTINGS, FakeTopics())
    with refused(ErrorCode.coordinator_not_available):
        service.partition_of(GROUP)


def test_nobody_sees_an_offset_before_it_is_committed() -> None:
    async def test() -> None:
        log = FakeLog()
        service = await loaded(log)
        await service.commit_offsets(commit(1))
        log.gate.clear()
        writing = asyncio.create_task(service.commit_offsets(commit(2)))
        reading = asyncio.create_task(offset_of(service))
        await asyncio.sleep(0.01)
        assert not writing.done()
        assert not reading.done()
        log.gate.set()
        await writing
        assert await reading == 2

    run(test())


def test_requests_that_arrive_together_are_appended_together() -> None:
    async def test() -> None:
        log = FakeLog()
        service = await loaded(log)
        log.gate.clear()
        tasks = [asyncio.create_task(service.commit_offsets(commit(n))) for n in range(50)]
        await asyncio.sleep(0.01)
        log.gate.set()
        await asyncio.gather(*tasks)
        assert log.records_count == 50
        assert len(log.batches) == 1
        assert await offset_of(service) == 49

    run(test())


def test_batches_stay_small_enough_for_the_log() -> None:
    async def test() -> None:
        log = FakeLog()
        service = await loaded(log)
        log.gate.clear()
        tasks = [asyncio.create_task(service.commit_offsets(commit(n, metadata="x" * 4_000))) for n in range(200)]
        await asyncio.sleep(0.01)
        log.gate.set()
        await asyncio.gather(*tasks)
        assert all(len(data) < APPEND_BYTES_MAX + 10_000 for data in log.batches)
        assert len(log.batches) > 3

    run(test())


def test_when_leadership_is_lost_everybody_is_told_and_nothing_uncommitted_is_seen() -> None:
    async def test() -> None:
        log = FakeLog()
        service = await loaded(log)
        await service.commit_offsets(commit(1))
        log.gate.clear()
        waiting = [asyncio.create_task(service.commit_offsets(commit(n))) for n in (2, 3)]
        parked = asyncio.create_task(service.join(join()))
        reading = asyncio.create_task(offset_of(service))
        await asyncio.sleep(0.01)
        log.error = log.read_error = KafkaError(ErrorCode.not_leader_or_follower)
        log.gate.set()
        results = await asyncio.gather(*waiting, parked, reading, return_exceptions=True)
        assert [error.code for error in results if isinstance(error, KafkaError)] == [ErrorCode.not_coordinator] * 4
        with refused(ErrorCode.not_coordinator):
            await offset_of(service)
        log.error = log.read_error = None
        await service.load(PARTITION, log)
        assert await offset_of(service) == 1

    run(test())


def test_a_leader_whose_lease_had_run_out_and_was_renewed_is_coordinator_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        monkeypatch.setattr("sexton.coordinators.service.RELOAD_PAUSE_S", 0.001)
        log = FakeLog()
        service = await loaded(log)
        await service.commit_offsets(commit(1))
        log.error = log.read_error = KafkaError(ErrorCode.not_leader_or_follower)
        with refused(ErrorCode.not_coordinator):
            await service.commit_offsets(commit(2))
        with refused(ErrorCode.not_coordinator):
            await offset_of(service)
        log.error = log.read_error = None
        await asyncio.sleep(0.05)
        assert await offset_of(service) == 1

    run(test())


@pytest.mark.parametrize(
    ("failure", "answer"),
    [
        (KafkaError(ErrorCode.not_enough_replicas), ErrorCode.coordinator_not_available),
        (KafkaError(ErrorCode.message_too_large), ErrorCode.coordinator_not_available),
    ],
)
def test_after_another_failure_the_log_is_read_again_at_once(failure: KafkaError, answer: ErrorCode) -> None:
    async def test() -> None:
        log = FakeLog()
        service = await loaded(log)
        await service.commit_offsets(commit(1))
        log.error = failure
        with refused(answer):
            await service.commit_offsets(commit(2))
        log.error = None
        while True:
            try:
                assert await offset_of(service) == 1
                break
            except KafkaError as error:
                if error.code is not ErrorCode.coordinator_load_in_progress:
                    raise
                await asyncio.sleep(0.001)
        await service.commit_offsets(commit(3))
        assert await offset_of(service) == 3

    run(test())


def test_a_broken_disk_is_a_lost_leadership() -> None:
    async def test() -> None:
        log = FakeLog()
        service = await loaded(log)
        log.error = EnvironmentFailure("disk full")
        with refused(ErrorCode.not_coordinator):
            await service.commit_offsets(commit(1))

    run(test())


def test_a_log_that_cannot_be_read_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sexton.coordinators.service.RELOAD_PAUSE_S", 0.01)

    async def test() -> None:
        log = FakeLog(read_error=KafkaError(ErrorCode.kafka_storage_error))
        service = new_service()
        task = service.load(PARTITION, log)
        await asyncio.sleep(0.03)
        with refused(ErrorCode.coordinator_load_in_progress):
            await offset_of(service)
        log.read_error = None
        await task
        assert await offset_of(service) == -1

    run(test())


def test_an_answer_does_not_wait_for_ever_for_slow_replicas() -> None:
    async def test() -> None:
        log = FakeLog()
        service = await loaded(log)
        service.reconfigure(GroupSettings(offsets_commit_timeout_ms=20))
        log.gate.clear()
        with refused(ErrorCode.coordinator_not_available):
            await service.commit_offsets(commit(1))
        log.gate.set()
        await asyncio.sleep(0.01)
        assert await offset_of(service) == 1

    run(test())


def test_heartbeats_are_answered_while_replicas_are_slow() -> None:
    async def test() -> None:
        log = FakeLog()
        service = await loaded(log)
        joined = await service.join(join())
        await service.sync(SyncRequest(GROUP, joined.member_id, None, 1, None, None))
        log.gate.clear()
        writing = asyncio.create_task(service.commit_offsets(commit(1, group=GROUP)))
        await asyncio.sleep(0)
        await service.heartbeat(HeartbeatRequest(GROUP, joined.member_id, None, 1))
        log.gate.set()
        with refused(ErrorCode.unknown_member_id):
            await writing

    run(test())


def test_parked_joins_are_answered_when_the_time_has_come() -> None:
    async def test() -> None:
        service = await loaded(FakeLog())
        answers = await asyncio.gather(*(service.join(join()) for _ in range(3)))
        assert {answer.generation for answer in answers} == {1}
        assert sorted(len(answer.members) for answer in answers) == [0, 0, 3]

    run(test())


def test_parked_answers_are_given_up_when_the_partition_moves() -> None:
    async def test() -> None:
        service = await loaded(FakeLog())
        parked = asyncio.create_task(service.join(join()))
        await asyncio.sleep(0)
        service.unload(PARTITION)
        with refused(ErrorCode.not_coordinator):
            await parked

    run(test())


def test_a_client_that_hangs_up_while_its_join_is_parked_disturbs_nobody() -> None:
    async def test() -> None:
        service = await loaded(FakeLog())
        gone = asyncio.create_task(service.join(join()))
        staying = asyncio.create_task(service.join(join()))
        await asyncio.sleep(0)
        gone.cancel()
        answer = await staying
        assert isinstance(answer, JoinAnswer)
        assert answer.generation == 1

    run(test())


def test_a_silent_member_is_removed_by_the_clock() -> None:
    async def test() -> None:
        log = FakeLog()
        service = new_service()
        service.settings = GroupSettings(group_consumer_session_timeout_ms=30)
        await service.load(PARTITION, log)
        beat = ConsumerHeartbeatRequest(GROUP, "m", 0, CLIENT, rebalance_timeout_ms=1_000, topics=("t",), owned={})
        await service.consumer_heartbeat(beat)
        while (described := await service.describe_consumer(GROUP)) is not None and described.members:
            await asyncio.sleep(0.01)
        assert described is not None
        assert described.state == "Empty"

    run(test())


def test_a_bug_is_loud_and_the_partition_is_loaded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        log = FakeLog()
        service = await loaded(log)
        await service.commit_offsets(commit(1))
        coordinator = service.led[PARTITION].coordinator
        monkeypatch.setattr(coordinator, "delete_group", lambda *args: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            await service.delete_group(GROUP)
        assert service.led[PARTITION].coordinator is not coordinator
        while not service.led[PARTITION].is_loaded:
            await asyncio.sleep(0)
        assert await offset_of(service) == 1

    run(test())


def test_offsets_of_kafkas_transactions_count_from_their_marker_on() -> None:
    async def test() -> None:
        log = FakeLog()

        def transactional(offset: int, producer_id: int) -> bytes:
            key, value = r.encode((r.OffsetKey(GROUP, "t", 0), r.OffsetValue(offset, "", 1)))
            record = batches.Record(offset, 1, key, value)
            fields = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0}
            return batches.encode(batches.make_batch([record], attributes=TRANSACTIONAL, **fields))

        def marker(offset: int, producer_id: int, kind: batches.ControlType) -> bytes:
            return batches.encode(batches.make_marker(offset, kind, producer_id, 0, 1))

        log.batches = [
            transactional(1, 7),
            marker(2, 7, batches.ControlType.COMMIT),
            transactional(3, 8),
            marker(4, 8, batches.ControlType.ABORT),
            transactional(5, 9),
        ]
        assert await offset_of(await loaded(log)) == 1

    run(test())


def test_a_big_log_is_loaded_without_holding_up_the_loop() -> None:
    async def test() -> None:
        log = FakeLog()
        for start in range(0, 3_000, 1_000):
            entries = [r.encode((r.OffsetKey(GROUP, "t", n), r.OffsetValue(n, "", 1))) for n in range(1_000)]
            made = [batches.Record(start + index, 1, *entry) for index, entry in enumerate(entries)]
            log.batches.append(batches.encode(batches.make_batch(made)))
        service = new_service()
        task = service.load(PARTITION, log)
        turns = 0
        while not task.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns >= 6

    run(test())


def test_records_that_cannot_be_read_are_skipped_and_everything_else_is_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Before clients were kept out of the topic, any 4-byte key that Java's IntegerSerializer writes was enough."""

    async def test() -> None:
        log = FakeLog()
        await (await loaded(log)).commit_offsets(commit(5))
        key, value = r.encode((r.OffsetKey(GROUP, "t", 1), r.OffsetValue(7, "", 1)))
        odd = [(b"\x00\x00\x00\x01", b"x"), (b"", b"x"), (b"\x00", None), (key, b"\x00\x03"), (key + b"\x00", value)]
        odd.append((r.encode_key(r.ClassicGroupKey("other")), b"\x7f\xff"))
        await log.append(odd, 1)
        assert await offset_of(await loaded(log)) == 5

    run(test())
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert f"__consumer_offsets-{PARTITION}: skipped 5 of 7 records" in line
    assert "at offset 1" in line


def test_a_bug_while_a_partition_is_loaded_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would say that it is loading for ever."""

    async def test() -> None:
        monkeypatch.setattr("sexton.supervision.BACK_OFF_MS", (1, 1))
        log = FakeLog(read_error=IndexError("nobody expected this"))
        service = new_service()
        loading = service.load(PARTITION, log)
        while not service.supervisor.bugs:
            await asyncio.sleep(0)
        log.read_error = None
        await loading
        await service.commit_offsets(commit(1))
        assert await offset_of(service) == 1
        assert service.supervisor.bugs == {"loading a coordinator": 1}

    run(test())


def test_after_a_bug_in_an_append_everybody_is_told_and_the_log_is_read_again() -> None:
    async def test() -> None:
        log = FakeLog()
        service = await loaded(log)
        await service.commit_offsets(commit(1))
        log.error = IndexError("nobody expected this")
        with refused(ErrorCode.coordinator_not_available):
            await service.commit_offsets(commit(2))
        log.error = None
        while not service.led[PARTITION].is_loaded:
            await asyncio.sleep(0)
        assert await offset_of(service) == 1
        assert service.supervisor.bugs == {"a coordinator's append": 1}

    run(test())


def test_after_a_bug_in_what_was_due_the_partition_is_loaded_again() -> None:
    """Its alarm would never ring again."""

    async def test() -> None:
        service = await loaded(FakeLog())
        await service.commit_offsets(commit(1))
        led = service.led[PARTITION]

        def has_a_bug(now: Any) -> Any:
            raise IndexError("nobody expected this")

        led.coordinator.tick = has_a_bug  # type: ignore[method-assign]
        led.ring()
        fresh = service.led[PARTITION]
        assert fresh is not led
        while not fresh.is_loaded:
            await asyncio.sleep(0)
        assert await offset_of(service) == 1
        assert service.supervisor.bugs == {"a coordinator's timers": 1}

    run(test())


def test_who_could_not_join_while_nothing_could_be_recorded_may_ask_again_before_timers_are_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(partition, "UNWRITABLE_PAUSE_MS", 100)

    async def test() -> None:
        log = FakeLog()
        service = await loaded(log)
        first = await service.join(replace(join(), rebalance_timeout_ms=200))
        await service.sync(SyncRequest(GROUP, first.member_id, None, first.generation, None, None))
        other = asyncio.ensure_future(service.join(replace(join(), rebalance_timeout_ms=200)))
        await asyncio.sleep(0.01)
        log.has_too_few_in_sync = True
        for _ in range(10):
            with refused(ErrorCode.coordinator_not_available):
                await service.join(replace(join(first.member_id), rebalance_timeout_ms=200))
            await asyncio.sleep(0.05)
        log.has_too_few_in_sync = False
        await asyncio.sleep(0.1)  # a client's pause
        again = await service.join(replace(join(first.member_id), rebalance_timeout_ms=200))
        assert (again.error, again.member_id) == (ErrorCode.none, first.member_id)
        await other

    run(test())
