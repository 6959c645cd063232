"""Files of a broker that are not what it wrote: bits that have flipped, tails that are missing, files that are gone.

Done to one broker while it is away, and the others have gone on without it. It comes back with what it has then, and
when every log is whole again it is asked to lead: what is wrong in the middle of an old segment shows when somebody
reads it there. A log that its broker refuses is moved away after a while, as docs/operations.md tells a person to do.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from sexton.errors import SextonError
from sexton.harness.errors import HarnessError
from sexton.history.op import Ext
from sexton.verify import probes
from sexton.verify.clients.base import Place
from sexton.verify.faults import moving
from sexton.verify.faults.base import Fault, InterruptedFaultError, Scene, Told
from sexton.verify.faults.images import alone, is_left, wait_until_others_go_on
from sexton.verify.faults.schedule import Act, Target

FILES_MAX: Final = 4
BITS_MAX: Final = 8
SEGMENT_SUFFIX: Final = ".log"
SEGMENTS_SHARE: Final = 0.5
"""Of what is damaged: a log has one of these, as a rule, and many files that are about it."""

BACK_TIMEOUT_S: Final = 20.0
"""A log that is not back in sync by then is one that its broker refuses."""


def flip(path: Path, rng: random.Random) -> str:
    content = bytearray(path.read_bytes())
    bits = sorted(rng.sample(range(8 * len(content)), rng.randint(1, min(BITS_MAX, 8 * len(content)))))
    for bit in bits:
        content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    return f"bits flipped in bytes {', '.join(str(bit // 8) for bit in bits)}"


def cut(path: Path, rng: random.Random) -> str:
    size_bytes = path.stat().st_size
    left_bytes = rng.randrange(size_bytes)
    os.truncate(path, left_bytes)
    return f"cut to {left_bytes} of {size_bytes} bytes"


def remove(path: Path, rng: random.Random) -> str:
    path.unlink()
    return "removed"


WAYS: Final[Sequence[Callable[[Path, random.Random], str]]] = (flip, cut, remove)


def damage(directories: Sequence[Path], rng: random.Random) -> dict[str, str]:
    """Some files of these logs, each in one way. What was done, by file."""
    files = sorted(path for each in directories for path in each.rglob("*") if path.is_file() and path.stat().st_size)
    done = {}
    for _ in range(min(len(files), rng.randint(1, FILES_MAX))):
        segments = [path for path in files if path.suffix == SEGMENT_SUFFIX]
        path = rng.choice(segments if segments and rng.random() < SEGMENTS_SHARE else files)
        files.remove(path)
        done[f"{path.parent.name}/{path.name}"] = rng.choice(WAYS)(path, rng)
    return done


class CorruptFile(Fault):
    """While a broker is away, bits flip in files of its logs, tails and whole files go; it comes back, and leads."""

    name = "corrupt-file"
    targets = (Target.ONE, Target.LEADER)

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._hit = -1
        self._damaged: list[Place] = []

    def begin(self, act: Act) -> Told:
        for node_id in alone(act, self.scene):
            cluster = self.scene.cluster
            self._hit = node_id
            cluster.kill_node(node_id)
            wait_until_others_go_on(self.scene, node_id)
            directories = {cluster.partition_dir(node_id, *place): place for place in self._places(node_id)}
            done = damage(sorted(directories), random.Random(act.choice))
            touched = {name.partition("/")[0] for name in done}
            self._damaged = [place for directory, place in directories.items() if directory.name in touched]
            return Told([node_id], {str(Ext.DAMAGED): done})
        return Told()

    def end(self) -> Told:
        node_id = self._hit
        if node_id < 0:
            return Told()
        self._start(node_id)
        moved: list[Place] = []
        try:
            topics = sorted({*self.scene.topics(), *(topic for topic, _ in self._damaged)})
            is_whole = partial(probes.is_whole, self.scene.bootstrap, topics)
            self.scene.wait_until(f"broker {node_id} is in sync again", is_whole, BACK_TIMEOUT_S)
            self._lead(node_id)
        except InterruptedFaultError:
            raise  # and healed
        except HarnessError:
            moved = self._restore(node_id)
        self._hit = -1
        return Told([node_id], {"moved-away": [f"{topic}-{number}" for topic, number in moved]})

    def heal(self) -> None:
        node_id, self._hit = self._hit, -1
        if node_id >= 0:
            self._start(node_id)
            self._restore(node_id)

    def _start(self, node_id: int) -> None:
        if not self.scene.cluster.is_running(node_id):
            self.scene.cluster.start_node(node_id, wait=False)

    def _lead(self, node_id: int) -> None:
        """Asked for, and not waited for: one that finds out what is wrong with its log leaves it to others."""
        found = probes.partitions(self.scene.bootstrap, self.scene.topics())
        wanted = {place: moving.first(node_id, each.replicas) for place, each in found.items()}
        if wanted:
            moving.prefer(self.scene.bootstrap, wanted)

    def _restore(self, node_id: int) -> list[Place]:
        """Damaged logs that the others have, and this broker still has not."""
        cluster = self.scene.cluster
        damaged, self._damaged = self._damaged, []
        try:
            found = probes.partitions(self.scene.bootstrap, sorted({topic for topic, _ in damaged}))
        except SextonError:
            found = {}
        refused = [place for place in damaged if place in found and is_left(found[place], node_id)]
        if refused:
            if cluster.is_running(node_id):
                cluster.kill_node(node_id)
            for place in refused:
                shutil.rmtree(cluster.partition_dir(node_id, *place), ignore_errors=True)
            self._start(node_id)
        return refused

    def _places(self, node_id: int) -> list[Place]:
        """Of all topics, those of the brokers' own included, whose logs it has on its disk."""
        found = probes.partitions(self.scene.bootstrap, probes.topics(self.scene.bootstrap))
        return [place for place in sorted(found) if self.scene.cluster.partition_dir(node_id, *place).is_dir()]
