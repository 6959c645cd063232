"""Spark's own Kafka source and sink (spark-sql-kafka-0-10), on a small local Spark."""

from __future__ import annotations

import functools
import json
import os
import socket
import struct
import sys
import tempfile
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.interop.scenarios.common import Cluster, Scenarios, wait_for_topic

scenarios = Scenarios()

STREAM_TIMEOUT_S = 60
CREATE_TOPICS, CREATE_TOPICS_VERSION = 19, 2


@functools.cache
def session() -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    jars = Path(os.environ["SEXTON_CLIENT_CLASSPATH"]).parent.glob("*.jar")
    settings = {
        "spark.jars": ",".join(map(str, jars)),
        "spark.ui.enabled": "false",
        "spark.driver.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    }
    builder = SparkSession.builder.appName("interop").master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def create(cluster: Cluster, what: str) -> str:
    """A topic with three partitions. Spark makes none, and its environment holds no other client: a request by hand."""
    topic = cluster.name(what)
    host, port = cluster.bootstrap.split(",")[0].split(":")
    name = topic.encode()
    body = struct.pack(">ih", 1, len(name)) + name + struct.pack(">ihiiib", 3, cluster.replication, 0, 0, 30_000, 0)
    header = struct.pack(">hhih", CREATE_TOPICS, CREATE_TOPICS_VERSION, 1, -1)
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(struct.pack(">i", len(header + body)) + header + body)
        answer = connection.recv(4096)
    # Size, correlation id, throttle time, one topic: its name, then the error code.
    (error,) = struct.unpack_from(">h", answer, 4 + 4 + 4 + 4 + 2 + len(name))
    assert error == 0, f"CreateTopics answered with error {error}"
    wait_for_topic(cluster, topic, 3)
    return topic


def options(cluster: Cluster, **more: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": cluster.bootstrap, **more}


def write(cluster: Cluster, topic: str, first: int, count: int) -> None:
    rows = session().range(first, first + count).selectExpr("cast(id as string) key", "cast(id * 2 as string) value")
    rows.write.format("kafka").options(**options(cluster, topic=topic, includeHeaders="false")).save()


def read(cluster: Cluster, topic: str, **more: str) -> list[tuple[int, int]]:
    found = session().read.format("kafka").options(**options(cluster, subscribe=topic, **more)).load()
    rows: list[Any] = found.selectExpr("cast(key as string)", "cast(value as string)").collect()
    return sorted((int(row.key), int(row.value)) for row in rows)


@scenarios("spark_batch")
def batch(cluster: Cluster) -> None:
    topic = create(cluster, "spark-batch")
    write(cluster, topic, 0, 1_000)
    assert read(cluster, topic, startingOffsets="earliest") == [(number, number * 2) for number in range(1_000)]
    ends = {str(partition): -1 for partition in range(3)}
    starts = {str(partition): 10 for partition in range(3)}
    some = read(
        cluster,
        topic,
        startingOffsets=json.dumps({topic: starts}),
        endingOffsets=json.dumps({topic: ends}),
    )
    assert len(some) == 1_000 - 30


@scenarios("spark_stream")
def stream(cluster: Cluster) -> None:
    source, sink = create(cluster, "spark-source"), create(cluster, "spark-sink")
    with tempfile.TemporaryDirectory() as directory:

        def copy() -> None:
            """All that has arrived by now, from where the last one ended."""
            found = (
                session()
                .readStream.format("kafka")
                .options(**options(cluster, subscribe=source, startingOffsets="earliest"))
                .load()
            )
            query = (
                found.writeStream.format("kafka")
                .options(**options(cluster, topic=sink, checkpointLocation=directory))
                .trigger(availableNow=True)
                .start()
            )
            assert query.awaitTermination(STREAM_TIMEOUT_S), "the stream did not end"

        write(cluster, source, 0, 100)
        copy()
        write(cluster, source, 100, 50)
        copy()
    assert read(cluster, sink, startingOffsets="earliest") == [(number, number * 2) for number in range(150)]
