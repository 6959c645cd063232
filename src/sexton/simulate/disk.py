"""A disk in memory that forgets, after a power loss, whatever `ports.disk` allows a real one to forget.

Everything that was done since the last flush is kept in an undo log: appends and cuts per file, names per directory. A
power loss takes back a suffix of each log, chosen by the seed for each file and each directory on its own, so that a
file may survive with its bytes but without its name, or the other way round. The last append that survives may be torn:
cut anywhere, or whole in length with zeros or noise in place of its end. Or pages survive in any order (`page_bytes`).

Some places of it may be full, or not be readable, while others are (`Trouble`).

What is stricter than most real file systems: flushing a file does not make its name durable, and after a flush has
failed nothing that was appended since the last good one ever becomes durable, even if a later flush claims success.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from sexton.errors import LogInUseError
from sexton.ports.disk import Buffer
from sexton.simulate.inode import Inode
from sexton.simulate.loop import MS, Process, SimulatedLoop

VOLUME_BYTES = 1 << 34


@dataclass(slots=True)
class DiskWeather:
    """How the device behaves. Times are drawn between the two bounds, per flush."""

    flush_ns_min: int = MS // 10
    flush_ns_max: int = 2 * MS
    hiccup_probability: float = 0.005
    hiccup_ns: int = 80 * MS
    slowness: int = 1
    flush_failure_probability: float = 0.0
    page_bytes: int = 0
    """Pages that reach the device in any order; 0 means that writes do, in theirs."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """An error that only some files meet: those in one directory, or below it, whose name has a certain part."""

    number: int
    directory: str
    part: str = ""

    def strikes(self, number: int, path: str) -> bool:
        directory, _, name = path.rpartition("/")
        is_inside = directory == self.directory or directory.startswith(f"{self.directory}/")
        return number == self.number and is_inside and self.part in f"{directory[len(self.directory) :]}/{name}"


class Stray(NamedTuple):
    """What a process did by name in a directory that it had left: or in the next one of that name, if there was one."""

    process: str
    path: str


class _Directory:
    def __init__(self) -> None:
        self.children: dict[str, Inode | _Directory] = {}


_Child = Inode | _Directory | None


def _copied(directory: _Directory) -> _Directory:
    copied = _Directory()
    for name, child in directory.children.items():
        copied.children[name] = _copied(child) if isinstance(child, _Directory) else Inode(bytes(child.content))
    return copied


@dataclass(slots=True)
class _NameChange:
    """Names that changed together: (directory, name, what it was before)."""

    number: int
    before: list[tuple[_Directory, str, _Child]]
    directories: frozenset[int]
    """By their ids; `before` keeps them alive."""


class VirtualDisk:
    """One machine's volume. It outlives the processes that use it; each of those has its own `SimulatedDisk`."""

    def __init__(self, rng: random.Random, weather: DiskWeather | None = None, total_bytes: int = VOLUME_BYTES) -> None:
        self.rng = rng
        self.weather = weather or DiskWeather()
        self.total_bytes = total_bytes
        self.used_bytes = 0
        self.troubles: list[Trouble] = []
        self.power_losses_count = 0
        self._root = _Directory()
        self._journal: list[_NameChange] = []
        self._number = 0
        self._holders: dict[str, Process] = {}
        self._left: dict[str, Process] = {}
        """Directories that a process has renamed or removed, and nobody has made again."""
        self.strays: list[Stray] = []

    def image(self) -> VirtualDisk:
        """What a machine that is off has on its disk, for another day."""
        taken = VirtualDisk(self.rng, self.weather)
        taken._root = _copied(self._root)
        taken.used_bytes = self.used_bytes
        taken.power_losses_count = self.power_losses_count + 1
        return taken

    def of(self, process: Process, loop: SimulatedLoop) -> SimulatedDisk:
        return SimulatedDisk(self, process, loop)

    # Looking up

    def find(self, path: str) -> _Child:
        node: _Child = self._root
        for name in _names(path):
            if not isinstance(node, _Directory):
                return None
            node = node.children.get(name)
        return node

    def parent(self, path: str) -> tuple[_Directory, str]:
        names = _names(path)
        directory = self.find("/" + "/".join(names[:-1]))
        if not isinstance(directory, _Directory):
            raise _error(errno.ENOENT, path)
        return directory, names[-1]

    def files(self, directory: str) -> list[tuple[str, Inode]]:
        """Of one directory, by name, for whoever inspects the disk from outside."""
        node = self.find(directory)
        if not isinstance(node, _Directory):
            return []
        return [(name, child) for name, child in sorted(node.children.items()) if isinstance(child, Inode)]

    def directories(self, directory: str) -> list[str]:
        """Paths of those in a directory, sorted."""
        node = self.find(directory)
        if not isinstance(node, _Directory):
            return []
        return [f"{directory}/{name}" for name, child in sorted(node.children.items()) if isinstance(child, _Directory)]

    # Changing names

    def set_names(self, *changes: tuple[_Directory, str, _Child]) -> None:
        before = [(directory, name, directory.children.get(name)) for directory, name, _ in changes]
        for directory, name, child in changes:
            _set(directory, name, child)
        directories = frozenset(id(directory) for directory, _, _ in changes)
        self._journal.append(_NameChange(self.next_number(), before, directories))

    def left(self, directory: str, process: Process) -> None:
        self._left[directory] = process

    def made(self, directory: str) -> None:
        self._left.pop(directory, None)

    def stray(self, path: str, process: Process) -> None:
        """Whoever looks for a file there believes that the directory is still its own."""
        if self._left.get(path.rpartition("/")[0]) is process:
            self.strays.append(Stray(process.name, path))

    def names_flushed(self, directory: _Directory, number: int) -> None:
        """Changes up to a number, as far as they touch the directory, are durable, with what those in turn rest on."""
        touched = {id(directory)}
        left: list[_NameChange] = []
        for change in reversed(self._journal):
            if change.number <= number and not touched.isdisjoint(change.directories):
                touched |= change.directories
            else:
                left.append(change)
        self._journal = left[::-1]

    def next_number(self) -> int:
        self._number += 1
        return self._number

    @property
    def last_number(self) -> int:
        return self._number

    # The end of a process

    def process_killed(self, power_lost: bool) -> None:
        """The page cache survives a process, but not the machine; and not pages that could not be written back."""
        self._holders.clear()
        if power_lost:
            self.power_losses_count += 1
            self._lose_names()
        for _, inode in self._inodes(self._root):
            if power_lost or inode.is_poisoned:
                inode.lose_power(self.rng, self.weather.page_bytes)
        self.used_bytes = sum(len(inode.content) for _, inode in self._inodes(self._root))

    def _lose_names(self) -> None:
        """Of each directory a prefix of its changes survives; a change of two directories in both or in neither."""
        counts: dict[int, int] = {}
        for change in self._journal:
            for directory, _, _ in change.before:
                counts[id(directory)] = counts.get(id(directory), 0) + 1
        left = {key: self.rng.randrange(count + 1) for key, count in counts.items()}
        lost: list[_NameChange] = []
        for change in self._journal:
            keys = [id(directory) for directory, _, _ in change.before]
            if all(left[key] > 0 for key in keys):
                for key in dict.fromkeys(keys):
                    left[key] -= 1
            else:
                left.update(dict.fromkeys(keys, 0))
                lost.append(change)
        for change in reversed(lost):
            for directory, name, child in reversed(change.before):
                _set(directory, name, child)
        self._journal.clear()

    def _inodes(self, directory: _Directory) -> Iterator[tuple[str, Inode]]:
        for name, child in sorted(directory.children.items()):
            if isinstance(child, _Directory):
                yield from self._inodes(child)
            else:
                yield name, child

    # Locks

    @contextmanager
    def lock(self, directory: str, process: Process) -> Iterator[None]:
        holder = self._holders.get(directory)
        if holder is not None and holder.alive:
            raise LogInUseError(f"{holder.name} holds the log directory's lock", directory, "Stop it, then try again")
        self._holders[directory] = process
        try:
            yield
        finally:
            if self._holders.get(directory) is process:
                del self._holders[directory]

    def strike(self, number: int, path: str) -> None:
        """Raises that error if a place is in that trouble."""
        if self.troubles and any(one.strikes(number, path) for one in self.troubles):
            raise _error(number, path)

    def take(self, size_bytes: int, path: str) -> None:
        self.strike(errno.ENOSPC, path)
        if self.used_bytes + size_bytes > self.total_bytes:
            raise _error(errno.ENOSPC, path)
        self.used_bytes += size_bytes

    def flush_ns(self) -> int:
        weather, rng = self.weather, self.rng
        ns = weather.flush_ns_min + int(rng.random() * (weather.flush_ns_max - weather.flush_ns_min))
        if weather.hiccup_probability and rng.random() < weather.hiccup_probability:
            ns += int(rng.random() * weather.hiccup_ns)
        return ns * weather.slowness


class _File:
    """`ports.disk.File`. Names play no part once it is open: a file that was renamed or removed goes on."""

    def __init__(self, disk: SimulatedDisk, path: str, inode: Inode) -> None:
        self._disk = disk
        self._path = path
        self._inode = inode
        self._is_closed = False
        self.unreadable: OSError | None = None

    @property
    def path(self) -> str:
        return self._path

    @property
    def size_bytes(self) -> int:
        return len(self._inode.content)

    def append(self, parts: Sequence[Buffer]) -> None:
        self._check_open()
        data = b"".join(parts)
        self._disk.volume.take(len(data), self._path)
        if data:
            self._inode.append(data, self._disk.volume.next_number())

    def read(self, position: int, size_bytes: int) -> bytes:
        # A slice that is still to be sent keeps the file open, as in the real adapter.
        self._disk.volume.strike(errno.EIO, self._path)
        return self._inode.read(position, size_bytes)

    def truncate(self, size_bytes: int) -> None:
        self._check_open()
        self._disk.volume.used_bytes -= max(0, self.size_bytes - size_bytes)
        self._inode.truncate(size_bytes, self._disk.volume.next_number())

    async def flush(self) -> None:
        self._check_open()
        number = self._disk.volume.last_number
        try:
            await self._disk.wait_for_device()
        except OSError:
            self._inode.is_poisoned = True
            raise
        self._inode.flushed(number)

    async def read_back(self) -> None:
        await self.flush()
        self._inode.forget_unwritten()

    def close(self) -> None:
        self._is_closed = True

    def _check_open(self) -> None:
        self._disk.check_alive()
        if self._is_closed:
            raise _error(errno.EBADF, self._path)


class SimulatedDisk:
    """`ports.disk.Disk` for one process. Once that is dead, everything fails."""

    def __init__(self, volume: VirtualDisk, process: Process, loop: SimulatedLoop) -> None:
        self.volume = volume
        self._process = process
        self._loop = loop

    def check_alive(self) -> None:
        if not self._process.alive:
            raise _error(errno.EIO, "the process is dead")

    def open(self, path: str, *, create: bool = False) -> _File:
        self.check_alive()
        node = self.volume.find(path)
        if isinstance(node, _Directory):
            raise _error(errno.EISDIR, path)
        if node is None:
            if not create:
                self.volume.stray(path, self._process)
                raise _error(errno.ENOENT, path)
            directory, name = self._parent(path)
            self.volume.strike(errno.ENOSPC, path)
            node = Inode()
            self.volume.set_names((directory, name, node))
        return _File(self, path, node)

    def _parent(self, path: str) -> tuple[_Directory, str]:
        try:
            return self.volume.parent(path)
        except FileNotFoundError:
            self.volume.stray(path, self._process)
            raise

    def list(self, directory: str) -> list[str]:
        node = self.volume.find(directory)
        return sorted(node.children) if isinstance(node, _Directory) else []

    def exists(self, path: str) -> bool:
        return self.volume.find(path) is not None

    def read_file(self, path: str) -> bytes | None:
        node = self.volume.find(path)
        if isinstance(node, _Directory):
            raise _error(errno.EISDIR, path)
        if node is not None:
            self.volume.strike(errno.EIO, path)
        return None if node is None else node.read(0, len(node.content))

    def read_part(self, path: str, position: int, size_bytes: int) -> bytes:
        node = self._child(path)
        if isinstance(node, _Directory):
            raise _error(errno.EISDIR, path)
        self.volume.strike(errno.EIO, path)
        return node.read(position, size_bytes)

    def size_of(self, path: str) -> int | None:
        node = self._child(path)
        return None if isinstance(node, _Directory) else len(node.content)

    def _child(self, path: str) -> Inode | _Directory:
        node = self.volume.find(path)
        if node is None:
            raise _error(errno.ENOENT, path)
        return node

    async def replace_file(self, path: str, content: bytes) -> None:
        directory, _, name = path.rpartition("/")
        await self.replace_files(directory, [(name, content)])

    async def replace_files(self, directory: str, files: Sequence[tuple[str, bytes]]) -> None:
        self.check_alive()
        for number, (file_name, content) in enumerate(files):
            if 0 < number == len(files) - 1:
                await self.flush_directory(directory)
            path = f"{directory}/{file_name}"
            meant, _ = self._parent(path)
            self.volume.take(len(content), path)
            await self.wait_for_device()
            parent, name = self._parent(path)
            if parent is not meant:
                self.volume.strays.append(Stray(self._process.name, path))
            old = parent.children.get(name)
            if isinstance(old, _Directory):
                raise _error(errno.EISDIR, path)
            self.volume.used_bytes -= len(old.content) if old is not None else 0
            self.volume.set_names((parent, name, Inode(content)))
        await self.flush_directory(directory)

    async def create_file(self, path: str, content: Buffer) -> None:
        self.check_alive()
        self._parent(path)
        self.volume.take(len(content), path)
        await self.wait_for_device()
        directory, name = self._parent(path)
        if name in directory.children:
            self.volume.used_bytes -= len(content)
            raise _error(errno.EEXIST, path)
        self.volume.set_names((directory, name, Inode(bytes(content))))
        await self.flush_directory(path.rpartition("/")[0])

    async def in_thread(self, work: Callable[[], None]) -> None:
        """Runs the work in one step, after a while."""
        done: asyncio.Future[None] = self._loop.create_future()
        self._loop.call_for(self._process, self.volume.rng.randrange(MS), _finish, done)
        await done
        self.check_alive()
        work()

    def make_directory(self, path: str) -> None:
        self.check_alive()
        node: _Child = self.volume.find("/")
        place = ""
        for name in _names(path):
            if not isinstance(node, _Directory):
                raise _error(errno.ENOTDIR, path)
            place = f"{place}/{name}"
            child = node.children.get(name)
            if child is None:
                child = _Directory()
                self.volume.set_names((node, name, child))
                self.volume.made(place)
            node = child
        if not isinstance(node, _Directory):
            raise _error(errno.EEXIST, path)

    def rename(self, path: str, new_path: str) -> None:
        self.check_alive()
        source, name = self.volume.parent(path)
        target, new_name = self.volume.parent(new_path)
        node = source.children.get(name)
        if node is None:
            raise _error(errno.ENOENT, path)
        replaced = target.children.get(new_name)
        if isinstance(replaced, _Directory) and replaced.children:
            raise _error(errno.ENOTEMPTY, new_path)
        self.volume.set_names((source, name, None), (target, new_name, node))
        if isinstance(node, _Directory):
            self.volume.left(path, self._process)
            self.volume.made(new_path)

    def remove(self, path: str) -> None:
        self.check_alive()
        node = self.volume.find(path)
        if isinstance(node, _Directory):
            raise _error(errno.EISDIR, path)
        if node is not None:
            directory, name = self.volume.parent(path)
            self.volume.used_bytes -= len(node.content)
            self.volume.set_names((directory, name, None))

    def remove_tree(self, directory: str) -> None:
        self.check_alive()
        node = self.volume.find(directory)
        if not isinstance(node, _Directory):
            return
        for name, child in sorted(node.children.items()):
            if isinstance(child, _Directory):
                self.remove_tree(f"{directory}/{name}")
            else:
                self.remove(f"{directory}/{name}")
        parent, name = self.volume.parent(directory)
        self.volume.set_names((parent, name, None))

    async def flush_directory(self, directory: str) -> None:
        self.check_alive()
        node = self.volume.find(directory)
        if not isinstance(node, _Directory):
            raise _error(errno.ENOENT, directory)
        number = self.volume.last_number
        await self.wait_for_device()
        self.volume.names_flushed(node, number)

    def free_bytes(self, directory: str) -> tuple[int, int]:
        return self.volume.total_bytes - self.volume.used_bytes, self.volume.total_bytes

    def page_cache_id(self) -> str | None:
        return f"start {self.volume.power_losses_count}"

    def lock(self, directory: str) -> AbstractContextManager[None]:
        return self.volume.lock(directory, self._process)

    async def wait_for_device(self) -> None:
        """The time that a flush takes. Raises EIO when the seed says that it fails."""
        done: asyncio.Future[None] = self._loop.create_future()
        self._loop.call_for(self._process, self.volume.flush_ns(), _finish, done)
        await done
        self.check_alive()
        failure_probability = self.volume.weather.flush_failure_probability
        if failure_probability and self.volume.rng.random() < failure_probability:
            raise _error(errno.EIO, "flush")


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name]


def _set(directory: _Directory, name: str, child: _Child) -> None:
    if child is None:
        directory.children.pop(name, None)
    else:
        directory.children[name] = child


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


def _finish(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)
