"""`sexton audit` of a running Apache Kafka, as people call it: healthy, corrupted, over SCRAM and TLS, and repaired."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from prometheus_client import CollectorRegistry
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from sexton.audit.live import requests
from sexton.audit.run import audit
from sexton.audit.watch import Watched, WatchMetrics, watch
from sexton.cli.main import app
from sexton.harness.kafka import KafkaCluster
from sexton.harness.proxy import FETCH, Proxy
from tests.audit.live.planting import BAD, CLEANED, EAGER, PLANTED, plant, rebuild
from tests.audit.live.reading import source_at
from tests.audit.live.test_kafka import LIST_OFFSETS, Recorder
from tests.certificates import Authority
from tests.secure_kafka import LOGINS, doors_of, jaas, secure_settings

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.long]

TOPIC = "users"
DIFFERING = "sexton_audit_differing_keys"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def healthy(authority: Authority) -> Iterator[KafkaCluster]:
    settings = {**secure_settings(authority), **EAGER}
    with KafkaCluster(nodes=3, settings=settings, doors=doors_of(), format_args=LOGINS, heap="400m") as kafka:
        kafka.create_topic(TOPIC, 1, 3, CLEANED)
        producer = Producer({"bootstrap.servers": kafka.bootstrap})
        for number in range(200):
            producer.produce(TOPIC, key=f"k{number % 50}", value=f"v{number}")
        assert producer.flush(60) == 0
        yield kafka


@pytest.fixture(scope="module")
def corrupted(healthy: KafkaCluster) -> KafkaCluster:
    plant(healthy, TOPIC)
    return healthy


@pytest.fixture(scope="module")
def repaired(corrupted: KafkaCluster) -> KafkaCluster:
    rebuild(corrupted, TOPIC)
    return corrupted


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["audit", *map(str, arguments)], catch_exceptions=False)


def metrics_of(spark: SparkSession, kafka: KafkaCluster) -> CollectorRegistry:
    """After one audit of a watch."""
    watched = Watched()
    with source_at(kafka.bootstrap, TOPIC) as source:
        asyncio.run(watch(lambda: audit(spark.sparkContext, [source]), watched, every_s=3_600, count=1))
    registry = CollectorRegistry()
    registry.register(WatchMetrics(watched))
    return registry


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(name, labels)


def test_a_healthy_cluster_agrees_and_the_watch_says_0(spark: SparkSession, healthy: KafkaCluster) -> None:
    done = run("--bootstrap", healthy.bootstrap, "--topic", TOPIC)
    assert done.exit_code == 0, done.output
    registry = metrics_of(spark, healthy)
    assert value(registry, DIFFERING, **{"class": "tombstone"}) == 0
    assert value(registry, "sexton_audit_partitions", verdict="agree") == 1
    assert value(registry, "sexton_audit_keys") == 50
    assert value(registry, "sexton_audit_runs_total") == 1


def planted_in(report: Any) -> list[str]:
    return [each["key"]["utf8"] for partition in report["partitions"] for each in partition["differences"]]


def test_the_key_that_came_back_is_found_over_scram_and_tls(
    spark: SparkSession, corrupted: KafkaCluster, authority: Authority, tmp_path: Path
) -> None:
    properties = {
        "security.protocol": "SASL_SSL",
        "ssl.truststore.location": str(authority.path),
        "ssl.truststore.type": "PEM",
        **jaas("SCRAM-SHA-512", "alice", "alice-secret"),
    }
    config = tmp_path / "client.properties"
    config.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    where = ("--bootstrap", corrupted.bootstrap_at("BOTH"), "--command-config", config, "--topic", TOPIC)
    done = run(*where, "--json", "--show-values")
    assert done.exit_code == 1, done.output
    assert planted_in(json.loads(done.stdout)) == [PLANTED.decode()]
    assert "alice-secret" not in done.output


def test_all_that_the_command_asks_brokers_changes_nothing(spark: SparkSession, corrupted: KafkaCluster) -> None:
    recorder = Recorder()
    with Proxy(corrupted.bootstrap, recorder) as proxy:
        done = run("--bootstrap", proxy.bootstrap, "--topic", TOPIC)
    assert done.exit_code == 1, done.output
    asked = [(request.api_key, request.body()) for request in recorder.asked]
    assert {key for key, _ in asked} <= requests.ALLOWED
    assert {body.replica_id for key, body in asked if key == FETCH} == {-1}
    assert {body.replica_id for key, body in asked if key == LIST_OFFSETS} == {-2}
    assert {body.rack_id for key, body in asked if key == FETCH} == {requests.RACK}


def test_a_broker_that_is_down_is_foretold_from_its_directory(spark: SparkSession, corrupted: KafkaCluster) -> None:
    corrupted.stop_node(BAD)
    try:
        where = ("--bootstrap", corrupted.bootstrap, "--dirs", f"{BAD}={corrupted.log_dir(BAD)}", "--topic", TOPIC)
        done = run(*where, "--json", "--show-values")
    finally:
        corrupted.start_node(BAD)
    assert done.exit_code == 1, done.output
    report = json.loads(done.stdout)
    assert [each["verdict"] for each in report["partitions"]] == ["will diverge"]
    assert planted_in(report) == [PLANTED.decode()]


def test_the_watch_counts_it_by_class(spark: SparkSession, corrupted: KafkaCluster) -> None:
    registry = metrics_of(spark, corrupted)
    assert value(registry, DIFFERING, **{"class": "tombstone"}) == 1
    assert value(registry, "sexton_audit_partitions", verdict="diverged") == 1
    labels = {"topic": TOPIC, "partition": "0", "class": "tombstone"}
    assert value(registry, "sexton_audit_partition_differing_keys", **labels) == 1


def test_after_the_repair_all_agree_and_the_watch_says_0_again(spark: SparkSession, repaired: KafkaCluster) -> None:
    done = run("--bootstrap", repaired.bootstrap, "--topic", TOPIC)
    assert done.exit_code == 0, done.output
    registry = metrics_of(spark, repaired)
    assert value(registry, DIFFERING, **{"class": "tombstone"}) == 0
    assert BAD in repaired.node_ids
