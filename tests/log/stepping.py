"""A disk whose every change is a step at which something can happen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sexton.ports.disk import Buffer


class SteppingDisk:
    """Calls `on_step` before each change and each flush; an exception from it takes the place of the operation."""

    def __init__(self, inner: Any, on_step: Callable[[str], None]) -> None:
        self._inner = inner
        self.on_step = on_step

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def open(self, path: str, *, create: bool = False) -> Any:
        if create and not self._inner.exists(path):
            self.on_step(f"create {path}")
        return _SteppingFile(self._inner.open(path, create=create), self)

    def rename(self, path: str, new_path: str) -> None:
        self.on_step(f"rename {path} to {new_path}")
        self._inner.rename(path, new_path)

    def remove(self, path: str) -> None:
        if self._inner.exists(path):
            self.on_step(f"remove {path}")
            self._inner.remove(path)

    async def replace_file(self, path: str, content: bytes) -> None:
        self.on_step(f"replace {path}")
        await self._inner.replace_file(path, content)

    async def replace_files(self, directory: str, files: Sequence[tuple[str, bytes]]) -> None:
        for name, content in files:
            await self.replace_file(f"{directory}/{name}", content)

    async def flush_directory(self, directory: str) -> None:
        self.on_step(f"flush the names of {directory}")
        await self._inner.flush_directory(directory)


class _SteppingFile:
    def __init__(self, inner: Any, disk: SteppingDisk) -> None:
        self._inner = inner
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def append(self, parts: Sequence[Buffer]) -> None:
        self._disk.on_step(f"append to {self._inner.path}")
        self._inner.append(parts)

    async def flush(self) -> None:
        self._disk.on_step(f"flush {self._inner.path}")
        await self._inner.flush()
