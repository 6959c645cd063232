from sexton.clusters.kafka import KafkaCluster
from sexton.clusters.kafka_logs import LogEvent, log_events
from sexton.clusters.properties import Settings

__all__ = ["KafkaCluster", "LogEvent", "Settings", "log_events"]
