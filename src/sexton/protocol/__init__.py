"""Kafka's wire protocol: messages to and from bytes. No I/O."""
