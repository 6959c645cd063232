"""A small disk of a test's own (`harness.disks`). Where nobody may mount one, the test is skipped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from sexton.harness.disks import SmallDisk
from sexton.harness.errors import HarnessError


@contextmanager
def small_disk(image: Path, place: Path, size_mb: int) -> Iterator[SmallDisk]:
    disk = SmallDisk(image, place, size_mb)
    with ExitStack() as stack:
        try:
            stack.enter_context(disk)
        except HarnessError as error:
            pytest.skip(str(error))
        yield disk
