"""What operators see of a cluster that compacts itself for a while: it converges under a steady stream of updates and
deletions, and tombstones wait for a broker that is away for as long as it is.

With `--soak`, as `make soak-live` runs them, for five and ten minutes. In `make test` others show the same in short:
test_kills.py here, and tests/reproduce/test_live.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sexton.cli.cluster_folder import ClusterFolder
from sexton.compaction.reference import fold_by_key
from sexton.harness.asking import create_topic
from sexton.harness.brokers import SextonCluster
from sexton.harness.compactor import CompactorProcess
from sexton.harness.processes import Port
from tests.cli.up import Up
from tests.compactor.live import (
    NODES,
    SETTINGS,
    TOPIC_SETTINGS,
    Writer,
    batches_in,
    check_folds,
    mcco,
    sexton,
    tombstones_of,
    wait_until,
)

pytestmark = [pytest.mark.cluster, pytest.mark.spark, pytest.mark.soak]

CONVERGE_S, AWAY_S = 300, 600
SHORT_S = 15
PAUSE_S = 0.2
TIMEOUT_S = 180
KEYS_COUNT = 1_000


@pytest.fixture
def port() -> Iterator[int]:
    taken = Port()
    yield taken.number
    taken.release()


def write_for(writer: Writer, seconds: float, now_and_then: Callable[[], object] = lambda: None) -> None:
    end_s, next_s = time.monotonic() + seconds, time.monotonic()
    while time.monotonic() < end_s:
        writer.write(50, keys_count=KEYS_COUNT)
        if time.monotonic() > next_s:
            now_and_then()
            next_s = time.monotonic() + seconds / 5
        time.sleep(PAUSE_S)


@pytest.mark.timeout(1800)
def test_a_cluster_as_people_start_it_converges_under_updates_and_deletions(
    is_soak: bool, tmp_path: Path, port: int
) -> None:
    up = Up(tmp_path / "cluster", "--port", port)
    bootstrap = f"127.0.0.1:{port}"
    try:
        up.wait_for("Ctrl-C stops")
        config = {"cleanup.policy": "compact", "segment.bytes": "20000", "min.cleanable.dirty.ratio": "0.2"}
        create_topic(bootstrap, "t", 1, 3, {**config, "delete.retention.ms": "1000"})
        writer = Writer(bootstrap)
        write_for(writer, CONVERGE_S if is_soak else SHORT_S, lambda: tell(bootstrap))
        wait_until("every replica is compacted", lambda: is_compacted(bootstrap), TIMEOUT_S, lambda: tell(bootstrap))
        told = sexton(bootstrap, "run", "t")["replicas"]
        assert len(told) == len(NODES)
        assert len({one["mcco"] for one in told}) == 1, told
        tell(bootstrap)
        folds = [fold_in(ClusterFolder(up.folder).data_path(node) / "t-0") for node in NODES]
        assert all(fold == writer.expected for fold in folds)
        up.stop()
    finally:
        up.end()


def is_compacted(bootstrap: str) -> bool:
    replicas = sexton(bootstrap, "status", "t")["replicas"]
    return len(replicas) == len(NODES) and all(one["mcco"] > 0 and not one["is_due"] for one in replicas)


def tell(bootstrap: str) -> str:
    """As `sexton compaction status` does, in a line a replica."""
    told = "\n".join(
        f"broker {one['broker']}: MCCO {one['mcco']:,} of {one['log_end_offset']:,}, MTRO {one['mtro']:,}, "
        f"{one['size_bytes']:,} bytes, {one['dirty_ratio']:.0%} dirty"
        for one in sexton(bootstrap, "status", "t")["replicas"]
    )
    print(told)
    return told


def fold_in(directory: Path) -> dict[bytes, bytes | None]:
    return {key: record.value for key, record in fold_by_key(batches_in(directory)).items()}


@pytest.mark.timeout(1800)
def test_tombstones_wait_for_a_broker_however_long_it_is_away(is_soak: bool, tmp_path: Path) -> None:
    with SextonCluster(nodes=3, settings=SETTINGS) as cluster:
        cluster.create_topic("t", replication_factor=3, config=TOPIC_SETTINGS)
        writer = Writer(cluster.bootstrap)
        for key in range(5):
            writer.put(b"doomed %d" % key, b"value")
        writer.write(200)
        check_folds(cluster, writer)
        with CompactorProcess(cluster.metastore_url, tmp_path, "--nice", "0"):
            cluster.kill_node(3)
            for key in range(5):
                writer.put(b"doomed %d" % key, None)
            write_for(writer, AWAY_S if is_soak else SHORT_S)
            end = max(one["log_end_offset"] for one in sexton(cluster.bootstrap, "status", "t")["replicas"])
            wait_until("the others have compacted", lambda: min(mcco(cluster).values()) > end - 200, TIMEOUT_S)
            for node in (1, 2):
                assert tombstones_of(cluster, node, "t", b"doomed") == 5, "rule 5"
            answer = sexton(cluster.bootstrap, "why", "t:0", "--key", "doomed 3")
            print(answer["because"], answer["waits_for"])
            assert answer["what"] == "tombstone"
            assert any("broker 3" in line for line in answer["waits_for"])
            check_folds(cluster, writer, (1, 2))
            cluster.start_node(3)
            wait_until(
                "the tombstones are gone, for all are past them",
                lambda: not any(tombstones_of(cluster, node, "t", b"doomed") for node in NODES),
                TIMEOUT_S,
            )
            check_folds(cluster, writer)
