"""Brokers' disks that fail, are slow, are full, or can only be read any more.

Errors of flushes, writes and renames, and delays, are put into a running broker's system calls by strace, so they need
no other file system, and work on any program. A disk that is full or read-only is one in earnest, of the broker's own
(`harness.disks`).
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import ClassVar, Final

from sexton.harness.disks import SmallDisk
from sexton.harness.errors import HarnessError
from sexton.harness.fittings import Fitting
from sexton.harness.processes import ServerProcess
from sexton.verify.faults.base import NodeFault, Scene, Told, chosen
from sexton.verify.faults.schedule import Act, Target

SYNCS: Final = "fdatasync,fsync"
WRITES: Final = "pwrite64,pwritev,pwritev2"
"""Not `write`, by which Kafka's brokers answer as well: of theirs, only some writes to files fail."""
RENAMES: Final = "rename,renameat,renameat2"

STRACE: Final = "strace"
ATTACH_TIMEOUT_S: Final = 10.0


class _Traced(NodeFault):
    """Brokers of whose system calls some are tampered with."""

    targets: ClassVar[tuple[Target, ...]] = (Target.ONE, Target.LEADER, Target.MINORITY)
    calls: ClassVar[str] = SYNCS
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

    def begin(self, act: Act) -> Told:
        """Nobody can trace a process that is traced: one whose disk another of these faults has in hand is left out."""
        for node_id in chosen(act, self.scene):
            if not _is_traced(self.scene.cluster.pid(node_id)):
                self._hit.append(node_id)
                self._break(node_id)
        return Told(list(self._hit))

    def _break(self, node_id: int) -> None:
        cluster = self.scene.cluster
        pid = cluster.pid(node_id)
        console = cluster.node_dir(node_id) / "strace.log"
        command = [STRACE, "-f", "-qq", "-o", str(cluster.node_dir(node_id) / "strace.out")]
        command += ["-e", f"trace={self.calls}", "-e", f"inject={self.calls}:{self.how}", "-p", str(pid)]
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


class FailingWrites(_Traced):
    """Every write of a broker to a place in a file fails with EIO: what it had written stays readable."""

    name = "failing-writes"
    calls = WRITES
    is_replaced = True
    how = "error=EIO"


class FailingRenames(_Traced):
    """Every rename of a broker's files fails with EIO: checkpoints, swaps, logs of topics that are deleted."""

    name = "failing-renames"
    calls = RENAMES
    is_replaced = True
    how = "error=EIO"


class NoSpace(_Traced):
    """Every write of a broker to a place in a file fails with ENOSPC, as on a disk that is full."""

    name = "no-space"
    calls = WRITES
    how = "error=ENOSPC"


class SlowDisk(_Traced):
    """Every flush of a broker takes half a second longer."""

    name = "slow-disk"
    how = "delay_enter=500000"


class FullDisk(NodeFault):
    """The disk of a broker is full to the last byte, and later has room again."""

    name = "full-disk"
    targets: ClassVar[tuple[Target, ...]] = (Target.ONE, Target.LEADER, Target.MINORITY)
    needs = frozenset({Fitting.DISK})

    def _break(self, node_id: int) -> None:
        _disk(self.scene, node_id).fill()

    def _mend(self, node_id: int) -> None:
        """One that has ended itself because of it is started again."""
        _disk(self.scene, node_id).make_room()
        if not self.scene.cluster.is_running(node_id):
            self.scene.cluster.start_node(node_id, wait=False)


class ReadOnlyDisk(NodeFault):
    """The file system of a broker turns read-only, as after an error; it is repaired, and the broker started again."""

    name = "read-only-disk"
    targets: ClassVar[tuple[Target, ...]] = (Target.ONE, Target.LEADER, Target.MINORITY)
    needs = frozenset({Fitting.DISK})

    def _break(self, node_id: int) -> None:
        _disk(self.scene, node_id).turn_read_only()

    def _mend(self, node_id: int) -> None:
        if self.scene.cluster.is_running(node_id):
            self.scene.cluster.kill_node(node_id)
        _disk(self.scene, node_id).repair()
        self.scene.cluster.start_node(node_id, wait=False)


def _disk(scene: Scene, node_id: int) -> SmallDisk:
    disks = scene.cluster.own_disks
    assert disks is not None
    return disks.of(node_id)


def _is_traced(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False
    return "TracerPid:\t0\n" not in status
