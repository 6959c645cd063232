"""A network of its own for each broker, in which connections between them can be cut in one direction or both.

Each node is in a network namespace, with a cable (veth) to a bridge of this machine, so that whoever is outside reaches
all of them, whatever is cut. A cut is a rule in the receiver's namespace that drops what comes from one address,
silently, as a broken switch does. Needs root and iproute2, and nothing else.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Sequence
from typing import Final, Self

from sexton.harness.errors import HarnessError
from sexton.harness.undoing import Undoing, Undone

LOCAL_PRIORITY: Final = 100
CUT_PRIORITY: Final = 10
"""Rules are tried by priority; Linux has those for local addresses first of all, and lets them be moved."""

EARLY_DEMUX: Final = "/proc/sys/net/ipv4/ip_early_demux"
"""With this on, packets of connections that exist are delivered without a look at the rules."""

SUBNETS_COUNT: Final = 200
METASTORE_ID: Final = 200
"""As a node: whoever keeps the cluster's state, where that is a server. Brokers have small numbers."""


class Network(Undone):
    """Made when it is entered; undone when it is left, or when this process ends, however that comes."""

    def __init__(self, node_ids: Sequence[int]) -> None:
        self._tag = f"sx{os.getpid():x}{random.getrandbits(8):02x}"
        self._subnet = f"10.213.{random.randrange(1, SUBNETS_COUNT)}"
        self._node_ids = list(node_ids)
        self._cuts: set[tuple[int, int]] = set()

    @staticmethod
    def check() -> None:
        if shutil.which("ip") is None:
            raise HarnessError("a network for each broker needs ip(8)", "", "apt-get install iproute2")
        if os.geteuid() != 0:
            raise HarnessError("only root can make a network for each broker", "", "Run it as root, or in a container")

    def host(self, node_id: int) -> str:
        return f"{self._subnet}.{node_id}"

    @property
    def outside(self) -> str:
        """This machine's own address, as all nodes reach it."""
        return f"{self._subnet}.254"

    def prefix(self, node_id: int) -> tuple[str, ...]:
        """Prefix of a command that is to run in the node's network namespace."""
        return ("ip", "netns", "exec", self._name(node_id))

    def cut(self, sender: int, receiver: int) -> None:
        """Cuts one direction: from now on the receiver gets nothing from the sender."""
        if (sender, receiver) not in self._cuts:
            self._rule("add", sender, receiver)
            self._cuts.add((sender, receiver))

    def mend(self) -> None:
        """Heals all cuts."""
        for sender, receiver in sorted(self._cuts):
            self._rule("del", sender, receiver)
        self._cuts.clear()

    def __enter__(self) -> Self:
        self.check()
        names = [self._name(node_id) for node_id in self._node_ids]
        undo = "; ".join([f"ip link del {name}; ip netns del {name}" for name in names] + [f"ip link del {self._tag}"])
        self._undoing = Undoing(undo)
        try:
            _ip("link", "add", self._tag, "type", "bridge")
            _ip("addr", "add", f"{self.outside}/24", "dev", self._tag)
            _ip("link", "set", self._tag, "up")
            for node_id in self._node_ids:
                self._add(node_id)
        except BaseException:
            self.close()
            raise
        return self

    def _name(self, node_id: int) -> str:
        return f"{self._tag}-{node_id}"

    def _add(self, node_id: int) -> None:
        name = self._name(node_id)
        _ip("netns", "add", name)
        _ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("link", "set", name, "master", self._tag)
        _ip("link", "set", name, "up")
        _ip("-n", name, "addr", "add", f"{self.host(node_id)}/24", "dev", "eth0")
        _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", name, "link", "set", "eth0", "up")
        _ip("-n", name, "rule", "add", "pref", str(LOCAL_PRIORITY), "lookup", "local")
        _ip("-n", name, "rule", "del", "pref", "0")
        _ip("netns", "exec", name, "sh", "-c", f"echo 0 > {EARLY_DEMUX}")

    def _rule(self, what: str, sender: int, receiver: int) -> None:
        rule = ("pref", str(CUT_PRIORITY), "from", self.host(sender), "blackhole")
        _ip("-n", self._name(receiver), "rule", what, *rule)


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise HarnessError(
            f"ip {' '.join(arguments)} failed: {done.stderr.strip()}",
            "",
            "This machine's kernel must have network namespaces, veth, bridges and policy routing",
        )
