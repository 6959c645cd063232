"""A process to be killed: `sexton compact` on one directory.

    python -m tests.kafka.crash_driver DIR

It starts Spark and waits for `<DIR>.go`. Then it leaves `<DIR>.begun` when it begins, and `<DIR>.committing` at
the first change to a name in it. Each step of a commit is slowed down a little, so that a kill at a random moment has
a chance to fall between any two of them.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path
from typing import Final

from sexton.cli import main
from sexton.log.stopped import swap
from sexton.spark import session

MASTER: Final = "local[2]"
STEP_SECONDS_MAX: Final = 0.006


class SlowFiles(swap.Files):
    """Announces the first rename, and dawdles before every step."""

    def __init__(self, announcement: Path) -> None:
        self._announcement = announcement

    def rename(self, path: str, new_path: str) -> None:
        self._announcement.touch()
        time.sleep(random.uniform(0, STEP_SECONDS_MAX))
        super().rename(path, new_path)

    def remove(self, path: str) -> None:
        time.sleep(random.uniform(0, STEP_SECONDS_MAX))
        super().remove(path)


def run(directory: str) -> None:
    slow = SlowFiles(Path(f"{directory}.committing"))
    for name in ("rename", "remove"):
        setattr(swap.FILES, name, getattr(slow, name))
    spark = session.start("sexton compact", MASTER)
    spark.sparkContext.parallelize(range(2), 2).map(str).collect()  # starts the workers
    while not Path(f"{directory}.go").exists():
        time.sleep(0.01)
    Path(f"{directory}.begun").touch()
    main.app(["compact", directory, "--independent", "--master", MASTER, "--json"], standalone_mode=False)


if __name__ == "__main__":
    run(sys.argv[1])
