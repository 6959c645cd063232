"""Kafka's command line tools, each run as people run it: a JVM of its own, judged by what it prints.

The jars are named by SEXTON_CLIENT_CLASSPATH. Tools have moved between packages; their names have stayed.
"""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from sexton.verify.clients import confluent
from tests.interop.scenarios.common import CODECS, LARGE_BYTES, Cluster, Scenarios, text_of, wait_until
from tests.interop.scenarios.kit import Client

scenarios = Scenarios()

TOOL_TIMEOUT_S = 60
JVM_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xlog:disable")
ARCHIVES_DIR = Path(__file__).resolve().parents[3] / "build" / "clients" / "loaded-classes"


def client(cluster: Cluster) -> Client:
    """For what no tool is meant to do."""
    return Client(confluent, cluster)


def jars_dir() -> Path:
    return Path(os.environ["SEXTON_CLIENT_CLASSPATH"]).parent


@functools.cache
def is_before(major: int) -> bool:
    (clients,) = jars_dir().glob("kafka-clients-*.jar")
    return int(clients.stem.removeprefix("kafka-clients-").split(".")[0]) < major


@functools.cache
def main_class(tool: str) -> str:
    """Where this version keeps it. The newer package wins: for a while both existed."""
    found = []
    for jar in [*jars_dir().glob("kafka-tools-*.jar"), *jars_dir().glob("kafka_2.*.jar")]:
        with zipfile.ZipFile(jar) as content:
            found += [name for name in content.namelist() if name.endswith(f"/{tool}.class")]
    return found[0].removesuffix(".class").replace("/", ".")


def start_options(tool: str) -> list[str]:
    """Classes as they were loaded by the first run of the tool: each later one starts in a third of the time. The JVM
    ignores an archive that does not fit."""
    archive = ARCHIVES_DIR / f"{jars_dir().name}-{tool}.jsa"
    if archive.exists():
        return [f"-XX:SharedArchiveFile={archive}"]
    archive.parent.mkdir(parents=True, exist_ok=True)
    return [f"-XX:ArchiveClassesAtExit={archive}"]


def run(cluster: Cluster, tool: str, *arguments: str, stdin: str = "", exit_code: int = 0) -> str:
    """What it prints on either stream; it must end as it is expected to."""
    where = address(cluster, tool)
    program = ["-cp", os.environ["SEXTON_CLIENT_CLASSPATH"], main_class(tool)]
    command = ["java", *JVM_OPTIONS, *start_options(tool), *program, *where, *arguments]
    done = subprocess.run(
        command,
        input=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TOOL_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == exit_code, f"{tool} {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout


def address(cluster: Cluster, tool: str) -> tuple[str, ...]:
    if tool in ("ProducerPerformance", "DumpLogSegments"):  # takes it as a property; reads files
        return ()
    if tool == "GetOffsetShell" and is_before(3):
        return ("--broker-list", cluster.bootstrap)
    return ("--bootstrap-server", cluster.bootstrap)


@scenarios("tool_topics")
def topics(cluster: Cluster) -> None:
    topic = cluster.name("tool-topics")
    replicas = str(cluster.replication)
    run(
        cluster,
        "TopicCommand",
        *("--create", "--topic", topic, "--partitions", "2", "--replication-factor", replicas),
        *("--config", "retention.ms=12345678"),
    )
    described = run(cluster, "TopicCommand", "--describe", "--topic", topic)
    assert "PartitionCount: 2" in described
    assert "retention.ms=12345678" in described
    assert re.search(r"Partition: 1\s+Leader: [1-9]", described)
    run(cluster, "TopicCommand", "--alter", "--topic", topic, "--partitions", "3")
    assert topic in run(cluster, "TopicCommand", "--list").split()
    run(cluster, "TopicCommand", "--delete", "--topic", topic)
    wait_until(lambda: topic not in run(cluster, "TopicCommand", "--list").split(), "the topic to go")


@scenarios("tool_console")
def console(cluster: Cluster) -> None:
    topic = client(cluster).create("tool-console")
    keyed = ("--property", "parse.key=true", "--property", "key.separator=:")
    run(cluster, "ConsoleProducer", "--topic", topic, *keyed, stdin="a:1\nb:2\nc:3\n")
    shown = ("--property", "print.key=true", "--property", "key.separator=:")
    limits = ("--from-beginning", "--max-messages", "3", "--timeout-ms", "30000")
    printed = run(cluster, "ConsoleConsumer", "--topic", topic, *limits, *shown)
    assert re.findall(r"^[abc]:.*", printed, re.MULTILINE) == ["a:1", "b:2", "c:3"], printed


@scenarios("tool_groups")
def groups(cluster: Cluster) -> None:
    topic, group = client(cluster).create("tool-groups"), cluster.name("tool-groups")
    client(cluster).produce(topic, [b"v"] * 10)
    limits = ("--from-beginning", "--max-messages", "4", "--timeout-ms", "30000")
    run(cluster, "ConsoleConsumer", "--topic", topic, "--group", group, *limits)
    assert group in run(cluster, "ConsumerGroupCommand", "--list").split()

    def offsets() -> list[str]:
        described = run(cluster, "ConsumerGroupCommand", "--describe", "--group", group)
        (line,) = [line for line in described.splitlines() if line.split()[:2] == [group, topic]]
        return line.split()[2:6]  # partition, current offset, end, lag

    assert offsets()[2] == "10"
    assert "Empty" in run(cluster, "ConsumerGroupCommand", "--describe", "--group", group, "--state")
    run(
        cluster,
        "ConsumerGroupCommand",
        *("--group", group, "--topic", topic, "--reset-offsets", "--to-offset", "7", "--execute"),
    )
    assert offsets() == ["0", "7", "10", "3"]
    run(cluster, "ConsumerGroupCommand", "--delete", "--group", group)
    assert group not in run(cluster, "ConsumerGroupCommand", "--list").split()


@scenarios("tool_configs")
def configs(cluster: Cluster) -> None:
    topic = client(cluster).create("tool-configs")
    entity = ("--entity-type", "topics", "--entity-name", topic)
    run(
        cluster, "ConfigCommand", "--alter", *entity, "--add-config", "cleanup.policy=[compact,delete],segment.ms=70000"
    )
    described = run(cluster, "ConfigCommand", "--describe", *entity)
    assert "cleanup.policy=compact,delete" in described
    assert "segment.ms=70000" in described
    broker = ("--entity-type", "brokers", "--entity-name", "1")
    assert "node.id=1" in run(cluster, "ConfigCommand", "--describe", "--all", *broker)


@scenarios("tool_resources")
def resources(cluster: Cluster) -> None:
    """Without a name, the tools ask first what there is (KIP-1142)."""
    group = cluster.name("tool-resources")
    entity = ("--entity-type", "groups", "--entity-name", group)
    run(cluster, "ConfigCommand", "--alter", *entity, "--add-config", "consumer.session.timeout.ms=50000")
    described = run(cluster, "ConfigCommand", "--describe", "--entity-type", "groups")
    assert re.search(rf"{group}.*\n.*consumer.session.timeout.ms=50000", described), described
    run(cluster, "ConfigCommand", "--describe", "--entity-type", "client-metrics")
    run(cluster, "ClientMetricsCommand", "--list")


@scenarios("tool_performance")
def performance(cluster: Cluster) -> None:
    topic = client(cluster).create("tool-performance", partitions=3)
    produced = run(
        cluster,
        "ProducerPerformance",
        *("--topic", topic, "--num-records", "20000", "--record-size", "100", "--throughput", "-1"),
        *("--producer-props", f"bootstrap.servers={cluster.bootstrap}"),
    )
    assert "20000 records sent" in produced
    consumed = run(cluster, "ConsumerPerformance", "--topic", topic, "--messages", "20000", "--timeout", "30000")
    (line,) = [line for line in consumed.splitlines() if re.match(r"\d{4}-", line)]
    assert int(line.split(", ")[4]) >= 20_000


def plan_file(directory: str, topic: str, replicas: list[list[int]]) -> str:
    path = Path(directory) / "plan.json"
    moves = [{"topic": topic, "partition": number, "replicas": each} for number, each in enumerate(replicas)]
    path.write_text(json.dumps({"version": 1, "partitions": moves}))
    return str(path)


def reassign(cluster: Cluster, topic: str, replicas: list[list[int]]) -> None:
    """Moves the partitions of a topic and waits until they have moved."""
    with tempfile.TemporaryDirectory() as directory:
        plan = ("--reassignment-json-file", plan_file(directory, topic, replicas))
        # Additional, because another version of the tool may be at work on a topic of its own.
        assert "Successfully started" in run(cluster, "ReassignPartitionsCommand", *plan, "--execute", "--additional")

        def is_done() -> bool:
            said = run(cluster, "ReassignPartitionsCommand", *plan, "--verify")
            return len(re.findall(r"Reassignment of partition \S+ is complete(?:d)?", said)) == len(replicas)

        wait_until(is_done, "the reassignment", TOOL_TIMEOUT_S)


def layout(cluster: Cluster, topic: str) -> list[tuple[int, list[int]]]:
    """Leader and replicas of each partition, as TopicCommand prints them."""
    described = run(cluster, "TopicCommand", "--describe", "--topic", topic)
    found: list[Any] = re.findall(r"Leader: (\S+)\s+Replicas: (\S+)", described)
    return [(int(leader), [int(each) for each in replicas.split(",")]) for leader, replicas in found]


@scenarios("tool_reassign")
def reassignment(cluster: Cluster) -> None:
    topic = client(cluster).create("tool-reassign", partitions=2)
    client(cluster).produce(topic, [b"v"] * 10)
    reassign(cluster, topic, [[1, 2], [3]])
    assert [replicas for _, replicas in layout(cluster, topic)] == [[1, 2], [3]]
    reassign(cluster, topic, [[2, 3], [3, 1]])
    assert [replicas for _, replicas in layout(cluster, topic)] == [[2, 3], [3, 1]]


@scenarios("tool_election")
def election(cluster: Cluster) -> None:
    topic = client(cluster).create("tool-election")
    ((leader, replicas),) = layout(cluster, topic)
    wanted = [each for each in replicas if each != leader] + [leader]
    reassign(cluster, topic, [wanted])
    only = ("--election-type", "preferred", "--topic", topic, "--partition", "0")
    said = run(cluster, "LeaderElectionCommand", *only)
    assert "Successfully completed leader election" in said or "Valid replica already elected" in said
    wait_until(lambda: layout(cluster, topic)[0][0] == wanted[0], "the preferred leader")


@scenarios("tool_offsets")
def offsets(cluster: Cluster) -> None:
    topic = client(cluster).create("tool-offsets", partitions=2)
    client(cluster).produce(topic, [b"v"] * 7, partition=1)
    printed = run(cluster, "GetOffsetShell", "--topic", topic)
    assert sorted(line for line in printed.splitlines() if line.startswith(topic)) == [f"{topic}:0:0", f"{topic}:1:7"]
    earliest = run(cluster, "GetOffsetShell", "--topic", topic, "--time", "-2")
    assert f"{topic}:1:0" in earliest


@scenarios("tool_dirs")
def dirs(cluster: Cluster) -> None:
    topic = client(cluster).create("tool-dirs")
    client(cluster).produce(topic, [b"v" * 1_000] * 10)
    printed = run(cluster, "LogDirsCommand", "--describe", "--topic-list", topic)
    (line,) = [line for line in printed.splitlines() if line.startswith("{")]
    sizes = [
        partition["size"]
        for broker in json.loads(line)["brokers"]
        for directory in broker["logDirs"]
        for partition in directory["partitions"]
        if partition["partition"] == f"{topic}-0"
    ]
    assert len(sizes) == cluster.replication
    assert min(sizes) > 10_000


@scenarios("tool_delete_records")
def delete_records(cluster: Cluster) -> None:
    topic = client(cluster).create("tool-delete")
    client(cluster).produce(topic, [b"v"] * 10)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "delete.json"
        path.write_text(json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "offset": 4}]}))
        assert "low_watermark: 4" in run(cluster, "DeleteRecordsCommand", "--offset-json-file", str(path))


@scenarios("tool_dump")
def dump(cluster: Cluster) -> None:
    """Kafka's own opinion of each replica's files."""
    settings = {"index.interval.bytes": "512", "segment.bytes": "1048576"}
    topic = client(cluster).create("tool-dump", config=settings)
    for codec in CODECS:
        client(cluster).produce(topic, text_of(codec), {"compression.type": codec, "batch.num.messages": 5})
    client(cluster).produce(topic, [b"x" * LARGE_BYTES] * 2, {"max.request.size": 1_000_012})  # closes the segment
    count = 20 * len(CODECS) + 2
    assert len(client(cluster).read(topic, count)) == count
    folders = [Path(directory) / f"{topic}-0" for directory in cluster.log_dirs]

    def is_copied() -> bool:
        sizes = [tuple(path.stat().st_size for path in sorted(folder.glob("*.log"))) for folder in folders]
        return len(sizes[0]) > 1 and len(set(sizes)) == 1

    wait_until(is_copied, "the followers to catch up")
    segments = [str(path) for folder in folders for path in sorted(folder.glob("*.log"))]
    printed = run(cluster, "DumpLogSegments", "--deep-iteration", "--print-data-log", "--files", ",".join(segments))
    assert printed.count("payload: ") == count * len(folders)
    assert "isvalid: false" not in printed
    assert "isvalid: true" in printed
    first = [folder / "00000000000000000000" for folder in folders]
    indexes = [str(path.with_suffix(suffix)) for path in first for suffix in (".index", ".timeindex")]
    printed = run(cluster, "DumpLogSegments", "--files", ",".join(indexes))
    assert "offset: " in printed
    for fault in ("Mismatches in", "timestamp mismatch", "out of order timestamp", "not found in"):
        assert fault not in printed, printed


@scenarios("tool_versions")
def versions(cluster: Cluster) -> None:
    printed = run(cluster, "BrokerApiVersionsCommand")
    assert printed.count("Produce(0): ") == cluster.brokers
    assert "usable" in printed


@scenarios("tool_features")
def features(cluster: Cluster) -> None:
    printed = run(cluster, "FeatureCommand", "describe")
    levels = dict(re.findall(r"Feature: (\S+)\s.*FinalizedVersionLevel: (\S+)", printed))
    assert levels["group.version"] == "1", printed
    assert levels["transaction.version"] == "2", printed
    assert re.fullmatch(r"4\.[0-9]+-IV[0-9]+", levels["metadata.version"]), printed


@scenarios("tool_security")
def security(cluster: Cluster) -> None:
    for kind in ("users", "clients"):
        printed = run(cluster, "ConfigCommand", "--describe", "--entity-type", kind)
        assert "onfigs " not in printed, printed
        assert "xception" not in printed, printed
    printed = run(cluster, "AclCommand", "--list", exit_code=1)
    assert "SecurityDisabledException" in printed, printed
