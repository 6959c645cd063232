"""A copy is what its source is, by key; and each way in which it is not is found."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from sexton.records.batch import Batch, Record, make_batch
from sexton.topics.verifying import Verified, verify
from tests import logs
from tests.spark.local_context import LocalContext
from tests.topics.memory import Memory

TARGET = 100
"""Partitions of the target have numbers from here on."""


def verified(
    source: Mapping[int, Sequence[Batch]], target: Mapping[int, Sequence[Batch]], copied_to: int = 1_000
) -> Verified:
    memory = Memory({**source, **{TARGET + number: some for number, some in target.items()}})
    context = LocalContext(random.Random(1)).as_spark
    mine = memory.topic(list(source)).partitions
    others = tuple(
        replace(log, topic="copy") for log in memory.topic([TARGET + number for number in target]).partitions
    )
    limits = dict.fromkeys(source, copied_to)
    return verify(context, mine, limits, others, memory.as_reading, lambda: mine, lambda step, tasks: None)


SOURCE = {0: [logs.data((b"a", b"1"), (b"b", b"2"), at=0)], 1: [logs.data((b"c", b"3"), (b"d", None), at=0)]}
SAME = SOURCE[0][0].records + SOURCE[1][0].records


def copied(*records: Record) -> list[Batch]:
    """One batch of them."""
    return [make_batch([replace(record, offset=index) for index, record in enumerate(records)])]


def test_the_same_records_in_other_partitions_are_the_same() -> None:
    a, b, c, d = SAME
    found = verified(SOURCE, {0: copied(a, d), 1: copied(c), 2: copied(b)})
    assert (found.same_count, found.differing_count, found.changed_count) == (3, 0, 0)


def test_a_tombstone_that_has_gone_in_one_of_them_is_no_difference() -> None:
    a, b, c, _ = SAME
    assert verified(SOURCE, {0: copied(a, b, c)}).is_same


@pytest.mark.parametrize("missing", range(3))
def test_a_key_that_is_missing_is_found(missing: int) -> None:
    rest = [record for index, record in enumerate(SAME) if index != missing]
    found = verified(SOURCE, {0: copied(*rest)})
    assert (found.differing_count, found.extra_count) == (1, 0)


def test_another_value_a_key_too_many_and_a_key_twice_are_found() -> None:
    a, b, c, d = SAME
    assert verified(SOURCE, {0: copied(replace(a, value=b"other"), b, c)}).differing_count == 1
    assert verified(SOURCE, {0: copied(replace(a, timestamp_ms=5), b, c)}).differing_count == 1
    assert verified(SOURCE, {0: copied(a, b, c, replace(a, key=b"e"))}).extra_count == 1
    assert verified(SOURCE, {0: copied(a, b, c, replace(d, value=b"back"))}).differing_count == 1
    assert verified(SOURCE, {0: copied(a, b), 1: copied(a, c)}).differing_count == 1


def test_a_key_that_was_written_to_since_is_counted_apart() -> None:
    a, b, c, _ = SAME
    source = {**SOURCE, 0: [*SOURCE[0], logs.data((b"a", b"later"), at=2)]}
    found = verified(source, {0: copied(a, b, c)}, copied_to=2)
    assert (found.is_same, found.changed_count, found.same_count) == (True, 1, 2)


def test_of_a_key_in_two_partitions_either_may_have_been_copied() -> None:
    twice = {0: [logs.data((b"k", b"old"), at=0)], 1: [logs.data((b"k", b"new"), at=7)]}
    for batch in (twice[0][0], twice[1][0]):
        assert verified(twice, {0: copied(*batch.records)}).is_same
    assert not verified(twice, {0: copied(replace(twice[0][0].records[0], value=b"other"))}).is_same
