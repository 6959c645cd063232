"""What a broker reads of a partition that was leveled and compacted while it led: settled, whole, of one level at a
time, and never from a map that is too old."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from sexton.cloud import cache, views
from sexton.ports.cloud import Level
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.records.batch import Batch, ControlType, Record, encode, make_batch
from sexton.settings.topic import TopicConfig
from tests.adapters.metastore.cloud.world import A
from tests.cloud.leveler import Leveler
from tests.cloud.test_replica import Broker, offsets, with_brokers
from tests.cloud.worlds import NOW_MS, until
from tests.log.helpers import plain, sequenced


def keyed(key: bytes, value: bytes | None, time_ms: int = NOW_MS) -> bytes:
    return encode(make_batch([Record(0, time_ms, key, value)], leader_epoch=-1))


async def tell(broker: Broker) -> None:
    """What the next poll would bring."""
    broker.replica.note_leveled(await broker.host.world.row())


def records(batches: Sequence[Batch]) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(one.offset, one.key, one.value) for batch in batches if not batch.is_control for one in batch.records]


def with_leveler(work: Callable[[Broker, Leveler], Coroutine[Any, Any, None]], **settings: Any) -> None:
    async def go(one: Broker, _: Broker) -> None:
        await one.lead()
        await work(one, Leveler(one.host))

    with_brokers(go, **settings)


async def write_transactions(one: Broker) -> None:
    """0 and 1 plain; 2 to 3 committed; 5 aborted; 7 open since; 8 plain."""
    await one.append(plain(b"a"), plain(b"b"), sequenced(0, 2, pid=3, is_open=True))
    await one.end(ControlType.COMMIT, pid=3)
    await one.append(sequenced(0, pid=4, is_open=True))
    await one.end(ControlType.ABORT, pid=4)
    await one.append(sequenced(0, pid=5, is_open=True), plain(b"c"))


def test_leveling_leaves_committed_records_alone_and_takes_what_was_aborted() -> None:
    async def work(one: Broker, leveler: Leveler) -> None:
        await write_transactions(one)
        before = records(await one.read_all(committed_only=True))
        assert [done.error for done in await leveler.level()] == [""]
        await tell(one)
        log = one.replica.log
        assert (await one.host.world.row()).leveled_offset == 7
        found = await one.read_all()
        assert records([batch for batch in found if batch.base_offset < 7]) == [one for one in before if one[0] != 5], (
            "the aborted record is gone"
        )
        assert [batch.is_transactional for batch in found] == [False, False, False, False, True, False]
        assert found[3].record_count == 0, "an emptied batch carries the end of the run"
        assert log.aborted_transactions(0, 9) == []

    with_leveler(work)


def test_data_below_the_stable_offset_whose_marker_lies_above_is_leveled_as_its_table_says() -> None:
    async def work(one: Broker, leveler: Leveler) -> None:
        await one.append(sequenced(0, pid=3, is_open=True))  # 0, aborted by a marker at 2
        await one.append(sequenced(0, pid=4, is_open=True))  # 1, open: the stable offset
        await one.end(ControlType.ABORT, pid=3)
        await leveler.level()
        row = await one.host.world.row()
        assert (row.stable_offset, row.leveled_offset) == (1, 1)
        await tell(one)
        assert records(await one.read_all(committed_only=True)) == []
        await one.end(ControlType.COMMIT, pid=4)
        await leveler.level()
        await tell(one)
        assert [offset for offset, _, _ in records(await one.read_all())] == [1]

    with_leveler(work)


def test_one_fetch_never_mixes_levels() -> None:
    async def work(one: Broker, leveler: Leveler) -> None:
        await one.append(plain(b"a"), plain(b"b"))
        await leveler.level()
        await one.append(plain(b"c"), plain(b"d"))
        await tell(one)
        await one.read_all()  # all of it is in memory now
        read = one.read(0)
        assert read.next_offset == 2
        assert one.read(2).next_offset == 4
        assert offsets(await one.read_all()) == [0, 1, 2, 3]

    with_leveler(work)


def test_a_stale_map_is_not_used_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(one: Broker, leveler: Leveler) -> None:
        await one.append(keyed(b"k", b"old"), keyed(b"k", None))
        await one.read_all()
        fresh = views.Views.is_fresh
        monkeypatch.setattr(views.Views, "is_fresh", lambda self, as_of_ms: False)
        assert one.read(0).parts == [], "neither L1 nor what may have become L1 meanwhile"
        monkeypatch.setattr(views.Views, "is_fresh", fresh)
        assert len(one.read(0).parts) > 0

    with_leveler(work)


def test_how_old_a_view_is_counts_from_the_question_not_from_the_answer() -> None:
    class Clock:
        now = 0

        def now_ms(self) -> int:
            return self.now

        def monotonic_ms(self) -> int:
            return self.now

    clock = Clock()
    seen = views.Views(clock, 10_000)
    clock.now = 25_000
    seen.note(asked_ms=12_000)
    assert not seen.is_fresh(0)
    assert seen.is_fresh(as_of_ms=15_000), "the claim was later"
    seen.note(asked_ms=15_000)
    assert seen.is_fresh(0)
    seen.note(asked_ms=14_000)
    assert seen.is_fresh(0), "an answer that was overtaken does not make it older"


def test_a_leveling_that_overtakes_the_answer_to_its_commit_waits_for_it() -> None:
    async def work(one: Broker, leveler: Leveler) -> None:
        await one.append(plain(b"a"))
        one.host.metastore.loses = lambda operation: "after" if operation == "commit_l0" else None
        _, future = one.replica.append(plain(b"b"), -1, NOW_MS)
        await until(lambda: one.host.metastore.calls.count("commit_l0") > 1)
        await leveler.level()
        await tell(one)
        assert one.replica.high_watermark == 1
        one.replica.check_invariants()
        one.host.metastore.loses = lambda operation: None
        assert future is not None
        await future
        one.replica.check_invariants()
        assert offsets(await one.read_all()) == [0, 1]

    with_leveler(work)


def test_large_runs_are_read_in_parts_ahead_of_whoever_goes_on_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "WHOLE_BYTES_MAX", 1000)
    monkeypatch.setattr("sexton.cloud.reading.WHOLE_BYTES_MAX", 1000)

    async def work(one: Broker, leveler: Leveler) -> None:
        rng = random.Random(1)
        values = [rng.randbytes(300_000) for _ in range(12)]
        for value in values:
            await one.append(plain(value))
        before = await one.read_all()
        await leveler.level()
        await tell(one)
        one.host.objects.gets.clear()
        assert await one.read_all(max_bytes=100) == before
        sizes = [size for _, _, size in one.host.objects.gets]
        assert len(sizes) == 1 + 3, "the index, and three parts of four blocks"
        assert max(sizes) < 2_000_000
        found = await one.replica.log.offset_for_time(NOW_MS, 12)
        assert found is not None
        assert found.offset == 0

    with_leveler(work, cache_bytes_max=16 << 20)


def test_consumers_far_behind_do_not_push_out_what_those_at_the_end_need() -> None:
    async def work(one: Broker, leveler: Leveler) -> None:
        for _ in range(6):
            await one.append(plain(b"x" * 900))
        await leveler.level()
        await one.append(plain(b"y" * 900))
        await tell(one)
        await one.read_all()
        one.host.objects.gets.clear()
        await one.read_all(6)
        assert one.host.objects.gets == []

    with_leveler(work, cache_bytes_max=8_000)


def test_times_are_looked_up_in_both_levels() -> None:
    async def work(one: Broker, leveler: Leveler) -> None:
        for number in range(6):
            await one.append(plain(b"v", time_ms=NOW_MS + 10 * number))
        await leveler.level()
        await one.append(plain(b"w", time_ms=NOW_MS + 100), plain(b"z", time_ms=NOW_MS + 20))
        await tell(one)
        log = one.replica.log
        found = {at: await log.offset_for_time(NOW_MS + at, 8) for at in (0, 25, 50, 51, 101)}
        assert {at: None if one is None else one.offset for at, one in found.items()} == {
            **{0: 0, 25: 3, 50: 5, 51: 6, 101: None}
        }
        newest = await log.offset_of_max_timestamp(8)
        assert newest is not None
        assert (newest.offset, newest.timestamp_ms) == (6, NOW_MS + 100)
        oldest = await log.offset_of_max_timestamp(6)
        assert oldest is not None
        assert oldest.offset == 5

    with_leveler(work)


def test_retention_and_delete_records_take_extents_of_l1() -> None:
    async def work(one: Broker, leveler: Leveler) -> None:
        one.replica.reconfigure(TopicConfig(retention_ms=1000))
        for number in range(3):
            await one.append(plain(b"v", time_ms=NOW_MS + 1000 * number))
            await leveler.level()
        await one.append(plain(b"v", time_ms=NOW_MS + 3000))
        await tell(one)
        await one.replica.retain(NOW_MS + 1500)
        assert one.replica.log.start_offset == 1
        assert await one.host.world.extents() == [(1, 2, "L1"), (2, 3, "L1"), (3, 4, "L0")]
        await one.replica.delete_records(2)
        await tell(one)
        assert offsets(await one.read_all(2)) == [2, 3]
        with pytest.raises(KafkaError) as told:
            one.read(1)
        assert told.value.code is ErrorCode.offset_out_of_range
        await one.replica.retain(NOW_MS + 9000)
        assert one.replica.log.start_offset == 4
        assert await one.host.world.extents() == []

    with_leveler(work)


def test_compaction_drops_pages_and_leaves_gaps_that_readers_step_over() -> None:
    async def work(one: Broker, leveler: Leveler) -> None:
        for number in range(10):
            await one.append(keyed(b"k%d" % (number % 3), b"v%d" % number))
        await leveler.level()
        await tell(one)
        await one.read_all()
        done = await leveler.compact()
        assert (done.error, done.is_refused) == ("", False)
        await tell(one)
        assert records(await one.read_all()) == [(7, b"k1", b"v7"), (8, b"k2", b"v8"), (9, b"k0", b"v9")]
        assert records(await one.read_all(3)) == records(await one.read_all())
        row = await one.host.world.row()
        assert (row.cleaned_offset, row.dirty_bytes, row.compaction_epoch) == (10, 0, 1)
        again = await leveler.compact()
        assert again.error == ""
        assert (await one.host.world.row()).compaction_epoch == 2

    with_leveler(work)


def test_a_tombstone_stays_for_twice_the_age_of_a_view_and_goes_then() -> None:
    async def work(one: Broker, leveler: Leveler) -> None:
        config = TopicConfig(cleanup_policy=frozenset({"compact"}), delete_retention_ms=0)
        leveler.stand_still()
        await one.append(keyed(b"k", b"v"), keyed(b"k", None), keyed(b"other", b"v"))
        await leveler.level()
        assert (await leveler.compact(config=config)).error == ""
        row = await one.host.world.row()
        assert row.horizon_ms == NOW_MS + 20_000
        await leveler.compact(config=config, now_ms=NOW_MS + 19_999)
        await tell(one)
        assert records(await one.read_all()) == [(1, b"k", None), (2, b"other", b"v")]
        assert (await one.host.world.row()).horizon_ms == NOW_MS + 20_000
        await leveler.compact(config=config, now_ms=NOW_MS + 20_000)
        await tell(one)
        assert records(await one.read_all()) == [(2, b"other", b"v")]
        assert (await one.host.world.row()).horizon_ms == 0

    with_leveler(work)


def test_small_runs_are_merged_into_one_that_reads_the_same() -> None:
    async def work(one: Broker, leveler: Leveler) -> None:
        for number in range(20):
            await one.append(plain(b"%d" % number))
            await leveler.level()
        await tell(one)
        before = await one.read_all()
        assert (await leveler.merge()).error == ""
        await tell(one)
        assert await one.read_all() == before
        assert await one.host.world.extents(A) == [(0, 20, Level.L1.name)]

    with_leveler(work)
