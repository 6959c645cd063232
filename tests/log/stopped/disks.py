"""Disks that stop: at a chosen operation, with or without losing what was not flushed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path

from sexton.log.stopped.swap import Files

SUBSETS_MAX = 3
"""Few operations that are pending are tried in every combination; of many, a sample at each crash point."""


class Crash(BaseException):
    """Not an error, for nothing may catch it: the process is gone."""


class StoppingFiles(Files):
    """The process dies right before operation number `stop_at`, or never. Flushes are counted but not done:
    they are slow, and what they are for is shown by LosingFiles."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.count = 0
        self.stop_at = stop_at

    def step(self) -> None:
        if self.count == self.stop_at:
            raise Crash
        self.count += 1

    def rename(self, path: str, new_path: str) -> None:
        self.step()
        super().rename(path, new_path)

    def remove(self, path: str) -> None:
        self.step()
        super().remove(path)

    def flush_file(self, path: str) -> None:
        self.step()

    async def flush_directory(self, directory: str) -> None:
        self.step()


class LosingFiles(StoppingFiles):
    """Remembers what a power failure could undo: names since the directory was last flushed, and the content
    of files that never were. Files that exist at the start, except `.cleaned` ones, are safe."""

    def __init__(self, directory: Path, stop_at: int | None = None) -> None:
        super().__init__(stop_at)
        self.directory = directory
        self.flushed = {_inode(path) for path in directory.iterdir() if not path.name.endswith(".cleaned")}
        self.pending: list[tuple[str, str]] = []  # a name and what it became, "" when unlinked
        self._flush_names()

    def rename(self, path: str, new_path: str) -> None:
        super().rename(path, new_path)
        self.pending.append((Path(path).name, Path(new_path).name))

    def remove(self, path: str) -> None:
        super().remove(path)
        self.pending.append((Path(path).name, ""))

    def flush_file(self, path: str) -> None:
        super().flush_file(path)
        self.flushed.add(_inode(Path(path)))

    async def flush_directory(self, directory: str) -> None:
        await super().flush_directory(directory)
        self._flush_names()

    def _flush_names(self) -> None:
        self.pending.clear()
        self.durable = {path.name: (_inode(path), path.read_bytes()) for path in self.directory.iterdir()}

    def after_power_failure(self, rng: random.Random) -> Iterator[dict[str, tuple[int, bytes]]]:
        """The directories that may be found: any part of what is pending may have reached the disk."""
        everything = tuple(range(len(self.pending)))
        chosen: list[tuple[int, ...]] = [(), everything[-1:], everything]
        if len(everything) <= 3:
            chosen = list(itertools.chain.from_iterable(itertools.combinations(everything, n) for n in range(5)))
        else:
            chosen += [tuple(i for i in everything if rng.random() < 0.5) for _ in range(SUBSETS_MAX)]
        for indexes in chosen:
            names = dict(self.durable)
            for index in indexes:
                source, target = self.pending[index]
                if source in names:
                    entry = names.pop(source)
                    if target:
                        names[target] = entry
            yield {name: self._content(*entry) for name, entry in names.items()}

    def _content(self, inode: int, content: bytes) -> tuple[int, bytes]:
        return inode, content if inode in self.flushed else content[: len(content) // 2]


def restore(directory: Path, names: dict[str, tuple[int, bytes]]) -> None:
    """A directory as described, hard links included."""
    directory.mkdir()
    first: dict[int, Path] = {}
    for name, (inode, content) in names.items():
        if inode in first:
            (directory / name).hardlink_to(first[inode])
        else:
            first[inode] = directory / name
            first[inode].write_bytes(content)


def _inode(path: Path) -> int:
    return path.stat().st_ino
