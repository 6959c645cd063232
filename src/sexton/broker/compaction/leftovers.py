"""What the last compaction of each log here could not remove, kept over restarts in a small file beside the log.

A partition that is no longer written to never becomes dirty again. Its tombstones and markers are removed only because
it is recorded that they wait, and for what. The file is written after a compaction is swapped in and before MCCO covers
it: a crash in between leaves a log that is dirty again, or an older note that causes one more compaction.

A log that has been compacted and has no such note (it was copied from a leader, or the file is lost or damaged) may
hold anything that waits; one compaction finds out.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from sexton.compaction.due import UNKNOWN, Leftovers, decode_leftovers
from sexton.ports.disk import Disk
from sexton.protocol import private
from sexton.replication.local_replica import LocalReplica

logger = logging.getLogger(__name__)

LEFTOVERS_FILE: Final = "compaction-leftovers"


@dataclass(frozen=True, slots=True)
class _Note:
    leftovers: Leftovers | None = None
    compacted_ms: int | None = None


_NOTHING: Final = _Note()
"""For a log whose directory has no note."""


class KeptLeftovers:
    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._known: dict[uuid.UUID, _Note] = {}
        """By incarnation: a note says nothing about another log."""

    def of(self, replica: LocalReplica) -> Leftovers | None:
        """What the replica's last compaction left; None if nothing has been compacted yet."""
        watermarks = replica.coordination.watermarks
        found = self._note(replica).leftovers
        is_compacted = min(watermarks.compacted) > replica.log.start_offset
        return UNKNOWN if found is None and is_compacted else found

    def compacted_ms(self, replica: LocalReplica) -> int | None:
        """When its last compaction was committed; None if unknown."""
        return self._note(replica).compacted_ms

    def _note(self, replica: LocalReplica) -> _Note:
        incarnation = replica.coordination.watermarks.incarnation
        if incarnation not in self._known:
            self._known[incarnation] = self._read(replica)
        return self._known[incarnation]

    async def keep(self, replica: LocalReplica, leftovers: Leftovers | None, now_ms: int) -> None:
        """`leftovers` is None if the leader that made the compaction does not know them: then the previous ones are
        kept and only the time is updated."""
        incarnation = replica.coordination.watermarks.incarnation
        note = _Note(leftovers if leftovers is not None else self._note(replica).leftovers, now_ms)
        encoded = {"incarnation": incarnation, "leftovers": note.leftovers, "compacted_ms": note.compacted_ms}
        await self._disk.replace_file(_path(replica), private.encode(encoded))
        self._known[incarnation] = note

    def keep_only(self, logs: Collection[uuid.UUID]) -> None:
        self._known = {log: note for log, note in self._known.items() if log in logs}

    def _read(self, replica: LocalReplica) -> _Note:
        try:
            data = self._disk.read_file(_path(replica))
            if data is None:
                return _NOTHING
            note = private.decode(data)
            if note["incarnation"] != str(replica.coordination.watermarks.incarnation):
                return _NOTHING
            left, compacted_ms = note["leftovers"], note.get("compacted_ms")
            leftovers = None if left is None else decode_leftovers(left)
            return _Note(leftovers, None if compacted_ms is None else int(compacted_ms))
        except (OSError, ValueError, KeyError, TypeError) as error:
            logger.warning("cannot read %s (%s): the next compaction restores it", _path(replica), error)
            return _NOTHING


def _path(replica: LocalReplica) -> str:
    return f"{replica.log.directory}/{LEFTOVERS_FILE}"
