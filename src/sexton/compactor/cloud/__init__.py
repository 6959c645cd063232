"""Leveling, compaction and merging of cloud topics, by whichever compactor is free.

    (compaction/cloud_due.py: what is due, from the rows of the metastore alone)
    plans        what a job reads and writes: extents in, objects out (pure)
    planning     plans, read from the metastore, each from one moment
    engine       what carries plans out; `reference` does it without Spark, `spark` on it
    jobs         register, carry out, commit, release: one job from end to end
    work         the worker's part: due work in, runs out

No broker takes part. All that a compactor needs is the metastore and the store.
"""
