"""The one way a kernel is compiled: cached on disk, without Python objects, and without holding Python's lock.

Numba compiles a kernel again when *its own* file has changed, but not when a function or constant from another file has
that it was compiled with; after an update it would go on with a mixture. So the cache has a folder of its own for each
state of the sources.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numba
from numba import njit
from numba.extending import intrinsic

PACKAGE = Path(__file__).parents[2]
SOURCES = ("records", "compaction")
"""The packages that kernels are made from."""


def cache_dir() -> str | None:
    """None if there is no place for one: a system user may have no home, or one that cannot be written."""
    digest = hashlib.sha256()
    for path in sorted(path for name in SOURCES for path in (PACKAGE / name).rglob("*.py")):
        digest.update(str(path.relative_to(PACKAGE)).encode() + path.read_bytes())
    candidates = (base / digest.hexdigest()[:16] for base in _bases())
    return next((str(found) for found in candidates if _is_writable(found)), None)


def _bases() -> Iterator[Path]:
    asked = os.environ.get("NUMBA_CACHE_DIR")
    if asked:
        yield Path(asked)
    with suppress(RuntimeError):  # nobody knows the home
        yield Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "sexton", "kernels").expanduser()
    # Kept, for all processes of this user: to compile everything takes half a minute.
    temporary = Path(tempfile.gettempdir(), f"sexton-kernels-{os.geteuid()}")
    if _is_private(temporary):
        yield temporary


def _is_writable(directory: Path) -> bool:
    """Numba fails where it is not."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            return True
    except OSError:
        return False


def _is_private(directory: Path) -> bool:
    """Where everybody may write, somebody else may have made it: what lies there is run as code."""
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        status = directory.lstat()
    except OSError:
        return False
    is_shared = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not is_shared


_CACHE_DIR = cache_dir()
if _CACHE_DIR is not None:
    numba.config.CACHE_DIR = _CACHE_DIR


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    compiled: Callable[..., Any] = njit(cache=_CACHE_DIR is not None, nogil=True)(function)
    return compiled


def inlined_kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """For a few instructions that are called in the innermost loops."""
    compiled: Callable[..., Any] = njit(cache=_CACHE_DIR is not None, nogil=True, inline="always")(function)
    return compiled


def instruction(function: Callable[..., Any]) -> Callable[..., Any]:
    """An LLVM instruction that Numba does not offer by itself; ``function`` types it and emits it."""
    emitted: Callable[..., Any] = intrinsic(function)
    return emitted
