"""Files of another user, for tests that need not be run as root."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from sexton.records.ownership import Owner

Given = list[tuple[Path, int, int]]


def theirs(path: Path, monkeypatch: pytest.MonkeyPatch, refuses: bool = False) -> Given:
    """Makes a file look as if it were the user's 12345 and the group's 54321. Returns who was given what since."""
    given: Given = []
    of_file = Owner.of_file

    def look(asked: str | Path) -> Owner:
        found = of_file(asked)
        return replace(found, uid=12345, gid=54321) if Path(asked) == path else found

    def give(descriptor: int, uid: int, gid: int) -> None:
        if refuses:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        given.append((Path(os.readlink(f"/proc/self/fd/{descriptor}")), uid, gid))

    monkeypatch.setattr(Owner, "of_file", staticmethod(look))
    monkeypatch.setattr(os, "fchown", give)
    return given
