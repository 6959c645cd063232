"""A cloud partition as API modules use it: appended, committed, read back from the tail and from the store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from sexton.cloud.claims import Claims
from sexton.cloud.replica import CloudParts, CloudReplica
from sexton.cloud.replicas import CloudReplicas
from sexton.log.types import Read
from sexton.ports.cloud import Claimed, Outcome
from sexton.ports.metastore import LeaseLostError, PartitionRow
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.records.batch import Batch, ControlType, decode_all
from sexton.settings.topic import TopicConfig
from sexton.types import LeaderEpoch
from tests.adapters.metastore.cloud.world import A, World
from tests.cloud.worlds import NOW_MS, SETTINGS, Host, MemoryStore, away, make_world, until
from tests.log.helpers import content, marker, plain, sequenced


def row_of(leader: int, epoch: int) -> PartitionRow:
    return PartitionRow(A[0], 0, (1, 2), (1, 2), leader, LeaderEpoch(epoch), partition_epoch=epoch)


class Broker:
    def __init__(self, world: World, broker_id: int, store: MemoryStore, **settings: Any) -> None:
        self.host = Host(world, broker_id)
        self.host.objects = store
        self.parts = CloudParts.make(self.host, replace(SETTINGS, **settings))
        self.replica = CloudReplica("orders", row_of(-1, 0), self.parts)

    async def lead(self, epoch: int = 1) -> CloudReplica:
        self.replica.take(row_of(self.host.broker_id, epoch))
        await until(lambda: self.replica.is_leader)
        return self.replica

    async def append(self, *batches: bytes, acks: int = -1, **more: Any) -> None:
        for batch in batches:
            _, future = self.replica.append(batch, acks, NOW_MS, **more)
            self.replica.check_invariants()
            if future is not None:
                await future
        self.check()

    async def end(self, how: ControlType, pid: int = 7) -> None:
        await self.append(marker(how, pid=pid), from_client=False)

    def read(
        self, offset: int, max_bytes: int = 1 << 20, *, committed_only: bool = False, min_one: bool = True
    ) -> Read:
        return self.replica.read(offset, max_bytes, committed_only=committed_only, min_one=min_one)

    async def read_all(self, offset: int = 0, **more: Any) -> list[Batch]:
        """As a consumer that waits to be woken."""
        found: list[Batch] = []
        woken = asyncio.Event()
        cancel = self.replica.watch(woken.set)
        end = self.replica.last_stable_offset if more.get("committed_only") else self.replica.high_watermark
        async with asyncio.timeout(10):
            while offset < end:
                woken.clear()
                read = self.read(offset, **more)
                data = content(read.parts)
                assert len(data) == read.size_bytes
                found += decode_all(data)
                if read.next_offset == offset:
                    await woken.wait()
                offset = read.next_offset
        cancel()
        self.check()
        return found

    def check(self) -> None:
        self.replica.check_invariants()
        self.parts.uploads.check_invariants()
        self.parts.cache.check_invariants()
        assert not self.host.supervisor.bugs

    async def stop(self) -> None:
        self.replica.resign()
        for part in (self.parts.claims, self.parts.uploads, self.parts.cache):
            await part.stop()


def with_brokers(work: Callable[[Broker, Broker], Coroutine[Any, Any, None]], **settings: Any) -> None:
    async def go() -> None:
        world, store = await make_world(), MemoryStore()
        one, other = Broker(world, 1, store, **settings), Broker(world, 2, store, **settings)
        await work(one, other)
        await one.stop()
        await other.stop()

    asyncio.run(go())


def offsets(batches: list[Batch]) -> list[int]:
    return [batch.base_offset for batch in batches]


def test_consumers_at_the_end_cost_no_get() -> None:
    async def work(one: Broker, _: Broker) -> None:
        await one.lead()
        await one.append(plain(b"a"), plain(b"b", b"c"), sequenced(0, pid=3, is_open=True))
        await one.end(ControlType.COMMIT, pid=3)
        batches = await one.read_all()
        assert offsets(batches) == [0, 1, 3, 4]
        assert {batch.leader_epoch for batch in batches} == {1}
        assert one.host.objects.gets == []

    with_brokers(work)


@pytest.mark.parametrize("acks", [1, -1])
def test_an_acknowledgement_waits_for_the_commit_whatever_acks_says(acks: int) -> None:
    async def work(one: Broker, other: Broker) -> None:
        await one.lead()
        one.host.objects.trouble = away
        _, future = one.replica.append(plain(b"a"), acks, NOW_MS)
        again, _ = one.replica.append(plain(b"b"), 0, NOW_MS)
        await until(lambda: len(one.host.objects.puts) > 2)
        assert future is not None
        assert not future.done()
        assert (one.replica.high_watermark, one.replica.log.end_offset) == (0, 2)
        assert one.read(0).parts == []
        one.host.objects.trouble = None
        await future
        assert again.first_offset == 1

    with_brokers(work)


def test_another_leader_reads_from_the_store_what_the_first_one_wrote() -> None:
    async def work(one: Broker, other: Broker) -> None:
        await one.lead()
        for number in range(5):
            await one.append(sequenced(2 * number, 2))
        written = await one.read_all()
        await other.lead(epoch=2)
        assert await other.read_all() == written
        assert len(other.host.objects.gets) == 5
        assert await other.read_all() == written
        assert len(other.host.objects.gets) == 5, "what was loaded is kept"
        again, future = other.replica.append(sequenced(8, 2), -1, NOW_MS)
        assert again.is_duplicate
        assert (again.first_offset, future) == (8, None)
        await other.append(sequenced(10))
        assert [batch.leader_epoch for batch in await other.read_all(10)] == [2]

    with_brokers(work)


def test_a_leader_that_was_replaced_is_told_with_its_next_commit() -> None:
    async def work(one: Broker, other: Broker) -> None:
        await one.lead()
        await one.append(plain(b"a"))
        await other.lead(epoch=2)
        with pytest.raises(KafkaError) as told:
            await one.append(plain(b"b"))
        assert told.value.code is ErrorCode.not_leader_or_follower
        assert not one.replica.is_leader
        assert one.replica.is_stranded, "its row still says that it leads"
        one.replica.take(row_of(2, 2))
        assert not one.replica.is_stranded
        await other.append(plain(b"b"))
        assert offsets(await other.read_all()) == [0, 1]

    with_brokers(work)


def test_an_epoch_that_another_registration_claimed_is_not_led_again() -> None:
    async def work(one: Broker, other: Broker) -> None:
        await one.lead()
        assert isinstance((await one.host.world.claim(1, 1, A))[0], Claimed), "the same registration may ask again"
        await one.host.world.register(1)
        one.replica.resign()
        one.replica.take(row_of(1, 1))
        await until(lambda: one.replica.is_stranded)
        assert not one.replica.is_leader
        await one.lead(epoch=2)
        await one.append(plain(b"a"))

    with_brokers(work)


def test_nobody_leads_twice_in_one_epoch_whatever_row_comes_late() -> None:
    """A commit of the tail that was given up may still be on its way. It would be taken for one of the new tail."""

    async def work(one: Broker, other: Broker) -> None:
        replicas = CloudReplicas(one.host, SETTINGS)
        row = row_of(1, 1)
        replicas.apply([("orders", row)])
        (first,) = replicas.all()
        await until(lambda: first.is_leader)
        first.append(plain(b"not committed yet"), -1, NOW_MS)
        replicas.remove([A])  # it is placed elsewhere, and then the row of before is heard of
        replicas.apply([("orders", row)])
        assert replicas.stranded() == [A]
        (again,) = replicas.all()
        assert again is not first
        assert not again.is_leader
        replicas.apply([("orders", row_of(1, 2))])
        await until(lambda: again.is_leader)
        replicas.remove_topics([A[0]])
        assert not replicas.parts.led, "of what is deleted nothing is kept"
        await replicas.stop()

    with_brokers(work)


def test_a_consumer_with_a_short_wait_gets_on_while_the_store_is_slow() -> None:
    """T11: it asks again long before a GET is done, and never waits for one itself."""

    async def work(one: Broker, other: Broker) -> None:
        await one.lead()
        await one.append(plain(b"a"), plain(b"b"))
        await other.lead(epoch=2)

        async def slow(operation: str, key: str) -> None:
            await asyncio.sleep(0.03)

        other.host.objects.trouble = slow
        offset, asked = 0, 0
        while offset < 2:
            asked += 1
            offset = other.read(offset).next_offset
            await asyncio.sleep(0.001)
        assert asked > 5
        assert len(other.host.objects.gets) == 2, "each run was loaded once, however often it was asked for"

    with_brokers(work)


def test_small_runs_are_loaded_ahead_of_a_consumer_that_is_behind() -> None:
    """Otherwise each costs it a request to the store of its own, one after the other."""

    async def work(one: Broker, other: Broker) -> None:
        await one.lead()
        await one.append(*(plain(bytes([number]) * 100) for number in range(60)))
        await other.lead(epoch=2)
        in_flight, most = 0, 0

        async def slow(operation: str, key: str) -> None:
            nonlocal in_flight, most
            in_flight += 1
            most = max(most, in_flight)
            await asyncio.sleep(0.01)
            in_flight -= 1

        other.host.objects.trouble = slow
        assert len(await other.read_all()) == 60
        assert len(other.host.objects.gets) == 60, "each run was loaded once"
        assert 4 <= most <= 1 + 16 // 2, "half of all requests are left to what others wait for"

    with_brokers(work)


def test_a_damaged_run_is_read_again_and_then_told_and_never_skipped() -> None:
    async def work(one: Broker, other: Broker) -> None:
        await one.lead()
        await one.append(plain(b"a"), plain(b"b"), plain(b"c"))
        store = one.host.objects
        second = list(store.objects)[1]
        good = store.objects[second]
        store.objects[second] = good[:40] + bytes([good[40] ^ 1]) + good[41:]
        await other.lead(epoch=2)
        await until(lambda: other.read(0).next_offset == 1)
        await until(lambda: _code(other, 1) is ErrorCode.kafka_storage_error)
        assert [key for key, _, _ in store.gets].count(second) == 2
        assert _code(other, 1) is ErrorCode.kafka_storage_error
        await until(lambda: other.read(2).next_offset == 3)  # what lies behind it can be read by who asks for it
        store.objects[second] = good
        await until(lambda: _code(other, 1) is None and other.read(1).next_offset > 1)

    with_brokers(work)


@pytest.mark.parametrize("position", range(8 + 8, 8 + 16))
def test_a_changed_length_or_leader_epoch_is_noticed_though_kafkas_checksum_leaves_it_out(position: int) -> None:
    async def work(one: Broker, other: Broker) -> None:
        await one.lead()
        await one.append(plain(b"a"))
        store = one.host.objects
        ((key, good),) = store.objects.items()
        store.objects[key] = good[:position] + bytes([good[position] ^ 4]) + good[position + 1 :]
        await other.lead(epoch=2)
        other.read(0)
        await until(lambda: _code(other, 0) is ErrorCode.kafka_storage_error)

    with_brokers(work)


def test_a_missing_object_is_an_error_and_not_a_hole() -> None:
    async def work(one: Broker, other: Broker) -> None:
        await one.lead()
        await one.append(plain(b"a"))
        one.host.objects.objects.clear()
        assert offsets(await one.read_all()) == [0], "its own tail is in memory"
        await other.lead(epoch=2)
        other.read(0)
        await until(lambda: _code(other, 0) is ErrorCode.kafka_storage_error)

    with_brokers(work)


def _code(broker: Broker, offset: int) -> ErrorCode | None:
    try:
        broker.read(offset)
    except KafkaError as error:
        return error.code
    return None


def test_a_small_cache_still_serves_everything() -> None:
    async def work(one: Broker, other: Broker) -> None:
        await one.lead()
        for number in range(8):
            await one.append(plain(bytes([number]) * 900))
        assert len(await one.read_all()) == 8
        await other.lead(epoch=2)
        assert len(await other.read_all(max_bytes=100)) == 8

    with_brokers(work, cache_bytes_max=2000)


def test_reads_end_at_batches_and_at_the_stable_offset() -> None:
    async def work(one: Broker, _: Broker) -> None:
        await one.lead()
        await one.append(plain(b"a" * 100), plain(b"b" * 100), sequenced(0, is_open=True), plain(b"c"))
        size = one.read(0).size_bytes
        assert offsets(list(decode_all(content(one.read(0, size - 1).parts)))) == [0, 1, 2]
        assert one.read(0, 10, min_one=False).parts == []
        assert one.read(0, 10).next_offset == 1
        assert one.read(0, committed_only=True).next_offset == 2
        assert one.read(2, committed_only=True).parts == []
        await one.end(ControlType.ABORT)
        assert one.read(2, committed_only=True).next_offset == 5
        assert one.replica.log.aborted_transactions(2, 5) == [(7, 2)]
        for offset in (-1, 6):
            assert _code(one, offset) is ErrorCode.offset_out_of_range

    with_brokers(work)


def test_offsets_are_found_by_time_in_the_store() -> None:
    async def work(one: Broker, other: Broker) -> None:
        await one.lead()
        await one.append(
            plain(b"a", b"b", time_ms=NOW_MS),
            plain(b"c", b"d", time_ms=NOW_MS + 100),
            plain(b"late", time_ms=NOW_MS + 50),
        )
        await other.lead(epoch=2)
        log = other.replica.log
        assert await log.offset_for_time(NOW_MS + 1, 5) == (NOW_MS + 1, 1, 1)
        assert await log.offset_for_time(NOW_MS + 2, 5) == (NOW_MS + 100, 2, 1)
        assert await log.offset_for_time(NOW_MS + 102, 5) is None
        assert await log.offset_for_time(NOW_MS + 2, 2) is None
        assert await log.offset_of_max_timestamp(5) == (NOW_MS + 101, 3, 1)

    with_brokers(work)


def test_delete_records_moves_the_start_also_inside_an_extent() -> None:
    async def work(one: Broker, _: Broker) -> None:
        await one.lead()
        await one.append(plain(b"a", b"b"), plain(b"c", b"d"))
        assert await one.replica.delete_records(3) == 3
        assert one.replica.log.start_offset == 3
        assert _code(one, 2) is ErrorCode.offset_out_of_range
        assert offsets(await one.read_all(3)) == [2]
        assert (await one.host.world.row()).start_offset == 3
        assert await one.replica.delete_records(-1) == 4
        with pytest.raises(KafkaError) as refused:
            await one.replica.delete_records(5)
        assert refused.value.code is ErrorCode.offset_out_of_range
        await one.append(plain(b"e"))
        assert offsets(await one.read_all(4)) == [4]

    with_brokers(work)


def test_records_without_a_timestamp_are_as_old_as_their_object() -> None:
    """As those of a local log are as old as their segment."""

    async def work(one: Broker, _: Broker) -> None:
        one.host.configs["orders"] = TopicConfig(retention_ms=60_000)
        await one.lead()
        await one.append(plain(b"a", time_ms=-1))
        now_ms = one.host.clock.now_ms()
        await one.replica.retain(now_ms)
        assert one.replica.log.start_offset == 0
        await one.replica.retain(now_ms + 61_000)
        assert one.replica.log.start_offset == 1

    with_brokers(work)


def test_retention_frees_what_is_too_old() -> None:
    async def work(one: Broker, _: Broker) -> None:
        one.host.configs["orders"] = TopicConfig(retention_ms=1000)
        await one.lead()
        await one.append(plain(b"a", time_ms=NOW_MS), plain(b"b", time_ms=NOW_MS + 5000))
        await one.replica.retain(NOW_MS + 5500)
        assert one.replica.log.start_offset == 1
        assert (await one.host.world.extents())[0][:2] == (1, 2)
        one.check()

    with_brokers(work)


def test_a_broker_without_a_lease_serves_nothing() -> None:
    async def work(one: Broker, _: Broker) -> None:
        await one.lead()
        await one.append(plain(b"a"))
        one.host.is_leased = False
        assert _code(one, 0) is ErrorCode.not_leader_or_follower
        with pytest.raises(KafkaError):
            one.replica.append(plain(b"b"), -1, NOW_MS)
        one.host.is_leased = True
        assert offsets(await one.read_all()) == [0]

    with_brokers(work)


def test_claims_that_are_asked_for_together_are_one_transaction() -> None:
    async def go() -> None:
        world = await make_world(partitions_count=50)
        host = Host(world)
        parts = CloudParts.make(host, SETTINGS)
        replicas = [CloudReplica("orders", replace(row_of(-1, 0), partition=index), parts) for index in range(50)]
        for replica in replicas:
            replica.take(replace(row_of(1, 1), partition=replica.partition))
        await until(lambda: all(replica.is_leader for replica in replicas))
        assert host.metastore.calls == ["claim_partitions"]
        for replica in replicas:
            replica.resign()
        await parts.uploads.stop()

    asyncio.run(go())


def test_a_claim_whose_answer_is_lost_is_repeated() -> None:
    async def work(one: Broker, _: Broker) -> None:
        failures = ["after", "before"]
        one.host.metastore.loses = lambda name: failures.pop() if name == "claim_partitions" and failures else None
        await one.lead()
        assert not failures
        await one.append(plain(b"a"))

    with_brokers(work)


def test_a_claim_that_is_asked_for_again_while_the_broker_is_fenced_is_answered_to_both() -> None:
    async def go() -> None:
        world = await make_world()
        host = Host(world)
        claims = Claims(host)
        refusals = [LeaseLostError("the broker is fenced")]
        answers = host.metastore.claim_partitions
        second: list[asyncio.Task[Claimed | Outcome]] = []

        async def claim_partitions(*arguments: Any) -> Any:
            if refusals:
                second.append(asyncio.create_task(claims.claim(A, LeaderEpoch(1))))
                await asyncio.sleep(0.01)
                raise refusals.pop()
            return await answers(*arguments)

        host.metastore.claim_partitions = claim_partitions
        async with asyncio.timeout(10):
            first = await claims.claim(A, LeaderEpoch(1))
            assert isinstance(first, Claimed)
            assert await second[0] is first

    asyncio.run(go())
