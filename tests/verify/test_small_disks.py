"""Disks of brokers' own that are full in earnest, or can only be read: what is seen of it, and that nothing is left."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sexton.harness import fittings
from sexton.harness.disks import Disks, SmallDisk
from sexton.harness.errors import HarnessError
from sexton.harness.fittings import Fitting
from sexton.harness.systems import cluster_of
from sexton.verify import probes
from sexton.verify.faults.base import Scene
from sexton.verify.faults.disks import FullDisk, ReadOnlyDisk
from sexton.verify.faults.schedule import Target
from tests.robustness.disks import small_disk
from tests.verify.test_faults import TOPIC, act, is_whole, wait_until, write


@pytest.fixture(scope="module", params=["sexton", pytest.param("kafka-4.3.0", marks=pytest.mark.soak)])
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    cluster = cluster_of(request.param, tmp_path_factory.mktemp("disks"), {}, keep=False)
    with ExitStack() as stack:
        try:
            fittings.fit(cluster, [Fitting.DISK], stack)
        except HarnessError as error:
            pytest.skip(str(error))
        stack.enter_context(cluster)
        cluster.create_topic(TOPIC, 2, 3)
        scene = Scene(cluster, lambda: [(TOPIC, 0), (TOPIC, 1)])
        wait_until(lambda: is_whole(scene))
        yield scene


@pytest.mark.cluster
def test_a_disk_is_full_and_the_others_go_on_and_then_it_has_room_again(scene: Scene) -> None:
    fault = FullDisk(scene)
    (node_id,) = fault.begin(act("full-disk", Target.LEADER)).hit
    assert isinstance(node_id, int)
    with pytest.raises(OSError, match="No space left"):
        (scene.cluster.log_dir(node_id) / "one-more").write_bytes(bytes(1 << 16))
    (scene.cluster.log_dir(node_id) / "one-more").unlink()
    write(scene)
    assert fault.end().hit == [node_id]
    scene.cluster.wait_ready()
    wait_until(lambda: is_whole(scene))


@pytest.mark.cluster
def test_a_disk_turns_read_only_and_is_left_and_repaired(scene: Scene) -> None:
    wait_until(lambda: is_whole(scene))
    fault = ReadOnlyDisk(scene)
    (node_id,) = fault.begin(act("read-only-disk", Target.LEADER)).hit
    assert isinstance(node_id, int)
    with pytest.raises(OSError, match="Read-only file system"):
        (scene.cluster.log_dir(node_id) / "one-more").write_bytes(b"x")
    write(scene, 1)
    wait_until(lambda: any(node_id not in each.isr for each in probes.partitions(scene.bootstrap, [TOPIC]).values()))
    assert fault.end().hit == [node_id]
    scene.cluster.wait_ready()
    wait_until(lambda: is_whole(scene))


def test_what_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/sbin/mkfs.ext4")
    with pytest.raises(HarnessError, match="only root"):
        FullDisk.check("sexton")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(HarnessError, match=r"needs mkfs\.ext4"):
        ReadOnlyDisk.check("kafka-4.3.0")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk.img", tmp_path / "data", 24) as mounted:
        yield mounted


def test_room_that_was_made_is_there_after_a_repair_though_nobody_had_flushed_it(disk: SmallDisk) -> None:
    disk.fill()
    os.sync()
    disk.make_room()
    disk.turn_read_only()
    disk.repair()
    (disk.place / "one").write_bytes(bytes(1 << 20))


HOLDER = """
import sys, time
from pathlib import Path
from sexton.harness.disks import Disks
with Disks({1: Path(sys.argv[1])}):
    print("mounted", flush=True)
    time.sleep(600)
"""


def test_disks_go_with_the_process_that_made_them_even_if_that_is_killed(tmp_path: Path) -> None:
    try:
        Disks.check()
    except HarnessError as error:
        pytest.skip(str(error))
    place = tmp_path / "data"
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(place)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    if not holder.stdout.readline():
        pytest.skip("no disk can be mounted here")
    assert place.is_mount()
    holder.kill()
    holder.communicate()
    wait_until(lambda: not place.is_mount())
