"""Two compactors on the same cloud topics, killed and stopped now and then under a steady stream of updates and
deletions: what is left is what the newest records say, and in the store nothing but what they are part of.

With `--soak`, as `make soak-live` runs them, for five minutes. In `make test` test_work.py shows the same in short.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from sexton.harness.asking import create_topic
from sexton.harness.compactor import CompactorProcess
from sexton.harness.processes import Port
from sexton.ports.cloud import ObjectState
from sexton.ports.object_names import parse_key
from tests.compactor.cloud.test_live import COMPACTED, PARTITIONS, Cluster, read_committed, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.spark, pytest.mark.soak]

LONG_S, SHORT_S = 300, 45
KEYS_COUNT = 300


@pytest.fixture
def port() -> Iterator[int]:
    taken = Port()
    yield taken.number
    taken.release()


class Writer:
    def __init__(self, bootstrap: str, rng: random.Random) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5})
        self._rng = rng
        self.newest: dict[tuple[int, bytes], bytes | None] = {}

    def write(self, count: int) -> None:
        for _ in range(count):
            number = self._rng.randrange(KEYS_COUNT)
            key, partition = b"k%d" % number, number % PARTITIONS
            value = None if self._rng.random() < 0.2 else self._rng.randbytes(50)
            self._producer.produce("table", key=key, value=value, partition=partition)
            self.newest[partition, key] = value
        assert self._producer.flush(60) == 0


@pytest.mark.timeout(1800)
def test_compactors_that_are_killed_leave_the_newest_records_and_nothing_else(
    is_soak: bool, tmp_path: Path, port: int
) -> None:
    rng = random.Random(11)
    collecting = ("--set", "cloud.gc.round.ms=1000", "--set", "cloud.delete.delay.ms=3000")
    cluster = Cluster(tmp_path / "cluster", port, *collecting)
    compactors: list[CompactorProcess] = []
    try:
        cluster.start()
        cluster.set_level_ms(500)
        create_topic(cluster.bootstrap, "table", PARTITIONS, 1, {**COMPACTED, "delete.retention.ms": "0"})
        urls = cluster.urls
        compactors = [
            CompactorProcess(urls[0], tmp_path, "--store", urls[1], "--nice", "0", name=f"c{number}")
            for number in range(2)
        ]
        writer = Writer(cluster.bootstrap, rng)
        end_s = time.monotonic() + (LONG_S if is_soak else SHORT_S)
        next_s = time.monotonic() + 20
        while time.monotonic() < end_s:
            writer.write(100)
            if time.monotonic() > next_s:
                disturb(rng.choice(compactors), rng)
                next_s = time.monotonic() + rng.randrange(10, 25)
            time.sleep(0.2)
        log_path = compactors[0].log_path
        wait_until("compacted", lambda: all(row.cleaned_offset == row.end_offset for row in cluster.rows()), log_path)
        seen = {(partition, key): value for partition, _, key, value in read_committed(cluster.bootstrap, "table")}
        left = {place: value for place, value in seen.items() if value is not None}
        assert left == {place: value for place, value in writer.newest.items() if value is not None}
        assert any(run.outcome == "committed" for run in cluster.runs())
        assert cluster.check_deep()["is_right"]
        for one in compactors:
            one.stop()
        wait_until("collected", lambda: stored(cluster) == live(cluster), log_path)
        cluster.stop()
    finally:
        for one in compactors:
            one.kill()
        cluster.end()


def disturb(one: CompactorProcess, rng: random.Random) -> None:
    if rng.random() < 0.5:
        one.kill()
        one.start()
    else:  # for longer than its lease: the other one takes it for dead
        one.pause()
        time.sleep(20)
        one.resume()


def stored(cluster: Cluster) -> set[str]:
    folder = Path(cluster.urls[1].removeprefix("file://"))
    names = [parse_key(str(file.relative_to(folder))) for file in folder.rglob("*") if file.is_file()]
    return {str(name.object_id) for name in names if name is not None}


def live(cluster: Cluster) -> set[str]:
    rows = cluster.ask(lambda metastore: metastore.read_objects([ObjectState.LIVE], None, 10_000))
    return {str(row.object_id) for row in rows}
