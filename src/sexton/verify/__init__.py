"""Tests as Jepsen's, of any Kafka-compatible cluster: workloads, clients, faults; the judge is `checker`."""
