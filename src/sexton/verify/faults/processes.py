"""Brokers that are killed, stopped or paused: works on every cluster of the harness."""

from __future__ import annotations

from contextlib import suppress

from sexton.harness.errors import HarnessError
from sexton.verify.faults.base import NodeFault
from sexton.verify.faults.schedule import Target


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
        try:
            self.scene.cluster.stop_node(node_id)
        except HarnessError:
            with suppress(HarnessError):
                self.scene.cluster.kill_node(node_id)


class Pause(NodeFault):
    """SIGSTOP, and resumed."""

    name = "pause"

    def _break(self, node_id: int) -> None:
        self.scene.cluster.pause_node(node_id)

    def _mend(self, node_id: int) -> None:
        if self.scene.cluster.is_running(node_id):
            self.scene.cluster.resume_node(node_id)
