"""Compaction of real Apache Kafka's directories, with real brokers before and after (`sexton.harness` runs them)."""
