"""A process to be killed: `sexton compact` on one directory after another, in one Spark session.

    python -m tests.kafka.crash_driver DIR...

Beside each DIR it leaves `<DIR>.begun` when it begins, `<DIR>.committing` at the first change to a name in it, and
`<DIR>.done`. Each step of a commit is slowed down a little, so that a kill at a random moment has a chance to
fall between any two of them.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path
from typing import Final

from sexton.cli import main
from sexton.logdir import swap

STEP_SECONDS_MAX: Final = 0.006

_committing = Path()


class SlowFiles(swap.Files):
    """Announces the first rename, and dawdles before every step."""

    def rename(self, source: Path, target: Path) -> None:
        _committing.touch()
        time.sleep(random.uniform(0, STEP_SECONDS_MAX))
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        time.sleep(random.uniform(0, STEP_SECONDS_MAX))
        super().unlink(path)

    def link(self, source: Path, target: Path) -> None:
        time.sleep(random.uniform(0, STEP_SECONDS_MAX))
        super().link(source, target)


def run(directories: list[str]) -> None:
    global _committing
    slow = SlowFiles()
    for name in ("rename", "unlink", "link"):
        setattr(swap.FILES, name, getattr(slow, name))
    for directory in directories:
        _committing = Path(f"{directory}.committing")
        Path(f"{directory}.begun").touch()
        main.app(["compact", directory, "--independent", "--master", "local[2]", "--json"], standalone_mode=False)
        Path(f"{directory}.done").touch()


if __name__ == "__main__":
    run(sys.argv[1:])
