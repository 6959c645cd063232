"""How long one L0 commit of a cloud broker takes in the metastore, by the number of partitions in the object.

python -m benchmarks.cloud_metastore [COMMITS] [POSTGRES_URL]

Without a URL a PostgreSQL of its own is started, with fsync on, if there are binaries. Prints p50 / p99 in
milliseconds, the CPU time of this process a commit, and the registration of 32 ids. The columns of one line are
measured in turn on one machine, with whatever else runs there: compare them with each other.
"""

from __future__ import annotations

import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

from sexton.adapters.metastore import migrations, operations
from sexton.adapters.metastore.cloud import claiming, committing, objects
from sexton.adapters.metastore.databases import Database
from sexton.adapters.metastore.session import Session
from sexton.harness import postgres
from sexton.ports.cloud import CLAIMS_MAX, CLOUD, STORAGE_MODE, Gather, Level, Outcome, Owner, Run
from sexton.ports.metastore import BrokerRow, BrokerStatus, PartitionRow, TopicRow
from sexton.types import LeaderEpoch

PARTITIONS = (1, 10, 50, 200, 1000)
COMMITS = 60
RUN_BYTES = 4096
POOL = 32
"""Ids that are registered at once, as brokers do."""

TIMEOUT_MS = 60_000


@contextmanager
def own_postgres() -> Iterator[str]:
    """As tests start it, but durable."""
    durable = {"fsync": "on", "full_page_writes": "on", "shared_buffers": "128MB"}
    with patch.dict(postgres.SETTINGS, durable), postgres.running() as server:
        yield server.new_database()


class Bench:
    def __init__(self, url: str, partitions_max: int) -> None:
        database = Database(url, TIMEOUT_MS, lambda _: None)
        self.session = Session(database.engine.connect(), database.beginnings)
        migrations.open_cluster(self.session, uuid.uuid4())
        row = BrokerRow(1, -1, "h", 1, None, uuid.uuid4(), 5000, 0, BrokerStatus.STARTING)
        self.epoch = operations.register_broker(self.session, row, None).epoch
        self.owner = Owner.broker(1, self.epoch)
        topic = TopicRow(uuid.uuid4(), "t", False)
        rows = [PartitionRow(topic.topic_id, n, (1,), (1,), 1, LeaderEpoch(1), 0) for n in range(partitions_max)]
        operations.create_topic(self.session, topic, rows, {STORAGE_MODE: CLOUD})
        self.keys = [(topic.topic_id, n) for n in range(partitions_max)]
        self.ends = dict.fromkeys(self.keys, 0)
        for first in range(0, partitions_max, CLAIMS_MAX):
            wanted = [(key, LeaderEpoch(1)) for key in self.keys[first : first + CLAIMS_MAX]]
            claiming.claim_partitions(self.session, 1, self.epoch, wanted)
        self._pool: list[uuid.UUID] = []

    def register(self) -> None:
        self._pool = [uuid.uuid4() for _ in range(POOL)]
        objects.register_objects(self.session, self.owner, Level.L0, self._pool)

    def prepare(self, partitions_count: int) -> Gather:
        if not self._pool:
            self.register()
        runs = []
        for number, key in enumerate(self.keys[:partitions_count]):
            base = self.ends[key]
            self.ends[key] = base + 10
            runs.append(
                Run(
                    topic_id=key[0],
                    partition=key[1],
                    writer_epoch=LeaderEpoch(1),
                    base_offset=base,
                    end_offset=base + 10,
                    position=number * RUN_BYTES,
                    size_bytes=RUN_BYTES,
                    first_timestamp_ms=1,
                    max_timestamp_ms=2,
                    records_count=10,
                    stable_offset=base + 10,
                    delta=b"d" * 40,
                )
            )
        return Gather(object_id=self._pool.pop(), size_bytes=partitions_count * RUN_BYTES, runs=runs)

    def commit(self, gather: Gather) -> None:
        (told,) = committing.commit_l0(self.session, self.owner, [gather], 1)
        assert all(one is Outcome.ACCEPTED for one in told)


def percentiles(times_ms: list[float]) -> str:
    ordered = sorted(times_ms)
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return f"{ordered[len(ordered) // 2]:.1f} / {p99:.1f}"


def timed(what: Callable[[], None]) -> float:
    began = time.perf_counter()
    what()
    return (time.perf_counter() - began) * 1000


def measure(name: str, url: str, commits: int) -> None:
    bench = Bench(url, max(PARTITIONS))
    cells = []
    for count in PARTITIONS:
        bench.commit(bench.prepare(count))  # statements are compiled once
        times, cpu_s = [], 0.0
        for _ in range(commits):
            gather = bench.prepare(count)
            before_s = time.process_time()
            times.append(timed(lambda gather=gather: bench.commit(gather)))  # type: ignore[misc]
            cpu_s += time.process_time() - before_s
        cells.append(f"{percentiles(times)} ({cpu_s / commits * 1000:.1f})")
    registered = percentiles([timed(bench.register) for _ in range(commits)])
    print(f"| {name} | {' | '.join(cells)} | {registered} |", flush=True)


def main(commits: int = COMMITS, postgres_url: str = "") -> None:
    print(f"p50 / p99 ms (CPU ms here) of {commits} commits each, by partitions in the object; then 32 ids registered")
    print(f"| | {' | '.join(str(count) for count in PARTITIONS)} | register |")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        measure("SQLite", f"sqlite:///{folder}/metastore.db", commits)
        measure("PostgreSQL", postgres_url or stack.enter_context(own_postgres()), commits)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else COMMITS, sys.argv[2] if len(sys.argv) > 2 else "")
