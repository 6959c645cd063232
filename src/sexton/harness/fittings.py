"""What brokers are fitted with before they are started, so that it can be broken later: a network, a clock, a disk
each."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from enum import StrEnum
from typing import Any, Final

from sexton.harness.clocks import Clocks
from sexton.harness.cluster import Cluster
from sexton.harness.disks import Disks
from sexton.harness.network import Network


class Fitting(StrEnum):
    NETWORK = "network"
    CLOCK = "clock"
    DISK = "disk"


_CHECKS: Final = {Fitting.NETWORK: Network.check, Fitting.CLOCK: Clocks.check, Fitting.DISK: Disks.check}


def check(fitting: Fitting) -> None:
    """Raises if this machine cannot have it, and says what is missing."""
    _CHECKS[fitting]()


def fit(cluster: Cluster[Any], fittings: Collection[Fitting], stack: ExitStack, others: Sequence[int] = ()) -> None:
    """Before it is started. All of it is undone when the stack is left, or when this process ends, however that
    comes. Others than brokers get a network, too."""
    if Fitting.NETWORK in fittings:
        cluster.move_to(stack.enter_context(Network([*cluster.node_ids, *cluster.controller_ids, *others])))
    if Fitting.CLOCK in fittings:
        cluster.go_by(stack.enter_context(Clocks(cluster.node_ids, cluster.base_dir / "clocks")))
    if Fitting.DISK in fittings:
        cluster.own_disks = stack.enter_context(Disks({each: cluster.log_dir(each) for each in cluster.node_ids}))
