"""What the last pass over each log here had to leave, kept over restarts: one small file beside the log.

A partition that nobody writes to any more is never dirty again. Its tombstones and markers go only because somebody
remembers that they wait, and for what. The file is written after a pass is swapped in and before MCCO says so: a crash
in between leaves a log that is dirty again, or an older note by which one more pass is made.

A log that has been compacted and has no such note (it was copied from a leader, or the file is lost or damaged) may
hold anything that waits; one pass finds out.
"""

from __future__ import annotations

import logging
import uuid
from typing import Final

from sexton.broker.compaction import plans
from sexton.broker.compaction.due import UNKNOWN, Leftovers
from sexton.ports.disk import Disk
from sexton.replication.replica import Replica
from sexton.watermarks.replica import Pair

logger = logging.getLogger(__name__)

LEFTOVERS_FILE: Final = "compaction-leftovers"


class KeptLeftovers:
    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._known: dict[uuid.UUID, Leftovers | None] = {}
        """By incarnation: of another log they say nothing. None if its directory has no note."""

    def of(self, replica: Replica) -> Leftovers | None:
        """None if nothing has been compacted yet."""
        watermarks = replica.coordination.watermarks
        if watermarks.incarnation not in self._known:
            self._known[watermarks.incarnation] = self._read(replica)
        found = self._known[watermarks.incarnation]
        is_compacted = min(watermarks.compacted) > replica.log.start_offset
        return UNKNOWN if found is None and is_compacted else found

    async def keep(self, replica: Replica, leftovers: Leftovers) -> None:
        incarnation = replica.coordination.watermarks.incarnation
        note = plans.encode({"incarnation": incarnation, "leftovers": leftovers})
        if self._known.get(incarnation) != leftovers:
            await self._disk.replace_file(_path(replica), note)
            self._known[incarnation] = leftovers

    def _read(self, replica: Replica) -> Leftovers | None:
        try:
            data = self._disk.read_file(_path(replica))
            if data is None:
                return None
            note = plans.decode(data)
            if note["incarnation"] != str(replica.coordination.watermarks.incarnation):
                return None
            return decode(note["leftovers"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            logger.warning("%s cannot be read (%s): one pass will find out what it said", _path(replica), error)
            return None


def decode(fields: dict[str, object]) -> Leftovers:
    """Raises ValueError, KeyError or TypeError on what is none."""
    removable = fields["removable"]
    if not isinstance(removable, list):
        raise ValueError("removable is a pair of offsets")
    keys, transactions = removable
    return Leftovers(**{**fields, "removable": Pair(int(keys), int(transactions))})  # type: ignore[arg-type]


def _path(replica: Replica) -> str:
    return f"{replica.log.directory}/{LEFTOVERS_FILE}"
