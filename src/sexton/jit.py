"""The one way a kernel is compiled: cached on disk, without Python objects, and without holding the GIL.

Numba compiles a kernel again when *its own* file has changed, but not when a function or constant that it uses from
another file has; after an update it would run a mixture. So there is a cache directory of its own for each state of the
sources.
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

PACKAGE = Path(__file__).parent
SOURCES = ("records", "compaction", "history", "checker")
"""The packages that contain kernels."""


def cache_dir() -> str | None:
    """Returns None if there is no place for a cache: a system user may have no home, or one that is not writable."""
    digest = hashlib.sha256()
    for path in sorted(path for name in SOURCES for path in (PACKAGE / name).rglob("*.py")):
        digest.update(str(path.relative_to(PACKAGE)).encode() + path.read_bytes())
    candidates = (base / digest.hexdigest()[:16] for base in _bases())
    return next((str(found) for found in candidates if _is_writable(found)), None)


def _bases() -> Iterator[Path]:
    asked = os.environ.get("NUMBA_CACHE_DIR")
    if asked:
        yield Path(asked)
    with suppress(RuntimeError):  # the home is unknown
        yield Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "sexton", "kernels").expanduser()
    # Kept for all processes of this user: compiling everything takes half a minute.
    temporary = Path(tempfile.gettempdir(), f"sexton-kernels-{os.geteuid()}")
    if _is_private(temporary):
        yield temporary


def _is_writable(directory: Path) -> bool:
    """Numba fails if the directory is not writable."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            return True
    except OSError:
        return False


def _is_private(directory: Path) -> bool:
    """In a directory that is writable for all, another user may have created it: its content is executed as code."""
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        status = directory.lstat()
    except OSError:
        return False
    is_shared = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not is_shared


_CACHE_DIR = cache_dir()
if _CACHE_DIR is not None:
    numba.config.CACHE_DIR = _CACHE_DIR  # type: ignore[attr-defined]


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
