"""A cluster that exists already, and what may be done to it: nothing, but for what its owner allows.

`--allow-admin` lets leaders and replicas of our own topics move, by requests that any administrator may send. What else
is to happen to brokers their owner does, by a command that is told what, to whom, and whether it begins or ends.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Collection, Sequence
from typing import Any, Final

from sexton.harness import asking
from sexton.harness.asking import Door
from sexton.harness.errors import HarnessError
from sexton.verify import probes
from sexton.verify.faults.base import Fault, NodeFault, Scene
from sexton.verify.faults.known import FAULTS
from sexton.verify.faults.moving import Leadership, Membership
from sexton.verify.faults.processes import Kill, Pause, Stop

ADMIN: Final = frozenset({Leadership.name, Membership.name})
BY_COMMAND: Final = (Kill.name, Stop.name, Pause.name, "partition")
"""What a command may be asked for: each has a broker that it hits."""

START, STOP = "start", "stop"
PHASE, KIND, BROKER = "{start|stop}", "{kind}", "{broker}"

COMMAND_TIMEOUT_S: Final = 120.0
SAID_MAX: Final = 300


class NotAllowedError(HarnessError):
    exit_code = 64


def check(faults: Collection[str], *, allows_admin: bool, command: str) -> None:
    """Raises NotAllowedError if a cluster that is not ours would have to suffer more than its owner allows."""
    if command and any(each not in command for each in (PHASE, KIND, BROKER)):
        what = f"the command does not say where {PHASE}, {KIND} and {BROKER} go"
        raise NotAllowedError(what, command, f"As in: --fault-command './faults {PHASE} {KIND} {BROKER}'")
    for name in faults:
        if name in ADMIN:
            if not allows_admin:
                raise NotAllowedError(f"{name} moves replicas of a cluster that is not ours", "", "Add --allow-admin")
        elif FAULTS[name].needs_cluster and (name not in BY_COMMAND or not command):
            harmless = ", ".join(each for each, fault in FAULTS.items() if not fault.needs_cluster)
            by_command = f"With --fault-command its owner can have: {', '.join(BY_COMMAND)}"
            able = f"{by_command}. Only clients suffer from: {harmless}"
            raise NotAllowedError(f"{name} would break what verify has not started", "", able)


class Outside:
    """What faults ask of a cluster, answered for one that is not ours."""

    def __init__(self, where: str | Door) -> None:
        self._door = asking.door_of(where)
        self.bootstrap = self._door.bootstrap
        self._known: list[int] = []

    @property
    def node_ids(self) -> Sequence[int]:
        """The brokers that were there when they were first asked for."""
        self._known = self._known or probes.broker_ids(self._door)
        return self._known

    def is_serving(self, node_id: int) -> bool:
        return node_id in probes.broker_ids(self._door)


class ByCommand(NodeFault):
    """One that the owner of the brokers does to them."""

    def __init__(self, kind: str, command: str, scene: Scene) -> None:
        super().__init__(scene)
        self._kind = kind
        self._command = command

    def _break(self, node_id: int) -> None:
        self._run(START, node_id)

    def _mend(self, node_id: int) -> None:
        self._run(STOP, node_id)

    def _run(self, phase: str, node_id: int) -> None:
        given = {PHASE: phase, KIND: self._kind, BROKER: str(node_id)}
        words = [_filled(word, given) for word in shlex.split(self._command)]
        try:
            done = subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=COMMAND_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise HarnessError(f"{shlex.join(words)}: {error}") from error
        if done.returncode:
            said = done.stdout.decode(errors="replace").strip()[-SAID_MAX:]
            raise HarnessError(f"{shlex.join(words)} ended with {done.returncode}: {said}")


def _filled(word: str, given: dict[str, str]) -> str:
    for name, value in given.items():
        word = word.replace(name, value)
    return word


def fault(name: str, command: str, scene: Scene) -> Fault:
    """By the owner's command, if there is one and it is for breaking brokers."""
    made: Any = FAULTS[name]
    return ByCommand(name, command, scene) if command and name in BY_COMMAND else made(scene)
