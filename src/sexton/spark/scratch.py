"""Buffers that a worker keeps from task to task.

Fresh memory costs a page fault and zeroing for every 4 KB, which at these speeds is a large part of the work. A worker
process runs one task at a time, so it can reuse the same buffer again and again, without clearing it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_buffers: dict[tuple[str, np.dtype[np.generic]], npt.NDArray[np.generic]] = {}


def take(name: str, dtype: npt.DTypeLike, count: int) -> npt.NDArray[np.generic]:
    """Returns the buffer of that name and type, with at least ``count`` elements. One user at a time."""
    key = (name, np.dtype(dtype))
    buffer = _buffers.get(key)
    if buffer is None or len(buffer) < count:
        _buffers.pop(key, None)
        buffer = np.empty(max(count, 1024), dtype=dtype)
        _buffers[key] = buffer
    return buffer
