"""The compactor: a worker that leases partitions due for compaction, compacts them on Spark, and commits the results at
the brokers."""
