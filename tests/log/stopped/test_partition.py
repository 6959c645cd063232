"""A segment's bytes, while a broker may still write to it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from sexton.log.stopped.partition import READ_BYTES, mapped
from sexton.records import names

PAGE_BYTES: Final = 4096

TRUNCATED_WHILE_USED: Final = """
import os, sys
from sexton.log.stopped.partition import mapped
with mapped(sys.argv[1]) as data:
    os.truncate(sys.argv[1], 0)
    print(int(data.sum()))
"""


def segments(directory: Path, *base_offsets: int, size_bytes: int = 4 * PAGE_BYTES) -> list[Path]:
    directory.mkdir()
    paths = [directory / names.log_file_name(offset) for offset in base_offsets]
    for path in paths:
        path.write_bytes(b"\1" * size_bytes)
    return paths


def test_a_last_segment_that_is_truncated_while_it_is_used_kills_nobody(tmp_path: Path) -> None:
    *_, last = segments(tmp_path / "t-0", 0, 100)
    done = subprocess.run(
        [sys.executable, "-c", TRUNCATED_WHILE_USED, str(last)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.returncode} {done.stderr}"
    assert int(done.stdout) == 4 * PAGE_BYTES


def test_a_last_segment_that_is_truncated_while_it_is_read_ends_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (last,) = segments(tmp_path / "t-0", 0, size_bytes=3 * READ_BYTES)
    read = os.preadv

    def then_truncate(descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        count = read(descriptor, buffers, offset)
        os.truncate(last, READ_BYTES + 10)
        return count

    monkeypatch.setattr(os, "preadv", then_truncate)
    with mapped(last) as data:
        assert len(data) == READ_BYTES + 10
        assert (data == 1).all()


def test_of_a_last_segment_only_what_is_asked_for_is_read(tmp_path: Path) -> None:
    (last,) = segments(tmp_path / "t-0", 0)
    with mapped(last, PAGE_BYTES, 2 * PAGE_BYTES) as data:
        assert len(data) == 4 * PAGE_BYTES, "positions are those of the file"
        assert int(data.sum()) == PAGE_BYTES
        assert (data[PAGE_BYTES : 2 * PAGE_BYTES] == 1).all()


def test_a_segment_that_was_the_last_is_mapped_once_there_is_another(tmp_path: Path) -> None:
    first, last = segments(tmp_path / "t-0", 0, 100)
    assert not is_copied(first)
    assert is_copied(last)
    os.utime(last.parent, ns=(0, 0))  # the next change must be seen even within one tick of the file system's clock
    (last.parent / names.log_file_name(200)).write_bytes(b"")
    assert not is_copied(last)


def is_copied(path: Path) -> bool:
    """A map shows what is written to the file later."""
    with mapped(path) as data:
        content = path.read_bytes()
        path.write_bytes(b"\2" * len(content))
        return bool((data == 1).all())
