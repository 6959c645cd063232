"""The owner of a new file. An operator's tool, run as root, must leave no file that the broker's user cannot open."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_MODE_BITS: Final = 0o7777
_FILE_BITS: Final = 0o666

_WRITTEN_BY_BROKERS: Final = (
    "replication-offset-checkpoint",
    "recovery-point-offset-checkpoint",
    "meta.properties",
)
"""Files in a log directory whose owner is the broker's user. The directory's own owner may be another, where it is a
mounted volume. The last file may belong to the user who formatted the directory."""


@dataclass(frozen=True, slots=True)
class Owner:
    uid: int
    gid: int
    mode: int

    @staticmethod
    def of_file(path: str | Path) -> Owner:
        status = os.stat(path)
        return Owner(status.st_uid, status.st_gid, status.st_mode & _MODE_BITS)

    @staticmethod
    def of_files_in(directory: str | Path) -> Owner:
        """The owner and mode of files that the directory's owner would create there, by the umask that shows in the
        directory's own mode."""
        status = os.stat(directory)
        return Owner(status.st_uid, status.st_gid, status.st_mode & _FILE_BITS)

    @staticmethod
    def of_broker(log_dir: Path) -> Owner:
        """The owner of the broker's own files; that of the directory, if there are none."""
        for name in _WRITTEN_BY_BROKERS:
            try:
                return Owner.of_file(log_dir / name)
            except FileNotFoundError:
                continue
        return Owner.of_files_in(log_dir)

    def give(self, descriptor: int) -> None:
        """Raises PermissionError if the file keeps another owner. A wrong group alone does no harm."""
        found = os.fstat(descriptor)
        if (found.st_uid, found.st_gid) != (self.uid, self.gid):
            try:
                os.fchown(descriptor, self.uid, self.gid)
            except PermissionError:
                if found.st_uid != self.uid:
                    raise
        if found.st_mode & _MODE_BITS != self.mode:
            os.fchmod(descriptor, self.mode)
