"""The corruptions of `sexton reproduce` on real Kafka, seen in brokers' directories: before the broker that was away
starts again, and when it is back and still a follower."""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path
from typing import Final

import pytest

from sexton.audit import travelling
from sexton.audit.classes import Class
from sexton.audit.folders import FolderSource
from sexton.audit.folds import Plan
from sexton.audit.judge import PartitionReport, Verdict
from sexton.audit.run import audit
from sexton.reproduce import systems
from sexton.reproduce.live import LiveWorld
from sexton.reproduce.run import run
from sexton.reproduce.scenarios import SCENARIOS
from sexton.reproduce.script import Kind
from sexton.reproduce.world import AWAY, BROKERS
from tests.spark.local_context import LocalContext

SYSTEM: Final = "kafka-4.3.0"
TIMEOUT_S: Final = 600


class Copies:
    """Copies of all brokers' directories, made when every script has come to an act."""

    def __init__(self, world: LiveWorld, parent: Path) -> None:
        self._world = world
        self._parent = parent
        self._arrived = dict.fromkeys((Kind.RETURN, Kind.LEAD), 0)
        self._made = {kind: asyncio.Event() for kind in self._arrived}

    async def before(self, kind: Kind, what: str) -> None:
        if kind not in self._arrived:
            return
        self._arrived[kind] += 1
        if self._arrived[kind] == len(SCENARIOS):
            for broker in BROKERS:
                log_dir = self._world.cluster.partition_dir(broker, "warm-up", 0).parent
                await asyncio.to_thread(self._copy, log_dir, self._parent / kind.value / str(broker))
            self._made[kind].set()
        await self._made[kind].wait()

    def _copy(self, log_dir: Path, target: Path) -> None:
        """Of a broker that may be running: a log that is compacted meanwhile is copied again. Its checkpoints are of
        another moment."""
        target.mkdir(parents=True)
        for path in sorted(log_dir.iterdir()):
            if path.is_dir():
                while not _copy_log(path, target / path.name):
                    shutil.rmtree(target / path.name, ignore_errors=True)
            elif path.name != ".lock" and not path.name.endswith(".tmp"):  # which is renamed at any moment
                shutil.copy2(path, target / path.name)


def _copy_log(log: Path, target: Path) -> bool:
    """Whether it had the same segments afterwards."""
    before = sorted(path.name for path in log.iterdir())
    try:
        shutil.copytree(log, target)
    except (FileNotFoundError, shutil.Error):
        return False
    return sorted(path.name for path in log.iterdir()) == before


async def reproduced(parent: Path) -> None:
    async with systems.running([SYSTEM], parent / "cluster") as worlds:
        copies = Copies(worlds[SYSTEM], parent)
        outcomes = await run(
            worlds, systems.is_safe, list(SCENARIOS.values()), lambda *told: None, before=copies.before
        )
    assert all(each.is_as_expected for each in outcomes), [each.judgement for each in outcomes]


def audited(parent: Path) -> dict[str, PartitionReport]:
    """By scenario."""
    dirs = {broker: [parent / str(broker)] for broker in BROKERS}
    report = audit(LocalContext(random.Random(1)).as_spark, [FolderSource(dirs, f"{SYSTEM}.*")])
    return {each.topic_partition[0].removeprefix(f"{SYSTEM}."): each for each in report.partitions}


def audited_by_folds(parent: Path) -> dict[str, PartitionReport]:
    """Each broker's directory by itself."""
    context, paths = LocalContext(random.Random(1)).as_spark, []
    for broker in BROKERS:
        source, path = FolderSource({broker: [parent / str(broker)]}, f"{SYSTEM}.*"), parent / f"{broker}.fold"
        travelling.index(context, source, Plan.shared(parent / "plan.json"), path)
        paths.append(path)
    report = travelling.compare(paths, limit=1000)
    return {each.topic_partition[0].removeprefix(f"{SYSTEM}."): each for each in report.partitions}


def keys_of(report: PartitionReport) -> set[bytes | None]:
    """Without filler, of which a replica that lags has an older one for a moment."""
    return {case.key.key for case in report.cases if not case.key.is_pinned}


def classes_of(report: PartitionReport) -> set[int]:
    """Those that it may be."""
    return {number for case in report.cases for number in (case.explained.is_class, *case.explained.alternatives)} | {
        finding.is_class for finding in report.findings
    }


def accused(report: PartitionReport) -> set[int]:
    numbers = {number for case in report.cases for number in case.explained.accused}
    numbers |= {finding.replica for finding in report.findings}
    return {report.standings[number].replica.id.broker for number in numbers}


@pytest.mark.kafka
@pytest.mark.soak  # tests/audit/live has the same corruptions, read through brokers
@pytest.mark.timeout(TIMEOUT_S)
async def test_every_corruption_is_foretold_and_then_found_while_the_broker_still_follows(tmp_path: Path) -> None:
    await reproduced(tmp_path)
    foretold, found = audited(tmp_path / Kind.RETURN.value), audited(tmp_path / Kind.LEAD.value)
    wrong = {name for name, each in SCENARIOS.items() if name != "committed-value"}
    assert {name for name, each in foretold.items() if each.verdict.is_error} == wrong
    assert {name for name, each in found.items() if each.verdict.is_error} == wrong
    assert {each.verdict for each in foretold.values()} == {Verdict.WILL_DIVERGE, Verdict.LAGGING}
    for name in wrong:
        assert accused(foretold[name]) == accused(found[name]) == {AWAY}, name
        assert classes_of(foretold[name]) == {Class.WILL_DIVERGE}
    assert keys_of(found["tombstone"]) == keys_of(found["committed-to-aborted"]) == {b"user"}
    assert keys_of(found["aborted-to-committed"]) == {b"poison"}
    for parent, by_directories in ((Kind.RETURN, foretold), (Kind.LEAD, found)):
        for name, each in audited_by_folds(tmp_path / parent.value).items():
            assert (each.verdict, each.by_class) == (by_directories[name].verdict, by_directories[name].by_class)
            assert accused(each) == accused(by_directories[name])
    expected = {
        "tombstone": {Class.TOMBSTONE},
        "aborted-to-committed": {Class.ABORTED_TO_COMMITTED, Class.WILL_DIVERGE},
        "committed-to-aborted": {Class.COMMITTED_TO_ABORTED, Class.STUCK, Class.WILL_DIVERGE},
        "stuck-partition": {Class.STUCK, Class.WILL_DIVERGE},
    }
    for name, classes in expected.items():
        assert classes_of(found[name]) & classes, (name, found[name].cases)
