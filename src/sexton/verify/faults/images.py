"""Brokers' disks that are lost, or come back as they were some time ago.

What is done to the files of a broker is done while it is away, and only when the others have gone on without it: a
replica that was the last one in sync is the data, and nothing can be expected of who loses it.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from sexton.client.metadata import PartitionInfo
from sexton.errors import SextonError
from sexton.verify import probes
from sexton.verify.faults.base import Fault, Scene, Told, chosen
from sexton.verify.faults.schedule import Act, Target

AWAY_TIMEOUT_S: Final = 60.0

KEPT_NAMES: Final = frozenset({"meta.properties", "__cluster_metadata-0", "bootstrap.checkpoint"})
"""Of a Kafka node: its identity, and its part of the controllers' log. A disk of their own, so to speak."""


class LostDisk(Fault):
    """A broker is killed and comes back with nothing of its logs."""

    name = "lost-disk"
    targets = (Target.ONE, Target.LEADER)

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._hit: list[int] = []

    def begin(self, act: Act) -> Told:
        for node_id in alone(act, self.scene):
            self._hit.append(node_id)
            self.scene.cluster.kill_node(node_id)
            wait_until_others_go_on(self.scene, node_id)
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
        for node_id in alone(act, self.scene):
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
            wait_until_others_go_on(self.scene, node_id)
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
            shutil.move(each, data_dir / each.name)  # the data may be on a disk of its own


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def alone(act: Act, scene: Scene) -> list[int]:
    """Nobody, unless all others are there, and every log is whole."""
    is_whole = len(scene.serving()) == len(scene.cluster.node_ids) and probes.is_whole(scene.bootstrap, scene.topics())
    return chosen(act, scene)[:1] if is_whole else []


def is_left(partition: PartitionInfo, node_id: int) -> bool:
    """Whether others have it, and go on without this broker."""
    return partition.leader not in (node_id, -1) and node_id not in partition.isr


def wait_until_others_go_on(scene: Scene, node_id: int) -> None:
    def is_without() -> bool:
        try:
            found = probes.partitions(scene.bootstrap, probes.topics(scene.bootstrap)).values()
        except SextonError:
            return False
        return all(is_left(each, node_id) for each in found)

    scene.wait_until(f"the others have gone on without broker {node_id}", is_without, AWAY_TIMEOUT_S)
