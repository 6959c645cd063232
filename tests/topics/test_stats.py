"""What is said of a topic, against what a plain look at each record gives; and samples against the whole."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sexton.records.batch import Batch, Record, encode, make_batch
from sexton.records.header import TRANSACTIONAL
from sexton.spark import fold_pass
from sexton.topics.stats import Sample, TopicStats, collect
from tests import logs
from tests.spark.local_context import LocalContext
from tests.topics.memory import Memory, visible


def stats_of(memory: Memory, **options: object) -> TopicStats:
    context = LocalContext(random.Random(1)).as_spark
    return collect(context, memory.topic(), memory.as_reading, **options)  # type: ignore[arg-type]


@settings(max_examples=20, deadline=None)
@given(st.randoms(use_true_random=False))
def test_all_numbers_are_those_of_a_look_at_each_record(rng: random.Random) -> None:
    memory = Memory({number: logs.random_log(rng).batches for number in range(rng.choice([1, 2, 3]))})
    found = stats_of(memory, examples=5)
    newest: dict[int, dict[bytes, Record]] = {}
    for part in found.partitions:
        records = visible(memory.batches[part.log.partition])
        with_key = [record for record in records if record.key is not None]
        fold = newest[part.log.partition] = {record.key: record for record in with_key if record.key is not None}
        amounts = part.amounts
        assert amounts is not None
        assert amounts.key_count is not None
        assert amounts.deleted_count is not None
        assert amounts.record_count.value == len(records)
        assert amounts.keyless_count.value == len(records) - len(with_key)
        assert amounts.tombstone_count.value == sum(record.value is None for record in with_key)
        assert amounts.key_count.value == len(fold)
        assert amounts.deleted_count.value == sum(record.value is None for record in fold.values())
        saved = len(with_key) - len(fold)
        assert amounts.saved_count == saved + amounts.aborted_count.value
    places = Counter(key for fold in newest.values() for key in fold)
    live = Counter(key for fold in newest.values() for key, record in fold.items() if record.value is not None)
    if found.shared is not None:
        assert found.shared.surplus_count == sum(places.values()) - len(places)
        assert found.shared.key_count == sum(count > 1 for count in places.values())
        assert found.shared.live_count == sum(count > 1 for count in live.values())
        for example in found.shared.examples:
            keys = {next(k for k, r in newest[at.partition].items() if r.offset == at.offset) for at in example}
            assert len(keys) == 1 < len(example)


def test_short_runs_and_many_tasks_give_the_same_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory({number: logs.random_log(random.Random(number), 80).batches for number in range(3)})
    whole = stats_of(memory)
    monkeypatch.setattr(fold_pass, "RUN_ENTRIES_MAX", 3)
    memory.parts = 17
    cut = stats_of(memory)
    assert cut.total == whole.total
    assert cut.shared == whole.shared
    assert [each.cleaned for each in cut.partitions] == [each.cleaned for each in whole.partitions]


# ---- Compaction's traces


def written(*batches: Batch) -> TopicStats:
    return stats_of(Memory({0: list(batches)}))


def test_a_log_without_gaps_was_never_compacted_as_far_as_gaps_tell() -> None:
    markers = [logs.in_transaction((b"k", b"v"), at=1, pid=9), logs.commit(2, 9)]
    found = written(logs.data((b"k", b"v"), at=0), *markers, logs.data((b"k", b"v"), at=3))
    assert found.partitions[0].cleaned is None


def test_a_gap_tells_how_far_a_log_was_compacted_and_after_when() -> None:
    first, last = logs.data((b"a", b"1"), at=4), logs.data((b"b", b"1"), (b"c", b"2"), at=8)
    cleaned = written(first, last).partitions[0].cleaned
    assert cleaned is not None
    assert cleaned.up_to_offset == 8
    assert cleaned.kept_share == 1 / 4
    assert cleaned.not_before_ms == first.max_timestamp_ms


def test_a_hole_inside_of_a_batch_is_a_trace_too() -> None:
    records = [Record(0, 5, b"a", b"1"), Record(2, 7, b"b", b"2")]
    cleaned = written(make_batch(records), logs.data((b"c", b"3"), at=3)).partitions[0].cleaned
    assert cleaned is not None
    assert (cleaned.up_to_offset, cleaned.not_before_ms) == (3, 7)


def test_what_would_be_saved_is_the_bytes_of_older_records() -> None:
    old, new = logs.data((b"k", b"x" * 1000), at=0), logs.data((b"k", b"y" * 10), at=1)
    amounts = written(old, new).partitions[0].amounts
    assert amounts is not None
    assert amounts.saved_count == 1
    assert amounts.saved_bytes == len(encode(old))  # the batch that it is alone in: all of it goes


def test_records_of_open_transactions_are_waited_for_and_not_counted() -> None:
    found = written(logs.data((b"k", b"v"), at=0), logs.in_transaction((b"k", b"v"), at=1, pid=9))
    (part,) = found.partitions
    assert part.amounts is not None
    assert (part.amounts.record_count.value, part.waiting_count) == (1, 1)


# ---- Samples


def long_log(rng: random.Random) -> list[Batch]:
    """Its first half is thinned; transactions are aborted here and there."""
    batches, offset = [], 0
    while offset < 20_000:
        count = rng.randrange(5, 20)
        records = [
            Record(offset + i, 1, b"%d" % rng.randrange(900), None if rng.random() < 0.1 else b"v")
            for i in range(count)
        ]
        if offset < 10_000:
            records = [each for each in records if rng.random() < 0.3] or records[:1]
        fields = {"base_offset": offset, "last_offset": offset + count - 1}
        if rng.random() < 0.1:
            pid = rng.randrange(5)
            attributes = TRANSACTIONAL
            batches.append(
                make_batch(records, attributes=attributes, producer_id=pid, base_sequence=0, producer_epoch=0, **fields)
            )
            offset += count
            batches.append(rng.choice([logs.abort, logs.commit])(offset, pid))
            offset += 1
        else:
            batches.append(make_batch(records, **fields))
            offset += count
    return batches


def test_the_truth_lies_within_the_margin_of_nearly_all_samples() -> None:
    memory = Memory({0: long_log(random.Random(7))})
    whole = stats_of(memory).total
    assert whole is not None
    hits = Counter[str]()
    for seed in range(24):
        context = LocalContext(random.Random(1)).as_spark
        topic = memory.topic(size_bytes=1 << 30)
        memory.read.clear()
        found = collect(context, topic, memory.as_reading, sample=Sample(fraction=0.1), rng=random.Random(seed)).total
        assert sum(end - start for start, end in memory.read) < 0.12 * 20_000
        assert found is not None
        for name in ("record_count", "tombstone_count", "aborted_count", "size_bytes"):
            estimate, truth = getattr(found, name), getattr(whole, name).value
            assert not estimate.is_exact
            hits[name] += abs(estimate.value - truth) <= estimate.margin
    assert all(count >= 21 for count in hits.values()), hits


def test_a_sample_of_a_log_without_gaps_gives_its_records_without_an_error() -> None:
    """However its batches lie to what is read."""
    batches = [logs.data(*[(b"k", b"v")] * 700, at=at) for at in range(0, 70_000, 700)]
    memory = Memory({0: batches})
    context = LocalContext(random.Random(1)).as_spark
    topic = memory.topic(size_bytes=1 << 30)
    found = collect(context, topic, memory.as_reading, sample=Sample(fraction=0.05), rng=random.Random(3)).total
    assert found is not None
    assert found.record_count.value == pytest.approx(70_000, abs=100)  # cells differ by an offset
    assert found.record_count.margin < 200
    truth = sum(len(encode(each)) for each in batches)
    assert abs(found.size_bytes.value - truth) < 0.02 * truth


def test_a_sample_of_offsets_bounds_the_keys() -> None:
    memory = Memory({0: long_log(random.Random(7))})
    topic = memory.topic(size_bytes=1 << 30)
    context = LocalContext(random.Random(1)).as_spark
    (found,) = collect(context, topic, memory.as_reading, sample=Sample(fraction=0.1), rng=random.Random(3)).partitions
    assert found.key_bounds is not None
    least, most = found.key_bounds
    assert 1 < least <= 900 <= most
    assert found.amounts is not None
    assert found.amounts.key_count is None


def test_whole_partitions_drawn_at_random_tell_keys_with_an_error() -> None:
    rng = random.Random(3)
    keys = [b"%d" % number for number in range(4_000)]
    of: dict[int, list[bytes]] = {number: [] for number in range(20)}
    for key in keys:
        of[rng.randrange(20)].append(key)
    memory = Memory({number: [logs.data(*((key, b"v") for key in some), at=0)] for number, some in of.items()})
    found = stats_of(memory, sample=Sample(partition_count=6), rng=random.Random(5))
    assert len(found.partitions) == 6
    assert found.total is not None
    assert found.total.key_count is not None
    assert found.total.key_count.standard_error > 0
    assert abs(found.total.key_count.value - 4_000) < found.total.key_count.margin


def test_a_corrupt_batch_is_the_failure_of_its_partition_alone() -> None:
    memory = Memory({0: [logs.data((b"k", b"v"), at=0)], 1: [logs.data((b"k", b"v"), at=0)]})

    class Damaged(Memory):
        def stretch(self, log, number, part, **options):  # type: ignore[no-untyped-def]
            made = super().stretch(log, number, part, **options)
            if log.partition == 0:
                base, last, data = made.batches[0]
                object.__setattr__(made, "batches", ((base, last, data[:-1] + b"!"),))
            return made

    found = stats_of(Damaged(memory.batches))
    assert found.partitions[0].failure is not None
    assert found.partitions[1].amounts is not None
    assert found.total is None
