"""Compiles every kernel into its cache: `python -m sexton.harness.warm_kernels`.

Tests run in several processes, Spark's workers among them. Each of them would compile what it needs, all at the same
time, and a kernel takes seconds.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from sexton.checker.kernels.judge import judge
from sexton.checker.planted import correct
from sexton.checker.sabotage import sabotage
from sexton.history import edn, lines, load
from sexton.history.flat import from_ops, paired
from sexton.spark import warm_up

STEPS = 60
ANOMALIES = ("torn-transaction", "fractured-read", "stale-value", "eos-loss", "group-skip", "replicas-disagree")
"""Between them, all that is only looked at when something is wrong."""


def compile_all() -> None:
    warm_up.run()
    history = correct(1, STEPS)
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / load.LINES).write_bytes(b"".join(map(lines.to_line, history.ops)))
        edn.write(Path(directory) / load.EDN, history.ops, history.run)
        for name in (load.LINES, load.EDN):
            load.load(Path(directory) / name)
    judge(paired(from_ops(history.ops)), history.run, bundle_count=2)
    for name in ANOMALIES:
        planted = sabotage(name, 1)
        judge(paired(from_ops(planted.history.ops)), planted.history.run, options=planted.options)


if __name__ == "__main__":
    compile_all()
