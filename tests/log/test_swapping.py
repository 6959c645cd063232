"""Segments are replaced while the log serves: a crash, a full disk or a wrong result at any step costs nothing."""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from sexton.compaction import acceptance
from sexton.compaction.acceptance import SwapTerms
from sexton.compaction.contract import NewSegment, Plan
from sexton.compaction.reference import fold_by_key
from sexton.compaction.rules import LastOfProducer
from sexton.compaction.swap import SwapRefusedError
from sexton.compaction.terms import Terms
from sexton.compactor.engines.reference import carry_out
from sexton.log import opening
from sexton.log.log import Log
from sexton.log.segment import Segment
from sexton.log.swap_disk import staging_path
from sexton.log.types import TimedOffset
from sexton.log.validation import HEAD_BYTES, TURN_BYTES, validate
from sexton.ports.disk import FileSlice
from sexton.protocol.errors import KafkaError
from sexton.records import names
from sexton.records.batch import Batch, ControlType, Record, decode_all, encode, make_batch, make_marker
from sexton.records.header import TRANSACTIONAL
from sexton.settings.topic import TopicConfig
from sexton.simulate.disk import DiskWeather, VirtualDisk
from sexton.simulate.loop import Process, new_loop
from sexton.types import NO_OFFSET
from tests.log.helpers import EPOCH, NOW_MS, TOPIC_ID, content
from tests.log.stepping import SteppingDisk

DIRECTORY = "/data/orders-0"
LATER_MS = NOW_MS + 1000


class Crash(BaseException):
    """The process is gone."""


class Machine:
    """A log on a simulated disk, which may be stopped before any step and opened again."""

    def __init__(self, seed: int = 1, config: TopicConfig | None = None) -> None:
        self.config = config or TopicConfig(
            cleanup_policy=frozenset({"compact"}), segment_bytes=600, index_interval_bytes=100
        )
        self.loop = new_loop(random.Random(seed))
        self.volume = VirtualDisk(random.Random(seed + 1), DiskWeather())
        self.process = Process("broker")
        self.steps: list[str] = []
        self.stop_at: int | None = None
        self.failure: Callable[[], BaseException] = Crash
        self.log: Log

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        done = self.loop.create_future()
        task = self.loop.spawn(self.process, work)

        def end(_: object) -> None:
            if not done.done():
                done.set_result(None)

        task.add_done_callback(end, context=self.loop.world.context)
        try:
            self.loop.run_until_complete(done)
        except Crash:
            task.cancel()
            raise
        return task.result()

    def _step(self, what: str) -> None:
        if self.stop_at is not None and len(self.steps) == self.stop_at:
            self.stop_at = None
            raise self.failure()
        self.steps.append(what)

    def open(self, *, is_clean: bool = False) -> Log:
        self.disk = SteppingDisk(self.volume.of(self.process, self.loop), self._step)

        async def opened() -> Log:
            self.disk.make_directory("/data")
            await self.disk.flush_directory("/")
            return await opening.open_log(
                self.disk, DIRECTORY, "orders", 0, TOPIC_ID, self.config, now_ms=NOW_MS, stopped_cleanly=is_clean
            )

        self.log = self.run(opened())
        return self.log

    def crash(self, *, power_lost: bool) -> None:
        self.loop.kill(self.process)
        self.volume.process_killed(power_lost)
        self.process = Process("broker", started_ns=self.loop.now_ns)
        self.stop_at = None

    # What is in it

    def fill(self, rng: random.Random, batches_count: int = 40) -> None:
        """Updates and deletes of a few keys, by plain, idempotent and transactional producers."""
        sequences: dict[int, int] = {one.producer_id: one.last_sequence + 1 for one in self.log.producers}
        for _ in range(batches_count):
            pid = rng.choice([-1, -1, 5, 6, 7])
            if pid > 5 and rng.random() < 0.5 and pid in sequences:
                kind = rng.choice([ControlType.COMMIT, ControlType.ABORT])
                self.lead(encode(make_marker(0, kind, pid, 0, NOW_MS, leader_epoch=-1)), from_client=False)
                continue
            made = [
                Record(index, NOW_MS, b"key %d" % rng.randrange(6), rng.choice([None, b"v%d" % rng.randrange(99)]))
                for index in range(rng.choice([1, 2, 4]))
            ]
            fields = {}
            if pid > 0:
                fields = {"producer_id": pid, "producer_epoch": 0, "base_sequence": sequences.get(pid, 0)}
                sequences[pid] = sequences.get(pid, 0) + len(made)
            self.lead(encode(make_batch(made, leader_epoch=-1, attributes=TRANSACTIONAL if pid > 5 else 0, **fields)))
        for pid in (6, 7):
            self.lead(encode(make_marker(0, ControlType.COMMIT, pid, 0, NOW_MS, leader_epoch=-1)), from_client=False)

    def lead(self, batch: bytes, *, from_client: bool = True) -> None:
        self.log.append_as_leader(batch, EPOCH, NOW_MS, from_client=from_client)

    def batches(self) -> list[Batch]:
        log, offset = self.log, self.log.start_offset
        found: list[Batch] = []
        while offset < log.end_offset:
            read = log.read(offset, 500, log.end_offset, min_one=True)
            found += decode_all(content(read.parts))
            offset = read.next_offset
        return found

    def fold(self) -> dict[bytes, tuple[int, bytes | None]]:
        return {key: (record.offset, record.value) for key, record in fold_by_key(self.batches()).items()}

    def read_committed(self) -> dict[bytes, tuple[int, bytes | None]]:
        """As a consumer does it: by the list of aborted transactions."""
        log = self.log
        fold: dict[bytes, tuple[int, bytes | None]] = {}
        aborted = log.aborted_transactions(log.start_offset, log.end_offset)
        hidden: set[int] = set()
        for batch in self.batches():
            starts = [one for one in aborted if one.first_offset <= batch.last_offset]
            hidden.update(one.producer_id for one in starts)
            aborted = [one for one in aborted if one not in starts]
            if batch.is_control:
                if batch.control_type is ControlType.ABORT:
                    hidden.discard(batch.producer_id)
            elif not (batch.is_transactional and batch.producer_id in hidden):
                for record in batch.records:
                    assert record.key is not None
                    fold.pop(record.key, None)
                    if record.value is not None:
                        fold[record.key] = (record.offset, record.value)
        return fold

    # Compaction

    def bound(self) -> int:
        return self.log.segments.active.base_offset

    def terms(self, *, removal: int = 0) -> Terms:
        bound = self.bound()
        return Terms(LATER_MS, bound, 0, mtro=removal, mxro=removal, settle_below=bound)

    def stage(self, terms: Terms, staging_id: str = "a") -> list[NewSegment]:
        return self.compacted(terms, tuple(self.log.producers.last_batches().values()), staging_id)

    def compacted(self, terms: Terms, producers: tuple[LastOfProducer, ...], staging_id: str = "a") -> list[NewSegment]:
        plan = Plan(
            plan_id="",
            broker_id=0,
            topic="orders",
            topic_id=str(TOPIC_ID),
            partition=0,
            incarnation="",
            generation=0,
            directory=DIRECTORY,
            staging=staging_path(DIRECTORY, staging_id),
            segments=self.log.segments.sizes_below(self.log.end_offset),
            bound=terms.bound,
            first_dirty_offset=0,
            high_watermark=self.log.end_offset,
            now_ms=terms.now_ms,
            delete_retention_ms=terms.delete_retention_ms,
            mtro=terms.mtro,
            mxro=terms.mxro,
            settle_below=terms.settle_below,
            is_independent=False,
            segment_bytes=2 * self.config.segment_bytes,
            index_interval_bytes=self.config.index_interval_bytes,
            producers=producers,
        )
        return list(carry_out(self.disk, plan).segments)

    async def swap(self, replacements: Sequence[NewSegment], terms: Terms, staging_id: str = "a") -> None:
        await self.log.swap(
            self.log.segments.closed(terms.bound),
            staging_path(DIRECTORY, staging_id),
            replacements,
            SwapTerms(terms.bound, terms.mxro),
        )

    async def compact(self, *, removal: int = 0) -> None:
        terms = self.terms(removal=removal)
        await self.swap(self.stage(terms), terms)


def filled(seed: int = 1, **options: Any) -> Machine:
    machine = Machine(seed, **options)
    machine.open()
    machine.run(machine.log.begin_epoch(EPOCH))
    machine.fill(random.Random(seed))
    machine.run(machine.log.flush())
    return machine


def files(machine: Machine) -> list[str]:
    return [name for name in machine.disk.list(DIRECTORY) if name[0].isdigit()]


@pytest.mark.parametrize("seed", range(30))
def test_a_swap_changes_what_lies_in_the_log_and_not_what_it_says(seed: int) -> None:
    machine = filled(seed)
    before, end_offset = machine.fold(), machine.log.end_offset
    size_bytes, epochs = machine.log.size_bytes, machine.log.epochs.entries
    assert machine.read_committed() == before
    machine.run(machine.compact())
    machine.run(machine.compact(removal=machine.bound()))
    machine.run(machine.compact(removal=machine.bound()))
    assert machine.fold() == machine.read_committed() == before
    assert machine.log.size_bytes < size_bytes
    assert machine.log.end_offset == end_offset
    below = [batch for batch in machine.batches() if batch.base_offset < machine.bound()]
    assert not any(batch.is_transactional and not batch.is_control for batch in below), "MXFO"
    producers = {one.producer_id: one.last_sequence for one in machine.log.producers}
    for is_clean in (False, True):
        if is_clean:
            machine.run(machine.log.close())
        machine.crash(power_lost=True)
        machine.open(is_clean=is_clean)
        assert machine.fold() == machine.read_committed() == before
        assert machine.log.end_offset == end_offset
        assert machine.log.epochs.entries == epochs
        assert {one.producer_id: one.last_sequence for one in machine.log.producers} == producers
        assert all(one.transaction_start == NO_OFFSET for one in machine.log.producers)


def test_nothing_but_the_log_is_left_and_snapshots_below_the_bound_are_gone() -> None:
    machine = filled()
    machine.run(machine.compact())
    parsed = [names.parse_segment_file(name) for name in files(machine)]
    assert all(one is not None and not one.state for one in parsed)
    snapshots = [one.base_offset for one in parsed if one is not None and one.kind == names.PRODUCER_SNAPSHOT_SUFFIX]
    assert snapshots
    assert min(snapshots) >= machine.bound()


def test_the_newest_timestamp_is_of_a_record_that_is_there() -> None:
    """An emptied batch keeps its timestamp: the segment's last batch, with a superseded record from the future."""
    machine = Machine(1)
    machine.open()
    machine.run(machine.log.begin_epoch(EPOCH))
    for timestamp_ms in (NOW_MS + 5000, NOW_MS, NOW_MS - 1):
        machine.lead(encode(make_batch([Record(0, timestamp_ms, b"key", b"value")], leader_epoch=-1)))
        machine.log.close_active(NOW_MS)
    assert machine.log.offset_of_max_timestamp(3) == TimedOffset(NOW_MS + 5000, 0, EPOCH)
    machine.lead(encode(make_batch([Record(0, NOW_MS - 2, b"other", b"value")], leader_epoch=-1)))
    machine.run(machine.log.flush())
    machine.run(machine.compact())
    assert [batch.record_count for batch in machine.batches()] == [0, 0, 1, 1]
    assert machine.log.offset_of_max_timestamp(4) == TimedOffset(NOW_MS - 1, 2, EPOCH)


def test_a_reader_that_holds_an_old_segment_keeps_reading_it() -> None:
    config = TopicConfig(cleanup_policy=frozenset({"compact"}), segment_bytes=100_000, max_message_bytes=90_000)
    machine = Machine(1, config)
    machine.open()
    for index in range(6):
        machine.lead(encode(make_batch([Record(0, NOW_MS, b"k", bytes([index]) * 40_000)], leader_epoch=-1)))
    read = machine.log.read(0, 100_000, machine.log.end_offset, min_one=True)
    assert any(isinstance(part, FileSlice) for part in read.parts)
    before = content(read.parts)
    machine.run(machine.compact())
    assert content(read.parts) == before
    (first, *_) = machine.batches()
    assert first.base_offset > 0


def test_reads_and_appends_go_on_at_every_step() -> None:
    machine = filled(3)
    before = machine.read_committed()
    looks = 0

    def look(what: str) -> None:
        nonlocal looks, before
        if machine.volume.find(DIRECTORY) is not None and looks < 200:
            looks += 1
            machine.disk.on_step = lambda what: None
            for segment in machine.log.segments.all[:-1]:
                if all(sealed.segment is not segment for sealed in machine.log.segments.sealed):
                    segment.release()  # what is not pinned is opened by name again
            assert machine.read_committed() == before, what
            machine.lead(encode(make_batch([Record(0, NOW_MS, b"extra %d" % looks, b"v")], leader_epoch=-1)))
            before = machine.read_committed()
            machine.disk.on_step = look

    machine.disk.on_step = look
    machine.run(machine.compact())
    assert looks > 50
    machine.disk.on_step = lambda what: None
    machine.run(machine.log.flush())
    machine.crash(power_lost=True)
    machine.open()
    assert machine.read_committed() == before


def test_a_flush_does_not_wait_for_a_swap() -> None:
    machine = filled(3)
    terms = machine.terms()
    replacements = machine.stage(terms)

    async def both() -> list[str]:
        order: list[str] = []

        async def noted(name: str, work: Awaitable[Any]) -> None:
            await work
            order.append(name)

        swap = asyncio.ensure_future(noted("swap", machine.swap(replacements, terms)))
        await asyncio.sleep(0)
        machine.lead(encode(make_batch([Record(0, NOW_MS, b"k", b"v")], leader_epoch=-1)))
        await noted("flush", machine.log.flush())
        await swap
        return order

    assert machine.run(both()) == ["flush", "swap"]


def test_a_log_of_which_nearly_all_goes_is_judged_in_turns() -> None:
    """Not in one, during which clients of all other partitions would wait."""
    machine = Machine(1, TopicConfig(cleanup_policy=frozenset({"compact"})))
    machine.open()
    for _ in range(3_000):
        machine.lead(encode(make_batch([Record(0, NOW_MS, b"k", b"v")], leader_epoch=-1)))
    machine.log.close_active(NOW_MS)
    machine.lead(encode(make_batch([Record(0, NOW_MS, b"k", b"v")], leader_epoch=-1)))
    machine.run(machine.log.flush())
    terms = machine.terms()
    (new,) = machine.stage(terms)
    old = machine.log.segments.closed(terms.bound).segments
    staging = staging_path(DIRECTORY, "a")
    staged = machine.disk.open(f"{staging}/{names.log_file_name(new.base_offset, names.CLEANED_SUFFIX)}")
    target = Segment(machine.disk, DIRECTORY, new.base_offset, machine.config, 0)
    asked = SwapTerms(terms.bound, terms.mxro)
    validating = validate("orders-0", new, asked, machine.log.producers, machine.log.epochs, old, staged, target)
    turns = 1 + sum(1 for _ in validating.__await__())
    assert turns > 3_000 * HEAD_BYTES // TURN_BYTES


def test_logs_that_share_an_event_loop_are_judged_one_after_another() -> None:
    machine = filled(3)
    terms = machine.terms()
    replacements, staging = machine.stage(terms), staging_path(DIRECTORY, "a")

    async def swap() -> None:
        validating, before = asyncio.Lock(), machine.disk.list(staging)
        async with validating:  # as another log does that is being judged
            closed = machine.log.segments.closed(terms.bound)
            swap_terms = SwapTerms(terms.bound, terms.mxro)
            swapping = machine.log.swap(closed, staging, replacements, swap_terms, validating=validating)
            swap = asyncio.ensure_future(swapping)
            await asyncio.sleep(1)
            assert machine.disk.list(staging) == before
            assert not swap.done()
        assert (await swap).bytes_after < (await swap).bytes_before
        assert not validating.locked()

    machine.run(swap())


# --- crashes ---


def steps_of_a_swap(seed: int) -> int:
    machine = filled(seed)
    machine.steps.clear()
    machine.run(machine.compact(removal=machine.bound()))
    return len(machine.steps)


def interrupted(seed: int, failure: Callable[[], BaseException]) -> Iterator[tuple[Machine, dict[Any, Any]]]:
    """The machine after its swap was stopped before each step."""
    for stop_at in range(steps_of_a_swap(seed)):
        machine = filled(seed)
        before = machine.fold()
        machine.steps.clear()
        machine.stop_at, machine.failure = stop_at, failure
        with pytest.raises((Crash, KafkaError, OSError)):
            machine.run(machine.compact(removal=machine.bound()))
        assert len(machine.steps) >= stop_at
        yield machine, before


@pytest.mark.parametrize("power_lost", [False, True])
@pytest.mark.parametrize("seed", [1, 2])
def test_after_a_crash_at_any_step_the_log_says_the_same(seed: int, power_lost: bool) -> None:
    for machine, before in interrupted(seed, Crash):
        end_offset = machine.log.end_offset
        producers = {one.producer_id: one.last_sequence for one in machine.log.producers}
        machine.crash(power_lost=power_lost)
        machine.open()
        assert machine.fold() == machine.read_committed() == before
        assert machine.log.end_offset == end_offset
        assert {one.producer_id: one.last_sequence for one in machine.log.producers} == producers
        assert all(one.transaction_start == NO_OFFSET for one in machine.log.producers)
        assert not [name for name in machine.disk.list(DIRECTORY) if name.endswith((".cleaned", ".swap", ".deleted"))]
        assert not [name for name in machine.disk.list(DIRECTORY) if name.startswith("staged")]
        machine.run(machine.compact(removal=machine.bound()))
        assert machine.fold() == before


def test_a_recovery_may_crash_too() -> None:
    for stop_at in range(0, steps_of_a_swap(1), 3):
        for second_stop in range(40):
            machine = filled(1)
            before = machine.fold()
            machine.steps.clear()
            machine.stop_at = stop_at
            with pytest.raises(Crash):
                machine.run(machine.compact(removal=machine.bound()))
            machine.crash(power_lost=second_stop % 2 == 0)
            machine.steps.clear()
            machine.stop_at = second_stop
            try:
                machine.open()
            except Crash:
                machine.crash(power_lost=second_stop % 3 == 0)
                machine.open()
            else:
                machine.stop_at = None
                assert machine.fold() == before
                break
            assert machine.fold() == machine.read_committed() == before


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_is_full_or_fails_at_any_step_leaves_a_log_that_says_the_same(number: int) -> None:
    def failure() -> OSError:
        return OSError(number, os.strerror(number))

    for machine, before in interrupted(1, failure):
        assert machine.fold() == machine.read_committed() == before
        if number == errno.ENOSPC:
            assert machine.log.failure is None
            machine.disk.remove_tree(staging_path(DIRECTORY, "a"))
            machine.lead(encode(make_batch([Record(0, NOW_MS, b"key 1", b"new")], leader_epoch=-1)))
            machine.run(machine.log.flush())
            before = machine.fold()
            machine.run(machine.compact(removal=machine.bound()))
            assert machine.fold() == before
        machine.crash(power_lost=False)
        machine.open()
        assert machine.fold() == machine.read_committed() == before


# --- what is refused ---


def staged_batches(machine: Machine, base_offset: int, staging_id: str = "a") -> list[Batch]:
    path = f"{staging_path(DIRECTORY, staging_id)}/{names.log_file_name(base_offset, names.CLEANED_SUFFIX)}"
    return list(decode_all(machine.disk.read_file(path)))


def restage(machine: Machine, base_offset: int, data: bytes) -> None:
    path = f"{staging_path(DIRECTORY, 'a')}/{names.log_file_name(base_offset, names.CLEANED_SUFFIX)}"
    machine.disk.remove(path)
    file = machine.disk.open(path, create=True)
    file.append([data])
    file.close()


def check_refused(machine: Machine, replacements: Sequence[NewSegment], terms: Terms, why: str | None = None) -> None:
    before, known = machine.batches(), files(machine)
    with pytest.raises(SwapRefusedError, match=why):
        machine.run(machine.swap(replacements, terms))
    assert machine.batches() == before
    assert files(machine) == known
    assert machine.log.failure is None


Spoil = Callable[[list[Batch]], list[Batch]]

SPOILED: dict[str, tuple[Spoil, str]] = {
    "the last batch is missing": (lambda kept: kept[:-1], "the last batch is missing"),
    "nothing is left": (lambda kept: [], "the last batch is missing"),
    "a batch comes twice": (lambda kept: [kept[0], *kept], "comes after"),
    "the order is wrong": (lambda kept: [kept[1], kept[0], *kept[2:]], "comes after|there was no batch|is gone"),
    "a batch from elsewhere": (
        lambda kept: [*kept[:-1], replace(kept[-1], base_offset=kept[-1].base_offset + 1)],
        "there was no batch|not what was left",
    ),
    "more records than before": (
        lambda kept: [_grown(kept[0]), *kept[1:]],
        "not what was left",
    ),
    "another producer": (lambda kept: [replace(kept[0], producer_id=99), *kept[1:]], "not what was left"),
    "another leader epoch": (lambda kept: [replace(kept[0], leader_epoch=99), *kept[1:]], "names leader epoch 99"),
    "another sequence": (lambda kept: [replace(kept[0], base_sequence=99), *kept[1:]], "not what was left"),
}


def _grown(batch: Batch) -> Batch:
    records = tuple(Record(batch.base_offset, NOW_MS, b"k", b"v") for _ in range(9))
    return replace(batch, last_offset=batch.base_offset + 8, records=records, record_count=9)


@pytest.mark.parametrize("spoil", SPOILED)
def test_a_result_that_cannot_be_of_this_log_is_refused_whole(spoil: str) -> None:
    change, why = SPOILED[spoil]
    machine = filled(2)
    terms = machine.terms()
    replacements = machine.stage(terms)
    target = next(one for one in reversed(replacements) if len(staged_batches(machine, one.base_offset)) > 1)
    spoiled = change(staged_batches(machine, target.base_offset))
    restage(machine, target.base_offset, b"".join(map(encode, spoiled)))
    check_refused(machine, replacements, terms, why)


@pytest.mark.parametrize("position", [3, 20, 30, 60])
def test_damaged_bytes_are_refused(position: int) -> None:
    machine = filled(2)
    terms = machine.terms()
    replacements = machine.stage(terms)
    data = bytearray(b"".join(map(encode, staged_batches(machine, replacements[0].base_offset))))
    data[position] ^= 0x10
    restage(machine, replacements[0].base_offset, bytes(data))
    check_refused(machine, replacements, terms)
    restage(machine, replacements[0].base_offset, bytes(data[:-1]))
    check_refused(machine, replacements, terms)


def test_a_file_that_is_not_there_is_refused() -> None:
    machine = filled(2)
    terms = machine.terms()
    replacements = machine.stage(terms)
    machine.disk.remove_tree(staging_path(DIRECTORY, "a"))
    check_refused(machine, replacements, terms, "is not there")


def test_what_no_index_can_express_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = filled(2)
    terms = machine.terms()
    replacements = machine.stage(terms)
    monkeypatch.setattr(acceptance, "INT32_MAX", 100)
    check_refused(machine, replacements, terms, "too large for one segment")


def test_a_marker_above_mxro_may_not_be_gone() -> None:
    machine = filled(2)
    generous = machine.terms(removal=machine.bound())
    machine.run(machine.swap(machine.stage(generous), generous))
    generous = machine.terms(removal=machine.bound())
    replacements = machine.stage(generous)
    assert any(batch.is_control and batch.base_offset < generous.bound for batch in machine.batches())
    check_refused(machine, replacements, replace(generous, mxro=0), "rule 6")


def test_a_live_producers_last_batch_may_not_be_gone() -> None:
    machine = Machine(1)
    machine.open()
    made = [Record(0, NOW_MS, b"k", b"v")]
    sequenced = make_batch(made, producer_id=5, producer_epoch=0, base_sequence=0, leader_epoch=-1)
    machine.lead(encode(sequenced))
    for _ in range(20):
        machine.lead(encode(make_batch(made, leader_epoch=-1)))
    terms = machine.terms()
    check_refused(machine, machine.compacted(terms, ()), terms, "last batch of producer 5")


def test_what_is_still_transactional_below_the_bound_is_refused() -> None:
    machine = filled(2)
    terms = machine.terms()
    replacements = machine.stage(replace(terms, settle_below=0))
    check_refused(machine, replacements, terms, "transactional")
    check_refused(machine, [], terms, "transactional and was left")


def test_segments_that_were_not_planned_on_are_refused() -> None:
    machine = filled(2)
    terms = machine.terms()
    replacements = machine.stage(terms)
    wrong = [replace(replacements[0], old_base_offsets=(0, 10_000))]
    check_refused(machine, wrong, terms, "closed segments that were planned on")
    check_refused(machine, replacements[::-1], terms, "closed segments that were planned on")
    beyond = [replace(replacements[0], end_offset=machine.bound() + 5)]
    check_refused(machine, beyond, terms, "announced was")


def test_of_two_results_for_the_same_segments_one_wins() -> None:
    machine = filled(2)
    terms = machine.terms()
    closed = machine.log.segments.closed(terms.bound)
    first, second = machine.stage(terms, "a"), machine.stage(terms, "b")

    async def both() -> list[Any]:
        swaps = [
            machine.log.swap(closed, staging_path(DIRECTORY, name), one, SwapTerms(terms.bound, terms.mxro))
            for name, one in (("a", first), ("b", second))
        ]
        return await asyncio.gather(*swaps, return_exceptions=True)

    before = machine.fold()
    one, other = machine.run(both())
    assert not isinstance(one, Exception)
    assert isinstance(other, SwapRefusedError)
    assert machine.fold() == before


@pytest.mark.parametrize("change", ["truncated", "started anew", "retention"])
def test_a_plan_does_not_outlive_the_segments_it_was_made_for(change: str) -> None:
    machine = filled(2)
    terms = machine.terms()
    closed = machine.log.segments.closed(terms.bound)
    replacements = machine.stage(terms)
    if change == "truncated":
        cut = closed.base_offsets[-1] + 1
        machine.run(machine.log.truncate_to(cut))
        machine.fill(random.Random(9))
    elif change == "started anew":
        machine.run(machine.log.restart_at(0))
        machine.fill(random.Random(2))
    else:
        machine.run(machine.log.advance_start(closed.base_offsets[2]))
    before = machine.batches()
    with pytest.raises(SwapRefusedError, match="changed since"):
        machine.run(
            machine.log.swap(closed, staging_path(DIRECTORY, "a"), replacements, SwapTerms(terms.bound, terms.mxro))
        )
    assert machine.batches() == before


def test_appends_and_rolls_after_the_plan_do_not_void_it() -> None:
    machine = filled(2)
    terms = machine.terms()
    closed = machine.log.segments.closed(terms.bound)
    replacements = machine.stage(terms)
    machine.fill(random.Random(9), batches_count=5)
    before = machine.fold()
    assert machine.log.segments.are_current(closed)
    machine.run(
        machine.log.swap(closed, staging_path(DIRECTORY, "a"), replacements, SwapTerms(terms.bound, terms.mxro))
    )
    assert machine.fold() == before
