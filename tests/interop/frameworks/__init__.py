"""Frameworks that use Kafka's transactions in their own way, as people run them: Flink and Kafka Streams."""
