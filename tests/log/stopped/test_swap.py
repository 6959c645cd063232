"""Segments are replaced in one step: a crash anywhere leaves the old log or the new one.

Each scenario is stopped before every single operation, and what is then on disk goes to our recovery and to
a model of Kafka's. Both must come to the same log, byte for byte, indexes included.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from sexton.compaction.contract import NewSegment
from sexton.compaction.swap import SwapRecovery, SwapRefusedError
from sexton.errors import CorruptLogError, EnvironmentFailure, NotALogError
from sexton.log.stopped import swap
from sexton.log.stopped.swap import Files
from sexton.records import batch, indexes
from sexton.records.names import parse_segment_file, segment_file_name
from tests.log.stopped import kafka_loader
from tests.log.stopped.disks import Crash, LosingFiles, StoppingFiles, restore

Log = dict[int, dict[str, bytes]]
"""What a partition directory amounts to: base offset, then kind of file, then content. Snapshots apart."""

OLD_BASES = (0, 10, 20, 30, 40)
LOG_END = 50


@dataclass(frozen=True)
class New:
    base: int
    end: int
    transactions: bool = False


@dataclass(frozen=True)
class Scenario:
    old: tuple[int, ...]
    new: tuple[New, ...]
    old_transactions: tuple[int, ...] = ()

    @property
    def staged(self) -> list[NewSegment]:
        return replacing([(segment.base, segment.end) for segment in self.new], self.old)


def replacing(new: Sequence[tuple[int, int]], old: Sequence[int]) -> list[NewSegment]:
    """New segments from these offsets to those, together in the place of the old ones."""
    return [NewSegment(start, end, () if index else tuple(old)) for index, (start, end) in enumerate(new)]


SCENARIOS = {
    "one to one": Scenario((10,), (New(10, 20),)),
    "one to one, the first": Scenario((0,), (New(0, 10, transactions=True),), old_transactions=(0,)),
    "many to one": Scenario((0, 10, 20), (New(0, 30),), old_transactions=(10,)),
    "many to one, not from the first": Scenario((10, 20, 30), (New(10, 35, transactions=True),)),
    "many to two": Scenario((0, 10, 20, 30), (New(0, 15, transactions=True), New(20, 40)), (0, 20)),
    "many to two at offsets of their own": Scenario((0, 10, 20, 30), (New(0, 12), New(15, 40, True)), (30,)),
    "many to three": Scenario((0, 10, 20, 30), (New(0, 10), New(10, 25, True), New(30, 40)), (10, 30)),
    "all, up to the end of the log": Scenario(OLD_BASES, (New(0, 50),)),
}


def write_segment(directory: Path, base: int, end: int, tag: str, state: str = "", transactions: bool = False) -> None:
    middle = max(base, end - 4)
    spans = [(base, middle - 1), (middle, end - 1)] if middle > base else [(base, end - 1)]
    log, offsets, positions = b"", [], []
    for first, last in spans:
        offsets.append(last)
        positions.append(len(log))
        record = batch.Record(last, 1_000 + last, f"key {last}".encode(), tag.encode())
        log += batch.encode(batch.make_batch([record], base_offset=first))
    contents = {
        ".log": log,
        ".index": indexes.encode(indexes.make_offset_entries(base, offsets[1:], positions[1:])),
        ".timeindex": indexes.encode(indexes.make_time_entries(base, [1_000 + end - 1], [end - 1])),
    }
    if transactions:
        contents[".txnindex"] = f"{tag} {base}".encode().ljust(34)
    for kind, content in contents.items():
        (directory / segment_file_name(base, kind, state)).write_bytes(content)


def prepare(directory: Path, scenario: Scenario) -> None:
    directory.mkdir()
    (directory / "leader-epoch-checkpoint").write_text("0\n0\n")
    (directory / "partition.metadata").write_text("version: 0\n")
    for base in OLD_BASES:
        write_segment(directory, base, base + 10, "old", transactions=base in scenario.old_transactions)
    for offset in (*OLD_BASES[1:], LOG_END):
        (directory / segment_file_name(offset, ".snapshot")).write_bytes(f"producers at {offset}".encode())
    for segment in scenario.new:
        write_segment(directory, segment.base, segment.end, "new", ".cleaned", segment.transactions)


def log_of(directory: Path) -> Log:
    """Fails on a file that is neither part of the log nor known: after a recovery nothing else is left."""
    log: Log = {}
    for path in directory.iterdir():
        parsed = parse_segment_file(path.name)
        if parsed is None:
            assert path.name in ("leader-epoch-checkpoint", "partition.metadata"), path.name
        else:
            assert not parsed.state, path.name
            if parsed.kind != ".snapshot":
                log.setdefault(parsed.base_offset, {})[parsed.kind] = path.read_bytes()
    return log


def snapshots_of(directory: Path) -> set[int]:
    return {kafka_loader.offset_of(path) for path in directory.glob("*.snapshot")}


@dataclass(frozen=True)
class Case:
    directory: Path
    scenario: Scenario
    old: Log
    new: Log

    def copy(self, name: str) -> Path:
        """Hard links survive a copy here, which shutil's would turn into separate files."""
        restore(self.directory.parent / name, names_of(self.directory))
        return self.directory.parent / name

    def commit(self, directory: Path, files: Files) -> None:
        swap.commit(directory, self.scenario.staged, files)

    @property
    def operation_count(self) -> int:
        directory = self.copy("counted")
        files = StoppingFiles()
        self.commit(directory, files)
        shutil.rmtree(directory)
        return files.count

    def check_snapshots(self, directory: Path) -> None:
        expected = {*OLD_BASES[1:], LOG_END}
        if log_of(directory) == self.new:
            expected -= set(self.scenario.old) - {segment.base for segment in self.scenario.new}
        assert snapshots_of(directory) == expected


def names_of(directory: Path) -> dict[str, tuple[int, bytes]]:
    return {path.name: (path.stat().st_ino, path.read_bytes()) for path in directory.iterdir()}


def contents_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.fixture
def memory_path(tmp_path: Path) -> Iterator[Path]:
    """These tests make and remove a million small files, so in memory where the system offers that."""
    shared = Path("/dev/shm")
    if not os.access(shared, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=shared) as directory:
        yield Path(directory)


@pytest.fixture(params=list(SCENARIOS.values()), ids=list(SCENARIOS))
def case(request: pytest.FixtureRequest, memory_path: Path) -> Case:
    scenario: Scenario = request.param
    directory = memory_path / "orders-0"
    prepare(directory, scenario)
    everything = directory.parent / "everything"
    shutil.copytree(directory, everything)
    old: Log = {}
    new: Log = {}
    for path in everything.iterdir():
        parsed = parse_segment_file(path.name)
        if parsed is None or parsed.kind == ".snapshot":
            continue
        if not parsed.state:
            old.setdefault(parsed.base_offset, {})[parsed.kind] = path.read_bytes()
        if parsed.state or parsed.base_offset not in scenario.old:
            new.setdefault(parsed.base_offset, {})[parsed.kind] = path.read_bytes()
    shutil.rmtree(everything)
    return Case(directory, scenario, old, new)


def crashed(case: Case) -> Iterator[tuple[int, Path]]:
    """The directory after a crash before each operation of the commit, and after the last; once each."""
    previous: dict[str, bytes] = {}
    for stop_at in range(case.operation_count + 1):
        directory = case.copy(f"crashed-{stop_at}")
        with contextlib.suppress(Crash):
            case.commit(directory, StoppingFiles(stop_at))
        names = contents_of(directory)
        if names != previous:
            previous = names
            yield stop_at, directory
        shutil.rmtree(directory)


def test_a_commit_that_nothing_interrupts_leaves_the_new_log_and_nothing_else(case: Case) -> None:
    swap.commit(case.directory, case.scenario.staged)
    assert log_of(case.directory) == case.new != case.old
    case.check_snapshots(case.directory)
    before = names_of(case.directory)
    assert swap.recover(case.directory) is SwapRecovery.NOTHING
    assert names_of(case.directory) == before


def test_after_a_crash_anywhere_our_recovery_leaves_the_old_or_the_new_log(case: Case) -> None:
    seen = []
    for stop_at, directory in crashed(case):
        outcome = swap.recover(directory, StoppingFiles())
        log = log_of(directory)
        assert log in (case.old, case.new), f"a mix after {stop_at} operations"
        case.check_snapshots(directory)
        if outcome is not SwapRecovery.NOTHING:
            assert (outcome is SwapRecovery.COMPLETED) == (log == case.new)
        seen.append(log == case.new)
    assert seen == sorted(seen), "once committed, always committed"
    assert seen[0] is False
    assert seen[-1] is True


def test_after_a_crash_anywhere_kafka_comes_to_the_same_log_and_rebuilds_no_index(case: Case) -> None:
    for stop_at, directory in crashed(case):
        ours = directory.parent / "ours"
        restore(ours, names_of(directory))
        swap.recover(ours, StoppingFiles())
        for seed in range(2):
            theirs = directory.parent / "theirs"
            restore(theirs, names_of(directory))
            loaded = kafka_loader.load(theirs, random.Random(seed))
            assert log_of(theirs) == log_of(ours), f"after {stop_at} operations"
            assert loaded == kafka_loader.Loaded(), f"after {stop_at} operations"
            assert LOG_END in snapshots_of(theirs)
            shutil.rmtree(theirs)
        shutil.rmtree(ours)


def test_a_second_recovery_has_nothing_to_do(case: Case) -> None:
    for _, directory in crashed(case):
        swap.recover(directory, StoppingFiles())
        before = names_of(directory)
        assert swap.recover(directory, StoppingFiles()) is SwapRecovery.NOTHING
        assert names_of(directory) == before


def test_a_recovery_may_crash_too_and_whoever_comes_next_decides_alike(case: Case) -> None:
    seen = set()
    for stop_at, directory in crashed(case):
        found = names_of(directory)
        files = StoppingFiles()
        swap.recover(directory, files)
        decided = log_of(directory)
        for second_stop in range(files.count):
            again = directory.parent / "again"
            restore(again, found)
            with pytest.raises(Crash):
                swap.recover(again, StoppingFiles(second_stop))
            if frozenset(again.iterdir()) in seen:
                shutil.rmtree(again)
                continue
            seen.add(frozenset(again.iterdir()))
            theirs = directory.parent / "theirs"
            restore(theirs, names_of(again))
            assert kafka_loader.load(theirs, random.Random(stop_at)) == kafka_loader.Loaded()
            assert log_of(theirs) == decided
            swap.recover(again, StoppingFiles())
            assert log_of(again) == decided
            case.check_snapshots(again)
            shutil.rmtree(theirs)
            shutil.rmtree(again)


def test_a_power_failure_may_lose_or_reorder_what_was_not_flushed(case: Case) -> None:
    rng = random.Random(7)
    seen = set()
    for stop_at in range(case.operation_count + 1):
        directory = case.copy("running")
        files = LosingFiles(directory, stop_at)
        with contextlib.suppress(Crash):
            case.commit(directory, files)
        for names in files.after_power_failure(rng):
            if frozenset(names.items()) in seen:
                continue
            seen.add(frozenset(names.items()))
            for recovery in ("ours", "kafka's"):
                found = directory.parent / "found"
                restore(found, names)
                if recovery == "ours":
                    swap.recover(found, StoppingFiles())
                    case.check_snapshots(found)
                else:
                    assert kafka_loader.load(found, rng) == kafka_loader.Loaded()
                assert log_of(found) in (case.old, case.new), (stop_at, recovery)
                shutil.rmtree(found)
        shutil.rmtree(directory)


def test_clearing_what_was_staged_undoes_a_commit_that_did_not_get_through(case: Case) -> None:
    for _, directory in crashed(case):
        cleaned = list(directory.glob("*.cleaned"))
        outcome = swap.clear_staging(directory, StoppingFiles())
        assert outcome is (SwapRecovery.ROLLED_BACK if cleaned else SwapRecovery.NOTHING)
        if cleaned:
            assert log_of(directory) == case.old
        else:
            swap.recover(directory, StoppingFiles())
            assert log_of(directory) == case.new


# --- what Kafka's own recovery does not survive ---


def double_crash_logs(case: Case) -> list[Log]:
    """What Kafka can come to when it crashes in the recovery of our crash, for listings in several orders."""
    logs = []
    for stop_at, directory in crashed(case):
        for seed in range(5):
            rng = random.Random(seed * 1_000 + stop_at)
            found = directory.parent / "found"
            restore(found, names_of(directory))
            countdown = StoppingFiles(rng.randrange(30))
            try:
                kafka_loader.load(found, rng, countdown.step)
            except Crash:
                kafka_loader.load(found, rng)
            logs.append(log_of(found))
            shutil.rmtree(found)
    return logs


def records_only(log: Log) -> dict[int, bytes]:
    return {base: files[".log"] for base, files in log.items()}


@pytest.mark.parametrize("case", [one for one in SCENARIOS.values() if len(one.new) <= 2], indirect=True)
def test_a_broker_that_crashes_in_its_own_recovery_keeps_the_records_of_two_new_segments(case: Case) -> None:
    expected = [records_only(case.old), records_only(case.new)]
    assert all(records_only(log) in expected for log in double_crash_logs(case))


@pytest.mark.parametrize("case", [SCENARIOS["many to three"]], indirect=True)
def test_a_broker_that_crashes_in_its_own_recovery_can_lose_the_middle_of_three_new_segments(
    case: Case,
) -> None:
    """Kafka renames .swap files in no order, and takes what lies between two that remain for old. The reason
    to commit small groups, as Kafka's cleaner does, and to recover ourselves before a broker does."""
    lost = [log for log in double_crash_logs(case) if records_only(log) not in map(records_only, (case.old, case.new))]
    assert lost


# --- what is refused ---


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    directory = tmp_path / "orders-0"
    prepare(directory, SCENARIOS["many to two"])
    return directory


GOOD = [(0, 15), (20, 40)]


@pytest.mark.parametrize(
    ("new", "old", "why"),
    [
        ([], [0], "at least one"),
        (GOOD, [], "at least one"),
        ([(0, 0)], [0], "empty"),
        ([(0, 25), (20, 40)], [0, 10, 20, 30], "overlap"),
        (GOOD[::-1], [0, 10, 20, 30], "overlap or are not in offset order"),
        (GOOD, [10, 0, 20, 30], "not in offset order"),
        (GOOD, [10, 20, 30], "not the span"),
        (GOOD, [0, 10, 20, 30, 40], "not the span"),
        (GOOD, [0, 10, 20, 25, 30], r"\[25\] do not exist"),
        (GOOD, [0, 10, 30], r"\[20\] lie in the span"),
        ([(0, 15), (30, 40)], [0, 10, 20, 30], "was not staged"),
        ([(0, 16), (20, 40)], [0, 10, 20, 30], "ends at 15, not at 16"),
    ],
)
def test_a_replacement_that_recovery_would_get_wrong_is_refused_and_nothing_changes(
    partition: Path, new: list[tuple[int, int]], old: list[int], why: str
) -> None:
    before = names_of(partition)
    with pytest.raises(SwapRefusedError, match=why):
        swap.commit(partition, replacing(new, old))
    assert names_of(partition) == before


@pytest.mark.parametrize(
    "name",
    [
        segment_file_name(0, ".log", ".swap"),
        segment_file_name(40, ".txnindex", ".swap"),
        segment_file_name(10, ".log", ".deleted"),
        segment_file_name(10, ".index", ".cleaned"),
        f"{0:020d}.log.part3.cleaned",
        f"{10:020d}.log.part3.cleaned",
    ],
)
def test_leftovers_that_would_mix_with_the_step_are_refused(partition: Path, name: str) -> None:
    (partition / name).write_bytes(b"")
    with pytest.raises(SwapRefusedError, match="left over"):
        swap.commit(partition, replacing(GOOD, [0, 10, 20, 30]))


def test_an_earlier_span_may_be_committed_while_a_later_one_is_staged_but_not_the_reverse(
    partition: Path,
) -> None:
    with pytest.raises(SwapRefusedError, match="left over"):
        swap.commit(partition, replacing(GOOD[1:], [20, 30]))
    swap.commit(partition, replacing(GOOD[:1], [0, 10]))
    swap.commit(partition, replacing(GOOD[1:], [20, 30]))
    assert sorted(log_of(partition)) == [0, 20, 40]


def test_an_orphan_index_in_the_span_does_not_end_up_beside_a_new_log(partition: Path) -> None:
    orphan = partition / segment_file_name(15, ".txnindex")
    orphan.write_bytes(b"old")
    swap.commit(partition, replacing(GOOD, [0, 10, 20, 30]))
    assert not orphan.exists()


# --- other things a recovery meets ---


def test_pieces_of_a_staged_segment_go_with_it_because_kafka_lets_them_void_a_swap(partition: Path) -> None:
    part = partition / f"{10:020d}.log.part3.cleaned"
    for undo in (swap.recover, swap.clear_staging):
        part.write_bytes(b"")
        (partition / segment_file_name(20, ".log", ".swap")).write_bytes(b"void")
        assert undo(partition) is SwapRecovery.ROLLED_BACK
        assert sorted(log_of(partition)) == list(OLD_BASES)


def test_recovery_finishes_what_a_broker_left_when_its_index_is_preallocated_or_misleading(
    partition: Path,
) -> None:
    for path in partition.glob("*.cleaned"):
        path.rename(path.with_suffix(".swap"))
    (partition / segment_file_name(0, ".index", ".swap")).write_bytes(bytes(80))
    (partition / segment_file_name(20, ".index", ".swap")).write_bytes(b"\x00\x00\x00\x01\x00\x00\x00\x05")
    assert swap.recover(partition) is SwapRecovery.COMPLETED
    assert sorted(log_of(partition)) == [0, 20, 40]


def test_recovery_drops_the_second_name_of_a_file_that_already_has_its_own(partition: Path) -> None:
    swap.clear_staging(partition)
    (partition / segment_file_name(0, ".index", ".swap")).hardlink_to(partition / segment_file_name(0, ".index"))
    assert swap.recover(partition) is SwapRecovery.COMPLETED
    assert sorted(log_of(partition)) == list(OLD_BASES)


def test_the_producers_state_at_the_end_of_the_log_outlives_a_deleted_segment_of_that_offset(
    partition: Path,
) -> None:
    swap.clear_staging(partition)
    deleted = partition / segment_file_name(LOG_END, ".log", ".deleted")
    deleted.write_bytes(b"")
    assert swap.recover(partition) is SwapRecovery.NOTHING
    assert not deleted.exists()
    assert LOG_END in snapshots_of(partition)


def test_a_swap_file_that_cannot_be_read_stops_recovery_before_it_deletes_anything(partition: Path) -> None:
    for path in partition.glob("*.cleaned"):
        path.rename(path.with_suffix(".swap"))
    (partition / segment_file_name(20, ".log", ".swap")).write_bytes(b"not a batch, and not short")
    before = names_of(partition)
    with pytest.raises(CorruptLogError):
        swap.recover(partition)
    assert names_of(partition) == before


def test_a_path_that_is_no_directory_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(NotALogError):
        swap.recover(tmp_path / "orders-0")


def test_a_disk_that_fails_says_what_to_do_and_the_log_is_still_one_of_the_two(partition: Path) -> None:
    class FailingFiles(Files):
        async def flush_directory(self, directory: str) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO), directory)

    with pytest.raises(EnvironmentFailure, match="No record is lost"):
        swap.commit(partition, replacing(GOOD, [0, 10, 20, 30]), FailingFiles())
    swap.recover(partition)
    assert sorted(log_of(partition)) == list(OLD_BASES)
