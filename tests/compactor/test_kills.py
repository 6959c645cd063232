"""Brokers and compactors are killed at random while a cluster compacts itself: nothing is lost, nothing comes back, no
transaction is torn, and when it is over everything goes on by itself.

`--soak` kills a hundred times.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer

from sexton.compaction.reference import fold_by_key
from sexton.harness.brokers import SextonCluster
from sexton.harness.compactor import CompactorProcess
from tests.compactor.live import (
    NODES,
    SETTINGS,
    TOPIC_SETTINGS,
    Writer,
    batches_of,
    check_folds,
    statuses,
    tombstones_of,
    wait_until,
)

pytestmark = [pytest.mark.cluster, pytest.mark.spark]

SEED = 1
SOAK_KILLS, SUITE_KILLS = 100, 3
HEAL_TIMEOUT_S = 180
CALL_TIMEOUT_S = 30
WRITE_PAUSE_S = 0.02
"""A thousand updates a second at most, of which nearly all are superseded: more would only take CPU from compactors."""

TRANSACTIONS_MIN = 50
"""Each takes about 200 of the 4,000 bytes of a segment. On a busy machine few are over when the last broker
was killed."""


class Updates(threading.Thread):
    """Updates and deletes all the time. One request at a time, sent again until it is answered: then what was
    written last is what a fold must say, whatever happened meanwhile."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        endless = {"max.in.flight.requests.per.connection": 1, "message.timeout.ms": 0}
        self.writer = Writer(bootstrap, **endless)
        self.is_over = threading.Event()

    def run(self) -> None:
        while not self.is_over.is_set():
            self.writer.write(20)
            time.sleep(WRITE_PAUSE_S)


class Transactions(threading.Thread):
    """Each writes its number under all keys, in two partitions: a fold with two numbers shows a torn one."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self._brokers = bootstrap
        self.is_over = threading.Event()
        self.outcomes: list[str] = []
        """By number."""

    def run(self) -> None:
        producer: Producer | None = None
        while not self.is_over.is_set():
            number = len(self.outcomes)
            is_committed = number % 4 != 0
            try:
                if producer is None:
                    producer = self.new_producer()
                producer.begin_transaction()
                self.outcomes.append("unknown")
                for key in range(6):
                    producer.produce("x", b"%d" % number, b"key %d" % key, partition=key % 2)
                if is_committed:
                    producer.commit_transaction(CALL_TIMEOUT_S)
                else:
                    producer.flush(CALL_TIMEOUT_S)
                    producer.abort_transaction(CALL_TIMEOUT_S)
                self.outcomes[number] = "committed" if is_committed else "aborted"
            except KafkaException:
                producer = None  # the next one ends what this one left
            time.sleep(0.05)

    def new_producer(self) -> Producer:
        producer = Producer({"bootstrap.servers": self._brokers, "transactional.id": "x", "log_level": 0})
        producer.init_transactions(CALL_TIMEOUT_S)
        return producer

    @property
    def possible(self) -> set[int]:
        """Numbers that a fold may show: the last that was committed, and later ones whose end nobody was told."""
        last = max(number for number, outcome in enumerate(self.outcomes) if outcome == "committed")
        return {last, *(n for n, outcome in enumerate(self.outcomes) if n > last and outcome == "unknown")}


def kill_at_random(
    cluster: SextonCluster, compactors: list[CompactorProcess], directory: Path, kills: int, rng: random.Random
) -> Counter[str]:
    """One broker is down at a time; of two compactors one may be starting while the other works."""
    done: Counter[str] = Counter()
    for number in range(kills):
        time.sleep(rng.uniform(0.2, 3))
        if rng.random() < 0.6:
            victim = rng.choice(NODES)
            cluster.kill_node(victim)
            time.sleep(rng.uniform(0, 2))
            cluster.start_node(victim)
            done["brokers"] += 1
        else:
            index = rng.randrange(len(compactors))
            compactors[index].kill()
            compactors[index] = started_compactor(cluster, directory, f"compactor-{number}")
            done["compactors"] += 1
    return done


def started_compactor(cluster: SextonCluster, directory: Path, name: str) -> CompactorProcess:
    """It does not step back for others: while other tests keep the processors busy, it would never have its turn."""
    return CompactorProcess(cluster.metastore_url, directory, "--master", "local[1]", "--nice", "0", name=name)


def transactional_folds(cluster: SextonCluster) -> dict[int, set[int]]:
    """Of each replica: the numbers that its keys show."""
    found: dict[int, set[int]] = {}
    for node in NODES:
        records = [
            record for partition in (0, 1) for record in fold_by_key(batches_of(cluster, node, "x", partition)).values()
        ]
        assert len(records) in (0, 6), f"keys are missing on broker {node}"
        found[node] = {int(record.value or b"-1") for record in records}
    return found


@pytest.mark.timeout(3600)
def test_nothing_is_lost_though_brokers_and_compactors_are_killed_while_they_compact(
    is_soak: bool, tmp_path: Path
) -> None:
    with SextonCluster(nodes=3, settings=SETTINGS) as cluster:
        cluster.create_topic("t", 1, 3, {**TOPIC_SETTINGS, "min.insync.replicas": "2"})
        cluster.create_topic("x", 2, 3, {**TOPIC_SETTINGS, "min.insync.replicas": "2"})
        updates, transactions = Updates(cluster.bootstrap), Transactions(cluster.bootstrap)
        for value in (b"value", None):
            for key in range(5):
                updates.writer.put(b"doomed %d" % key, value)
        compactors = [started_compactor(cluster, tmp_path, f"compactor-{name}") for name in "ab"]
        try:
            for thread in (updates, transactions):
                thread.start()
            kills = SOAK_KILLS if is_soak else SUITE_KILLS
            done = kill_at_random(cluster, compactors, tmp_path, kills, random.Random(SEED))
            wait_until(
                "there are transactions enough for a closed segment, which is what is compacted",
                lambda: len(transactions.outcomes) >= TRANSACTIONS_MIN,
                HEAL_TIMEOUT_S,
            )
            for thread in (updates, transactions):
                thread.is_over.set()
            for thread in (updates, transactions):
                thread.join(HEAL_TIMEOUT_S)
                assert not thread.is_alive(), "a producer hangs though all brokers are up"
            updates.writer.flush()
            judge(cluster, updates, transactions)
        finally:
            for compactor in compactors:
                compactor.kill()
        print(f"killed: {dict(done)}; transactions: {dict(Counter(transactions.outcomes))}")


def judge(cluster: SextonCluster, updates: Updates, transactions: Transactions) -> None:
    check_folds(cluster, updates.writer)
    wait_until(
        "all replicas show one transaction, and the same",
        lambda: len({frozenset(each) for each in transactional_folds(cluster).values()}) == 1,
        HEAL_TIMEOUT_S,
    )
    shown = transactional_folds(cluster)[1]
    assert len(shown) == 1, f"torn: {shown}"
    assert shown <= transactions.possible, f"{shown} is shown, of {transactions.possible}"
    wait_until(
        "what was deleted first is forgotten everywhere",
        lambda: not any(tombstones_of(cluster, node, "t", b"doomed") for node in NODES),
        HEAL_TIMEOUT_S,
        lambda: statuses(cluster, "t"),
    )
    wait_until(
        "all are in sync and compacted",
        lambda: all(one["is_in_sync"] and one["mcco"] > 0 for one in statuses(cluster, "t") + statuses(cluster, "x")),
        HEAL_TIMEOUT_S,
        lambda: statuses(cluster, "t") + statuses(cluster, "x"),
    )
    check_folds(cluster, updates.writer)
    assert transactional_folds(cluster)[1] == shown
