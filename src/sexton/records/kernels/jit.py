"""The one way a kernel is compiled: cached on disk, without Python objects, and without holding Python's lock.

Numba compiles a kernel again when *its own* file has changed, but not when a function or constant from another file has
that it was compiled with; after an update it would go on with a mixture. So the cache has a folder of its own for each
state of the sources.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba import njit
from numba.extending import intrinsic

PACKAGE = Path(__file__).parents[2]
SOURCES = ("records", "compaction")
"""The packages that kernels are made from."""


def _cache_dir() -> str:
    digest = hashlib.sha256()
    for path in sorted(path for name in SOURCES for path in (PACKAGE / name).rglob("*.py")):
        digest.update(str(path.relative_to(PACKAGE)).encode() + path.read_bytes())
    base = os.environ.get("NUMBA_CACHE_DIR") or Path(
        os.environ.get("XDG_CACHE_HOME") or "~/.cache", "sexton", "kernels"
    )
    return str(Path(base).expanduser() / digest.hexdigest()[:16])


numba.config.CACHE_DIR = _cache_dir()


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    compiled: Callable[..., Any] = njit(cache=True, nogil=True)(function)
    return compiled


def inlined_kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """For a few instructions that are called in the innermost loops."""
    compiled: Callable[..., Any] = njit(cache=True, nogil=True, inline="always")(function)
    return compiled


def instruction(function: Callable[..., Any]) -> Callable[..., Any]:
    """An LLVM instruction that Numba does not offer by itself; ``function`` types it and emits it."""
    emitted: Callable[..., Any] = intrinsic(function)
    return emitted
