"""Frameworks and services that use Kafka in their own way, as people run them: Flink, Kafka Streams, Connect."""
