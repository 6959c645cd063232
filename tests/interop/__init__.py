"""Kafka clients as people run them, against Sexton (or, to judge the tests, against Apache Kafka itself)."""
