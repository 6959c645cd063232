"""Bytes that a task reads through a broker's port, and the disk that it keeps them on."""

from __future__ import annotations

import errno
import os
from typing import NoReturn

import pytest

from sexton.compactor.broker_files import BrokerFiles
from sexton.errors import EnvironmentFailure

FILES = BrokerFiles("localhost", 1, "a plan", "/staged")


def test_a_full_disk_is_told_before_a_page_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sparse file takes no room until it is written; mapped, that ends the process and with it Spark's whole job."""

    def no_space(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", no_space)
    with pytest.raises(EnvironmentFailure, match=r"spark\.local\.dir"), FILES.reading(f"{0:020d}.log", 4096, 8192):
        pass


def test_all_that_is_read_has_room_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    reserved: list[tuple[int, int]] = []
    real = os.posix_fallocate

    def fallocate(descriptor: int, offset: int, size_bytes: int) -> None:
        real(descriptor, offset, size_bytes)
        reserved.append((offset, os.fstat(descriptor).st_blocks * 512))

    def fill(files: BrokerFiles, base_offset: int, view: memoryview, start: int, end: int) -> None:
        view[start:end] = b"x" * (end - start)

    monkeypatch.setattr(os, "posix_fallocate", fallocate)
    monkeypatch.setattr(BrokerFiles, "fill", fill)
    start, end = 64 << 20, (64 << 20) + (1 << 20)
    with FILES.reading(f"{0:020d}.log", start, end) as data:
        assert bytes(data[start : start + 3]) == b"xxx"
    ((offset, room_bytes),) = reserved
    assert offset == start
    assert 1 << 20 <= room_bytes < 32 << 20
