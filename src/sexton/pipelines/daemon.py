"""The process that forks Spark's Python workers, with the kernels loaded before the first fork.

Loading Numba and the compiled kernels takes about a second; done here it is paid once, not once a worker. And a worker
collects garbage after every task, walking everything that was ever imported, which takes longer than many a task:
``gc.freeze`` takes what is loaded now out of its sight.
"""

import gc
import sys

import pyspark.daemon

TASK_WORKER = "pyspark.worker"
"""The module of the workers that run tasks. Spark starts a daemon like this for each kind of worker, and those that
plan a query have no use for kernels."""

if __name__ == "__main__":
    if TASK_WORKER in sys.argv:
        from sexton.pipelines import warm_up

        warm_up.run()
    gc.collect()
    gc.freeze()
    pyspark.daemon.manager()
