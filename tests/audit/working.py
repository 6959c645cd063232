"""Replicas that are written and compacted while they are read: a cluster as an audit's source, in memory.

Between any two things that an audit does, records are written, followers learn of them, and cleaners go over some
replicas, as Kafka's do: what is superseded goes; a tombstone goes with the pass after the one that first met it. There
is no retention of tombstones. One replica may have been away when a key was deleted.
"""

from __future__ import annotations

import itertools
import random
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from sexton.audit.replica import Replica, ReplicaId
from sexton.records.batch import Batch, Record, encode, make_batch
from sexton.spark.stretches import Piece, Stretch

TOPIC = "t"
KEYS_COUNT = 12
PLANTED = b"planted"


_NAMES = itertools.count()
_CLUSTERS: dict[int, WorkingCluster] = {}
"""Tasks are sent what they read as bytes, and this they must not copy."""


@dataclass
class Log:
    """A replica's records by offset, and how far it has come."""

    records: dict[int, Record] = field(default_factory=dict)
    end: int = 0
    high_watermark: int = 0
    """As this broker knows it."""
    clean: int = 0
    start: int = 0

    def delete_below(self, offset: int) -> None:
        """Retention, which each broker carries out by itself, at times of its own."""
        self.start = max(self.start, offset)
        self.records = {at: record for at, record in self.records.items() if at >= self.start}

    def copy_from(self, leader: Log, to: int) -> None:
        for offset in range(self.end, to):
            if offset in leader.records:
                self.records[offset] = leader.records[offset]
        self.end = max(self.end, to)

    def clean_to(self, bound: int) -> None:
        """Up to the bound, and never its last record: that is in the active segment."""
        newest = {record.key: offset for offset, record in sorted(self.records.items()) if offset < bound}
        for offset, record in list(self.records.items()):
            is_old_tombstone = record.value is None and offset < self.clean
            if offset < min(bound, self.end - 1) and (newest[record.key] != offset or is_old_tombstone):
                del self.records[offset]
        self.clean = max(self.clean, bound)


class WorkingCluster:
    """Implements `audit.replica.Source`. Broker 1 leads."""

    def __init__(self, rng: random.Random, *, has_planted: bool) -> None:
        self._rng = rng
        self._logs = {broker: Log() for broker in (1, 2, 3)}
        self._cleans = {broker: rng.random() < 0.7 for broker in self._logs}
        """One whose cleaner is off shows longest what others have dropped."""
        self.is_at_rest = False
        self.topic_id = uuid.uuid4()
        self.name = next(_NAMES)
        _CLUSTERS[self.name] = self
        if has_planted:
            self._plant()
        for _ in range(rng.randrange(30)):
            self.work()

    def _plant(self) -> None:
        """Broker 3 has the value, and was away until the tombstone had gone."""
        self._write(PLANTED, b"value")
        self._logs[3].copy_from(self._logs[1], 1)
        self._write(PLANTED, None)
        self._write(b"k0", b"v")
        for broker in (1, 2):
            self._logs[broker].copy_from(self._logs[1], 3)
            for _ in range(2):
                self._logs[broker].clean_to(2)
        self._logs[3].copy_from(self._logs[1], 3)
        for log in self._logs.values():
            log.high_watermark = 3

    def _write(self, key: bytes, value: bytes | None) -> None:
        leader = self._logs[1]
        leader.records[leader.end] = Record(leader.end, 0, key, value)
        leader.end += 1

    def work(self) -> None:
        rng = self._rng
        if self.is_at_rest:
            for log in self._logs.values():
                log.copy_from(self._logs[1], self._logs[1].end)
                log.high_watermark = log.end
            return
        for _ in range(rng.randrange(8)):
            value = None if rng.random() < 0.4 else b"%d" % rng.randrange(1_000)
            self._write(b"k%d" % rng.randrange(KEYS_COUNT), value)
        for log in self._logs.values():
            if rng.random() < 0.7:
                log.copy_from(self._logs[1], rng.randint(log.end, self._logs[1].end))
        committed = min(log.end for log in self._logs.values())
        for broker, log in self._logs.items():
            known = committed if broker == 1 else rng.randint(log.high_watermark, committed)
            log.high_watermark = max(log.high_watermark, known)
            for _ in range(rng.randrange(3) if self._cleans[broker] else 0):
                log.clean_to(rng.randint(log.clean, log.high_watermark))

    # ---- The source

    def find(self) -> Sequence[Replica]:
        self.work()
        return self.now([ReplicaId(TOPIC, 0, broker) for broker in self._logs])

    def now(self, ids: Sequence[ReplicaId]) -> Sequence[Replica]:
        self.work()
        return [self._replica(each) for each in ids]

    def _replica(self, id: ReplicaId) -> Replica:
        log = self._logs[id.broker]
        return Replica(
            id=id,
            label=f"broker {id.broker}",
            place=str(id.broker),
            topic_id=self.topic_id,
            is_live=True,
            is_leader=id.broker == 1,
            is_in_sync=True,
            leader_epoch=0,
            log_start_offset=log.start,
            high_watermark=log.high_watermark,
            last_stable_offset=log.high_watermark,
            log_end_offset=log.end,
            cut=log.high_watermark,
            barrier=log.high_watermark,
            claims_are_complete=True,
            aborted_below=log.high_watermark,
        )

    def stretches(self, replica: Replica, number: int, from_offset: int, to_offset: int | None) -> Sequence[Stretch]:
        end = replica.high_watermark if to_offset is None else to_offset
        assert end is not None
        cuts = sorted({from_offset, end, *(self._rng.randint(from_offset, end) for _ in range(2))})
        return [_Stretch(number, start, stop, self.name, replica.id.broker) for start, stop in itertools.pairwise(cuts)]

    def read(self, broker: int, start: int, stop: int) -> tuple[bytes, int]:
        """What there is between these offsets, and where the log begins."""
        self.work()
        log = self._logs[broker]
        found = sorted(log.records.items())
        data = b"".join(encode(make_batch([record])) for offset, record in found if start <= offset < stop)
        return data, log.start

    def read_on(self, wanted: Mapping[ReplicaId, int]) -> Sequence[Replica]:
        self.work()
        for log in self._logs.values():
            log.copy_from(self._logs[1], max(wanted.values()))
        for id, offset in wanted.items():
            self._logs[id.broker].high_watermark = max(self._logs[id.broker].high_watermark, offset)
        return [self._replica(each) for each in wanted]

    def look_up(self, replica: Replica, offsets: Sequence[int]) -> Mapping[int, Batch]:
        self.work()
        records = self._logs[replica.id.broker].records
        return {offset: make_batch([records[offset]]) for offset in offsets if offset in records}

    def close(self) -> None:
        del _CLUSTERS[self.name]


@dataclass(frozen=True)
class _Stretch:
    replica: int
    from_offset: int
    to_offset: int
    cluster: int
    broker: int

    @property
    def size_bytes(self) -> int:
        return 100 * (self.to_offset - self.from_offset)

    def pieces(self) -> Iterator[Piece]:
        middle = (self.from_offset + self.to_offset) // 2
        for start, stop in ((self.from_offset, middle), (middle, self.to_offset)):
            data, log_start = _CLUSTERS[self.cluster].read(self.broker, start, stop)
            yield Piece(
                np.frombuffer(data, dtype=np.uint8),
                f"broker {self.broker}",
                high_watermark=self.to_offset,
                log_start_offset=log_start,
            )
