"""Small disks of a test's own: one that can be full, one that turns read-only under a broker.

A file with ext4 on a loop device, where root may mount one (errors=remount-ro, as Debian has it, and an error that the
kernel is asked to believe in). Elsewhere the test is skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class SmallDisk:
    def __init__(self, image: Path, place: Path) -> None:
        self.image = image
        self.place = place

    def mount(self) -> None:
        _run("mount", "-o", "loop,errors=remount-ro", self.image, self.place)

    def unmount(self) -> None:
        _run("umount", self.place)

    def fill(self) -> None:
        """To the last byte that anybody may have."""
        with open(self.place / "ballast", "wb", buffering=0) as ballast:
            for size_bytes in (1 << 20, 1 << 12, 1):
                try:
                    while ballast.write(bytes(size_bytes)) == size_bytes:
                        pass
                except OSError:
                    continue

    @property
    def is_full(self) -> bool:
        return (self.place / "ballast").exists()

    def make_room(self) -> None:
        (self.place / "ballast").unlink()

    def turn_read_only(self) -> None:
        """What the kernel does when it finds the file system damaged."""
        device = subprocess.run(["findmnt", "-no", "SOURCE", self.place], capture_output=True, text=True, check=True)
        name = Path(device.stdout.strip()).name
        Path(f"/sys/fs/ext4/{name}/trigger_fs_error").write_text("a test")

    def repair(self) -> None:
        """Not while it is in use."""
        self.unmount()
        subprocess.run(["e2fsck", "-fy", self.image], capture_output=True, check=False)
        self.mount()


@contextmanager
def small_disk(image: Path, place: Path, size_mb: int) -> Iterator[SmallDisk]:
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
        pytest.skip("only root can mount a disk of its own")
    image.parent.mkdir(parents=True, exist_ok=True)
    place.mkdir(parents=True, exist_ok=True)
    with image.open("wb") as file:
        file.truncate(size_mb << 20)
    disk = SmallDisk(image, place)
    _run("mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=0", image)
    try:
        disk.mount()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no disk can be mounted here: {error.stderr.decode().strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", place], capture_output=True, check=False)


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True, capture_output=True)
