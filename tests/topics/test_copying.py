"""What a copy makes of random logs: each key's newest record or all of them, in order, where Kafka's clients look."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sexton.audit.live.connecting import Connecting
from sexton.client.partitioner import partition_of
from sexton.records import batch as batches
from sexton.records.batch import Batch, Record
from sexton.records.codecs import Codec
from sexton.spark.fold_pass import NO_EVENTS
from sexton.topics import copying, repartition
from sexton.topics.copying import Failed, Order, Row, Writing, Written, batches_of
from sexton.topics.preparing import NotCopiedError
from tests import logs
from tests.spark.local_context import LocalContext
from tests.topics.memory import TOPIC, Memory, visible


class Target:
    """Partitions in memory, in place of brokers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, batch_bytes: int = 500) -> None:
        self.records: dict[int, list[Record]] = {}
        self.batch_bytes = batch_bytes
        monkeypatch.setattr(repartition, "write_rows", self.write_rows)

    def write_rows(self, rows: Iterable[tuple[Order, Row | Failed]], writing: Writing) -> Iterator[Written | Failed]:
        for order, row in rows:
            if isinstance(row, Failed):
                yield row
                return
            into = self.records.setdefault(order.target, [])
            before = len(into)
            for packed in batches_of(row, self.batch_bytes, writing.codec):
                batch = batches.decode(packed.encoded(1, 0, 0), 0, "")
                assert batch.max_timestamp_ms == max(record.timestamp_ms for record in batch.records)
                into += batch.records
            yield Written(order.target, len(into) - before, len(into))

    def of(self, partition: int) -> list[tuple[object, ...]]:
        return [content(record) for record in self.records.get(partition, [])]


def content(record: Record) -> tuple[object, ...]:
    return record.key, record.value, record.timestamp_ms, record.headers


def copy(
    memory: Memory,
    target_count: int,
    *,
    keeps_all: bool,
    keeps_keyless: bool = False,
    codec: int = 0,
    from_offset: int = 0,
) -> None:
    context = LocalContext(random.Random(1)).as_spark
    logs_there = [
        replace(log, log_start_offset=max(log.log_start_offset, from_offset)) for log in memory.topic().partitions
    ]
    some = [log for log in logs_there if log.last_stable_offset > log.log_start_offset]
    if not some:
        return
    done = repartition._Round(context, some, memory.as_reading, lambda step, tasks: None)
    if keeps_all:
        done.check_one_partition_a_key()
    writing = Writing(Connecting(()), TOPIC, {}, 500, codec)
    done.write(writing, target_count=target_count, keeps_all=keeps_all, keeps_keyless=keeps_keyless)


@settings(max_examples=15, deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_newest_record_of_each_key_is_copied_as_it_is(rng: random.Random) -> None:
    memory = Memory({number: logs.random_log(rng).batches for number in range(rng.choice([1, 3]))})
    count = rng.choice([1, 4])
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(copying, "ROW_BYTES", 200)
        target = Target(monkeypatch)
        copy(memory, count, keeps_all=False, codec=rng.choice(list(Codec)))
    newest: dict[bytes, list[Record]] = {}
    for log in memory.batches.values():
        fold = {record.key: record for record in visible(log) if record.key is not None}
        for key, record in fold.items():
            newest.setdefault(key, []).append(record)
    copied = {record.key: record for some in target.records.values() for record in some}
    assert sum(map(len, target.records.values())) == len(copied) == len(newest)
    for number, some in target.records.items():
        assert {partition_of(record.key or b"", count) for record in some} == {number}
    for key, candidates in newest.items():
        latest_ms = max(record.timestamp_ms for record in candidates)
        allowed = [content(record) for record in candidates if record.timestamp_ms == latest_ms]
        assert content(copied[key]) in allowed


@settings(max_examples=15, deadline=None)
@given(st.randoms(use_true_random=False))
def test_a_copy_of_all_records_keeps_them_in_order(rng: random.Random) -> None:
    memory = Memory({0: logs.random_log(rng).batches})
    count = rng.choice([1, 4])
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(copying, "ROW_BYTES", 200)
        monkeypatch.setattr(copying, "PACKED_BYTES_MAX", 1000)
        target = Target(monkeypatch)
        copy(memory, count, keeps_all=True, keeps_keyless=True)
    records = visible(memory.batches[0])
    for number in range(count):
        wanted = [each for each in records if (0 if each.key is None else partition_of(each.key, count)) == number]
        assert target.of(number) == [content(each) for each in wanted]


@settings(max_examples=20, deadline=None)
@given(st.randoms(use_true_random=False))
def test_what_two_rounds_copy_is_what_one_would(rng: random.Random) -> None:
    """Whatever is open or undecided when the first one stops."""
    whole = logs.random_log(rng).batches
    seen = whole[: rng.randrange(len(whole))]
    memory = Memory({0: seen})
    with pytest.MonkeyPatch.context() as monkeypatch:
        target = Target(monkeypatch)
        copy(memory, 3, keeps_all=True, keeps_keyless=True)
        so_far = memory.log(0).last_stable_offset if seen else whole[0].base_offset
        copy(Memory({0: whole}), 3, keeps_all=True, keeps_keyless=True, from_offset=so_far)
        once = Target(monkeypatch)
        copy(Memory({0: whole}), 3, keeps_all=True, keeps_keyless=True)
    assert [target.of(number) for number in range(3)] == [once.of(number) for number in range(3)]


def test_of_a_key_in_two_partitions_the_newest_by_time_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    older = logs.data((b"k", b"older"), at=5)
    newer = logs.data((b"k", b"newer"), at=0)
    newer = batches.make_batch([Record(0, older.max_timestamp_ms + 1, b"k", b"newer")])
    target = Target(monkeypatch)
    copy(Memory({0: [newer], 1: [older]}), 1, keeps_all=False)
    assert [each.value for each in target.records[0]] == [b"newer"]


def test_a_copy_of_all_is_refused_where_a_key_has_no_order(monkeypatch: pytest.MonkeyPatch) -> None:
    Target(monkeypatch)
    twice: dict[int, list[Batch]] = {number: [logs.data((b"k", b"v"), at=0)] for number in (0, 1)}
    with pytest.raises(NotCopiedError, match="1 keys are in more than one partition"):
        copy(Memory(twice), 3, keeps_all=True)


def test_tombstones_are_copied_and_records_without_a_key_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target(monkeypatch)
    copy(Memory({0: [logs.data((b"k", b"v"), (b"k", None), (None, b"v"), at=0)]}), 1, keeps_all=False)
    assert [(each.key, each.value) for each in target.records[0]] == [(b"k", None)]


def test_what_cannot_be_read_is_told_and_nothing_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target(monkeypatch)
    packing = copying.Packing(0, 0, 10, NO_EVENTS.markers, 1, keeps_keyless=False)

    class Broken:
        replica = from_offset = 0
        to_offset = size_bytes = 10

        def pieces(self) -> Iterator[object]:
            raise OSError("no such broker")

    rows = list(copying.pack_stretch(Broken(), 0, packing, None))  # type: ignore[arg-type]
    (told,) = target.write_rows(rows, Writing(Connecting(()), TOPIC, {}, 500, 0))
    assert isinstance(told, Failed)
    assert not target.records


def test_a_record_larger_than_a_batch_is_alone_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    big = logs.data((b"a", b"x" * 2_000), (b"b", b"1"), (b"c", b"2"), at=0)
    target = Target(monkeypatch, batch_bytes=200)
    copy(Memory({0: [big]}), 1, keeps_all=False)
    assert len(target.records[0]) == 3
