"""kafka-python."""

from __future__ import annotations

from contextlib import closing

from sexton.verify.clients import kafka_python
from tests.interop.scenarios import everyone
from tests.interop.scenarios.common import Cluster

scenarios = everyone.over(kafka_python, without=("kip848", "server_pattern"))


@scenarios("unknown_topic")
def asking_for_the_partitions_of_an_unknown_topic(cluster: Cluster) -> None:
    with closing(kafka_python.Consumer(cluster.bootstrap, kafka_python.ISOLATION, None, {})) as consumer:
        assert consumer.client.partitions_for_topic(cluster.name("unknown")) in (None, set())
