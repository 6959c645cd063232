"""A broker that dies at a step of its writing: `python -m tests.cloud.failures.dying broker --config FILE`.

Before each step it looks for a file `die-at` beside its settings. If that names the step, it is gone at once, as by
kill -9: nothing is flushed, nobody is told.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sexton.adapters.metastore.store import SqlMetastore
from sexton.adapters.objects.remote import RemoteStore
from sexton.cli import main

STEPS = (
    "before register",
    "after register",
    "before put",
    "after put",
    "before commit",
    "after commit",
    "before claim",
    "after claim",
)
"""Of a commit: in the metastore, and before anybody was told."""
FILE_NAME = "die-at"


def die_at(step: str) -> None:
    path = Path(sys.argv[-1]).with_name(FILE_NAME)
    if path.exists() and path.read_text() == step:
        os.kill(os.getpid(), signal.SIGKILL)


def haunt(owner: type, method: str, name: str) -> None:
    live: Callable[..., Any] = getattr(owner, method)

    async def haunted(*arguments: Any, **named: Any) -> Any:
        die_at(f"before {name}")
        told = await live(*arguments, **named)
        die_at(f"after {name}")
        return told

    setattr(owner, method, haunted)


if __name__ == "__main__":
    haunt(SqlMetastore, "register_objects", "register")
    haunt(RemoteStore, "put", "put")
    haunt(SqlMetastore, "commit_l0", "commit")
    haunt(SqlMetastore, "claim_partitions", "claim")
    main.app()
