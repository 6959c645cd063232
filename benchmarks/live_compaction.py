"""Compaction while a cluster is used: Sexton, which compacts on Spark, beside Apache Kafka 4.3.0 and its cleaner.

    python -m benchmarks.live_compaction [--quick] [--parts serving lag large soon protocol] [--directory DIR]

serving   Three brokers, three replicas, a producer that updates keys with acks=all and a consumer behind it. Rate and
          99th percentile with compaction running, and without: Kafka's cleaner off, no compactor. Once at a steady
          rate, once as fast as records are taken: then brokers, clients and compaction fight for the processors. And
          once with processes instead of compaction that only take the processors' time.
lag       Many small partitions become due at one moment (min.cleanable.dirty.ratio is lowered): how long until each
          replica is compacted, by its own checkpoint; what the compactor's and the brokers' processes took for it. With
          one replica and with three. A small topic was compacted before: Spark runs already.
large     The same for one large partition, one replica.
soon      One small partition on an idle cluster, with the default settings: how long from due to done, several times.
protocol  Sexton alone. What brokers tell each other by ReplicaFetch while all of those small partitions are compacted:
          nothing is produced meanwhile, so that it is the watermarks and the idle fetches. And what the brokers' CPU
          is, when nothing happens, with partitions that are compacted and with as many that are not. For 10,000
          partitions it is computed: both grow with the number of partitions.

Neither system flushes before it acknowledges, unless a line says so: Sexton's default is to flush. Either looks for
work every second; in soon and on idle brokers every 15, the default.
--quick is a trial of the benchmark itself: its figures are of too little work to mean much, above all where Spark's
fixed costs count.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from confluent_kafka import Producer
from rich.console import Console
from rich.table import Table
from tests.project import PROJECT_DIR

from benchmarks.broker_systems import create_topic
from benchmarks.live_systems import DEFAULT_LOOK_MS, LOOK_MS, NEVER, SOON, Live, running, seconds_until_compacted
from sexton.harness.properties import Settings

SYSTEMS: Final = ("kafka", "sexton")
NODES: Final = 3
LOAD_PARTITIONS: Final = 6
STEADY_RATE: Final = 4_000
AS_FAST_AS_POSSIBLE: Final = 0
LOAD_TIMEOUT_S: Final = 900
RECORD_BYTES: Final = 1_000
UPDATES_PER_KEY: Final = 10
SEGMENT_MS: Final = 2_000
FLUSH_TIMEOUT_S: Final = 300
ERROR_CHARACTERS: Final = 1_000
RATIO: Final = "min.cleanable.dirty.ratio"
WARM_UP_BYTES: Final = 100_000
WARM_UP_TIMEOUT_S: Final = 300
"""Spark starts with the first work, and its kernels are compiled once."""

SOON_BYTES: Final = 1_000_000
SOON_ROUNDS: Final = 5

BURNERS: Final = 2

MANY: Final = 10_000
"""Partitions that the protocol's cost is computed for."""


@dataclass(frozen=True)
class Size:
    """How much work."""

    seconds: float
    warm_up_s: float
    partitions: int
    partition_bytes: int
    large_bytes: int
    idle_s: float
    limit_s: float


FULL: Final = Size(30, 30, 1_000, 1_000_000, 2_000_000_000, 60, 900)
QUICK: Final = Size(10, 10, 30, 100_000, 32_000_000, 10, 180)


class Bench:
    def __init__(self, size: Size, directory: Path | None, console: Console) -> None:
        self.size = size
        self._directory = directory
        self.console = console
        self.lags: dict[tuple[str, int, int, int], Lag] = {}

    @contextmanager
    def cluster(
        self, name: str, nodes: int, *, compacts: bool, look_ms: int = LOOK_MS, flushes: bool = False
    ) -> Iterator[Live]:
        scratch = Path(tempfile.mkdtemp(prefix="bench-", dir=self._directory))
        try:
            with running(name, nodes, scratch / name, compacts=compacts, look_ms=look_ms, flushes=flushes) as live:
                yield live
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def say(self, text: str) -> None:
        self.console.print(f"  {text}", highlight=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="little of everything: whether it works")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--directory", type=Path, help="where the brokers keep their data: the disk under test")
    given = parser.parse_args()
    console = Console(width=150)
    where = given.directory or Path(tempfile.gettempdir())
    console.print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, data in {where}"
        + ("; --quick: a trial, not a measurement" if given.quick else ""),
        highlight=False,
    )
    bench = Bench(QUICK if given.quick else FULL, given.directory, console)
    for part in given.parts:
        console.print(PARTS[part](bench))


# While clients work


@dataclass(frozen=True)
class Load:
    system: str
    rate: int
    flushes: bool = False
    burns: bool = False
    """Beside it is no compaction but what takes as much of the processors: how much of the difference that makes."""

    @property
    def name(self) -> str:
        pace = "steady" if self.rate else "full speed"
        return f"{self.system}, {pace}{', flushed' if self.flushes else ''}{' (burner)' if self.burns else ''}"


LOADS: Final = (
    Load("kafka", STEADY_RATE),
    Load("sexton", STEADY_RATE),
    Load("sexton", STEADY_RATE, burns=True),
    Load("sexton", STEADY_RATE, flushes=True),
    Load("kafka", AS_FAST_AS_POSSIBLE),
    Load("sexton", AS_FAST_AS_POSSIBLE),
)


def serving(bench: Bench) -> Table:
    table = Table(title=f"Produce (acks=all) and consume, {NODES} replicas: with and without compaction running")
    for column in ("", "rate without", "rate with", "share", "p99 without", "p99 with", "ratio", "log after", "goal"):
        table.add_column(column, justify="left" if not column else "right")
    for load in LOADS:
        without, _ = _serve(bench, load, is_disturbed=False)
        with_it, size_bytes = _serve(bench, load, is_disturbed=True)
        table.add_row(
            load.name,
            f"{without['rate']:,.0f}/s",
            f"{with_it['rate']:,.0f}/s",
            f"{with_it['rate'] / without['rate']:.0%}",
            f"{without['p99_ms']:.1f} ms",
            f"{with_it['p99_ms']:.1f} ms",
            f"{with_it['p99_ms'] / without['p99_ms']:.2f}x",
            f"{size_bytes / 1e6:,.0f} MB",
            ">= 80 %, <= 1.5x",
        )
    table.caption = (
        "log after: all replicas, with compaction; it shows that there was some\n"
        f"burner: no compaction, but {BURNERS} processes of the lowest priority that take half a processor together"
    )
    return table


def _serve(bench: Bench, load: Load, *, is_disturbed: bool) -> tuple[dict[str, Any], int]:
    size = bench.size
    compacts = is_disturbed and not load.burns
    with bench.cluster(load.system, NODES, compacts=compacts, flushes=load.flushes) as live:
        if compacts:
            _warm_up(live, NODES)
        config: Settings = {
            "cleanup.policy": "compact",
            "segment.bytes": 4 << 20,
            RATIO: SOON,
            "min.insync.replicas": 2,
        }
        create_topic(live.cluster, "load", LOAD_PARTITIONS, NODES, config)
        numbers = LOAD_PARTITIONS, size.seconds, size.warm_up_s, load.rate
        command = [sys.executable, "-m", "benchmarks.live_load", live.cluster.bootstrap, "load", *map(str, numbers)]
        with _burners(size.warm_up_s + size.seconds) if is_disturbed and load.burns else nullcontext():
            done = subprocess.run(command, cwd=PROJECT_DIR, capture_output=True, text=True, timeout=LOAD_TIMEOUT_S)
        if done.returncode != 0:
            raise RuntimeError(f"the load on {load.system} failed:\n{done.stderr[-2000:]}")
        told: dict[str, Any] = json.loads(done.stdout)
        bench.say(f"{load.name}, {'disturbed' if is_disturbed else 'alone'}: {told['rate']:,.0f} records/s")
        return told, live.size_bytes("load")


@contextmanager
def _burners(seconds: float) -> Iterator[None]:
    command = [sys.executable, "-m", "benchmarks.burn", str(0.5 / BURNERS), str(seconds)]
    started = [subprocess.Popen(command, cwd=PROJECT_DIR, start_new_session=True) for _ in range(BURNERS)]
    try:
        yield
    finally:
        for one in started:
            one.terminate()
            one.wait()


# From due to done


@dataclass(frozen=True)
class Lag:
    """Of all replicas: seconds from eligible to committed, and CPU seconds meanwhile."""

    seconds: list[float]
    expected: int
    compactor_cpu_s: float
    brokers_cpu_s: float
    protocol_bytes: int

    def at(self, share: float) -> str:
        index = max(0, int(self.expected * share) - 1)
        return f"{self.seconds[index]:.1f} s" if index < len(self.seconds) else "not done"


def lag(bench: Bench) -> Table:
    size = bench.size
    title = f"{size.partitions:,} partitions of {size.partition_bytes / 1e6:g} MB become due at once"
    table = _lag_table(title)
    found: dict[tuple[str, int], Lag] = {}
    for replicas in (1, NODES):
        for name in SYSTEMS:
            one = _lag(bench, name, size.partitions, replicas, size.partition_bytes)
            found[name, replicas] = one
            _add_lag(table, f"{name}, {replicas} replica{'s' if replicas > 1 else ''}", one, "<= 60 s")
    once, thrice = found["sexton", 1].compactor_cpu_s, found["sexton", NODES].compactor_cpu_s
    ratio = f"{thrice / once:.2f}x" if once else "-"
    table.caption = f"the compactor's CPU for {NODES} replicas is {ratio} that for one (goal: <= 1.2x)"
    return table


def large(bench: Bench) -> Table:
    table = _lag_table(f"One partition of {bench.size.large_bytes / 1e9:g} GB becomes due, one replica")
    for name in SYSTEMS:
        _add_lag(table, name, _lag(bench, name, 1, 1, bench.size.large_bytes), "")
    return table


def soon(bench: Bench) -> Table:
    table = Table(
        title=f"From due to done on an idle cluster: one partition of {SOON_BYTES / 1e6:g} MB, {SOON_ROUNDS} times"
    )
    for column in ("", "the quickest", "median", "the slowest"):
        table.add_column(column, justify="left" if not column else "right")
    for name in SYSTEMS:
        seconds = []
        with bench.cluster(name, 1, compacts=True, look_ms=DEFAULT_LOOK_MS) as live:
            _warm_up(live, 1)
            for number in range(SOON_ROUNDS):
                topic = f"due-{number}"
                _fill(live, topic, 1, 1, SOON_BYTES)
                live.set_topic(topic, RATIO, SOON)
                seconds += seconds_until_compacted(live, topic, 1, 1, WARM_UP_TIMEOUT_S)
                bench.say(f"{name}: {seconds[-1]:.1f} s")
        table.add_row(name, *(f"{each:.1f} s" for each in (min(seconds), median(seconds), max(seconds))))
    return table


def _lag_table(title: str) -> Table:
    table = Table(title=title)
    for column in ("", "half done", "99 % done", "all done", "goal", "compactor CPU", "brokers CPU"):
        table.add_column(column, justify="left" if not column else "right")
    return table


def _add_lag(table: Table, name: str, one: Lag, goal: str) -> None:
    cpu = [f"{each:.1f} s" for each in (one.compactor_cpu_s, one.brokers_cpu_s)]
    table.add_row(name, one.at(0.5), one.at(0.99), one.at(1.0), goal, *cpu)


def _lag(bench: Bench, name: str, partitions: int, replicas: int, partition_bytes: int) -> Lag:
    """Measured once, however many tables show it."""
    case = name, partitions, replicas, partition_bytes
    if case not in bench.lags:
        try:
            bench.lags[case] = _measure_lag(bench, *case)
        except Exception as error:  # told, and without figures; the others go on
            bench.say(f"{name}, {partitions:,} partitions, {replicas} replicas: {error!r}"[:ERROR_CHARACTERS])
            bench.lags[case] = Lag([], partitions * replicas, 0.0, 0.0, 0)
    return bench.lags[case]


def _measure_lag(bench: Bench, name: str, partitions: int, replicas: int, partition_bytes: int) -> Lag:
    with bench.cluster(name, replicas, compacts=True) as live:
        _warm_up(live, replicas)
        _fill(live, "due", partitions, replicas, partition_bytes)
        brokers_s, compactor_s, told_bytes = live.brokers_cpu_s(), live.compactor_cpu_s(), live.replication_bytes()
        live.set_topic("due", RATIO, SOON)
        seconds = seconds_until_compacted(live, "due", partitions, replicas, bench.size.limit_s)
        found = Lag(
            seconds,
            partitions * replicas,
            live.compactor_cpu_s() - compactor_s,
            live.brokers_cpu_s() - brokers_s,
            live.replication_bytes() - told_bytes,
        )
        bench.say(f"{name}, {partitions:,} partitions, {replicas} replicas: {found.at(1.0)}")
        return found


def _warm_up(live: Live, replicas: int) -> None:
    """What compacts has compacted: neither its start nor its compiler is part of what follows."""
    _fill(live, "warm", 2, replicas, WARM_UP_BYTES)
    live.set_topic("warm", RATIO, SOON)
    seconds_until_compacted(live, "warm", 2, replicas, WARM_UP_TIMEOUT_S)


def _fill(live: Live, topic: str, partitions: int, replicas: int, partition_bytes: int) -> None:
    """Every key many times. A last record, when segments have become short-lived, closes what was written before."""
    config: Settings = {
        "cleanup.policy": "compact",
        "segment.bytes": 64 << 20,
        RATIO: NEVER,
    }
    create_topic(live.cluster, topic, partitions, replicas, config)
    settings = {"acks": "all", "linger.ms": 20, "queue.buffering.max.messages": 50_000, "log_level": 2}
    producer = Producer({"bootstrap.servers": live.cluster.bootstrap, **settings})
    count = partition_bytes // RECORD_BYTES
    keys = [b"%d" % number for number in range(max(1, count // UPDATES_PER_KEY))]
    value = os.urandom(RECORD_BYTES)
    for partition in range(partitions):
        for number in range(count):
            _produce(producer, topic, partition, keys[number % len(keys)], value)
    _flush(live, producer)
    live.set_topic(topic, "segment.ms", str(SEGMENT_MS))
    time.sleep(1.5 * SEGMENT_MS / 1000)
    for partition in range(partitions):
        _produce(producer, topic, partition, b"last", value)
    _flush(live, producer)


def _produce(producer: Producer, topic: str, partition: int, key: bytes, value: bytes) -> None:
    while True:
        try:
            producer.produce(topic, value, key, partition)
            break
        except BufferError:
            producer.poll(0.05)


def _flush(live: Live, producer: Producer) -> None:
    if producer.flush(FLUSH_TIMEOUT_S):
        raise RuntimeError(f"{live.name} did not take all records")


# What the watermarks cost


def protocol(bench: Bench) -> Table:
    size = bench.size
    table = Table(title=f"Sexton: what the watermarks of {size.partitions:,} partitions, {NODES} replicas, cost")
    for column in ("", f"{size.partitions:,} partitions", f"{MANY:,}, computed", "goal"):
        table.add_column(column, justify="left" if not column else "right")
    one = _lag(bench, "sexton", size.partitions, NODES, size.partition_bytes)
    idle = {policy: _idle_cpu(bench, policy) for policy in ("delete", "compact")}
    factor = MANY / size.partitions
    told = one.protocol_bytes / 1e3
    table.add_row("told while all are compacted once", f"{told:,.0f} kB", f"{told * factor:,.0f} kB", "")
    for policy, share in idle.items():
        table.add_row(f"a broker's CPU, idle, {policy}", f"{share:.2%}", "", "")
    cost = max(0.0, idle["compact"] - idle["delete"])
    table.add_row("the difference", f"{cost:.2%}", f"{cost * factor:.2%}", "< 1 % at 1,000")
    table.caption = "of one core; told: requests and answers of ReplicaFetch of all brokers, idle ones included"
    return table


def _idle_cpu(bench: Bench, policy: str) -> float:
    """Share of a core that a broker takes when nothing happens."""
    with bench.cluster("sexton", NODES, compacts=False, look_ms=DEFAULT_LOOK_MS) as live:
        create_topic(live.cluster, "idle", bench.size.partitions, NODES, {"cleanup.policy": policy})
        time.sleep(bench.size.idle_s / 2)
        before_s, started_s = live.brokers_cpu_s(), time.monotonic()
        time.sleep(bench.size.idle_s)
        share = (live.brokers_cpu_s() - before_s) / (time.monotonic() - started_s) / NODES
        bench.say(f"sexton, {bench.size.partitions:,} idle partitions, {policy}: {share:.2%} of a core a broker")
        return share


PARTS: Final[dict[str, Callable[[Bench], Table]]] = {
    "serving": serving,
    "lag": lag,
    "large": large,
    "soon": soon,
    "protocol": protocol,
}


if __name__ == "__main__":
    main()
