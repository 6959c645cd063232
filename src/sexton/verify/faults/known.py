"""All faults, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sexton.verify.faults.base import Fault
from sexton.verify.faults.grave import Grave
from sexton.verify.faults.processes import Kill, Pause, Stop

FAULTS: Final[Mapping[str, type[Fault]]] = {fault.name: fault for fault in (Kill, Stop, Pause, Grave)}
