"""Objects on their way: in order, through outages and lost answers, and what happens to a tail that cannot be
committed. Every call of the metastore is followed by a check of all its tables (`World.do`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from sexton.cloud import uploads as module
from sexton.cloud.log import CloudLog
from sexton.cloud.uploads import Uploads
from sexton.ports.cloud import ObjectState
from sexton.ports.objects import StoreUnavailableError
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.records.batch import ControlType
from sexton.records.objects import check_object
from tests.adapters.metastore.cloud.world import A, B, World
from tests.cloud.worlds import NOW_MS, SETTINGS, Heard, Host, NoTail, away, claim_log, make_world, until
from tests.log.helpers import marker, plain, sequenced


class Scene:
    """One broker with logs of two partitions."""

    def __init__(self, world: World, host: Host, uploads: Uploads) -> None:
        self.world, self.host, self.uploads = world, host, uploads
        self.store = host.objects
        self.heard: dict[CloudLog, Heard] = {}

    async def lead(self, key: Any = A, epoch: int = 1) -> CloudLog:
        log = await claim_log(self.world, epoch, key)
        self.heard[log] = Heard()
        self.uploads.join(log, self.heard[log])
        return log

    def append(self, log: CloudLog, batch: bytes, **more: Any) -> int:
        appended = self.uploads.append(log, batch, NOW_MS, **more).first_offset
        self.uploads.check_invariants()
        return appended

    async def idle(self) -> None:
        await until(lambda: self.uploads.is_idle)
        self.uploads.check_invariants()
        assert self.uploads.pending_bytes == 0
        assert not self.host.supervisor.bugs

    async def objects(self) -> list[ObjectState]:
        """Without those that wait in the pool."""
        tables = await self.world.check()
        put = {key.rpartition("/")[2] for key in self.store.objects}
        return sorted(row.state for id_, row in tables.objects.items() if str(id_) in put)


def scene(work: Callable[[Scene], Coroutine[Any, Any, None]], **settings: Any) -> None:
    async def go() -> None:
        world = await make_world()
        host = Host(world)
        uploads = Uploads(host, replace(SETTINGS, **settings), NoTail())
        await work(Scene(world, host, uploads))
        await uploads.stop()

    asyncio.run(go())


def test_batches_of_several_partitions_become_one_object() -> None:
    async def work(on: Scene) -> None:
        a, b = await on.lead(A), await on.lead(B)
        on.append(a, plain(b"1"))
        on.append(b, plain(b"2"))
        on.append(a, plain(b"3"))
        await on.idle()
        (data,) = on.store.objects.values()
        runs = [(run.partition, run.base_offset, run.end_offset) for run in check_object(data).runs]
        assert runs == [(0, 0, 2), (1, 0, 1)]
        assert (a.committed_offset, b.committed_offset) == (2, 1)
        assert on.host.metastore.calls.count("commit_l0") == 1
        assert [extent.size_bytes for extent in on.heard[a].extents] == [
            run.size_bytes for run in check_object(data).runs[:1]
        ]

    scene(work)


def test_a_gather_that_is_full_does_not_wait() -> None:
    async def work(on: Scene) -> None:
        log = await on.lead()
        for _ in range(10):
            on.append(log, plain(b"x" * 1500))
        await until(lambda: log.committed_offset == 8)
        assert len(on.store.objects) == 4
        on.uploads.flush()
        await on.idle()
        assert log.committed_offset == 10

    scene(work, gather=replace(SETTINGS.gather, linger_ms=3_600_000))


def test_a_batch_larger_than_a_gather_travels_alone() -> None:
    async def work(on: Scene) -> None:
        log = await on.lead()
        on.append(log, plain(b"a"))
        on.append(log, plain(b"x" * 9000))
        on.append(log, plain(b"b"))
        await on.idle()
        sizes = sorted(len(data) for data in on.store.objects.values())
        assert len(sizes) == 3
        assert sizes[-1] > 9000

    scene(work)


def test_puts_may_end_in_any_order_and_commits_keep_theirs() -> None:
    async def work(on: Scene) -> None:
        log = await on.lead()
        first = asyncio.Event()

        async def slow_first(operation: str, key: str) -> None:
            if key == on.store.puts[0]:
                await first.wait()

        on.store.trouble = slow_first
        for _ in range(4):
            on.append(log, plain(b"x" * 5000))
        await until(lambda: len(on.store.objects) == 3)
        assert log.committed_offset == 0
        first.set()
        await on.idle()
        assert log.committed_offset == 4

    scene(work)


def test_a_slow_put_does_not_hold_up_other_partitions() -> None:
    async def work(on: Scene) -> None:
        a, b = await on.lead(A), await on.lead(B)
        release = asyncio.Event()

        async def slow_first(operation: str, key: str) -> None:
            if key == on.store.puts[0]:
                await release.wait()

        on.store.trouble = slow_first
        on.append(a, plain(b"x" * 5000))
        on.append(b, plain(b"x" * 5000))
        await until(lambda: b.committed_offset == 1)
        assert a.committed_offset == 0
        release.set()
        await on.idle()

    scene(work)


def test_a_marker_overtakes_uploads_where_its_partition_has_nothing_on_the_way() -> None:
    async def work(on: Scene) -> None:
        a, b = await on.lead(A), await on.lead(B)
        on.append(b, sequenced(0, is_open=True))
        await on.idle()
        on.store.trouble = away
        on.append(a, plain(b"x" * 5000))
        on.append(b, marker(ControlType.COMMIT), from_client=False)
        await until(lambda: b.committed_offset == 2)
        assert b.last_stable_offset == 2
        assert a.committed_offset == 0
        assert on.heard[b].extents[-1].object_id is None
        on.store.trouble = None
        await on.idle()

    scene(work)


def test_a_marker_waits_for_the_batches_of_its_partition() -> None:
    async def work(on: Scene) -> None:
        log = await on.lead()
        on.store.trouble = away
        on.append(log, sequenced(0, is_open=True))
        await until(lambda: len(on.store.puts) > 0)
        on.append(log, marker(ControlType.ABORT), from_client=False)
        on.append(log, plain(b"behind it"))
        await until(lambda: len(on.store.puts) > 3)
        assert log.committed_offset == 0
        on.store.trouble = None
        await on.idle()
        assert log.committed_offset == 3
        assert [(one.base_offset, one.object_id is None) for one in on.heard[log].extents] == [
            (0, False),
            (1, True),
            (2, False),
        ]

    scene(work)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("operation", ["register_objects", "commit_l0"])
def test_an_unknown_outcome_is_asked_for_again_until_it_is_known(operation: str, when: str) -> None:
    async def work(on: Scene) -> None:
        log = await on.lead()
        failures = [when, when]
        on.host.metastore.loses = lambda name: failures.pop() if name == operation and failures else None
        for number in range(3):
            on.append(log, sequenced(number))
        on.append(log, marker(ControlType.COMMIT, pid=8), from_client=False)
        await on.idle()
        assert not failures
        assert log.committed_offset == 4
        assert await on.objects() == [ObjectState.LIVE]

    scene(work)


def test_a_put_without_an_answer_is_sent_again_under_the_same_name() -> None:
    async def work(on: Scene) -> None:
        log = await on.lead()

        async def lose_two(operation: str, key: str) -> None:
            if len(on.store.puts) <= 2:
                raise StoreUnavailableError("no answer", key)

        on.store.trouble = lose_two
        on.append(log, plain(b"a"))
        await on.idle()
        assert len(on.store.puts) == 3
        assert len(set(on.store.puts)) == 1

    scene(work)


def test_a_commit_that_was_answered_too_late_is_found_done() -> None:
    """The answer is lost, and another broker has claimed the partition before it is asked for again."""

    async def work(on: Scene) -> None:
        log = await on.lead()
        lost = asyncio.Event()

        def loses(operation: str) -> str | None:
            if operation != "commit_l0" or lost.is_set():
                return None
            lost.set()
            return "after"

        on.host.metastore.loses = loses
        on.append(log, plain(b"a"))
        await lost.wait()
        await on.world.claim(2, 2, A)
        await on.idle()
        assert log.committed_offset == 1
        assert on.heard[log].error is None
        on.append(log, plain(b"b"))  # it does not know yet that it is replaced
        await on.idle()
        assert on.heard[log].code is ErrorCode.not_leader_or_follower
        assert (await on.world.row()).end_offset == 1

    scene(work)


def test_a_failed_upload_takes_what_came_behind_it_along() -> None:
    """T6: a known producer and a new one. Of the batches behind the one that is fenced none is committed."""

    async def work(on: Scene) -> None:
        a, b = await on.lead(A), await on.lead(B)
        on.append(a, sequenced(0, pid=1))
        await on.idle()
        held = asyncio.Event()

        async def hold(operation: str, key: str) -> None:
            await held.wait()

        on.store.trouble = hold
        on.append(a, sequenced(1, pid=1))
        on.append(b, plain(b"goes on"))
        await until(lambda: len(on.store.puts) == 2)
        on.append(a, sequenced(2, pid=1))
        on.append(a, sequenced(0, pid=2))
        await until(lambda: len(on.store.puts) == 3)
        following = (await on.world.claim(2, 2, A))[0]
        held.set()
        await on.idle()
        assert on.heard[a].error is not None
        assert on.heard[b].error is None
        assert (await on.world.row(A)).end_offset == 1
        assert (await on.world.row(B)).end_offset == 1
        assert a.is_dropped
        assert not isinstance(following, str)

    scene(work)


def test_an_object_that_expired_is_put_under_another_id() -> None:
    async def work(on: Scene) -> None:
        log = await on.lead()
        held = asyncio.Event()

        async def hold(operation: str, key: str) -> None:
            await held.wait()

        on.store.trouble = hold
        on.append(log, plain(b"a"))
        await until(lambda: len(on.store.puts) == 1)
        await on.world.register(1)  # anew: what the former registration owns expires
        assert await on.world.do("expire_owners", 100) > 0
        held.set()
        await on.idle()
        assert log.committed_offset == 1
        assert await on.objects() == [ObjectState.LIVE, ObjectState.GARBAGE]
        assert len(set(on.store.objects.values())) == 1

    scene(work)


def test_a_deleted_topic_is_told_and_others_go_on() -> None:
    async def work(on: Scene) -> None:
        a = await on.lead(A)
        on.append(a, plain(b"a"))
        await on.world.store.delete_topic(A[0])
        while await on.world.do("purge_topic", A[0], 100):
            pass
        await on.idle()
        assert on.heard[a].code is ErrorCode.unknown_topic_or_partition
        assert await on.objects() == [ObjectState.GARBAGE]

    scene(work)


def test_pending_at_its_limit_with_a_store_that_is_away_is_refused_and_recovers() -> None:
    async def work(on: Scene) -> None:
        log = await on.lead()
        on.store.trouble = away
        taken = 16
        for _ in range(taken):
            on.append(log, plain(b"x" * 1000))
        with pytest.raises(KafkaError) as refused:
            on.append(log, plain(b"x" * 3000))
        assert refused.value.code is ErrorCode.not_enough_replicas
        assert on.uploads.pending_bytes <= 20_000 + 4096
        await until(lambda: on.uploads.is_away)
        on.store.trouble = None
        await on.idle()
        assert log.committed_offset == taken == log.end_offset
        on.append(log, plain(b"again"))
        await on.idle()

    scene(work, pending_bytes_max=20_000)


def test_a_bug_in_one_commit_costs_its_partitions_and_nothing_else() -> None:
    async def work(on: Scene) -> None:
        a, b = await on.lead(A), await on.lead(B)
        real = on.host.world.do

        async def broken(operation: str, *arguments: Any) -> Any:
            if operation == "commit_l0" and any(run.partition == 0 for one in arguments[1] for run in one.runs):
                raise ZeroDivisionError
            return await real(operation, *arguments)

        on.host.world.do = broken  # type: ignore[method-assign]
        on.append(a, plain(b"a"))
        await until(lambda: on.heard[a].error is not None)
        on.append(b, plain(b"b"))
        await until(lambda: b.committed_offset == 1)
        assert on.host.supervisor.bugs == {"a commit": 1}
        assert a.is_dropped
        assert on.uploads.pending_bytes == 0

    scene(work)


@pytest.mark.parametrize("lost", [[], ["before", "before"], ["after", "before"]], ids=["there", "away", "answers lost"])
def test_a_log_that_is_left_leaves_nothing_behind(lost: list[str]) -> None:
    """Nor while the metastore is away: the registration, with which pending objects expire, may be kept for months."""

    async def work(on: Scene) -> None:
        failures = list(lost)
        on.host.metastore.loses = lambda name: failures.pop() if name == "release_objects" and failures else None
        a, b = await on.lead(A), await on.lead(B)
        held = asyncio.Event()

        async def hold(operation: str, key: str) -> None:
            await held.wait()

        on.store.trouble = hold
        on.append(a, plain(b"on its way"))
        await until(lambda: len(on.store.puts) == 1)
        on.append(a, plain(b"gathered"))
        on.append(b, plain(b"stays"))
        on.uploads.leave(a)
        held.set()
        await on.idle()
        assert ((await on.world.row(A)).end_offset, (await on.world.row(B)).end_offset) == (0, 1)
        await until(lambda: on.host.metastore.calls.count("release_objects") == len(lost) + 1)
        assert await on.objects() == [ObjectState.LIVE, ObjectState.GARBAGE]

    scene(work)


def test_more_markers_than_one_transaction_takes_are_committed_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    """They pile up while the metastore is away."""
    monkeypatch.setattr(module, "RUNS_MAX", 2)

    async def go() -> None:
        world = await make_world(partitions_count=6)
        host = Host(world)
        uploads = Uploads(host, SETTINGS, NoTail())
        on = Scene(world, host, uploads)
        logs = [await on.lead((A[0], index)) for index in range(6)]
        host.metastore.loses = lambda operation: "before" if operation == "commit_l0" else None
        for log in logs:
            on.append(log, marker(ControlType.COMMIT), from_client=False)
        host.metastore.loses = lambda operation: None
        await on.idle()
        assert [log.committed_offset for log in logs] == [1] * 6
        await uploads.stop()

    asyncio.run(go())
