"""The harness itself: that real Kafka starts, stops, dies, comes back and is looked into as tests rely on.

Each broker start costs seconds, so a test walks one cluster through a whole story instead of starting anew.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from sexton.harness import jars
from sexton.harness.errors import HarnessError
from sexton.harness.jars import VERSIONS
from sexton.harness.kafka import KafkaCluster
from sexton.harness.kafka_logs import log_events
from sexton.harness.kafka_tools import DUMP_FAULTS, dump_log, run_tool
from sexton.harness.properties import Settings
from tests.project import PROJECT_DIR

CLIENT: Settings = {"log_level": 0, "socket.timeout.ms": 4_000}
"""Quiet about nodes that are down on purpose, and quick to ask another one when a paused node does not answer
(librdkafka would wait a minute)."""

DELIVERY_TIMEOUT_S = 60
WAIT_TIMEOUT_S = 30

SHORT_SESSION = {"broker.session.timeout.ms": 3_000, "broker.heartbeat.interval.ms": 500}
"""A killed node is let in again after 3 s instead of 9."""

FAST_CLEANER = {"log.cleaner.backoff.ms": 100}
COMPACT_AT_ONCE: Settings = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": 0.01,
    "segment.ms": 100,
}


def produce(kafka: KafkaCluster, topic: str, values: Iterable[str], key: str = "k") -> None:
    """Write and wait for all acknowledgements; one that fails raises."""
    errors = []
    producer = Producer({**CLIENT, "bootstrap.servers": kafka.bootstrap, "enable.idempotence": True})
    for value in values:
        producer.produce(topic, value, key, on_delivery=lambda error, _: errors.append(error) if error else None)
    assert producer.flush(DELIVERY_TIMEOUT_S) == 0, "not all records were acknowledged in time"
    assert errors == []


def consume(kafka: KafkaCluster, topic: str, count: int) -> list[str]:
    """The first records of partition 0, read from the beginning."""
    consumer = Consumer({**CLIENT, "bootstrap.servers": kafka.bootstrap, "group.id": "harness"})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        values: list[str] = []
        deadline_s = time.monotonic() + WAIT_TIMEOUT_S
        while len(values) < count and time.monotonic() < deadline_s:
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                values.append((message.value() or b"").decode())
        return values
    finally:
        consumer.close()


def ends_with_value(segment: Path, value: str) -> bool:
    """A record's last bytes are its value and the count of its headers, here none."""
    return segment.read_bytes().endswith(value.encode() + b"\0")


def wait_until(reached: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + WAIT_TIMEOUT_S
    while not reached():
        assert time.monotonic() < deadline_s, f"waited {WAIT_TIMEOUT_S} s for {what}"
        time.sleep(0.1)


@pytest.mark.kafka
@pytest.mark.soak
@pytest.mark.parametrize("version", VERSIONS)
def test_a_node_keeps_its_data_over_stop_kill_and_pause(version: str, tmp_path: Path) -> None:
    settings = {**SHORT_SESSION, **FAST_CLEANER}
    with KafkaCluster(version, base_dir=tmp_path / "kafka", settings=settings) as kafka:
        kafka.create_topic("t", config={"index.interval.bytes": 1})
        produce(kafka, "t", ["a"])
        produce(kafka, "t", ["b"])
        assert consume(kafka, "t", 2) == ["a", "b"]
        assert (kafka.partition_dir(1, "t", 0) / "00000000000000000000.log").stat().st_size > 0

        address = kafka.bootstrap
        kafka.stop_node(1)
        shutil.copytree(kafka.base_dir, tmp_path / "copy")
        check_dump_of_an_index(kafka.partition_dir(1, "t", 0), tmp_path / "t-0", version)
        kafka.start_node(1)
        assert kafka.bootstrap == address
        assert kafka.warnings(1) == []
        assert kafka.recoveries(1) == []
        produce(kafka, "t", ["c"])
        check_adopted_copy(tmp_path / "copy")

        kafka.kill_node(1)
        kafka.start_node(1)
        assert [line for line in kafka.recoveries(1) if "partition=t-0" in line] != []
        assert consume(kafka, "t", 3) == ["a", "b", "c"]

        kafka.pause_node(1)
        assert psutil.Process(kafka.pid(1)).status() == psutil.STATUS_STOPPED
        kafka.resume_node(1)
        produce(kafka, "t", ["d"])
        assert consume(kafka, "t", 4) == ["a", "b", "c", "d"]

        check_tools(kafka, version)
        check_cleaner_log(kafka)
    assert not (tmp_path / "kafka").exists()


def check_adopted_copy(base_dir: Path) -> None:
    """The newest Kafka, whichever the original is, beside the original, which still runs."""
    with KafkaCluster.adopt(base_dir, keep=False) as adopted:
        assert adopted.warnings(1) == []
        assert adopted.recoveries(1) == []
        assert consume(adopted, "t", 2) == ["a", "b"]
    assert not base_dir.exists()


def check_dump_of_an_index(partition_dir: Path, copy_dir: Path, version: str) -> None:
    """The tool says it on its standard error and exits with 0: easily taken for approval."""
    shutil.copytree(partition_dir, copy_dir)
    index = copy_dir / "00000000000000000000.index"
    dumped = dump_log(index, version=version)
    assert not any(fault in dumped for fault in DUMP_FAULTS)
    entry = index.read_bytes()[:8]
    offset, position = entry[:4], entry[4:]
    assert (offset, position) != (bytes(4), bytes(4)), "an index without an entry proves nothing"
    index.write_bytes(offset + bytes(4))
    assert "Mismatches in :" in dump_log(index, version=version)


def check_tools(kafka: KafkaCluster, version: str) -> None:
    topics = run_tool(
        "org.apache.kafka.tools.TopicCommand",
        "--bootstrap-server",
        kafka.bootstrap,
        "--list",
        version=version,
    )
    assert "t" in topics.split()
    segment = kafka.partition_dir(1, "t", 0) / "00000000000000000000.log"
    dumped = dump_log(segment, "--print-data-log", "--deep-iteration", version=version)
    assert "keySize: 1" in dumped
    assert "payload: d" in dumped


def check_cleaner_log(kafka: KafkaCluster) -> None:
    """Last in its story, since the topic's segments roll all the time."""
    kafka.create_topic("compacted", config=COMPACT_AT_ONCE)
    for value in ("old", "new", "newest"):
        produce(kafka, "compacted", [value])
        time.sleep(0.2)  # past segment.ms, so that the next record rolls the segment

    def has_cleaned() -> bool:
        text = kafka.cleaner_log(1)
        return "cleaned log compacted-0" in text and "processed in" in text

    wait_until(has_cleaned, "the cleaner's statistics")


@pytest.mark.kafka
def test_files_edited_while_a_node_is_stopped_are_what_it_serves_and_warns_about(tmp_path: Path) -> None:
    with KafkaCluster(base_dir=tmp_path / "kafka") as kafka:
        for topic in ("donor", "edited", "damaged"):
            kafka.create_topic(topic)
            produce(kafka, topic, [f"of {topic}"])
        kafka.stop_node(1)
        for file in kafka.partition_dir(1, "donor", 0).glob("0*"):
            shutil.copy(file, kafka.partition_dir(1, "edited", 0))
        (kafka.partition_dir(1, "damaged", 0) / "00000000000000000000.index").unlink()

        kafka.start_node(1)

        assert consume(kafka, "edited", 1) == ["of donor"]
        assert consume(kafka, "damaged", 1) == ["of damaged"]
        (warning,) = kafka.warnings(1)
        assert "Could not find offset index file" in warning
        assert "damaged-0" in warning
        assert kafka.recoveries(1) == [warning]


@pytest.mark.kafka
@pytest.mark.soak
def test_three_nodes_replicate_and_a_copy_of_the_last_one_serves_alone(tmp_path: Path) -> None:
    copy_dir = tmp_path / "copy"
    with KafkaCluster(nodes=3, base_dir=tmp_path / "kafka", settings=SHORT_SESSION, heap="512m") as kafka:
        kafka.create_topic("t", replication_factor=3, config={"min.insync.replicas": 2})
        produce(kafka, "t", ["a"])
        kafka.kill_node(3)
        produce(kafka, "t", ["b"])
        kafka.start_node(3)
        kafka.pause_node(2)
        produce(kafka, "t", ["c"])
        kafka.resume_node(2)
        assert consume(kafka, "t", 3) == ["a", "b", "c"]
        for node_id in kafka.node_ids:
            segment = kafka.partition_dir(node_id, "t", 0) / "00000000000000000000.log"
            wait_until(partial(ends_with_value, segment, "c"), f"node {node_id} to catch up")
        kafka.stop()
        shutil.copytree(kafka.node_dir(3), copy_dir)
        original = kafka.bootstrap.split(",")

    with KafkaCluster.adopt(copy_dir, settings=SHORT_SESSION) as adopted:
        assert adopted.node_ids == [3]
        assert adopted.bootstrap not in original
        assert consume(adopted, "t", 3) == ["a", "b", "c"]
    assert copy_dir.exists()


@pytest.mark.kafka
def test_no_broker_outlives_the_process_that_started_it(tmp_path: Path) -> None:
    """SIGKILL leaves no time for atexit: this is the watchdog's work."""
    script = (
        "import sys, time; from pathlib import Path; from sexton.harness.kafka import KafkaCluster\n"
        "kafka = KafkaCluster(base_dir=Path(sys.argv[1])); kafka.start()\n"
        "print(kafka.pid(1), flush=True); time.sleep(600)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "kafka")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=PROJECT_DIR) as owner:
        assert owner.stdout is not None
        broker = psutil.Process(int(owner.stdout.readline()))
        os.kill(owner.pid, signal.SIGKILL)
    broker.wait(WAIT_TIMEOUT_S)


@pytest.mark.kafka
def test_a_failing_start_says_why_and_keeps_the_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (
        pytest.raises(HarnessError, match="Invalid value"),
        KafkaCluster(base_dir=tmp_path / "kafka", settings={"num.io.threads": "many"}),
    ):
        pass
    assert "server.log" in capsys.readouterr().err
    assert (tmp_path / "kafka" / "node-1" / "server.properties").exists()


def test_settings_that_the_harness_owns_are_refused(tmp_path: Path) -> None:
    cluster = KafkaCluster(base_dir=tmp_path / "kafka", settings={"log.dirs": "/elsewhere"})
    with pytest.raises(HarnessError, match=r"log\.dirs: the harness sets these itself"):
        cluster.start()
    cluster.close()


def test_a_directory_without_kafka_data_is_not_adopted(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match="holds no Kafka data"):
        KafkaCluster.adopt(tmp_path)


def test_an_unknown_version_names_the_known_ones() -> None:
    with pytest.raises(HarnessError, match=r"4\.3\.0, 3\.9\.2"):
        jars.classpath("0.7.2")


def test_missing_maven_is_an_error_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(jars.CACHE_VARIABLE, str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HarnessError, match=r"apt-get install .*maven"):
        jars.classpath()


def test_a_failed_fetch_quotes_maven_and_leaves_nothing_that_looks_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maven = tmp_path / "mvn"
    maven.write_text("#!/bin/sh\necho 'Could not transfer artifact'\nexit 1\n")
    maven.chmod(0o755)
    monkeypatch.setenv(jars.CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(HarnessError, match="Could not transfer artifact"):
        jars.classpath()
    assert not (tmp_path / "cache" / "kafka-4.3.0").exists()


def test_a_log_is_cut_into_events_with_their_stack_traces() -> None:
    text = (
        "cut in half\n"
        "[2026-01-02 03:04:05,678] INFO [kafka.log.LogCleaner] \n\tLog cleaner thread 0 cleaned log t-0\n"
        "[2026-01-02 03:04:05,679] ERROR [kafka.A$B] [id=1] broken\njava.io.IOException: why\n\tat here\n"
    )
    first, second = log_events(text)
    assert (first.level, first.logger) == ("INFO", "kafka.log.LogCleaner")
    assert first.text.endswith("cleaned log t-0")
    assert (second.level, second.logger) == ("ERROR", "kafka.A$B")
    assert second.text.endswith("at here")
