"""Real Apache Kafka, to test against and to measure against.

`KafkaCluster` runs it, `run_tool` and `dump_log` ask its own tools. Both need Java and Maven, and say so.
"""

from tests.kafka.cluster import KafkaCluster
from tests.kafka.jars import DEFAULT_VERSION, VERSIONS, HarnessError
from tests.kafka.tools import DUMP_FAULTS, dump_log, run_tool

__all__ = ["DEFAULT_VERSION", "DUMP_FAULTS", "VERSIONS", "HarnessError", "KafkaCluster", "dump_log", "run_tool"]
