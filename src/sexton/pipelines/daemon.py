"""The process that forks Spark's Python workers, with the kernels loaded before the first fork.

Loading Numba and the compiled kernels takes about a second; done here it is paid once, not once a worker. And a worker
collects garbage after every task, walking everything that was ever imported, which takes longer than many a task:
``gc.freeze`` takes what is loaded now out of its sight.
"""

import gc
import sys
import traceback

import pyspark.daemon

TASK_WORKER = "pyspark.worker"
"""The module of the workers that run tasks. Spark starts a daemon like this for each kind of worker, and those that
plan a query have no use for kernels."""


class _Traceback:
    """What the daemon prints of a worker that ended badly. When Spark has gone away first, there is nobody to tell."""

    format_exc = staticmethod(traceback.format_exc)

    @staticmethod
    def print_exc() -> None:
        if not isinstance(sys.exc_info()[1], (BrokenPipeError, ConnectionResetError)):
            traceback.print_exc()


if __name__ == "__main__":
    pyspark.daemon.traceback = _Traceback  # type: ignore[attr-defined, assignment]
    if TASK_WORKER in sys.argv:
        from sexton.pipelines import warm_up

        warm_up.run()
    gc.collect()
    gc.freeze()
    pyspark.daemon.manager()
