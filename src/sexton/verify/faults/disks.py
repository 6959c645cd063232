"""Brokers' disks that fail, are slow, are lost, or come back as they were some time ago.

Errors and delays are put into a running broker's system calls by strace, so they need no other file system, and work
on any program. What is done to the files of a broker is done while it is away, and only when the others have gone on
without it: a replica that was the last one in sync is the data, and nothing can be expected of who loses it.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import ClassVar, Final

from sexton.errors import SextonError
from sexton.harness.errors import HarnessError
from sexton.harness.processes import ServerProcess
from sexton.verify import probes
from sexton.verify.faults.base import Fault, NodeFault, Scene, Told, chosen
from sexton.verify.faults.schedule import Act, Target

SYNCS: Final = "fdatasync,fsync"
STRACE: Final = "strace"
ATTACH_TIMEOUT_S: Final = 10.0
AWAY_TIMEOUT_S: Final = 60.0

KEPT_NAMES: Final = frozenset({"meta.properties", "__cluster_metadata-0", "bootstrap.checkpoint"})
"""Of a Kafka node: its identity, and its part of the controllers' log. A disk of their own, so to speak."""


class _Traced(NodeFault):
    """Brokers whose flushes are tampered with."""

    targets: ClassVar[tuple[Target, ...]] = (Target.ONE, Target.LEADER, Target.MINORITY)
    how: ClassVar[str]
    """What strace injects."""
    is_replaced: ClassVar[bool] = False
    """Whether a broker that goes on without such a disk is started again, as after the disk was exchanged."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._tracers: dict[int, ServerProcess] = {}

    @classmethod
    def check(cls, system: str) -> None:
        if shutil.which(STRACE) is None:
            raise HarnessError(f"{cls.name} needs strace, and it is not installed", "", "apt-get install strace")

    def _break(self, node_id: int) -> None:
        cluster = self.scene.cluster
        pid = cluster.pid(node_id)
        console = cluster.node_dir(node_id) / "strace.log"
        command = [STRACE, "-f", "-qq", "-o", str(cluster.node_dir(node_id) / "strace.out")]
        command += ["-e", f"trace={SYNCS}", "-e", f"inject={SYNCS}:{self.how}", "-p", str(pid)]
        tracer = self._tracers[node_id] = ServerProcess(command, console)
        deadline_s = time.monotonic() + ATTACH_TIMEOUT_S
        while not _is_traced(pid):
            if not tracer.is_running or time.monotonic() > deadline_s:
                said = console.read_text().strip()
                raise HarnessError(f"strace cannot attach to broker {node_id}: {said}", "", "ptrace must be allowed")
            time.sleep(0.05)

    def _mend(self, node_id: int) -> None:
        """One that has ended itself because of it is started again."""
        tracer = self._tracers.pop(node_id, None)
        if tracer is not None:
            tracer.terminate()  # it lets go of whom it traces; killed, it might not
            tracer.wait(ATTACH_TIMEOUT_S)
            tracer.kill()
        if self.is_replaced and self.scene.cluster.is_running(node_id):
            self.scene.cluster.kill_node(node_id)
        if not self.scene.cluster.is_running(node_id):
            self.scene.cluster.start_node(node_id, wait=False)


class FailingDisk(_Traced):
    """Every flush of a broker fails with EIO."""

    name = "failing-disk"
    is_replaced = True
    how = "error=EIO"


class FullDisk(_Traced):
    """Every flush of a broker fails with ENOSPC, as it does where blocks are only found when they are written."""

    name = "full-disk"
    is_replaced = True
    how = "error=ENOSPC"


class SlowDisk(_Traced):
    """Every flush of a broker takes half a second longer."""

    name = "slow-disk"
    how = "delay_enter=500000"


class LostDisk(Fault):
    """A broker is killed and comes back with nothing of its logs."""

    name = "lost-disk"
    targets = (Target.ONE, Target.LEADER)

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._hit: list[int] = []

    def begin(self, act: Act) -> Told:
        for node_id in _alone(act, self.scene):
            self._hit.append(node_id)
            self.scene.cluster.kill_node(node_id)
            _wait_until_others_go_on(self.scene, node_id)
            empty(self.scene.cluster.log_dir(node_id))
        return Told(list(self._hit))

    def end(self) -> Told:
        hit, self._hit = self._hit, []
        for node_id in hit:
            if not self.scene.cluster.is_running(node_id):
                self.scene.cluster.start_node(node_id, wait=False)
        return Told(hit)


class OldImage(Fault):
    """A broker's disk is copied; later it is killed, and comes back with the copy."""

    name = "old-image"
    targets = (Target.ONE, Target.LEADER)

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._hit = -1

    def begin(self, act: Act) -> Told:
        """The copy is made of a broker that was killed, and is at once started again."""
        for node_id in _alone(act, self.scene):
            cluster = self.scene.cluster
            self._hit = node_id
            cluster.kill_node(node_id)
            shutil.rmtree(self._image(), ignore_errors=True)
            shutil.copytree(cluster.log_dir(node_id), self._image())
            cluster.start_node(node_id, wait=False)
            return Told([node_id])
        return Told()

    def end(self) -> Told:
        node_id, cluster = self._hit, self.scene.cluster
        if node_id < 0:
            return Told()
        others = [each for each in self.scene.serving() if each != node_id]
        if len(others) < len(cluster.node_ids) - 1:
            self.heal()
            return Told()
        if cluster.is_running(node_id):
            cluster.kill_node(node_id)
        try:
            _wait_until_others_go_on(self.scene, node_id)
            put_back(self._image(), cluster.log_dir(node_id))
        finally:
            self.heal()
        return Told([node_id])

    def heal(self) -> None:
        if self._hit < 0:
            return
        shutil.rmtree(self._image(), ignore_errors=True)
        node_id, self._hit = self._hit, -1
        if not self.scene.cluster.is_running(node_id):
            self.scene.cluster.start_node(node_id, wait=False)

    def _image(self) -> Path:
        return self.scene.cluster.node_dir(self._hit) / "image"


def empty(data_dir: Path) -> None:
    for each in data_dir.iterdir():
        if each.name not in KEPT_NAMES:
            _remove(each)


def put_back(image: Path, data_dir: Path) -> None:
    """What belongs to Kafka's controllers stays as it is."""
    empty(data_dir)
    for each in image.iterdir():
        if each.name not in KEPT_NAMES:
            os.replace(each, data_dir / each.name)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _alone(act: Act, scene: Scene) -> list[int]:
    """Nobody, unless all others are there, and every log is whole."""
    is_whole = len(scene.serving()) == len(scene.cluster.node_ids) and probes.is_whole(scene.bootstrap, scene.topics())
    return chosen(act, scene)[:1] if is_whole else []


def _wait_until_others_go_on(scene: Scene, node_id: int) -> None:
    def is_without() -> bool:
        try:
            found = probes.partitions(scene.bootstrap, probes.topics(scene.bootstrap)).values()
        except SextonError:
            return False
        return all(each.leader not in (node_id, -1) and node_id not in each.isr for each in found)

    scene.wait_until(f"the others have gone on without broker {node_id}", is_without, AWAY_TIMEOUT_S)


def _is_traced(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False
    return "TracerPid:\t0\n" not in status
