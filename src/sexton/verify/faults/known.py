"""All faults, by name, and where one of them would hit nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sexton.verify.faults.base import Fault
from sexton.verify.faults.clients import KillClients, PauseClients
from sexton.verify.faults.clock import Clock
from sexton.verify.faults.damage import CorruptFile
from sexton.verify.faults.disks import (
    FailingDisk,
    FailingRenames,
    FailingWrites,
    FullDisk,
    NoSpace,
    ReadOnlyDisk,
    SlowDisk,
)
from sexton.verify.faults.grave import Grave
from sexton.verify.faults.images import LostDisk, OldImage
from sexton.verify.faults.late import Late
from sexton.verify.faults.moving import Leadership, Membership
from sexton.verify.faults.network import SlowNetwork
from sexton.verify.faults.partition import Partition
from sexton.verify.faults.processes import Kill, Pause, RollingRestart, Stop
from sexton.verify.faults.services import Compactor, Metastore, Store

_ALL: Final[tuple[type[Fault], ...]] = (
    Kill,
    Stop,
    RollingRestart,
    Pause,
    Partition,
    Clock,
    Grave,
    Leadership,
    Membership,
    Compactor,
    Metastore,
    Store,
    FailingDisk,
    FailingWrites,
    FailingRenames,
    NoSpace,
    FullDisk,
    ReadOnlyDisk,
    SlowDisk,
    LostDisk,
    OldImage,
    CorruptFile,
    KillClients,
    PauseClients,
    Late,
    SlowNetwork,
)
FAULTS: Final[Mapping[str, type[Fault]]] = {fault.name: fault for fault in _ALL}


def pointless(name: str, *, compacts: bool, is_transactional: bool, has_shards: bool = False) -> str:
    """Why it would hit nothing in such a run, or nothing. A run that asks for it would test less than it says."""
    fault = FAULTS[name]
    if fault.needs_compaction and not compacts:
        return f"{name} hits nothing where no topic is compacted"
    if fault.needs_transactions and not is_transactional:
        return f"{name} hits nothing where there are no transactions"
    if fault.hits_clients and has_shards:
        return f"{name} does not find clients that shards have started"
    return ""
