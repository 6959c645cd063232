"""Cloud topics: latency, throughput, requests to the store and what they would cost, beside local topics.

    python -m benchmarks.cloud                     # every line, about ten minutes
    python -m benchmarks.cloud --only s3 --seconds 10

What compactors do is measured by `benchmarks.cloud_compaction`.

Three brokers, and their clients, on this machine. Stores: a durable folder; versitygw (S3) on this machine; the same
behind a proxy that delays each answer as S3 does (lognormal, p50 80 ms, p99 175 ms). Dollars are those of S3 Standard
for requests: PUT $0.005, GET $0.0004 a thousand.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.broker_lines import SENT
from benchmarks.broker_systems import cpu_seconds, create_topic, pids, resident_bytes
from benchmarks.cloud_load import RECORD_BYTES
from sexton.harness.brokers import SextonCluster
from sexton.harness.cloud_store import BUCKET, PREFIX, CloudStore
from sexton.harness.kafka_tools import run_tool
from sexton.harness.processes import HOST, Port
from sexton.harness.properties import Settings
from sexton.harness.store_proxy import StoreFaults

NODES: Final = 3
PARTITIONS: Final = 60
S3_LIKE: Final = StoreFaults(median_ms=80, p99_ms=175)
STORES: Final = ("local", "folder", "versitygw", "s3-like")
PUT_DOLLARS, GET_DOLLARS = 0.005 / 1000, 0.0004 / 1000
REQUESTS: Final = re.compile(r'sexton_cloud_requests_total\{operation="(\w+)",outcome="ok"\} (\d+)')
IDLE_PARTITIONS: Final = 1_000


@dataclass
class Place:
    """A cluster on one kind of store."""

    name: str
    cluster: SextonCluster
    admin_ports: list[int]
    topics_count: int = 0

    @property
    def is_local(self) -> bool:
        return self.name == "local"

    def topic(self, partitions: int = PARTITIONS) -> str:
        self.topics_count += 1
        name = f"topic-{self.topics_count}"
        create_topic(self.cluster, name, partitions, NODES, {})
        return name

    def requests(self) -> Counter[str]:
        """To the store, so far, of all brokers."""
        found: Counter[str] = Counter()
        for port in self.admin_ports:
            with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=10) as page:
                for operation, count in REQUESTS.findall(page.read().decode()):
                    found[operation] += int(count)
        return found

    def client(self, *words: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "benchmarks.cloud_load", *map(str, words)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def run(self, *words: object) -> dict[str, Any]:
        return answer(self.client(*words))


def answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    said, _ = process.communicate(timeout=900)
    if process.returncode:
        raise RuntimeError(f"a client failed: {process.args!r}")
    found: dict[str, Any] = json.loads(said)
    return found


@contextmanager
def started(name: str, directory: Path, settings: Settings | None = None) -> Iterator[Place]:
    ports = [Port() for _ in range(NODES)]
    own: dict[int, Settings] = {
        number + 1: {"admin.listener": f"http://{HOST}:{port.number}"} for number, port in enumerate(ports)
    }
    wanted: dict[str, str | int | float | bool] = {"auto.create.topics.enable": False, **(settings or {})}
    store = None
    with ExitStack() as stack:
        if name == "folder":
            url = f"file://{directory / 'objects'}"
            wanted |= {"cloud.store.url": url, "default.storage.mode": "cloud", "cloud.linger.ms": 5}
        elif name != "local":
            store = stack.enter_context(CloudStore(directory / "store", S3_LIKE if name == "s3-like" else None))
            if name == "versitygw":
                wanted |= {"cloud.store.url": store.gateway.url(BUCKET, PREFIX), "cloud.linger.ms": 20}
        cluster = SextonCluster(NODES, directory / "cluster", wanted, own, store=store)
        yield Place(name, stack.enter_context(cluster), [port.number for port in ports])
    for port in ports:
        port.release()


@dataclass
class Row:
    """What a line prints."""

    figures: list[str] = field(default_factory=list)
    goal: str = ""
    is_met: bool | None = None


@dataclass
class Spent:
    """Requests and time between two looks at a cluster."""

    place: Place
    before: Counter[str]
    since_s: float

    def figures(self, written_bytes: float) -> list[str]:
        if self.place.is_local:
            return []
        now = self.place.requests()
        took_s = time.monotonic() - self.since_s
        puts, gets = now["put"] - self.before["put"], now["get"] - self.before["get"]
        dollars = (puts * PUT_DOLLARS + gets * GET_DOLLARS) / max(written_bytes / 1e9, 1e-9)
        return [
            f"{puts / took_s:.1f} PUT/s ({puts / took_s / NODES:.1f} a broker)",
            f"{gets / took_s:.1f} GET/s",
            f"${dollars:.4f}/GB",
        ]


def spending(place: Place) -> Spent:
    return Spent(place, place.requests() if not place.is_local else Counter(), time.monotonic())


Line = Callable[[Place, float], Row]


def paced(mb_per_s: float, p50_ms: float, p99_ms: float, *, puts_max: float | None = None) -> Line:
    def line(place: Place, seconds: float) -> Row:
        topic = place.topic()
        place.run("write", place.cluster.bootstrap, topic, PARTITIONS, mb_per_s, 3, 5)  # warms up
        spent = spending(place)
        told = place.run("write", place.cluster.bootstrap, topic, PARTITIONS, mb_per_s, seconds, 5)
        figures = [f"{told['mb_per_s']:.0f} MB/s", f"p50 {told['p50_ms']:.0f} ms", f"p99 {told['p99_ms']:.0f} ms"]
        requests = spent.figures(told["records"] * RECORD_BYTES)
        goal = f"p50 <= {p50_ms:g} ms, p99 <= {p99_ms:g} ms"
        is_met = told["p50_ms"] <= p50_ms and told["p99_ms"] <= p99_ms and not told["failed"]
        if puts_max is not None:
            goal += f", <= {puts_max:g} PUT/s a broker"
            is_met = is_met and float(requests[0].split("(")[1].split()[0]) <= puts_max
        return Row(figures + requests, goal, is_met)

    return line


def at_most(goal_mb_per_s: float, memory_max_mb: float = 250) -> Line:
    def line(place: Place, seconds: float) -> Row:
        topic = place.topic()
        spent = spending(place)
        told = place.run("write", place.cluster.bootstrap, topic, PARTITIONS, 0, seconds, 5)
        memory_mb = max(resident_bytes(pid) for pid in pids(place.cluster)) / 1e6
        figures = [f"{told['mb_per_s']:.0f} MB/s", f"p99 {told['p99_ms']:.0f} ms", f"a broker {memory_mb:.0f} MB"]
        goal = f">= {goal_mb_per_s:g} MB/s, a broker <= {memory_max_mb:g} MB"
        is_met = told["mb_per_s"] >= goal_mb_per_s and memory_mb <= memory_max_mb
        return Row(figures + spent.figures(told["records"] * RECORD_BYTES), goal, is_met)

    return line


def end_to_end(place: Place, seconds: float) -> Row:
    """A consumer reads along with 20 MB/s."""
    topic = place.topic()
    bootstrap = place.cluster.bootstrap
    place.run("write", bootstrap, topic, PARTITIONS, 20, 2, 5)
    reading = place.client("tail", bootstrap, topic, PARTITIONS, seconds)
    time.sleep(1)
    spent = spending(place)
    told = place.run("write", bootstrap, topic, PARTITIONS, 20, seconds - 1, 5)
    requests = spent.figures(told["records"] * RECORD_BYTES)
    seen = answer(reading)
    figures = [f"p50 {seen['p50_ms']:.0f} ms", f"p99 {seen['p99_ms']:.0f} ms", f"{seen['records']} read"]
    is_met = seen["p99_ms"] <= 500 and (place.is_local or requests[1].startswith("0.0 "))
    return Row(figures + requests, "end to end p99 <= 500 ms, 0 GET/s", is_met)


def one_producer(place: Place, seconds: float) -> Row:
    """Java's: librdkafka has one request of a partition in flight if it is idempotent, whatever its settings say."""
    topic = place.topic(1)
    count = int(seconds * 10e6 / RECORD_BYTES)
    spent = spending(place)
    printed = run_tool(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", topic, "--num-records", str(count), "--record-size", str(RECORD_BYTES), "--throughput", "-1"),
        *("--producer-props", f"bootstrap.servers={place.cluster.bootstrap}", "acks=all", "enable.idempotence=true"),
        *("linger.ms=100", "batch.size=1000000", "buffer.memory=67108864"),
        timeout_s=900,
    )
    rate = float(SENT.findall(printed)[-1][1]) * RECORD_BYTES / 1e6
    return Row([f"{rate:.1f} MB/s", *spent.figures(count * RECORD_BYTES)], ">= 10 MB/s", rate >= 10)


def transactions(producers: int, goal_per_s: float) -> Line:
    def line(place: Place, seconds: float) -> Row:
        partitions = 6 if producers > 1 else 1  # each broker puts its part of a transaction: one has all of it
        topic = place.topic(partitions)
        words = ("produce", place.cluster.bootstrap, topic, partitions, producers, seconds)
        command = [sys.executable, "-m", "benchmarks.transactions_load", *map(str, words)]
        spent = spending(place)
        told = answer(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        rate = told["transactions"] / told["seconds"]
        puts = (place.requests() - spent.before)["put"] / max(1, told["transactions"])
        figures = [f"{rate:.1f} transactions/s", f"{puts:.2f} PUTs each"]
        goal = f">= {goal_per_s:g}/s" if producers > 1 else "one PUT a transaction"
        return Row(figures, goal, rate >= goal_per_s if producers > 1 else puts <= 1.1)

    return line


def catch_up(place: Place, seconds: float) -> Row:
    """Brokers are restarted, so that nothing is in memory."""
    topic = place.topic()
    bootstrap = place.cluster.bootstrap
    told = place.run("write", bootstrap, topic, PARTITIONS, 30, seconds, 20)
    for node_id in place.cluster.node_ids:
        place.cluster.kill_node(node_id)
    place.cluster.start()
    spent = spending(place)
    found = place.run("read", bootstrap, topic, PARTITIONS, told["records"])
    figures = [f"{found['mb_per_s']:.0f} MB/s of {told['records'] * RECORD_BYTES / 1e6:.0f} MB"]
    is_met = found["mb_per_s"] >= 30 and found["records"] == told["records"]
    return Row(figures + spent.figures(found["records"] * RECORD_BYTES), ">= 30 MB/s", is_met)


def failover(place: Place, seconds: float) -> Row:
    topic = place.topic(6)
    writing = place.client("outage", place.cluster.bootstrap, topic, 6, 20)
    time.sleep(6)
    victim = place.cluster.leaders(topic)[0]
    place.cluster.kill_node(victim)
    told = answer(writing)
    place.cluster.start_node(victim)
    return Row([f"{told['longest_s']:.1f} s without an acknowledgement"], "<= 7 s", told["longest_s"] <= 7)


def idle(place: Place, seconds: float) -> Row:
    """Partitions that nobody uses, and how soon all are led again after a restart of one broker."""
    place.topic(IDLE_PARTITIONS)
    time.sleep(5)
    before_s = [cpu_seconds(pid) for pid in pids(place.cluster)]
    time.sleep(max(seconds, 15))
    used = [after - before for after, before in zip(map(cpu_seconds, pids(place.cluster)), before_s, strict=True)]
    share = max(used) / max(seconds, 15)
    return Row([f"{100 * share:.1f} % of a core, the busiest broker"], "<= 1 %", share <= 0.01)


LINES: Final[dict[str, tuple[str, tuple[str, ...], Line]]] = {
    "folder": ("20 MB/s", ("folder", "local"), paced(20, 25, 100)),
    "folder-most": ("as fast as it goes", ("folder", "local"), at_most(50)),
    "versitygw": ("20 MB/s", ("versitygw",), paced(20, 100, 150)),
    "versitygw-most": ("as fast as it goes", ("versitygw",), at_most(40)),
    "s3": ("20 MB/s", ("s3-like",), paced(20, 200, 400, puts_max=10)),
    "s3-end-to-end": ("20 MB/s and a reader", ("s3-like", "local"), end_to_end),
    "s3-one-producer": ("one producer, one partition", ("s3-like", "local"), one_producer),
    "s3-transactions": ("50 transactional producers", ("s3-like",), transactions(50, 60)),
    "s3-transaction": ("one transactional producer", ("s3-like",), transactions(1, 0)),
    "catch-up": ("catch up from the store", ("versitygw",), catch_up),
    "failover": ("kill -9 of a leader", ("versitygw", "local"), failover),
    "idle": (f"{IDLE_PARTITIONS} idle partitions", ("versitygw", "local"), idle),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help=f"of {', '.join(LINES)}, with commas")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    given = parser.parse_args()
    wanted = [name for name in given.only.split(",") if name] or list(LINES)
    if unknown := [name for name in wanted if name not in LINES]:
        parser.error(f"no such line: {', '.join(unknown)}. There are {', '.join(LINES)}")
    missed = []
    for store in STORES:
        names = [name for name in wanted if store in LINES[name][1]]
        if not names:
            continue
        directory = Path(tempfile.mkdtemp(prefix="sexton-cloud-bench-"))
        try:
            with started(store, directory) as place:
                for name in names:
                    told, _, line = LINES[name]
                    row = line(place, given.seconds)
                    verdict = "" if place.is_local else ("met" if row.is_met else "MISSED")
                    print(f"{store:10} {told:28} {'; '.join(row.figures):90} {row.goal}: {verdict}", flush=True)
                    missed += [name] if verdict == "MISSED" else []
        finally:
            shutil.rmtree(directory, ignore_errors=True)
    print(f"missed: {', '.join(missed)}" if missed else "all goals met")


if __name__ == "__main__":
    main()
