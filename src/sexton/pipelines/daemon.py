"""The process that forks Spark's Python workers, with the kernels loaded before the first fork.

Loading Numba and the compiled kernels takes about a second; done here it is paid once, not once a worker. And a worker
collects garbage after every task, walking everything that was ever imported, which takes longer than many a task:
``gc.freeze`` takes what is loaded now out of its sight.
"""

import gc

import pyspark.daemon

from sexton.pipelines import compact

if __name__ == "__main__":
    compact.load_kernels()
    gc.collect()
    gc.freeze()
    pyspark.daemon.manager()
