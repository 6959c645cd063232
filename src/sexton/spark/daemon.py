"""The process that forks Spark's Python workers, with the kernels loaded before the first fork.

Loading Numba and the compiled kernels takes about a second; done here it is paid once, not once per worker. And a
worker collects garbage after every task, walking everything that was ever imported, which takes longer than many tasks:
``gc.freeze`` excludes what is loaded now.
"""

import gc
import sys
import traceback

import pyspark.daemon

TASK_WORKER = "pyspark.worker"
"""The module of the workers that run tasks. Spark starts a daemon like this for each kind of worker, and those that
plan a query do not need kernels."""


class _Traceback:
    """Prints the traceback of a worker that failed, unless Spark was gone first: then it could not be read."""

    format_exc = staticmethod(traceback.format_exc)

    @staticmethod
    def print_exc() -> None:
        if not isinstance(sys.exc_info()[1], (BrokenPipeError, ConnectionResetError)):
            traceback.print_exc()


if __name__ == "__main__":
    pyspark.daemon.traceback = _Traceback  # type: ignore[attr-defined, assignment]
    if TASK_WORKER in sys.argv:
        from sexton.spark import warm_up

        warm_up.run()
    gc.collect()
    gc.freeze()
    pyspark.daemon.manager()
