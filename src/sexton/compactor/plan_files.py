"""Access to the files of a broker's plan, wherever the task runs.

A broker creates a staging directory for each plan, with a name that cannot be guessed. A task that finds that
directory, owned by its own user, is on the broker's disk, whatever machine that is, and works on the files; one that
does not find it reads and writes through the broker's port (`broker.compaction.bulk`). Each task checks for itself:
both write to the same directory, so executors on the broker's machine and elsewhere can share a job.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from dataclasses import dataclass

from sexton.compaction.chunking import Extent, Output
from sexton.compactor.broker_files import BrokerFiles
from sexton.records.kernels.primitives import Bytes
from sexton.spark.storage import Folder, PartFile, Storage


@dataclass(frozen=True, slots=True)
class PlanFiles:
    """Implements `sexton.spark.storage.Storage`."""

    through_broker: BrokerFiles
    directory: str
    is_remote: bool = False
    """Goes through the broker's port even if the files can be seen."""

    @property
    def reads_anew(self) -> bool:
        return self._here.reads_anew

    def reading(self, path: str, start: int, end: int) -> AbstractContextManager[Bytes]:
        return self._here.reading(path, start, end)

    def new_part(self, base_offset: int, source: Extent | None) -> PartFile:
        return self._here.new_part(base_offset, source)

    def write_segment(self, output: Output) -> str:
        return self._here.write_segment(output)

    def remove_parts(self) -> None:
        """Does nothing: the broker removes all staged files when the plan has ended."""

    @property
    def _here(self) -> Storage:
        staging = self.through_broker.staging
        if self.is_remote or not _sees(self.directory, staging):
            return self.through_broker
        return Folder(staging)


def _sees(directory: str, staging: str) -> bool:
    """Files that are created in another user's directory might not be readable for the broker, so the owner must be the
    same."""
    try:
        is_own = os.stat(staging).st_uid == os.geteuid()
    except OSError:
        return False
    return is_own and os.access(staging, os.W_OK | os.X_OK) and os.access(directory, os.R_OK | os.X_OK)
