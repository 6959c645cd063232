"""What is measured: each line is one kind of work, done by the same client program on both systems."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from confluent_kafka import Producer

from benchmarks.broker_groups import seconds_to_join
from benchmarks.broker_systems import Cluster, Results, System, create_topic, measured, pids, resident_bytes
from sexton.harness.errors import HarnessError
from sexton.harness.kafka_tools import run_tool

TOOL_TIMEOUT_S: Final = 900
BULK_PARTITIONS: Final = 6
LOAD_PARTITIONS: Final = 6
BULK_BYTES: Final = {100: 150_000_000, 1_000: 400_000_000, 10_000: 800_000_000}
"""By the size of records: a few seconds each. Lines on which a system is slower get a share of it."""

WARM_UP_SHARE: Final = 0.25
"""Of a line's own work, done first and not counted."""

WARM_UP_RECORDS, WARM_UP_RECORD_BYTES, WARM_UP_REQUESTS = 20_000, 1_000, 2_000
"""Of one round of `warm_up`: a few seconds on a cluster that flushes."""

FAILOVER_TIMEOUT_S: Final = 60
SENT = re.compile(r"(\d+) records sent, ([\d.]+) records/sec \(([\d.]+) MB/sec\).*?(\d+) ms 50th.*?(\d+) ms 99th")


@dataclass
class Bench:
    """One system while its cluster runs."""

    system: System
    cluster: Cluster
    replicas: int
    flushes: bool
    scale: float

    def topic(self, name: str, partitions: int) -> str:
        create_topic(self.cluster, name, partitions, self.replicas, self.system.topic_config(self.flushes))
        return name

    @property
    def acks(self) -> str:
        """What a promise is about: one copy in memory, or all that there are."""
        return "all" if self.replicas > 1 or self.flushes else "1"


Measure = Callable[[Bench, Results], None]


def warm_up(bench: Bench, seconds: float) -> None:
    """Work of all kinds that is not counted, on a cluster that has just started. A JVM compiles what it runs often:
    Kafka's brokers, three of them on two cores above all, are several times slower in their first half minute."""
    topic = bench.topic("warm-up", BULK_PARTITIONS)
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        produce(bench, topic, WARM_UP_RECORDS, WARM_UP_RECORD_BYTES, 16_384)
        load(bench, "--topic", topic, "--connections", "8", "--requests", str(WARM_UP_REQUESTS))


@dataclass(frozen=True)
class Line:
    name: str
    nodes: int
    flushes: bool
    unit: str
    """What a rate counts: MB/s, requests/s, or s (then less is better)."""
    measure: Measure
    goal: str = ">= 1x"

    @property
    def less_is_better(self) -> bool:
        return self.unit == "s"


def bulk(record_bytes: int, batch_bytes: int, partitions: int = BULK_PARTITIONS, share: float = 1.0) -> Measure:
    """Java's ProducerPerformance, as fast as it can."""

    def measure(bench: Bench, results: Results) -> None:
        topic = f"bulk-{record_bytes}-{batch_bytes}-{partitions}"
        bench.topic(topic, partitions)
        count = max(1_000, int(BULK_BYTES[record_bytes] * share * bench.scale / record_bytes))
        produce(bench, topic, int(count * WARM_UP_SHARE), record_bytes, batch_bytes)
        with measured(bench.cluster) as cost:
            printed = produce(bench, topic, count, record_bytes, batch_bytes)
        found = SENT.findall(printed)[-1]
        gigabytes = count * record_bytes / 1e9
        rate = float(found[1]) * record_bytes / 1e6
        results.add(rate, float(found[3]), float(found[4]), cost.cpu_s / gigabytes, cost.memory_bytes)

    return measure


def produce(bench: Bench, topic: str, count: int, record_bytes: int, batch_bytes: int) -> str:
    return run_tool(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", topic, "--num-records", str(count), "--record-size", str(record_bytes), "--throughput", "-1"),
        *("--producer-props", f"bootstrap.servers={bench.cluster.bootstrap}", f"acks={bench.acks}"),
        *(f"batch.size={batch_bytes}", "linger.ms=5", "enable.idempotence=false", "buffer.memory=67108864"),
        timeout_s=TOOL_TIMEOUT_S,
    )


def consume(record_bytes: int) -> Measure:
    """Java's ConsumerPerformance, over records that have just been written (from the page cache)."""

    def measure(bench: Bench, results: Results) -> None:
        topic = f"consume-{record_bytes}"
        bench.topic(topic, BULK_PARTITIONS)
        count = max(1_000, int(BULK_BYTES[record_bytes] * bench.scale / record_bytes))
        produce(bench, topic, count, record_bytes, 131_072)
        with measured(bench.cluster) as cost:
            printed = run_tool(
                "org.apache.kafka.tools.ConsumerPerformance",
                *("--topic", topic, "--messages", str(count), "--bootstrap-server", bench.cluster.bootstrap),
                *("--timeout", "60000", "--hide-header"),
                timeout_s=TOOL_TIMEOUT_S,
            )
        fields = [line.split(", ") for line in printed.splitlines() if re.match(r"\d{4}-", line)][-1]
        fetch_seconds = int(fields[7]) / 1e3  # without the time that joining the group took
        read_bytes = float(fields[2]) * (1 << 20)
        results.add(read_bytes / 1e6 / fetch_seconds, 0.0, 0.0, cost.cpu_s / (read_bytes / 1e9), cost.memory_bytes)

    return measure


def single(connections: int, requests: int, pipeline: int = 5) -> Measure:
    """One record a request, over raw sockets."""

    def measure(bench: Bench, results: Results) -> None:
        topic = bench.topic(f"single-{connections}", LOAD_PARTITIONS)
        count = max(500, int(requests * bench.scale))
        acks = "-1" if bench.acks == "all" else "1"
        with measured(bench.cluster) as whole:
            found = load(
                bench,
                *("--topic", topic, "--connections", str(connections), "--requests", str(count)),
                *("--acks", acks, "--pipeline", str(pipeline), "--warm-up", str(int(count * WARM_UP_SHARE))),
            )
        if found["errors"]:
            raise RuntimeError(f"{bench.system.name} answered {found['errors']:.0f} requests with errors")
        all_requests = count * (1 + WARM_UP_SHARE) + connections
        results.add(
            found["per_second"],
            found["p50_ms"],
            found["p99_ms"],
            whole.cpu_s / all_requests * 10_000,
            whole.memory_bytes,
        )

    return measure


def load(bench: Bench, *arguments: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.broker_load", "--bootstrap", bench.cluster.bootstrap, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"the load generator failed on {bench.system.name}:\n{done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def thousand_partitions(bench: Bench, results: Results) -> None:
    """Bulk produce over a thousand partitions: batches are small, files are many."""
    bulk(1_000, 16_384, partitions=1_000, share=0.5)(bench, results)


def group_join(members: int) -> Measure:
    """From the first member's start until all are in one generation and have their partitions."""

    def measure(bench: Bench, results: Results) -> None:
        topic = bench.topic(f"group-{members}", members)
        with measured(bench.cluster) as cost:
            seconds = asyncio.run(seconds_to_join(bench.cluster.bootstrap, topic, f"group-{members}", members))
        results.add(seconds, 0.0, 0.0, cost.cpu_s, cost.memory_bytes)

    return measure


def failover(bench: Bench, results: Results) -> None:
    """kill -9 of a leader under a steady stream of acks=all: the longest time without an acknowledgement."""
    topic = bench.topic("failover", 1)
    acknowledged_s: list[float] = []
    settings = {"bootstrap.servers": bench.cluster.bootstrap, "acks": "all", "linger.ms": 0, "log_level": 0}
    quick = {"retry.backoff.ms": 20, "topic.metadata.refresh.fast.interval.ms": 50, "reconnect.backoff.max.ms": 100}
    producer = Producer({**settings, **quick, "enable.idempotence": True, "socket.timeout.ms": 10_000})
    leader = led_by(producer, topic)

    def acknowledge(error: object, _: object) -> None:
        if error is None:
            acknowledged_s.append(time.monotonic())

    def stream(until_s: float) -> None:
        while time.monotonic() < until_s:
            producer.produce(topic, b"v", on_delivery=acknowledge)
            producer.poll(0.01)

    stream(time.monotonic() + 3)
    bench.cluster.kill_node(leader)
    killed_s = time.monotonic()
    while not any(at_s > killed_s + 0.5 for at_s in acknowledged_s):
        if time.monotonic() > killed_s + FAILOVER_TIMEOUT_S:
            raise TimeoutError(f"{bench.system.name} did not fail over in {FAILOVER_TIMEOUT_S} s")
        stream(time.monotonic() + 0.1)
    producer.flush(FAILOVER_TIMEOUT_S)
    times_s = [killed_s, *(at_s for at_s in acknowledged_s if at_s > killed_s)]
    gap_s = max(after - before for before, after in pairwise(times_s))
    alive = [pid for number, pid in running_pids(bench).items() if number != leader]
    results.add(gap_s, 0.0, 0.0, 0.0, sum(map(resident_bytes, alive)))
    bench.cluster.start_node(leader)


def running_pids(bench: Bench) -> dict[int, int]:
    """Of the brokers that run."""
    found = {}
    for node_id in bench.cluster.node_ids:
        try:
            found[node_id] = bench.cluster.pid(node_id)
        except HarnessError:
            continue
    return found


def led_by(producer: Producer, topic: str) -> int:
    leader: int = producer.list_topics(topic, timeout=10).topics[topic].partitions[0].leader
    return leader


def restart(bench: Bench, results: Results) -> None:
    """From the start of the process until the broker answers, on the data that the lines before have left."""
    for node_id in bench.cluster.node_ids:
        bench.cluster.stop_node(node_id)
    started_s = time.monotonic()
    for node_id in bench.cluster.node_ids:
        bench.cluster.start_node(node_id, wait=False)
    bench.cluster.wait_ready()
    seconds = time.monotonic() - started_s
    results.add(seconds, 0.0, 0.0, 0.0, sum(map(resident_bytes, pids(bench.cluster))))


MB, REQUESTS, SECONDS = "MB/s", "requests/s", "s"


def lines() -> list[Line]:
    """In the order of the table. Lines with the same brokers run one after the other on one cluster."""
    one = [
        *(
            Line(f"produce {size} B, {batch // 1000} KB batches", 1, False, MB, bulk(size, batch))
            for size in (100, 1_000, 10_000)
            for batch in (16_384, 500_000)
        ),
        *(Line(f"consume {size} B", 1, False, MB, consume(size)) for size in (100, 1_000, 10_000)),
        Line("single records, 1 connection", 1, False, REQUESTS, single(1, 50_000), ">= 1.5x"),
        Line("single records, 8 connections", 1, False, REQUESTS, single(8, 100_000), ">= 1.5x"),
        Line("single records, 64 connections", 1, False, REQUESTS, single(64, 100_000), ">= 1.5x"),
        Line("1,000 connections", 1, False, REQUESTS, single(1_000, 100_000, 1)),
        Line("group join, 100 members", 1, False, SECONDS, group_join(100), "<= 1x"),
        Line("produce 1 KB, 1,000 partitions", 1, False, MB, thousand_partitions, "<= 300 MB"),
        Line("start, 1,000 partitions", 1, False, SECONDS, restart, "< 2 s"),
    ]
    flushed = [
        Line("flushed: produce 1,000 B, 16 KB batches", 1, True, MB, bulk(1_000, 16_384, share=0.25), ">= 2x"),
        Line("flushed: single records, 1 connection", 1, True, REQUESTS, single(1, 2_000), ">= 2x"),
        Line("flushed: single records, 8 connections", 1, True, REQUESTS, single(8, 5_000), ">= 2x"),
        Line("flushed: single records, 64 connections", 1, True, REQUESTS, single(64, 20_000), ">= 2x"),
    ]
    three = [
        *(
            Line(
                f"3 replicas: produce {size} B, {batch // 1000} KB batches", 3, False, MB, bulk(size, batch, share=0.5)
            )
            for size in (100, 1_000, 10_000)
            for batch in (16_384, 500_000)
        ),
        *(Line(f"3 replicas: consume {size} B", 3, False, MB, consume(size)) for size in (1_000,)),
        Line("3 replicas: single records, 1 connection", 3, False, REQUESTS, single(1, 30_000), ">= 1.5x"),
        Line("3 replicas: single records, 8 connections", 3, False, REQUESTS, single(8, 50_000), ">= 1.5x"),
        Line("3 replicas: single records, 64 connections", 3, False, REQUESTS, single(64, 50_000), ">= 1.5x"),
        Line("3 replicas: failover after kill -9", 3, False, SECONDS, failover, "<= 1x"),
    ]
    three_flushed = [
        Line(
            "3 replicas, flushed: produce 1,000 B, 16 KB batches", 3, True, MB, bulk(1_000, 16_384, share=0.1), ">= 2x"
        ),
        Line("3 replicas, flushed: single records, 8 connections", 3, True, REQUESTS, single(8, 2_500), ">= 2x"),
        Line("3 replicas, flushed: single records, 64 connections", 3, True, REQUESTS, single(64, 10_000), ">= 2x"),
    ]
    return [*one, *flushed, *three, *three_flushed]
