"""Brokers that are killed, stopped or paused: works on every cluster of the harness."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Final

from sexton.errors import SextonError
from sexton.harness.errors import HarnessError
from sexton.verify import probes
from sexton.verify.faults.base import Fault, InterruptedFaultError, NodeFault, Scene, Told
from sexton.verify.faults.schedule import Act, Target

BACK_TIMEOUT_S: Final = 60.0
"""For a broker that was restarted to be in sync everywhere: as long as a run waits until all is whole."""


class Kill(NodeFault):
    """SIGKILL, and started again."""

    name = "kill"

    def _break(self, node_id: int) -> None:
        self.scene.cluster.kill_node(node_id)

    def _mend(self, node_id: int) -> None:
        if not self.scene.cluster.is_running(node_id):
            self.scene.cluster.start_node(node_id, wait=False)


class Stop(Kill):
    """SIGTERM: it hands its leaderships over, if there is anybody to take them, and else is killed."""

    name = "stop"
    targets = (Target.ONE, Target.LEADER, Target.MINORITY)

    def _break(self, node_id: int) -> None:
        stopped(self.scene, node_id)


class RollingRestart(Fault):
    """One broker after the other is stopped and started again, the next when it is in sync, as in an upgrade."""

    name = "rolling-restart"
    targets = (Target.ALL,)

    def begin(self, act: Act) -> Told:
        """All of it. It stops at a broker that does not come back: then another fault keeps it from that."""
        cluster, restarted = self.scene.cluster, []
        for node_id in self.scene.serving():
            if self.scene.is_over.is_set():
                break
            try:
                stopped(self.scene, node_id)
            finally:  # whatever becomes of it
                if not cluster.is_running(node_id):
                    cluster.start_node(node_id, wait=False)
            restarted.append(node_id)
            try:
                self.scene.wait_until(f"broker {node_id} is in sync", partial(self._is_back, node_id), BACK_TIMEOUT_S)
            except InterruptedFaultError:
                break
            except HarnessError:
                return Told(restarted, {"stopped-at": node_id})
        return Told(restarted)

    def end(self) -> Told:
        return Told()

    def _is_back(self, node_id: int) -> bool:
        try:
            found = probes.partitions(self.scene.bootstrap, self.scene.topics()).values()
        except SextonError:
            return False
        return self.scene.cluster.is_serving(node_id) and all(
            node_id in each.isr for each in found if node_id in each.replicas
        )


def stopped(scene: Scene, node_id: int) -> None:
    """Killed if it does not stop."""
    try:
        scene.cluster.stop_node(node_id)
    except HarnessError:
        with suppress(HarnessError):
            scene.cluster.kill_node(node_id)


class Pause(NodeFault):
    """SIGSTOP, and resumed."""

    name = "pause"

    def _break(self, node_id: int) -> None:
        self.scene.cluster.pause_node(node_id)

    def _mend(self, node_id: int) -> None:
        if self.scene.cluster.is_running(node_id):
            self.scene.cluster.resume_node(node_id)
