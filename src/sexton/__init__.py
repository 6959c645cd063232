"""Sexton: a Kafka-compatible log whose compaction cannot corrupt data."""
