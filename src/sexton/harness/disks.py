"""A small disk of its own for each broker: one that can be full, one that turns read-only under it.

A file with ext4 on a loop device, mounted where the broker has its data (errors=remount-ro, as Debian has it, and an
error that the kernel is asked to believe in). Only root can mount one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from sexton.harness.errors import HarnessError
from sexton.harness.undoing import Undoing, Undone

IMAGE: Final = "disk.img"
"""Beside the directory that it is mounted as."""

BALLAST: Final = "ballast"
LOST_AND_FOUND: Final = "lost+found"
"""Every ext4 has it. To Kafka a directory that is no partition's is an error."""

DISK_MB: Final = 1024
"""More than a run writes in minutes. The file has holes: what nobody has written takes no place."""

UNMOUNT_TIMEOUT_S: Final = 120
POLL_S: Final = 0.1


class SmallDisk:
    """Mounted when it is entered, and unmounted when it is left. Whoever uses it must have ended by then, or finds
    nothing any more."""

    def __init__(self, image: Path, place: Path, size_mb: int = DISK_MB) -> None:
        self.image = image
        self.place = place
        self._size_mb = size_mb
        self.is_full = False
        """On purpose."""

    @staticmethod
    def check() -> None:
        if shutil.which("mkfs.ext4") is None:
            raise HarnessError("a disk for each broker needs mkfs.ext4", "", "apt-get install e2fsprogs")
        if os.geteuid() != 0:
            raise HarnessError("only root can mount a disk for each broker", "", "Run it as root, or in a container")

    def __enter__(self) -> Self:
        self.check()
        self.image.parent.mkdir(parents=True, exist_ok=True)
        self.place.mkdir(parents=True, exist_ok=True)
        with self.image.open("wb") as file:
            file.truncate(self._size_mb << 20)
        _run("mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=0", self.image)
        self.mount()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        subprocess.run(["umount", "-l", self.place], capture_output=True, check=False)

    def mount(self) -> None:
        _run("mount", "-o", "loop,errors=remount-ro", self.image, self.place)
        lost = self.place / LOST_AND_FOUND
        if lost.is_dir() and not any(lost.iterdir()):
            lost.rmdir()

    def unmount(self) -> None:
        """Returns when nobody has it any more. Whoever has made a mount namespace meanwhile (`ip netns exec` does) has
        a copy of the mount until it ends; the image must not be checked, or mounted anew, beside that."""
        _run("umount", self.place)
        deadline_s = time.monotonic() + UNMOUNT_TIMEOUT_S
        while subprocess.run(["losetup", "-j", self.image], capture_output=True, check=True).stdout:
            if time.monotonic() > deadline_s:
                raise HarnessError(f"still mounted somewhere after {UNMOUNT_TIMEOUT_S} s", str(self.image))
            time.sleep(POLL_S)

    def fill(self) -> None:
        """Fills the disk to the last byte."""
        self.is_full = True
        with open(self.place / BALLAST, "wb", buffering=0) as ballast:
            for size_bytes in (self._free_bytes(), 1 << 20, 1 << 12):
                while size_bytes:
                    try:
                        os.posix_fallocate(ballast.fileno(), os.fstat(ballast.fileno()).st_size, size_bytes)
                    except OSError:
                        break
            ballast.seek(0, os.SEEK_END)
            while True:
                try:
                    ballast.write(b"\0")
                except OSError:
                    break

    def _free_bytes(self) -> int:
        found = os.statvfs(self.place)
        return found.f_bavail * found.f_frsize

    def make_room(self) -> None:
        self.is_full = False
        (self.place / BALLAST).unlink(missing_ok=True)

    def turn_read_only(self) -> None:
        """What the kernel does when it finds the file system damaged."""
        found = subprocess.run(["findmnt", "-no", "SOURCE", self.place], capture_output=True, text=True, check=True)
        name = Path(found.stdout.strip()).name
        Path(f"/sys/fs/ext4/{name}/trigger_fs_error").write_text("a test")

    def repair(self) -> None:
        """Not while it is in use. What was not flushed is as it was before: that there is room again may be."""
        self.unmount()
        subprocess.run(["e2fsck", "-fy", self.image], capture_output=True, check=False)
        self.mount()
        if not self.is_full:
            self.make_room()


class Disks(Undone):
    """One for each broker, where its data is. They go with this process, however that ends."""

    def __init__(self, places: Mapping[int, Path]) -> None:
        self._disks = {node_id: SmallDisk(place.with_name(IMAGE), place) for node_id, place in places.items()}

    @staticmethod
    def check() -> None:
        SmallDisk.check()

    def of(self, node_id: int) -> SmallDisk:
        return self._disks[node_id]

    def __enter__(self) -> Self:
        self.check()
        places = [str(disk.place) for disk in self._disks.values()]
        self._undoing = Undoing('umount -l "$@"', *places)
        try:
            for disk in self._disks.values():
                disk.__enter__()
        except BaseException:
            self.close()
            raise
        return self


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        told = f"{' '.join(map(str, command))} failed: {done.stderr.strip()}"
        raise HarnessError(told, "", "This machine must be able to mount ext4 on loop devices")
