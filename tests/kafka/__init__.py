"""Real Apache Kafka, to test against and to measure against.

`KafkaCluster` runs it, `run_tool` and `dump_log` ask its own tools. Both need Java and Maven, and say so. They live in
`sexton.clusters`, because `sexton reproduce` shows on real Kafka what Sexton prevents.
"""

from sexton.clusters.errors import HarnessError
from sexton.clusters.jars import DEFAULT_VERSION, VERSIONS
from sexton.clusters.kafka import KafkaCluster
from sexton.clusters.kafka_tools import DUMP_FAULTS, dump_log, run_tool

__all__ = ["DEFAULT_VERSION", "DUMP_FAULTS", "VERSIONS", "HarnessError", "KafkaCluster", "dump_log", "run_tool"]
