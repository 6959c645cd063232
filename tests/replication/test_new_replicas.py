"""What a broker makes on its disk for a partition that is placed on it, and that a crash in between leaves nothing
that counts."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from sexton.adapters.files import FileDisk
from sexton.compaction.watermarks.checkpoint import Kept
from sexton.log import opening
from sexton.log.log import Log
from sexton.metadata.view import ClusterView
from sexton.ports.disk import Disk
from sexton.ports.metastore import PartitionRow, TopicRow
from sexton.replication.fetcher import FetchLimits
from sexton.replication.local_replica import Role
from sexton.replication.replicas import Replicas, ReplicationSettings
from sexton.settings.topic import TopicConfig
from sexton.types import LeaderEpoch
from tests.epochs import history
from tests.log.stepping import SteppingDisk
from tests.replication.hosts import LoneHost

OWN, OTHER = 1, 2
TOPIC = TopicRow(uuid.UUID(int=1), "t", False)
INCARNATION = uuid.UUID(int=2, version=4)


def row(leader: int, leader_epoch: int = 0, partition_epoch: int = 0) -> PartitionRow:
    isr = (OWN, OTHER)
    return PartitionRow(
        TOPIC.topic_id, 0, isr, isr, leader, LeaderEpoch(leader_epoch), partition_epoch, incarnations={OWN: INCARNATION}
    )


def applied(folder: Path, rows: Sequence[PartitionRow], disk: Disk | None = None) -> Replicas:
    """A process of a broker's on this folder, as it is when it has heard of these rows, one after the other."""

    async def go() -> Replicas:
        view = ClusterView()
        view.apply_rows(topics=[TOPIC])
        settings = ReplicationSettings(
            folder=str(folder), limits=FetchLimits(), lag_max_ms=30_000, producer_expiry_ms=1000
        )
        replicas = Replicas(LoneHost(identity=(OWN, 1), disk=disk or FileDisk(), view=view), settings)
        replicas.folder.read(stopped_cleanly=False)
        for one in rows:
            view.apply_rows([one])
            await replicas.apply([one])
        await replicas.write_high_watermarks()
        return replicas

    return asyncio.run(go())


def test_the_first_leader_leads_at_once_and_its_followers_begin_with_the_same_history(tmp_path: Path) -> None:
    (leader,) = applied(tmp_path / "1", [row(OWN)]).all()
    (follower,) = applied(tmp_path / "2", [row(OTHER)]).all()
    assert leader.is_leader
    assert follower.role is Role.FOLLOWER
    assert leader.log.epochs.entries == follower.log.epochs.entries == history((0, 0))
    for folder in (tmp_path / "1" / "t-0", tmp_path / "2" / "t-0"):
        assert sorted(path.name for path in folder.iterdir()) == [
            "00000000000000000000.log",
            "compaction-watermarks",
            "incarnation",
            "leader-epoch-checkpoint",
            "partition.metadata",
        ]
        again = opened(folder)
        assert again.epochs.entries == history((0, 0))
        assert (again.start_offset, again.end_offset) == (0, 0)


def opened(directory: Path) -> Log:
    return asyncio.run(
        opening.open_log(
            FileDisk(), str(directory), "t", 0, TOPIC.topic_id, TopicConfig(), now_ms=1000, stopped_cleanly=False
        )
    )


def test_the_next_process_does_not_go_on_in_an_epoch_that_its_own_log_names(tmp_path: Path) -> None:
    applied(tmp_path, [row(OWN)])
    (replica,) = applied(tmp_path, [row(OWN)]).all()
    assert not replica.is_leader
    (replica,) = applied(tmp_path, [row(OWN), row(OWN, leader_epoch=1, partition_epoch=1)]).all()
    assert replica.is_leader
    assert replica.log.epochs.entries == history((1, 0))


def test_a_replica_of_a_partition_that_has_had_a_past_learns_its_history_from_the_leader(tmp_path: Path) -> None:
    (replica,) = applied(tmp_path, [row(OTHER, leader_epoch=0, partition_epoch=3)]).all()
    assert replica.log.epochs.entries == ()
    assert not (tmp_path / "t-0" / "leader-epoch-checkpoint").exists()


def test_a_new_replica_waits_for_six_flushes_and_shares_that_of_the_folder(tmp_path: Path) -> None:
    steps: list[str] = []
    applied(tmp_path, [row(OWN)], cast(Any, CountingDisk(steps)))
    assert steps == ["replace 4 files of t-0", "flush the names of the folder", "replace 1 files of the folder"]


class CountingDisk(FileDisk):
    def __init__(self, steps: list[str]) -> None:
        super().__init__()
        self._steps = steps

    async def replace_files(self, directory: str, files: Sequence[tuple[str, bytes]]) -> None:
        self._steps.append(f"replace {len(files)} files of {self._name(directory)}")
        await super().replace_files(directory, files)

    async def flush_directory(self, directory: str) -> None:
        self._steps.append(f"flush the names of {self._name(directory)}")
        await super().flush_directory(directory)

    @staticmethod
    def _name(directory: str) -> str:
        return "t-0" if directory.endswith("t-0") else "the folder"


class PowerLostError(BaseException):
    pass


def test_a_crash_while_a_replica_is_made_leaves_one_that_is_made_anew(tmp_path: Path) -> None:
    steps = attempt(tmp_path / "whole", lambda number: None)
    assert any("incarnation" in step for step in steps)
    for crash_at in range(len(steps)):
        folder = tmp_path / str(crash_at)

        def crash(number: int, at: int = crash_at) -> None:
            if number == at:
                raise PowerLostError

        with pytest.raises(PowerLostError):
            attempt(folder, crash)
        is_whole = (folder / "t-0" / "incarnation").exists()
        (replica,) = applied(folder, [row(OTHER)]).all()
        assert replica.was_led_in(LeaderEpoch(0)) == is_whole, "an epoch counts as led unless the log was made here"
        assert replica.log.epochs.entries == history((0, 0))
        kept = asyncio.run(Kept.open(FileDisk(), str(folder / "t-0"), INCARNATION, 0, 0))
        assert kept.value.fence_below == 0, "it has no past that could be unknown"


def attempt(folder: Path, on_step: Callable[[int], None]) -> list[str]:
    folder.mkdir()
    steps: list[str] = []

    def step(what: str) -> None:
        steps.append(what)
        on_step(len(steps) - 1)

    applied(folder, [row(OTHER)], cast(Any, SteppingDisk(FileDisk(), step)))
    return steps
