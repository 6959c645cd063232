"""Memory with forbidden pages around it: a kernel that reads or writes a byte too far dies on the spot.

Kernels do no bounds checks, so a mistake in one may go unnoticed for years. Here it is a segmentation fault, and to
have that as a test result rather than as the end of the test run, it happens in a forked child.
"""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import multiprocessing
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

PAGE_BYTES = mmap.PAGESIZE
_PROT_NONE = 0
_libc = ctypes.CDLL(None, use_errno=True)


class Guarded:
    """``size`` bytes that end right before a forbidden page, or begin right after one. Reused, for pages are slow."""

    def __init__(self, capacity_bytes: int) -> None:
        pages = -(-capacity_bytes // PAGE_BYTES)
        self._inner_bytes = pages * PAGE_BYTES
        self._map = mmap.mmap(-1, self._inner_bytes + 2 * PAGE_BYTES)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        for forbidden in (address, address + PAGE_BYTES + self._inner_bytes):
            if _libc.mprotect(ctypes.c_void_p(forbidden), PAGE_BYTES, _PROT_NONE) != 0:
                raise OSError(ctypes.get_errno(), "mprotect")
        self._array = np.frombuffer(self._map, dtype=np.uint8)

    def at_end(self, size: int) -> Bytes:
        assert size <= self._inner_bytes
        end = PAGE_BYTES + self._inner_bytes
        return self._array[end - size : end]

    def at_start(self, size: int) -> Bytes:
        return self._array[PAGE_BYTES : PAGE_BYTES + size]

    def both(self, content: bytes) -> list[Bytes]:
        """The content at either edge, to be used one after the other."""
        views = [self.at_end(len(content)), self.at_start(len(content))]
        for view in views:
            view[:] = np.frombuffer(content, dtype=np.uint8)
        return views


def survives(function: Callable[..., None], *arguments: Any) -> bool:
    """Whether ``function`` returns in a forked child, instead of crashing or raising."""
    child = multiprocessing.get_context("fork").Process(target=_run, args=(function, arguments))
    child.start()
    child.join()
    return child.exitcode == 0


def _run(function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    faulthandler.enable()
    function(*arguments)
