"""The one way a kernel is compiled: cached on disk, without Python objects, and without holding Python's lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit
from numba.extending import intrinsic


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
