"""kcat, as people call it. Topics that need settings are made with confluent-kafka: kcat makes none."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Mapping
from typing import Any

from sexton.verify.clients import confluent
from tests.interop.scenarios.common import (
    CODECS,
    KEPT,
    LARGE_BYTES,
    PAST_MS,
    TOO_LARGE_BYTES,
    WAIT_S,
    Cluster,
    Scenarios,
    wait_until,
)
from tests.interop.scenarios.kit import Client

scenarios = Scenarios()


def create(cluster: Cluster, what: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
    return Client(confluent, cluster).create(what, partitions, config)


def kcat(cluster: Cluster, *arguments: str, stdin: bytes = b"", fails: bool = False) -> str:
    """What it prints (with what it complains about, if it is to fail)."""
    done = subprocess.run(
        ["kcat", "-b", cluster.bootstrap, *arguments], input=stdin, capture_output=True, timeout=WAIT_S, check=False
    )
    assert (done.returncode != 0) == fails, (arguments, done)
    return (done.stdout + done.stderr if fails else done.stdout).decode()


def consume(cluster: Cluster, topic: str, *arguments: str) -> list[Any]:
    """All messages up to the end, as kcat's JSON."""
    return [json.loads(line) for line in kcat(cluster, "-C", "-t", topic, "-e", "-q", "-J", *arguments).splitlines()]


def payloads(cluster: Cluster, topic: str, *arguments: str) -> list[str]:
    return [message["payload"] for message in consume(cluster, topic, *arguments)]


@scenarios("codecs")
def codecs(cluster: Cluster) -> None:
    topic = create(cluster, "codecs")
    for codec in CODECS:
        kcat(cluster, "-P", "-t", topic, "-z", codec, stdin=f"{codec}\n".encode() * 50)
    assert payloads(cluster, topic) == [codec for codec in CODECS for _ in range(50)]


@scenarios("acks")
def acks(cluster: Cluster) -> None:
    topic = create(cluster, "acks")
    for count, level in enumerate(("all", "1", "0"), start=1):
        kcat(cluster, "-P", "-t", topic, "-X", f"acks={level}", stdin=level.encode())
        wait_until(lambda count=count: len(payloads(cluster, topic)) == count, "what was not acknowledged")  # type: ignore[misc]
    assert payloads(cluster, topic) == ["all", "1", "0"]


@scenarios("idempotent")
def idempotent(cluster: Cluster) -> None:
    topic = create(cluster, "idempotent")
    lines = "".join(f"{number}\n" for number in range(500))
    kcat(cluster, "-P", "-t", topic, "-X", "enable.idempotence=true", stdin=lines.encode())
    assert payloads(cluster, topic) == lines.split()


@scenarios("headers")
def headers(cluster: Cluster) -> None:
    topic = create(cluster, "headers")
    kcat(cluster, "-P", "-t", topic, "-H", "trace=1", "-H", "trace=2", stdin=b"v")
    (message,) = consume(cluster, topic)
    assert message["headers"] == ["trace", "1", "trace", "2"]


@scenarios("nulls")
def nulls(cluster: Cluster) -> None:
    topic = create(cluster, "nulls")
    kcat(cluster, "-P", "-t", topic, "-K:", "-Z", stdin=b"k:\n:v\nk:v\n")
    got = [(message["key"], message["payload"]) for message in consume(cluster, topic)]
    assert got == [("k", None), (None, "v"), ("k", "v")]


@scenarios("large")
def large(cluster: Cluster) -> None:
    topic = create(cluster, "large")
    kcat(cluster, "-P", "-t", topic, stdin=b"".join(letter * LARGE_BYTES + b"\n" for letter in (b"a", b"b", b"c")))
    assert [len(payload) for payload in payloads(cluster, topic)] == [LARGE_BYTES] * 3


@scenarios("append_time")
def append_time(cluster: Cluster) -> None:
    topic = create(cluster, "append-time", config={"message.timestamp.type": "LogAppendTime"})
    before_ms = time.time_ns() // 1_000_000 - 1_000
    kcat(cluster, "-P", "-t", topic, stdin=b"v")
    (message,) = consume(cluster, topic)
    assert message["tstype"] == "logappend"
    assert before_ms <= message["ts"] <= before_ms + 60_000


@scenarios("positions")
def positions(cluster: Cluster) -> None:
    topic = create(cluster, "positions")
    kcat(cluster, "-P", "-t", topic, stdin=b"0\n1\n2\n3\n4\n")
    assert payloads(cluster, topic, "-o", "beginning") == ["0", "1", "2", "3", "4"]
    assert payloads(cluster, topic, "-o", "3") == ["3", "4"]
    assert payloads(cluster, topic, "-o", "-2") == ["3", "4"]
    assert payloads(cluster, topic, "-o", "end") == []


@scenarios("times")
def times(cluster: Cluster) -> None:
    topic = create(cluster, "times", config=KEPT)
    for number in range(3):
        Client(confluent, cluster).produce(topic, [b"%d" % number], at_ms=PAST_MS + number * 1_000)
    assert kcat(cluster, "-Q", "-t", f"{topic}:0:{PAST_MS + 500}").split()[-1] == "1"
    assert payloads(cluster, topic, "-o", f"s@{PAST_MS + 500}") == ["1", "2"]
    assert payloads(cluster, topic, "-o", f"s@{PAST_MS}", "-o", f"e@{PAST_MS + 1_000}") == ["0"]


@scenarios("auto_commit")
def auto_commit(cluster: Cluster) -> None:
    topic, group = create(cluster, "auto-commit", partitions=2), cluster.name("auto-commit")
    for part in ("first", "second"):
        for number in ("0", "1"):
            kcat(cluster, "-P", "-t", topic, "-p", number, stdin=f"{part} {number}".encode())
        printed = kcat(cluster, "-G", group, "-q", "-e", "-X", "auto.offset.reset=earliest", topic)
        assert sorted(printed.split("\n")[:-1]) == [f"{part} 0", f"{part} 1"]


@scenarios("topics")
def topics(cluster: Cluster) -> None:
    topic = create(cluster, "topics", partitions=3)
    listed = json.loads(kcat(cluster, "-L", "-J"))
    (found,) = [each for each in listed["topics"] if each["topic"] == topic]
    assert len(found["partitions"]) == 3
    for partition in found["partitions"]:
        assert len(partition["replicas"]) == cluster.replication
        assert len(partition["isrs"]) == cluster.replication


@scenarios("cluster")
def describe_cluster(cluster: Cluster) -> None:
    listed = json.loads(kcat(cluster, "-L", "-J"))
    assert len(listed["brokers"]) == cluster.brokers
    assert listed["controllerid"] in [broker["id"] for broker in listed["brokers"]]


@scenarios("unknown_topic")
def unknown_topic(cluster: Cluster) -> None:
    assert "Unknown topic or partition" in kcat(cluster, "-C", "-e", "-t", cluster.name("unknown"), fails=True)


@scenarios("too_large")
def too_large(cluster: Cluster) -> None:
    topic = create(cluster, "too-large")
    limit = f"message.max.bytes={10 * TOO_LARGE_BYTES}"
    said = kcat(cluster, "-P", "-t", topic, "-X", limit, stdin=b"x" * TOO_LARGE_BYTES, fails=True)
    assert "Message size too large" in said


@scenarios("keyless_compacted")
def keyless_compacted(cluster: Cluster) -> None:
    topic = create(cluster, "compacted", config={"cleanup.policy": "compact"})
    assert "failed to validate record" in kcat(cluster, "-P", "-t", topic, stdin=b"v", fails=True)
