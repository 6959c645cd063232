"""Whole clusters of real processes on this machine: Sexton's own brokers, and Apache Kafka's.

`KafkaCluster` and `SextonCluster` have the same methods, so that what is shown, tested or measured on one runs on the
other. Nothing here is for production: everything speaks on loopback only, and ends with the process that started it.
"""
