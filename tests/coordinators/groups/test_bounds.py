"""One request stays one request: whatever it asks for, nobody else on its partition notices."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from sexton.coordinators.groups import records as r
from sexton.coordinators.groups.messages import (
    Client,
    CommittedOffset,
    ConsumerHeartbeatRequest,
    HeartbeatRequest,
    JoinAnswer,
    LeavingMember,
    OffsetCommitRequest,
    SyncRequest,
)
from sexton.coordinators.groups.service import GroupService
from sexton.coordinators.hashing import partition_for
from sexton.coordinators.timers import Now
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.settings.broker import GroupSettings
from tests.coordinators.groups.harness import CLIENT, GROUP, FakeTopics, Harness, refused, subscription
from tests.coordinators.groups.test_service import (
    PARTITION,
    PARTITIONS,
    SETTINGS,
    FakeLog,
    commit,
    join,
    loaded,
    offset_of,
    run,
)
from tests.coordinators.hosts import FakeHost, LoopClock
from tests.producers import producer_at

LONG = "x" * 40_000
OTHER = next(name for name in map(str, range(100)) if partition_for(name, PARTITIONS) == PARTITION)
"""A group on the same partition."""


def on_this_partition(prefix: str) -> str:
    return next(
        name for name in (f"{prefix}{number}" for number in range(999)) if partition_for(name, PARTITIONS) == PARTITION
    )


def heartbeat(**fields: object) -> ConsumerHeartbeatRequest:
    request = ConsumerHeartbeatRequest(GROUP, "m", 0, CLIENT, rebalance_timeout_ms=1_000, topics=("t",), owned={})
    return replace(request, **fields)  # type: ignore[arg-type]


def offsets(count: int, group: str = GROUP, metadata: str = "") -> OffsetCommitRequest:
    return replace(commit(0, group), topics=[("t", [CommittedOffset(n, n, -1, metadata) for n in range(count)])])


async def sync_with_too_much(service: GroupService) -> None:
    joined = await service.join(join())
    request = SyncRequest(GROUP, joined.member_id, None, 1, None, None, {joined.member_id: bytes(1_100_000)})
    answer = await service.sync(request)
    assert answer.assignment == b""
    raise KafkaError(answer.error)


async def join_with(service: GroupService, **fields: object) -> None:
    answer = await service.join(replace(join(), **fields))  # type: ignore[arg-type]
    raise KafkaError(answer.error)


async def commit_in_a_transaction(service: GroupService, request: OffsetCommitRequest) -> None:
    owner = producer_at(7, 0)
    await service.commit_in_transaction(request, owner, service.begin_verification(request.group, owner))


Operation = Callable[[GroupService], Awaitable[object]]
LONG_GROUP = on_this_partition(LONG)
ODD: dict[str, tuple[ErrorCode, Operation]] = {
    "a group id that is too long": (
        ErrorCode.invalid_group_id,
        lambda service: service.commit_offsets(commit(1, LONG_GROUP)),
    ),
    "a group id that is too long, in a heartbeat": (
        ErrorCode.invalid_group_id,
        lambda service: service.consumer_heartbeat(heartbeat(group=LONG_GROUP)),
    ),
    "a member id that is too long": (
        ErrorCode.invalid_request,
        lambda service: service.consumer_heartbeat(heartbeat(member_id=LONG)),
    ),
    "an instance id that is too long": (
        ErrorCode.invalid_request,
        lambda service: service.consumer_heartbeat(heartbeat(instance_id=LONG)),
    ),
    "characters of several bytes": (
        ErrorCode.invalid_request,
        lambda service: service.consumer_heartbeat(heartbeat(member_id="\u20ac" * 11_000)),
    ),
    "a regular expression that is too long": (
        ErrorCode.invalid_request,
        lambda service: service.consumer_heartbeat(heartbeat(regex="\U0001f600" * 9_000)),
    ),
    "a rebalance timeout of nothing": (
        ErrorCode.invalid_request,
        lambda service: service.consumer_heartbeat(heartbeat(rebalance_timeout_ms=0)),
    ),
    "too many topics": (
        ErrorCode.invalid_request,
        lambda service: service.consumer_heartbeat(heartbeat(topics=tuple(f"{n:0200}" for n in range(6_000)))),
    ),
    "a protocol's name that is too long": (
        ErrorCode.invalid_request,
        lambda service: join_with(service, protocols=((LONG, b""),)),
    ),
    "a protocol type that is too long": (
        ErrorCode.invalid_request,
        lambda service: join_with(service, protocol_type=LONG),
    ),
    "a static member's name that is too long": (
        ErrorCode.invalid_request,
        lambda service: join_with(service, instance_id=LONG),
    ),
    "too many protocols": (
        ErrorCode.inconsistent_group_protocol,
        lambda service: join_with(service, protocols=tuple((str(n), b"") for n in range(101))),
    ),
    "metadata that do not fit into a record": (
        ErrorCode.invalid_request,
        lambda service: join_with(service, protocols=(("range", bytes(1_100_000)),)),
    ),
    "an assignment that does not fit into a record": (ErrorCode.unknown_server_error, sync_with_too_much),
    "offsets that do not fit into a batch": (
        ErrorCode.invalid_commit_offset_size,
        lambda service: service.commit_offsets(offsets(20_000)),
    ),
    "offsets with metadata that do not fit into a batch": (
        ErrorCode.invalid_commit_offset_size,
        lambda service: service.commit_offsets(offsets(300, metadata="m" * 4_000)),
    ),
    "offsets of a transaction that do not fit into a batch": (
        ErrorCode.invalid_commit_offset_size,
        lambda service: commit_in_a_transaction(service, offsets(20_000)),
    ),
    "more members that leave than there can be": (
        ErrorCode.invalid_request,
        lambda service: service.leave(OTHER, [LeavingMember(str(n), None) for n in range(10_001)]),
    ),
}


@pytest.mark.parametrize("odd", ODD)
def test_what_does_not_fit_is_refused_and_nobody_else_on_the_partition_notices(odd: str) -> None:
    async def test() -> None:
        log = FakeLog()
        service = await loaded(log)
        await service.commit_offsets(commit(3, OTHER))
        led = service.led[PARTITION]
        parked = asyncio.create_task(service.join(replace(join(), group=OTHER)))
        await asyncio.sleep(0)
        code, operation = ODD[odd]
        with refused(code):
            await operation(service)
        answer = await parked
        assert isinstance(answer, JoinAnswer)
        assert answer.error is ErrorCode.none
        assert service.led[PARTITION] is led, "it was loaded again"
        service.check_invariants()
        assert not service.supervisor.bugs

    run(test())


def test_metadata_of_an_offset_that_are_too_long_for_a_record_are_refused_alone() -> None:
    async def test() -> None:
        service = await loaded(FakeLog())
        service.reconfigure(GroupSettings(offset_metadata_max_bytes=100_000))
        led = service.led[PARTITION]
        odd = [CommittedOffset(0, 1, -1, LONG), CommittedOffset(1, 2)]
        results = await service.commit_offsets(replace(commit(1), topics=[("t", odd)], retention_ms=2**63 - 1))
        assert results == [("t", [(0, ErrorCode.offset_metadata_too_large), (1, ErrorCode.none)])]
        assert service.led[PARTITION] is led

    run(test())


def test_a_client_id_as_long_as_they_come_makes_a_member_id_that_can_be_recorded() -> None:
    async def test() -> None:
        log = FakeLog()
        service = await loaded(log)
        led = service.led[PARTITION]
        client = Client("\u20ac" * 10_922, "/127.0.0.1")
        joined = await service.join(replace(join(), client=client))
        synced = await service.sync(SyncRequest(GROUP, joined.member_id, None, 1, None, None))
        assert synced.error is ErrorCode.none
        assert service.led[PARTITION] is led
        described = await (await loaded(log)).describe_classic(GROUP)
        assert described is not None
        assert [member.member_id for member in described.members] == [joined.member_id]

    run(test())


def test_members_that_would_not_fit_into_one_record_together_are_not_let_in() -> None:
    h = Harness(t=1)
    first = h.join_parked(protocols=(("range", bytes(440_000)),))
    second = h.join_parked(protocols=(("range", bytes(440_000)),))
    third = h.join_answer(h.join_parked(protocols=(("range", bytes(440_000)),)))
    assert third is not None
    assert third.error is ErrorCode.group_max_size_reached
    h.advance(10_000)
    ids = [h.joined(token).member_id for token in (first, second)]
    h.sync_parked(ids[1], 1)
    h.sync_parked(ids[0], 1, {ids[0]: b"a", ids[1]: b"b"})
    assert h.classic().state == "Stable"
    assert len(r.encode(h.records[-1])[1] or b"") < 1_000_000


def test_an_assignment_that_does_not_fit_is_the_leaders_failure_and_the_others_get_another_leader() -> None:
    h = Harness(t=2)
    tokens = [h.join_parked() for _ in range(2)]
    h.advance(10_000)
    leader, follower = (h.joined(token).member_id for token in tokens)
    waiting = h.sync_parked(follower, 1)
    failed = h.synced(h.sync_parked(leader, 1, {leader: bytes(1_000_000)}))
    assert failed.error is ErrorCode.unknown_server_error
    assert h.sync_answer(waiting) is None
    h.advance(10_000)
    assert h.synced(waiting).error is ErrorCode.rebalance_in_progress
    assert leader not in h.classic().members
    again = h.join_parked(follower)
    assert h.joined(again).leader == follower


def test_a_static_group_of_whom_nobody_is_back_does_not_stop_the_loop() -> None:
    """The static members a and b are stable, a comes again with a rebalance timeout of 0, and b leaves."""
    h = Harness(t=2)
    tokens = [h.join_parked(instance_id=name) for name in "ab"]
    h.advance(10_000)
    ids = [h.joined(token).member_id for token in tokens]
    for member_id, name in zip(reversed(ids), "ba", strict=True):
        h.sync_parked(member_id, 1, {}, instance_id=name)
    h.joined(h.join_parked(instance_id="a", rebalance_timeout_ms=0))
    timers = h.coordinator.core.timers
    pop_due, popped = timers.pop_due, 0

    def counting(now_ms: int) -> object:
        nonlocal popped
        popped += 1
        assert popped < 1_000, "it goes on for ever"
        return pop_due(now_ms)

    timers_class = type(timers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timers_class, "pop_due", lambda self, now_ms: counting(now_ms))
        h.leave((ids[1], "b"))
        h.advance(9_000)
    assert len(h.classic().members) == 1
    h.advance(10_000)
    assert h.classic().state == "Empty"


@pytest.mark.parametrize("rebalance_timeout_ms", [0, -1, -(2**31), 2**31 - 1])
def test_any_rebalance_timeout_is_survived(rebalance_timeout_ms: int) -> None:
    h = Harness(t=2)
    token = h.join_parked(rebalance_timeout_ms=rebalance_timeout_ms)
    h.advance(10_000)
    assert h.joined(token).generation == 1
    h.advance(2**31)
    assert not h.coordinator.core.groups


def crowd(count: int, group: str = GROUP) -> list[tuple[bytes, bytes | None]]:
    """A consumer group with long names, as another coordinator left it."""
    made: list[r.Record] = [(r.EpochKey(group), r.EpochValue(1)), (r.TargetEpochKey(group), r.TargetEpochValue(1))]
    for number in range(count):
        member_id = f"{number:0200}"
        value = r.MemberValue(None, None, "app", "/127.0.0.1", ("t",), None, 60_000, None)
        made.append((r.MemberKey(group, member_id), value))
        made.append((r.TargetKey(group, member_id), r.TargetValue({})))
        made.append((r.CurrentKey(group, member_id), r.CurrentValue(1, 1, r.MemberState.STABLE, {}, {})))
    return [r.encode(record) for record in made]


async def with_a_crowd(log: FakeLog, count: int, session_timeout_ms: int = 60_000) -> GroupService:
    records = crowd(count)
    for start in range(0, len(records), 1_000):
        await log.append(records[start : start + 1_000], 1)
    topics = FakeTopics({"t": count})
    settings = GroupSettings(group_consumer_session_timeout_ms=session_timeout_ms)
    service = GroupService(FakeHost(topic_size=PARTITIONS), settings, topics)
    await service.load(PARTITION, log)
    return service


def test_a_crowd_that_does_not_come_back_after_a_failover_is_removed_in_pieces() -> None:
    async def test() -> None:
        log = FakeLog()
        service = await with_a_crowd(log, 2_500, session_timeout_ms=1)
        led = service.led[PARTITION]
        while (described := await service.describe_consumer(GROUP)) is not None and described.members:
            assert service.led[PARTITION] is led, "it was loaded again"
            await asyncio.sleep(0)
        assert described is not None
        again = await (await loaded(log)).describe_consumer(GROUP)
        assert again is not None
        assert again.state == "Empty"

    run(test())


def test_an_assignment_of_a_crowd_is_written_in_several_batches() -> None:
    async def test() -> None:
        log = FakeLog()
        service = await with_a_crowd(log, 4_500)
        led, before = service.led[PARTITION], len(log.batches)
        await service.consumer_heartbeat(heartbeat())
        assert service.led[PARTITION] is led
        assert len(log.batches) - before == 2
        again = await (await loaded(log)).describe_consumer(GROUP)
        assert again is not None
        assert sum(bool(member.target) for member in again.members) == 4_500

    run(test())


def test_a_member_of_whom_only_the_beginning_was_written_gets_its_partitions_when_it_asks_again() -> None:
    h = Harness(t=2)
    h.enter("a", "t")
    before = len(h.records)
    h.enter("b", "t")
    written, h.records = h.records, h.records[: before + 1]
    assert isinstance(written[before][0], r.MemberKey)
    h.fail_over()
    h.enter("b", "t")
    assert h.consumer().target["b"]


def test_a_group_with_more_offsets_than_fit_into_a_batch_can_be_deleted() -> None:
    async def test() -> None:
        log, topics = FakeLog(), {name * 100: 3_500 for name in "tu"}
        service, again = (
            GroupService(FakeHost(topic_size=PARTITIONS), SETTINGS, FakeTopics({"t": 1, **topics})) for _ in range(2)
        )
        await service.load(PARTITION, log)
        await service.commit_offsets(commit(3, OTHER))
        led = service.led[PARTITION]
        group = on_this_partition("g" * 100)
        for topic, count in topics.items():
            committed = [CommittedOffset(number, number) for number in range(count)]
            await service.commit_offsets(replace(commit(0, group), topics=[(topic, committed)]))
        await service.delete_group(group)
        assert service.led[PARTITION] is led
        await again.load(PARTITION, log)
        assert [one.group for one in await again.list_groups((), ())] == [OTHER]

    run(test())


@pytest.mark.parametrize("pause_ms", [60_000, 45_300])
def test_after_a_pause_heartbeats_that_wait_in_sockets_are_heard_before_anybody_is_expelled(pause_ms: int) -> None:
    async def test() -> None:
        clock = LoopClock()
        service = GroupService(FakeHost(clock=clock, topic_size=PARTITIONS), SETTINGS, FakeTopics({"t": 5}))
        await service.load(PARTITION, FakeLog())
        members = [f"m{number}" for number in range(5)]
        for member_id in members:
            await service.consumer_heartbeat(heartbeat(member_id=member_id))
        epochs = {member_id: await epoch_of(service, member_id) for member_id in members}
        clock.jumped_ms += pause_ms
        service.led[PARTITION].ring()
        for member_id in members:
            request = heartbeat(member_id=member_id, member_epoch=epochs[member_id], topics=None, owned=None)
            await service.consumer_heartbeat(replace(request, rebalance_timeout_ms=-1))
            for _ in range(20):
                await asyncio.sleep(0)
        clock.jumped_ms += 60_000
        service.led[PARTITION].ring()
        clock.jumped_ms += 1_000
        service.led[PARTITION].ring()
        described = await service.describe_consumer(GROUP)
        assert described is not None
        assert described.members == (), "those that are silent for good are expelled"

    run(test())


async def epoch_of(service: GroupService, member_id: str) -> int:
    described = await service.describe_consumer(GROUP)
    assert described is not None
    return next(member.member_epoch for member in described.members if member.member_id == member_id)


def test_while_too_few_replicas_are_in_sync_writes_are_refused_and_everything_else_goes_on() -> None:
    async def test() -> None:
        clock, log = LoopClock(), FakeLog()
        service = GroupService(FakeHost(clock=clock, topic_size=PARTITIONS), SETTINGS, FakeTopics({"t": 1}))
        await service.load(PARTITION, log)
        alive, dead = await asyncio.gather(service.join(join()), service.join(join()))
        both = [service.sync(SyncRequest(GROUP, one.member_id, None, 1, None, None)) for one in (alive, dead)]
        await asyncio.gather(*both)
        led = service.led[PARTITION]
        log.has_too_few_in_sync = True
        for _ in range(3):
            with refused(ErrorCode.coordinator_not_available):
                await service.commit_offsets(commit(1, OTHER))
            clock.jumped_ms += 30_000
            await service.heartbeat(HeartbeatRequest(GROUP, alive.member_id, None, 1))
            assert await offset_of(service) == -1
            led.ring()
        assert service.led[PARTITION] is led, "it was loaded again"
        log.has_too_few_in_sync = False
        for _ in range(2):  # who was refused may ask again before anybody is expelled
            clock.jumped_ms += 1_000
            led.ring()
        described = await service.describe_classic(GROUP)
        assert described is not None
        assert [member.member_id for member in described.members] == [alive.member_id]
        await service.commit_offsets(commit(1, OTHER))
        assert service.led[PARTITION] is led

    run(test())


def test_while_the_log_is_slow_no_more_than_so_much_is_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        monkeypatch.setattr("sexton.coordinators.partition.BACKLOG_BYTES_MAX", 500)
        log = FakeLog()
        service = await loaded(log)
        log.gate.clear()
        waiting = [asyncio.create_task(service.commit_offsets(commit(n))) for n in range(100)]
        for _ in range(5):
            await asyncio.sleep(0)
        told = [task.exception() for task in waiting if task.done()]
        assert len(told) > 50
        assert {error.code for error in told if isinstance(error, KafkaError)} == {ErrorCode.coordinator_not_available}
        log.gate.set()
        await asyncio.gather(*waiting, return_exceptions=True)
        await service.commit_offsets(commit(7))
        assert await offset_of(service) == 7

    run(test())


def test_offsets_of_a_transaction_that_were_verified_before_the_partition_was_loaded_again_are_sent_again() -> None:
    """INVALID_TXN_STATE would be the end of Java's producer."""

    async def test() -> None:
        log = FakeLog()
        service = await loaded(log)
        owner = producer_at(7, 0)
        verification = service.begin_verification(GROUP, owner)
        await service.load(PARTITION, log)
        with refused(ErrorCode.coordinator_load_in_progress):
            await service.commit_in_transaction(commit(5), owner, verification)
        again = service.begin_verification(GROUP, owner)
        await service.commit_in_transaction(commit(5), owner, again)

    run(test())


def test_a_member_in_a_state_of_later_software_is_refused_before_anything_changes() -> None:
    h = Harness(t=2)
    epoch = h.enter("a", "t").member_epoch
    current = r.CurrentValue(epoch, epoch, r.MemberState.UNKNOWN, {}, {})
    h.records.append((r.CurrentKey(GROUP, "a"), current))
    h.fail_over()
    before = h.consumer().members["a"], h.consumer().epoch
    with refused(ErrorCode.fenced_member_epoch):
        h.beat("a", epoch, topics=("t", "u"))
    assert (h.consumer().members["a"], h.consumer().epoch) == before


def test_a_group_that_nobody_could_have_written_does_not_break_the_one_who_reads_it() -> None:
    h = Harness(t=2)
    member = r.ClassicMemberValue("m", None, "c", "/h", 1_000, 10_000, subscription("t"), b"")
    value = r.ClassicGroupValue("consumer", 3, "range", "a leader that is no member", 1, (member,))
    h.records.append((r.ClassicGroupKey(GROUP), value))
    h.fail_over()
    h.coordinator.check_invariants()
    assert h.joined(h.join_parked("m")).leader == "m"


@pytest.mark.parametrize("regex", [None, "(", "t.*"])
def test_a_heartbeat_that_is_refused_does_not_upgrade_the_group(regex: str | None) -> None:
    """By the id of one of its members anybody could turn a classic group into a consumer group that no log knew of."""
    h = Harness(t=2)
    token = h.join_parked()
    h.advance(5_000)
    member_id = h.joined(token).member_id
    h.sync_parked(member_id, 1)
    code = ErrorCode.invalid_regular_expression if regex == "(" else ErrorCode.fenced_member_epoch
    with refused(code):
        h.enter(member_id, "t", regex=regex)
    assert h.classic().state == "Stable"
    assert h.heartbeat(member_id, 1) is ErrorCode.none


def test_what_a_refusal_has_changed_after_all_is_in_the_log_and_told() -> None:
    async def test() -> None:
        log = FakeLog()
        service = await loaded(log)
        led = service.led[PARTITION]
        commit_offsets = led.coordinator.commit_offsets

        def refuses_too_late(request: OffsetCommitRequest, now: Now) -> object:
            commit_offsets(request, now)
            raise KafkaError(ErrorCode.illegal_generation)

        led.coordinator.commit_offsets = refuses_too_late  # type: ignore[method-assign, assignment]
        with refused(ErrorCode.illegal_generation):
            await service.commit_offsets(commit(5))
        assert await offset_of(service) == 5
        assert await offset_of(await loaded(log)) == 5
        assert service.supervisor.bugs == {"a request": 1}

    run(test())
