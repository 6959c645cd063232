"""Where whole batches end in a buffer that was read from the middle of a file."""

from __future__ import annotations

from sexton.jit import kernel
from sexton.records.header import LOG_OVERHEAD_BYTES, OLDEST_LENGTH_MIN
from sexton.records.kernels.primitives import Bytes, read_i32


@kernel
def whole_batches_end(data: Bytes, start: int, end: int) -> int:
    """The end of the last batch of any format that lies wholly in ``data[start:end]``; where no length can be right,
    ``end``, for the scan to say what is wrong."""
    position = start
    while position + LOG_OVERHEAD_BYTES <= end:
        length = read_i32(data, position + 8)
        if length < OLDEST_LENGTH_MIN:
            return end
        if position + LOG_OVERHEAD_BYTES + length > end:
            return position
        position += LOG_OVERHEAD_BYTES + length
    return position
