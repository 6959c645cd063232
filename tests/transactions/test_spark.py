"""Spark Structured Streaming's own Kafka source reads a topic with aborted transactions: only what was committed."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.interop.clients import client_classpath
from tests.project import PROJECT_DIR, PYTHON_PATH
from tests.transactions.kit import Kit
from tests.transactions.reading import numbers, places_of, settled
from tests.transactions.steps import write
from tests.transactions.under_test import UnderTest

pytestmark = [pytest.mark.cluster, pytest.mark.spark]

SPARK_JARS = "spark-4.2.0"
SPARK_TIMEOUT_S = 240


def test_sparks_kafka_source_sees_only_committed_records(rdkafka: Kit, cluster: UnderTest) -> None:
    topic = cluster.topic(partitions=2)
    producer = rdkafka.ready(cluster.name("writer"))
    for turn in range(6):
        producer.begin()
        for partition in range(2):
            start = (turn * 2 + partition) * 10
            write(producer, (topic, partition), numbers(start, start + 10))
        producer.commit() if turn % 2 == 0 else producer.abort()
    settled(cluster.bootstrap, places_of([topic], 2))
    committed = sorted(str(n) for turn in (0, 2, 4) for n in range(turn * 20, turn * 20 + 20))
    environment = {
        **os.environ,
        "PYTHONPATH": PYTHON_PATH,
        "SEXTON_CLIENT_CLASSPATH": client_classpath(SPARK_JARS),
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.transactions.spark_reader", cluster.bootstrap, topic],
        cwd=PROJECT_DIR,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SPARK_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    read = json.loads(done.stdout.splitlines()[-1])
    assert read["batch"] == committed
    assert read["stream"] == committed
    assert read["uncommitted"] == sorted(str(number) for number in range(120))
