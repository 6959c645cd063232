"""Logs for tests: random ones that hold everything a compacted topic can hold, and plain answers to what is in them.

The generator takes a ``random.Random``, so it runs from a seed, or under Hypothesis (``st.randoms()``),
which shrinks it.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from sexton.compaction.reference import compact
from sexton.compaction.rules import LastOfProducer
from sexton.compaction.terms import Terms
from sexton.records import checkpoints, indexes, names, segment_indexes
from sexton.records.batch import Batch, ControlType, Header, Record, decode_all, encode, make_batch, make_marker
from sexton.records.header import CONTROL, DELETE_HORIZON, LOG_APPEND_TIME, TRANSACTIONAL
from sexton.records.kernels.scan import scan_whole

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
RETENTION_MS = 24 * HOUR_MS

KEYS = (b"", b"a", b"seven77", b"eight888", b"k" * 40, b"\x00", b"\x00\x00", *(b"key %d" % i for i in range(40)))


@dataclass
class Log:
    """Segments in order, the last one active. ``clean_below`` is what a cleaner's checkpoint would say, if any."""

    bases: list[int]
    segments: list[list[Batch]]
    clean_below: int | None = None
    aborted: list[tuple[int, int, int, int]] = field(default_factory=list)
    """What the transaction indexes say: producer id, first, last and last stable offset of an aborted transaction."""

    @property
    def batches(self) -> list[Batch]:
        return [batch for segment in self.segments for batch in segment]

    @property
    def end_offset(self) -> int:
        batches = self.batches
        return max(batches[-1].next_offset if batches else 0, self.bases[-1])

    def bounds(self) -> list[int]:
        """Offsets up to which the log may be compacted: not the active segment, nor past the last stable offset."""
        return [base for base in self.bases[1:] if base <= last_stable_offset(self.batches, self.end_offset)]


def data(*records: tuple[bytes | None, bytes | None], at: int, **fields: int) -> Batch:
    """A batch of (key, value) records at consecutive offsets from ``at``, one millisecond apart."""
    made = [Record(at + index, NOW_MS - HOUR_MS + at + index, key, value) for index, (key, value) in enumerate(records)]
    return make_batch(made, **fields)


def in_transaction(*records: tuple[bytes | None, bytes | None], at: int, pid: int, **fields: int) -> Batch:
    defaults = {"producer_epoch": 0, "base_sequence": 0, "attributes": TRANSACTIONAL}
    return data(*records, at=at, producer_id=pid, **{**defaults, **fields})


def commit(at: int, pid: int, epoch: int = 0) -> Batch:
    return make_marker(at, ControlType.COMMIT, pid, epoch, NOW_MS - HOUR_MS + at)


def abort(at: int, pid: int, epoch: int = 0) -> Batch:
    return make_marker(at, ControlType.ABORT, pid, epoch, NOW_MS - HOUR_MS + at)


@dataclass
class _Producer:
    producer_id: int
    is_transactional: bool
    epoch: int = 0
    sequence: int = 0
    is_open: bool = False


@dataclass
class _Writer:
    """Appends like a broker would, and sometimes leaves traces of an earlier cleaning."""

    rng: random.Random
    keys: Sequence[bytes]
    with_traces: bool
    offset: int = 0
    time_ms: int = NOW_MS - 3 * RETENTION_MS
    batches: list[Batch] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.offset = self.rng.choice([0, 0, 7, 2**32])
        ids = self.rng.sample(range(100, 130), 5)
        self.producers = [_Producer(pid, index >= 2) for index, pid in enumerate(ids)]

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def step(self) -> None:
        self.time_ms += self.rng.choice([0, 1, HOUR_MS, 4 * HOUR_MS])
        producer = self.rng.choice([None, *self.producers])
        if producer is not None and producer.is_transactional:
            if (producer.is_open and self.chance(0.5)) or self.chance(0.05):
                self.end_transaction(producer)
            else:
                producer.is_open = True
                self.append_data(producer)
        else:
            self.append_data(producer)
        if self.chance(0.02):
            self.append_other_control()
        if self.chance(0.1):
            self.offset += self.rng.choice([1, 5, 1000])

    def append_data(self, producer: _Producer | None) -> None:
        count = self.rng.choice([1, 1, 2, 3, 6])
        attributes = self.rng.choice([0, 0, 0, 1, 2, 3, 4])
        fields = {}
        if producer is not None:
            fields = {
                "producer_id": producer.producer_id,
                "producer_epoch": producer.epoch,
                "base_sequence": producer.sequence,
            }
            producer.sequence += count
            attributes |= TRANSACTIONAL if producer.is_transactional else 0
        base, last = self.offset, self.offset + count - 1
        self.offset = last + 1
        times = [self.time_ms + self.rng.choice([0, -1, 3, -HOUR_MS]) for _ in range(count)]
        if self.chance(0.2):
            attributes |= LOG_APPEND_TIME
            times = [self.time_ms] * count
        records = [self.record(base + index, times[index]) for index in range(count)]
        if self.with_traces and self.chance(0.2):  # holes, and records gone from either end
            records = [record for record in records if self.chance(0.6)]
        if not records:
            self.batches.append(_empty(base, last, attributes, max(times), fields))
            return
        fields["base_offset"], fields["last_offset"] = base, last
        if attributes & LOG_APPEND_TIME:
            fields["max_timestamp_ms"] = self.time_ms
        if self.with_traces and self.chance(0.4):
            attributes |= DELETE_HORIZON
            fields["base_timestamp_ms"] = self.horizon_ms()
        fields["leader_epoch"] = self.rng.choice([0, 1, 5])
        self.batches.append(make_batch(records, attributes=attributes, **fields))

    def record(self, offset: int, timestamp_ms: int) -> Record:
        key = None if self.chance(0.06) else self.rng.choice(self.keys)
        value = None if self.chance(0.3) else self.rng.choice([b"", b"v", b"value" * 30, str(offset).encode()])
        headers: tuple[Header, ...] = ()
        if self.chance(0.1):
            headers = (Header("h", None), Header("naïve", b"\x00\xff"))
        return Record(offset, timestamp_ms, key, value, headers)

    def append_other_control(self) -> None:
        """A control record that is neither COMMIT nor ABORT, as a Raft log has them."""
        record = Record(self.offset, self.time_ms, b"\x00\x00\x00\x02", b"")
        self.batches.append(make_batch([record], attributes=CONTROL))
        self.offset += 1

    def horizon_ms(self) -> int:
        return NOW_MS + self.rng.choice([-RETENTION_MS, -1, 0, 1, RETENTION_MS])

    def end_transaction(self, producer: _Producer) -> None:
        kind = self.rng.choice([ControlType.COMMIT, ControlType.ABORT])
        bumps_at_marker = self.chance(0.3)  # KIP-890: the marker already carries the new epoch
        epoch = producer.epoch + bumps_at_marker
        if not self.with_traces or self.chance(0.8):
            marker = make_marker(self.offset, kind, producer.producer_id, epoch, self.time_ms, leader_epoch=1)
            if self.with_traces and self.chance(0.6):
                marker = replace(
                    marker, attributes=marker.attributes | DELETE_HORIZON, base_timestamp_ms=self.horizon_ms()
                )
            self.batches.append(marker)
            producer.is_open = False
        elif not producer.is_open:  # what is left of a marker whose producer was alive
            fields = {"producer_id": producer.producer_id, "producer_epoch": epoch}
            self.batches.append(_empty(self.offset, self.offset, TRANSACTIONAL | CONTROL, self.time_ms, fields))
        else:
            return
        self.offset += 1
        if bumps_at_marker or self.chance(0.2):
            producer.epoch, producer.sequence = producer.epoch + 1, 0


def _empty(base: int, last: int, attributes: int, max_timestamp_ms: int, fields: dict[str, int]) -> Batch:
    return Batch(
        base,
        last,
        attributes & (TRANSACTIONAL | CONTROL | LOG_APPEND_TIME),
        max_timestamp_ms=max_timestamp_ms,
        producer_id=fields.get("producer_id", -1),
        producer_epoch=fields.get("producer_epoch", -1),
        base_sequence=fields.get("base_sequence", -1),
        leader_epoch=1,
    )


def random_log(rng: random.Random, step_count: int | None = None) -> Log:
    """A log of several segments: producers of all kinds, interleaved transactions, holes, and perhaps a clean front."""
    steps = rng.choice([3, 10, 30, 60]) if step_count is None else step_count
    writer = _Writer(rng, rng.sample(KEYS, rng.choice([1, 5, 15, len(KEYS)])), with_traces=rng.random() < 0.5)
    for _ in range(steps):
        writer.step()
    if rng.random() < 0.7:
        for producer in writer.producers:
            if producer.is_open and rng.random() < 0.8:
                writer.end_transaction(producer)
    log = _into_segments(rng, writer.batches, writer.offset)
    if rng.random() < 0.4:
        log = _with_clean_front(rng, log)
    return log


def _into_segments(rng: random.Random, batches: Sequence[Batch], end_offset: int) -> Log:
    bases, segments = [batches[0].base_offset], [[batches[0]]]
    roll = rng.choice([0.02, 0.15, 0.5])
    for batch in batches[1:]:
        if rng.random() < roll:
            before = segments[-1][-1].next_offset
            bases.append(rng.choice([batch.base_offset, before]))
            segments.append([])
        segments[-1].append(batch)
    if rng.random() < 0.9:
        bases.append(max(end_offset, segments[-1][-1].next_offset))
        segments.append([])
    return Log(bases, segments, aborted=aborted_entries(batches))


def _with_clean_front(rng: random.Random, log: Log) -> Log:
    """The log after a pass of the reference over its front, cut anywhere a batch starts; some segments end up empty."""
    stable = last_stable_offset(log.batches, log.end_offset)
    cuts = [batch.base_offset for batch in log.batches if batch.base_offset <= stable]
    if not cuts:
        return log
    cut = rng.choice(cuts + [base for base in log.bases if base <= stable])
    terms = random_terms(rng, log, cut)
    cleaned = compact(log.batches, terms, producers_of(log.batches, NOW_MS, RETENTION_MS)).batches
    bases = list(log.bases)
    segments: list[list[Batch]] = [[] for _ in bases]
    for batch in cleaned:
        segments[max(i for i, base in enumerate(bases) if base <= batch.base_offset)].append(batch)
    if rng.random() < 0.5:  # Kafka leaves some cleaned segments empty and deletes others
        kept = [i for i in range(len(bases)) if segments[i] or i == len(bases) - 1]
        bases, segments = [bases[i] for i in kept], [segments[i] for i in kept]
    markers = {batch.last_offset for batch in cleaned if batch.control_type == ControlType.ABORT}
    return Log(bases, segments, cut, [entry for entry in log.aborted if entry[2] in markers])


def random_terms(rng: random.Random, log: Log, bound: int) -> Terms:
    """Alone, independent, or coordinated with MTRO, MXRO and settling anywhere."""
    terms = Terms(NOW_MS, bound, RETENTION_MS)
    kind = rng.choice(["alone", "independent", "coordinated", "coordinated", "all clean"])
    if kind == "independent":
        return terms.independent()
    if kind == "all clean":
        return replace(terms, mtro=bound, mxro=bound, settle_below=bound)
    if kind == "coordinated":
        low = min(log.bases[0], bound)
        mtro, mxro, settle_below = (rng.randint(low, bound) for _ in range(3))
        return replace(terms, mtro=mtro, mxro=mxro, settle_below=settle_below, drop_keyless=rng.random() < 0.2)
    return terms


# --- plain answers ---


def last_stable_offset(batches: Iterable[Batch], high_watermark: int) -> int:
    """Where the earliest transaction begins whose end is not below the high watermark, as Kafka counts."""
    opened: dict[int, int] = {}
    undecided: list[int] = []
    for batch in batches:
        if batch.is_control and batch.control_type != ControlType.UNKNOWN:
            first = opened.pop(batch.producer_id, None)
            if first is not None and batch.last_offset >= high_watermark:
                undecided.append(first)
        elif batch.is_transactional and not batch.is_control:
            opened.setdefault(batch.producer_id, batch.base_offset)
    return min([high_watermark, *undecided, *opened.values()])


def producers_of(batches: Iterable[Batch], now_ms: int, expiration_ms: int) -> list[LastOfProducer]:
    """What Kafka's producer state would hold after replaying the log, without what has expired."""
    state: dict[int, tuple[int, int, int]] = {}  # epoch, last data offset, timestamp
    for batch in batches:
        if batch.producer_id < 0:
            continue
        epoch, last_data, _ = state.get(batch.producer_id, (batch.producer_epoch, -1, -1))
        if batch.producer_epoch != epoch:
            last_data = -1
        if not batch.is_control:
            last_data = batch.last_offset
        state[batch.producer_id] = (batch.producer_epoch, last_data, batch.max_timestamp_ms)
    return [
        LastOfProducer(producer_id, epoch, last_data)
        for producer_id, (epoch, last_data, timestamp_ms) in state.items()
        if now_ms - timestamp_ms < expiration_ms
    ]


def aborted_entries(batches: Sequence[Batch]) -> list[tuple[int, int, int, int]]:
    """The transaction index a broker would have written: producer id, first, last and last stable offset."""
    opened: dict[int, int] = {}
    entries = []
    for batch in batches:
        if batch.is_control and batch.control_type != ControlType.UNKNOWN:
            first = opened.pop(batch.producer_id, None)
            if first is not None and batch.control_type == ControlType.ABORT:
                stable = min([*opened.values(), batch.last_offset + 1])
                entries.append((batch.producer_id, first, batch.last_offset, stable))
        elif batch.is_transactional and not batch.is_control:
            opened.setdefault(batch.producer_id, batch.base_offset)
    return entries


# --- on disk ---


def write_partition(log: Log, directory: Path, *, transaction_indexes: bool = True) -> None:
    """Segments with their indexes, as a stopped broker leaves them, and the cleaner's checkpoint beside."""
    directory.mkdir(parents=True)
    ends = [*log.bases[1:], 2**62]
    for base, end, segment in zip(log.bases, ends, log.segments, strict=True):
        content = b"".join(map(encode_as_broker, segment))
        offset_index, time_index = _indexes(content, base)
        (directory / names.log_file_name(base)).write_bytes(content)
        (directory / names.segment_file_name(base, names.OFFSET_INDEX_SUFFIX)).write_bytes(offset_index)
        (directory / names.segment_file_name(base, names.TIME_INDEX_SUFFIX)).write_bytes(time_index)
        mine = [entry for entry in log.aborted if base <= entry[2] < end]
        if mine and transaction_indexes:
            content = indexes.encode(indexes.make_transaction_entries(*zip(*mine, strict=True)))
            (directory / names.transaction_index_file_name(base)).write_bytes(content)
    if log.clean_below is not None:
        parsed = names.parse_partition_dir(directory.name)
        path = directory.parent / checkpoints.CLEANER_OFFSET_CHECKPOINT
        offsets = checkpoints.read_offset_checkpoint(path)
        checkpoints.write_offset_checkpoint(path, {**offsets, (parsed.topic, parsed.partition): log.clean_below})


def encode_as_broker(batch: Batch) -> bytes:
    """The bytes a broker would have: under LogAppendTime it stamps the header alone, and records keep the deltas that
    their producer wrote, which nobody may look at."""
    if not batch.is_log_append_time:
        return encode(batch)
    misleading = [replace(record, timestamp_ms=record.timestamp_ms + record.offset % 7 - 3) for record in batch.records]
    return encode(replace(batch, records=tuple(misleading)))


def _indexes(content: bytes, base_offset: int) -> tuple[bytes, bytes]:
    array = np.frombuffer(content, dtype=np.uint8)
    table = scan_whole(array, 0, len(array), "a new log", check_crc=True, previous_offset=base_offset - 1)
    return segment_indexes.build(table, base_offset, 4096)


def read_segments(directory: Path) -> dict[int, list[Batch]]:
    """Every live segment of a partition directory, decoded by the reference."""
    files = sorted(directory.glob("*" + names.LOG_SUFFIX))
    return {names.parse_base_offset(path.name): list(decode_all(path.read_bytes(), path.name)) for path in files}


def read_batches(directory: Path) -> list[Batch]:
    return [batch for segment in read_segments(directory).values() for batch in segment]


def contents(directory: Path) -> dict[str, bytes]:
    """Every file of a directory, to see that nothing changed."""
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir()) if path.is_file()}
