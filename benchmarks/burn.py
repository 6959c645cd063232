"""Takes a share of one processor for some seconds, at the lowest priority: what any other work beside brokers does.

    python -m benchmarks.burn SHARE SECONDS

It copies memory a while and sleeps for the rest of each second.
"""

from __future__ import annotations

import sys
import time
from typing import Final

from sexton.cli.processes import step_back

PERIOD_S: Final = 1.0
NICENESS: Final = 19
BLOCK_BYTES: Final = 16 << 20


def main() -> None:
    share, seconds = float(sys.argv[1]), float(sys.argv[2])
    step_back(NICENESS)
    source, target = bytes(BLOCK_BYTES), bytearray(BLOCK_BYTES)
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        until_s = time.process_time() + share * PERIOD_S
        while time.process_time() < until_s:
            target[:] = source
        time.sleep((1 - share) * PERIOD_S)


if __name__ == "__main__":
    main()
