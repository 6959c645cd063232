"""What the judge finds in L1, each with something that looks like it and is right."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from contextlib import nullcontext as no_error
from dataclasses import replace
from typing import Any

import pytest

from sexton.ports.cloud import Extent, Level
from sexton.records.batch import Batch, ControlType, Record, make_batch, make_marker
from sexton.records.header import DELETE_HORIZON, TRANSACTIONAL
from sexton.simulate.errors import SimulationFailure
from sexton.simulate.history import History, Transaction, Write
from sexton.simulate.leveled_checks import LeveledLog, Topic
from tests.adapters.metastore.cloud.world import A
from tests.compactor.cloud.histories import row_of

NOW_MS = 1_750_000_000_000
COMPACTED = Topic(is_compacted=True, delete_retention_ms=0)


def one(offset: int, key: bytes | None, value: bytes | None, **fields: int) -> Batch:
    return make_batch([Record(offset, NOW_MS, key, value)], **fields)


class Log:
    """Of three keys: a@0, a@1, b@2, b deleted @3, and c@4, which is aborted by the marker at 5."""

    def __init__(self) -> None:
        self.log = LeveledLog()
        self.now_ms = NOW_MS
        self.committed = [
            one(0, b"a", b"1"),
            one(1, b"a", b"2"),
            one(2, b"b", b"1"),
            one(3, b"b", None),
            one(4, b"c", b"1", producer_id=7, attributes=TRANSACTIONAL),
            make_marker(5, ControlType.ABORT, 7, 0, NOW_MS),
        ]
        for batch in self.committed:
            self.log.add(batch, NOW_MS)
        self._objects_count = 0

    def batches(self, *offsets: int) -> list[Batch]:
        """Of L1: these are left, and the end."""
        return [*(self.committed[offset] for offset in offsets), end(5)]

    def holds(self, batches: Sequence[Batch], topic: Topic = COMPACTED, *, cleaned_offset: int = 0) -> None:
        self._objects_count += 1
        extent = Extent(0, 6, Level.L1, uuid.UUID(int=self._objects_count), 0, 1, NOW_MS, NOW_MS, len(batches))
        row = row_of(A, end_offset=6, stable_offset=6, leveled_offset=6, cleaned_offset=cleaned_offset)
        self.log.check("t-0", row, [extent], topic, lambda _: batches, self.now_ms)


def end(offset: int) -> Batch:
    return replace(one(offset, b"", b""), records=(), record_count=0)


def told(offset: int, horizon_ms: int) -> Batch:
    return one(offset, b"b", None, attributes=DELETE_HORIZON, base_timestamp_ms=horizon_ms)


RIGHT: dict[str, Callable[[Log], Any]] = {
    "all of it": lambda log: log.holds(log.batches(0, 1, 2, 3), Topic()),
    "what is superseded is gone": lambda log: log.holds(log.batches(1, 3), cleaned_offset=6),
    "duplicates above the cleaned offset": lambda log: log.holds(log.batches(0, 1, 3), cleaned_offset=1),
}
WRONG: dict[str, tuple[str, Callable[[Log], Any]]] = {
    "a record is missing where nothing is compacted": ("rule 1", lambda log: log.holds(log.batches(1, 2, 3), Topic())),
    "the newest of a key is gone": ("rule 3", lambda log: log.holds(log.batches(0, 3))),
    "a tombstone is gone that nobody told of": ("rule 5", lambda log: log.holds(log.batches(1))),
    "an aborted record": ("rule 8", lambda log: log.holds([*log.batches(1, 3)[:-1], one(4, b"c", b"1"), end(5)])),
    "a batch is transactional": ("C7", lambda log: log.holds([one(1, b"a", b"2", attributes=TRANSACTIONAL), end(5)])),
    "a marker": ("C7", lambda log: log.holds([*log.batches(1, 3)[:-1], log.committed[5]])),
    "the end is missing": ("C7", lambda log: log.holds(log.batches(1, 3)[:-1])),
    "another value": ("rule 2", lambda log: log.holds([one(1, b"a", b"3"), end(5)])),
    "a key twice below the cleaned offset": ("rule 4", lambda log: log.holds(log.batches(0, 1, 3), cleaned_offset=2)),
    "batches out of order": ("C5", lambda log: log.holds([log.committed[1], log.committed[0], end(5)])),
    "a horizon that is too near": ("C8", lambda log: log.holds([log.committed[1], told(3, NOW_MS + 5_000), end(5)])),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_may_be_is_not_found(name: str) -> None:
    RIGHT[name](Log())


@pytest.mark.parametrize("name", WRONG)
def test_what_may_not_be_is_found(name: str) -> None:
    rule, happens = WRONG[name]
    with pytest.raises(SimulationFailure) as failure:
        happens(Log())
    assert failure.value.rule == rule


@pytest.mark.parametrize(("later_ms", "rule"), [(5_000, "rule 5"), (40_000, None)])
def test_a_tombstone_goes_when_its_horizon_has_passed(later_ms: int, rule: str | None) -> None:
    log = Log()
    log.holds([log.committed[1], told(3, NOW_MS + 30_000), end(5)])
    log.now_ms += later_ms
    with no_error() if rule is None else pytest.raises(SimulationFailure, match=rule):
        log.holds(log.batches(1))


def test_a_tombstone_stays_for_as_long_as_a_leader_may_use_the_map_of_before() -> None:
    log = Log()
    log.now_ms += 60_000
    log.holds([log.committed[1], told(3, NOW_MS + 30_000), end(5)])
    log.now_ms += 9_999
    with pytest.raises(SimulationFailure, match="C8"):
        log.holds(log.batches(1))


@pytest.mark.parametrize(
    ("fate", "settled_offset", "is_excused"), [(False, 6, True), (True, 6, False), (None, 6, False), (False, 4, False)]
)
def test_only_what_a_marker_has_aborted_below_the_leveled_offset_may_be_gone(
    fate: bool | None, settled_offset: int, is_excused: bool
) -> None:
    place = ("t", 0)
    transaction = Transaction("tx", 1, 1, fates={} if fate is None else {place: fate})
    write = Write("tx", place, -1, True, (b"v",), 0, base_offset=4, transaction=transaction)
    history = History()
    history.settled(place, settled_offset)
    assert history.is_settled(write, 4) is is_excused
    assert not history.is_settled(replace(write, transaction=None), 4)
