"""How a kernel is compiled. Numba compiles one again when its own file has changed, but not when another has: what a
kernel uses is in its file, or is an argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

Longs = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.void]


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    try:
        compiled: Callable[..., Any] = njit(cache=True, nogil=True)(function)
    except RuntimeError:  # there is no place for a cache
        compiled = njit(nogil=True)(function)
    return compiled
