"""A log against a plain list, on a disk that loses power at any moment.

What must hold after every restart (docs/rules.md, 1, 2 and 11): the log is a prefix of what it was before, it ends at
or above what a flush had promised, and nothing in it has changed. A truncation that was under way has happened or not;
the log's start is where the last finished step put it, or one that was under way.
"""

from __future__ import annotations

import random
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from sexton.log import opening
from sexton.log.epochs import EpochHistory
from sexton.log.log import Log
from sexton.protocol.errors import KafkaError
from sexton.records.batch import Batch, ControlType, Record, decode_all, encode, make_batch, make_marker
from sexton.records.checkpoints import EpochEntry
from sexton.records.header import TRANSACTIONAL
from sexton.settings.topic import TopicConfig
from sexton.simulate.disk import DiskWeather, VirtualDisk
from sexton.simulate.loop import MS, Process, new_loop
from sexton.types import LeaderEpoch, ProducerId
from tests.log.helpers import NOW_MS, TOPIC_ID, content

DIRECTORY = "/data/orders-0"


@dataclass
class Expectation:
    """What the log may be after a crash: the batches that were appended, and how many of them must be there."""

    batches: list[bytes] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    flushed_offset: int = 0
    start_offsets: set[int] = field(default_factory=lambda: {0})
    end_offset: int = 0
    """Where the log ended when it was last seen: at its last batch's end, or further on where there is nothing."""
    cut_to: int | None = None
    """A truncation that is under way."""
    restarts_at: int | None = None
    """A new beginning that is under way."""
    epochs: list[tuple[EpochEntry, ...]] = field(default_factory=lambda: [()])
    """What the history may be: the last that was finished, or one that is under way."""

    def cut(self, offset: int) -> None:
        """To the last whole batch, or to where nothing is known to lie below."""
        while self.ends and self.ends[-1] > offset:
            self.ends.pop()
            self.batches.pop()


class World:
    """One machine, restarted again and again."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.loop = new_loop(random.Random(seed))
        self.disk = VirtualDisk(random.Random(seed + 1), DiskWeather(hiccup_probability=0.1, hiccup_ns=5 * MS))
        self.config = TopicConfig(
            segment_bytes=self.rng.choice([350, 1000, 5000]), index_interval_bytes=self.rng.choice([0, 200])
        )
        self.expected = Expectation()
        self.sequences: dict[int, int] = {}
        self.ever: set[bytes] = set()
        """All batches that were ever appended."""
        self.epoch = 0
        self.process = Process("broker")

    def run(self, coroutine: Coroutine[Any, Any, Any], kill_after_ns: int | None = None) -> bool:
        """As the broker. True if it came to its end before the power went."""
        done = self.loop.create_future()
        task = self.loop.spawn(self.process, coroutine)

        def end(is_finished: bool) -> None:
            if not done.done():
                done.set_result(is_finished)

        task.add_done_callback(lambda _: end(True), context=self.loop.world.context)
        if kill_after_ns is not None:
            self.loop.call_for(self.loop.world, kill_after_ns, end, False)
        finished = bool(self.loop.run_until_complete(done))
        if finished:
            task.result()
        return finished

    def crash(self, power_lost: bool) -> None:
        self.loop.kill(self.process)
        self.disk.process_killed(power_lost)

    async def open(self, is_clean: bool) -> None:
        disk = self.disk.of(self.process, self.loop)
        disk.make_directory("/data")
        await disk.flush_directory("/")
        self.log = await opening.open_log(
            disk, DIRECTORY, "orders", 0, TOPIC_ID, self.config, now_ms=NOW_MS, stopped_cleanly=is_clean
        )

    def restart(self, is_clean: bool) -> None:
        self.process = Process("broker", started_ns=self.loop.now_ns)
        while not self.run(self.open(is_clean), kill_after_ns=self.rng.choice([None, self.rng.randrange(20 * MS)])):
            self.crash(power_lost=self.rng.random() < 0.7)
            self.process = Process("broker", started_ns=self.loop.now_ns)
            is_clean = False
        self.check()

    # What it does

    def batch(self) -> tuple[bytes, bool]:
        """As a client sends it, or a coordinator."""
        pid = self.rng.choice([-1, 1, 2])
        sequence = self.sequences.get(pid, 0)
        if pid == 2 and self.rng.random() < 0.4:
            kind = self.rng.choice([ControlType.ABORT, ControlType.COMMIT])
            return encode(make_marker(0, kind, pid, 0, NOW_MS, leader_epoch=-1)), False
        count = self.rng.choice([1, 1, 3])
        made = [Record(index, NOW_MS, b"k", self.rng.randbytes(self.rng.choice([5, 80]))) for index in range(count)]
        fields = {"producer_id": pid, "producer_epoch": 0, "base_sequence": sequence} if pid > 0 else {}
        attributes = TRANSACTIONAL if pid == 2 else 0
        return encode(make_batch(made, leader_epoch=-1, attributes=attributes, **fields)), True

    def append(self) -> None:
        batch, from_client = self.batch()
        appended = self.log.append_as_leader(batch, self.log.epochs.latest_epoch, NOW_MS, from_client=from_client)
        self.note(appended.last_offset + 1)

    def note(self, end_offset: int) -> None:
        data = content(self.log.read(self.expected.end_offset, 1 << 20, end_offset, min_one=True).parts)
        (made,) = decode_all(data)
        assert made.base_offset >= self.expected.end_offset
        assert made.next_offset == end_offset
        self.expected.batches.append(data)
        self.ever.add(data)
        self.expected.ends.append(end_offset)
        self.expected.end_offset = end_offset
        if made.producer_id > 0 and not made.is_control:
            self.sequences[made.producer_id] = made.base_sequence + made.record_count

    def copy(self) -> None:
        """As a follower: several batches in one write, perhaps with gaps."""
        offset, parts, ends = self.log.end_offset, [], []
        for _ in range(self.rng.choice([1, 2, 5])):
            offset += self.rng.choice([0, 0, 7])
            records = [Record(offset, NOW_MS, b"k", self.rng.randbytes(self.rng.choice([5, 150])))]
            made = make_batch(records, leader_epoch=self.log.epochs.epoch_of(offset))
            parts.append(encode(made))
            ends.append(made.next_offset)
            offset = made.next_offset
        self.log.append_as_follower(b"".join(parts))
        self.expected.batches += parts
        self.ever.update(parts)
        self.expected.ends += ends
        self.expected.end_offset = self.log.end_offset

    async def flush(self) -> None:
        end_offset = self.log.end_offset
        await self.log.flush()
        self.expected.flushed_offset = max(self.expected.flushed_offset, end_offset)
        assert self.log.flushed_offset >= end_offset

    async def truncate(self) -> None:
        offset = self.rng.randrange(self.log.start_offset, self.log.end_offset + 1)
        self.expected.cut_to = offset
        self.expected.epochs.append(tuple(one for one in self.expected.epochs[0] if one.start_offset < offset))
        await self.log.truncate_to(offset)
        self.expected.cut(offset)
        self.expected.cut_to = None
        self.expected.epochs = [self.log.epochs.entries]
        self.sequences = {one.producer_id: one.last_sequence + 1 for one in self.log.producers}
        assert max(self.expected.ends, default=0) <= self.log.end_offset <= offset
        self.expected.end_offset = self.log.end_offset
        self.expected.flushed_offset = min(self.expected.flushed_offset, self.log.end_offset)

    async def advance(self) -> None:
        offset = self.rng.randrange(self.log.start_offset, self.log.end_offset + 1)
        self.expected.start_offsets.add(offset)
        history = EpochHistory(self.log.epochs.entries)
        history.cut_start(offset)
        self.expected.epochs.append(history.entries)
        await self.log.advance_start(offset)
        self.expected.start_offsets = {self.log.start_offset}
        self.expected.epochs = [self.log.epochs.entries]
        assert self.log.end_offset == self.expected.end_offset

    async def start_over(self) -> None:
        """A replica that is wiped. Until that is done, anything may be left of the old log; then it is empty."""
        offset = self.rng.choice([self.log.end_offset + 5, self.log.start_offset // 2])
        self.expected.restarts_at = offset
        await self.log.restart_at(offset)
        assert self.log.start_offset == self.log.end_offset == self.log.flushed_offset == offset
        self.expected = Expectation(start_offsets={offset}, end_offset=offset, flushed_offset=offset)
        self.sequences.clear()
        await self.begin_epoch()

    async def begin_epoch(self) -> None:
        self.epoch += 1
        self.expected.epochs.append(
            (
                *[one for one in self.log.epochs.entries if one.start_offset < self.log.end_offset],
                EpochEntry(LeaderEpoch(self.epoch), self.log.end_offset),
            )
        )
        await self.log.begin_epoch(LeaderEpoch(self.epoch))
        self.expected.epochs = [self.log.epochs.entries]

    async def work(self, step_count: int) -> None:
        if not self.log.epochs.entries:
            await self.begin_epoch()  # as every leader does before it appends
        for _ in range(step_count):
            step = self.rng.random()
            if step < 0.45:
                self.append()
            elif step < 0.6:
                self.copy()
            elif step < 0.85:
                await self.flush()
            elif step < 0.9:
                await self.truncate()
            elif step < 0.95:
                await self.advance()
            elif step < 0.96:
                await self.start_over()
            else:
                await self.begin_epoch()

    async def close(self) -> None:
        end_offset = self.log.end_offset
        await self.log.close()
        self.expected.flushed_offset = end_offset

    # What must hold

    def check(self) -> None:
        expected, log = self.expected, self.log
        if expected.restarts_at is not None:
            self.check_wiped(expected.restarts_at)
            return
        if expected.cut_to is not None:
            expected.flushed_offset = min(expected.flushed_offset, expected.cut_to)
        assert log.end_offset <= expected.end_offset, "nothing that was not sent"
        assert log.flushed_offset == log.end_offset
        kept = [end for end in expected.ends if end <= log.end_offset]
        assert kept[-1:] >= [end for end in expected.ends if end <= expected.flushed_offset][-1:], "rule 1"
        expected.batches, expected.ends = expected.batches[: len(kept)], kept
        assert log.start_offset in expected.start_offsets
        found = b"".join(encode_read(log))
        whole = b"".join(
            batch for batch, end in zip(expected.batches, expected.ends, strict=True) if end > log.start_offset
        )
        assert found == whole, "byte for byte"
        self.check_producers()
        histories = {self._reachable(one, log.end_offset) for one in expected.epochs}
        assert log.epochs.entries in histories
        expected.flushed_offset = expected.end_offset = log.end_offset
        expected.start_offsets = {log.start_offset}
        expected.epochs = [log.epochs.entries]
        expected.cut_to = None
        self.epoch = max(self.epoch, log.epochs.latest_epoch)
        self.sequences = {one.producer_id: one.last_sequence + 1 for one in log.producers}

    def check_wiped(self, offset: int) -> None:
        """Part of what was there, perhaps below the old start, or nothing; either way a log that goes on."""
        found = encode_read(self.log)
        assert all(one in self.ever for data in found for one in split(data))
        ends = [batch.next_offset for data in found for batch in decode_all(data)]
        assert self.log.end_offset <= max(self.expected.end_offset, offset)
        self.expected = Expectation(
            [one for data in found for one in split(data)],
            ends,
            self.log.end_offset,
            {self.log.start_offset},
            self.log.end_offset,
            epochs=[self.log.epochs.entries],
        )
        self.epoch = max(self.epoch, self.log.epochs.latest_epoch)
        self.sequences = {one.producer_id: one.last_sequence + 1 for one in self.log.producers}

    def _reachable(self, history: tuple[EpochEntry, ...], end_offset: int) -> tuple[EpochEntry, ...]:
        return tuple(entry for entry in history if entry.start_offset <= end_offset)

    def check_producers(self) -> None:
        """Sequences are those of the last batch of each producer in the log, if it is still there."""
        last: dict[int, Batch] = {}
        for data in self.expected.batches:
            (made,) = decode_all(data)
            if made.producer_id > 0 and not made.is_control:
                last[made.producer_id] = made
        for producer_id, made in last.items():
            producer = self.log.producers.get(ProducerId(producer_id))
            assert producer is not None
            assert producer.last_sequence == made.base_sequence + made.record_count - 1


def encode_read(log: Log) -> list[bytes]:
    parts: list[bytes] = []
    offset = log.start_offset
    while offset < log.end_offset:
        read = log.read(offset, 4096, log.end_offset, min_one=True)
        parts.append(content(read.parts))
        offset = read.next_offset
    return parts


def split(data: bytes) -> list[bytes]:
    parts = []
    while data:
        size = 12 + int.from_bytes(data[8:12], "big")
        parts.append(data[:size])
        data = data[size:]
    return parts


def live(seed: int, rounds: int) -> None:
    world = World(seed)
    world.restart(is_clean=False)
    for _ in range(rounds):
        try:
            finished = world.run(world.work(world.rng.choice([3, 10, 40])), world.rng.choice([None, 3 * MS, 30 * MS]))
            if finished and world.rng.random() < 0.3 and world.run(world.close(), world.rng.choice([None, MS])):
                world.crash(power_lost=world.rng.random() < 0.5)
                world.restart(is_clean=True)
                continue
        except KafkaError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        world.crash(power_lost=world.rng.random() < 0.8)
        world.restart(is_clean=False)
    world.loop.close()


@pytest.mark.parametrize("seed", range(60))
def test_a_crash_at_any_moment_loses_nothing_that_was_flushed(seed: int) -> None:
    live(seed, rounds=12)


STEPS = ("append", "copy", "flush", "truncate", "advance", "start_over", "begin_epoch")


class Lives(RuleBasedStateMachine):
    """The same step by step, so that what fails shrinks to the steps that it takes."""

    @initialize(seed=st.integers(0, 1000))
    def begin(self, seed: int) -> None:
        self.world = World(seed)
        self.world.restart(is_clean=False)
        self.world.run(self.world.begin_epoch())

    @rule(step=st.sampled_from(STEPS))
    def do(self, step: str) -> None:
        self.world.run(self.step(step))

    @rule(step=st.sampled_from(STEPS), after_ns=st.integers(0, 10 * MS), power_lost=st.booleans())
    def crash_in(self, step: str, after_ns: int, power_lost: bool) -> None:
        self.world.run(self.step(step), kill_after_ns=after_ns)
        self.world.crash(power_lost)
        self.world.restart(is_clean=False)

    @rule(after_ns=st.none() | st.integers(0, 10 * MS), power_lost=st.booleans())
    def close(self, after_ns: int | None, power_lost: bool) -> None:
        finished = self.world.run(self.world.close(), kill_after_ns=after_ns)
        self.world.crash(power_lost)
        self.world.restart(is_clean=finished)

    async def step(self, name: str) -> None:
        done = getattr(self.world, name)()
        if done is not None:
            await done

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.loop.close()


TestLives = Lives.TestCase
TestLives.settings = settings(max_examples=60, stateful_step_count=30)
