"""Everything at once, for an hour (`make soak-cloud`): a topic that is written, a table that transactions change, and
brokers and compactors that are killed and paused while the store or the metastore is away. In the end nothing
acknowledged is lost or doubled, the table is what its transactions say, and the store has live objects and nothing
else."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from sexton.adapters.metastore import open_metastore
from sexton.harness.asking import create_topic
from sexton.harness.compactor import CompactorProcess
from sexton.harness.store_proxy import StoreFaults
from sexton.ports.cloud import ObjectState
from sexton.ports.metastore import ConfigScope
from tests.cloud.failures.conftest import CloudPlace
from tests.cloud.failures.load import PARTITIONS, PATIENCE_S, QUIET, Load

pytestmark = [pytest.mark.cluster, pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(3 * 3600)]

LONG_S, SHORT_S = 3_600, 60
KEYS_COUNT = 200
CALM_S = 3.0
LONGER_THAN_A_LEASE_S = {"broker": 6.0, "compactor": 20.0}
TABLE = {"cleanup.policy": "compact", "delete.retention.ms": "0", "min.cleanable.dirty.ratio": "0.01"}
SETTINGS = {
    "cloud.level.ms": "500",
    "cloud.gc.round.ms": "1000",
    "cloud.delete.delay.ms": "3000",
    "cloud.scrub.interval.ms": "10000",
    "cloud.scrub.age.ms": "0",
}
"""What comes back from the dead is scrubbed within the run, as it would be within a week."""

Key = tuple[int, bytes]


class Table:
    """One transactional producer after the other. A transaction whose end nobody knows leaves two values possible."""

    def __init__(self, bootstrap: str, seed: int) -> None:
        self._bootstrap = bootstrap
        self._rng = random.Random(seed)
        self._name = f"table-{seed}"
        self._seed = seed
        self.possible: dict[Key, set[bytes | None]] = {}
        self.ended = {"committed": 0, "aborted": 0, "unknown": 0}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._is_over.set()
        self._thread.join(4 * PATIENCE_S)
        assert not self._thread.is_alive(), "a transaction has no end"

    def _write(self) -> None:
        producer: Producer | None = None
        while not self._is_over.is_set():
            try:
                if producer is None:
                    producer = self._new_producer()
                self._transact(producer)
            except KafkaException:
                producer = None  # fenced, or lost: its successor ends what it had begun

    def _new_producer(self) -> Producer:
        config = {"bootstrap.servers": self._bootstrap, "transactional.id": self._name, "linger.ms": 1}
        producer = Producer({**QUIET, **config, "transaction.timeout.ms": 60_000})
        producer.init_transactions(PATIENCE_S)
        return producer

    def _transact(self, producer: Producer) -> None:
        changes = {self._key(): self._value() for _ in range(self._rng.randrange(1, 20))}
        producer.begin_transaction()
        for (partition, key), value in changes.items():
            producer.produce("table", key=key, value=value, partition=partition)
        if self._rng.random() < 0.25:
            self._patiently(producer.abort_transaction)
            self.ended["aborted"] += 1
            return
        outcome = self._commit(producer)
        self.ended[outcome] += 1
        for place, value in changes.items():
            if outcome == "committed":
                self.possible[place] = {value}
            elif outcome == "unknown":
                self.possible.setdefault(place, {None}).add(value)

    def _commit(self, producer: Producer) -> str:
        try:
            self._patiently(producer.commit_transaction)
        except KafkaException as error:
            if error.args[0].txn_requires_abort():
                self._patiently(producer.abort_transaction)
                return "aborted"
            return "unknown"
        return "committed"

    @staticmethod
    def _patiently(call: Callable[[float], Any]) -> None:
        while True:
            try:
                call(10)
                return
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise

    def _key(self) -> Key:
        """Of its own keys: what two producers did to one would have no order."""
        number = self._rng.randrange(KEYS_COUNT)
        return number % PARTITIONS, b"%d-%d" % (self._seed, number)

    def _value(self) -> bytes | None:
        return None if self._rng.random() < 0.2 else self._rng.randbytes(60)


class Nemesis:
    def __init__(self, place: CloudPlace, compactors: list[CompactorProcess], rng: random.Random) -> None:
        self._place = place
        self._compactors = compactors
        self._rng = rng
        self.counts: dict[str, int] = {}

    def strike(self) -> None:
        faults: Sequence[Callable[[], None]] = (
            *(self.kills_a_broker, self.pauses_a_broker, self.kills_a_compactor, self.pauses_a_compactor),
            *(self.breaks_the_store, self.takes_the_metastore_away),
        )
        what = self._rng.choice(faults)
        name = what.__name__
        self.counts[name] = self.counts.get(name, 0) + 1
        what()

    def _broker(self) -> int:
        return self._rng.choice(list(self._place.cluster.node_ids))

    def kills_a_broker(self) -> None:
        node_id = self._broker()
        self._place.cluster.kill_node(node_id)
        time.sleep(self._rng.choice((0.0, LONGER_THAN_A_LEASE_S["broker"])))
        self._place.cluster.start_node(node_id)

    def pauses_a_broker(self) -> None:
        node_id = self._broker()
        self._place.cluster.pause_node(node_id)
        time.sleep(LONGER_THAN_A_LEASE_S["broker"])
        self._place.cluster.resume_node(node_id)

    def kills_a_compactor(self) -> None:
        one = self._rng.choice(self._compactors)
        one.kill()
        one.start()

    def pauses_a_compactor(self) -> None:
        one = self._rng.choice(self._compactors)
        one.pause()
        time.sleep(LONGER_THAN_A_LEASE_S["compactor"])
        one.resume()

    def breaks_the_store(self) -> None:
        self._place.store.proxy.faults = self._rng.choice(
            (StoreFaults(unsent=1.0), StoreFaults(hanging=1.0), StoreFaults(busy=0.7), StoreFaults(dropped=0.5))
        )
        time.sleep(5)
        self._place.store.heal()

    def takes_the_metastore_away(self) -> None:
        with self._place.without_metastore():
            time.sleep(self._rng.choice((1.0, LONGER_THAN_A_LEASE_S["broker"])))


def test_nothing_is_lost_and_nothing_is_left_over_whatever_is_killed(
    place: CloudPlace, is_soak: bool, tmp_path: Path
) -> None:
    cluster, rng = place.cluster, random.Random(5)
    ask(place, lambda metastore: metastore.change_settings(ConfigScope.BROKER, "", SETTINGS))
    create_topic(cluster.bootstrap, "table", PARTITIONS, 3, TABLE)
    compactors = [
        CompactorProcess(cluster.metastore_url, tmp_path, "--nice", "0", name=f"c{number}", store=place.store)
        for number in range(2)
    ]
    try:
        nemesis = Nemesis(place, compactors, rng)
        with Load(cluster, "everything") as load:
            tables = [Table(cluster.bootstrap, seed) for seed in (1, 2)]
            end_s = time.monotonic() + (LONG_S if is_soak else SHORT_S)
            while time.monotonic() < end_s:
                time.sleep(CALM_S)
                nemesis.strike()
            load.go_on()
            for table in tables:
                table.end()
        print(f"\n{nemesis.counts}, {[table.ended for table in tables]}")
        assert all(table.ended["committed"] for table in tables)
        until_slowly("all is compacted", lambda: is_compacted(place))
        seen = newest(cluster.bootstrap)
        for table in tables:
            for key, possible in table.possible.items():
                assert seen.pop(key, None) in possible, f"{key}: not what any transaction says"
        assert not seen, "keys that nobody has written"
        assert place.check().is_right
        for one in compactors:
            one.stop()
        until_slowly("nothing is left over", lambda: stored(place) == live(place))
    finally:
        for one in compactors:
            one.kill()


def newest(bootstrap: str) -> dict[Key, bytes | None]:
    consumer = Consumer(
        {**QUIET, "bootstrap.servers": bootstrap, "group.id": "judge", "isolation.level": "read_committed"}
        | {"enable.partition.eof": True, "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition("table", partition, 0) for partition in range(PARTITIONS)])
    found: dict[Key, bytes | None] = {}
    ended: set[int] = set()
    deadline_s = time.monotonic() + PATIENCE_S
    while len(ended) < PARTITIONS:
        assert time.monotonic() < deadline_s, "the consumer does not get to the end"
        message = consumer.poll(1.0)
        if message is None:
            continue
        partition = message.partition()
        assert partition is not None
        if message.error() is not None:
            ended.add(partition)
            continue
        key, value = message.key(), message.value()
        assert key is not None
        found[partition, bytes(key)] = None if value is None else bytes(value)
    consumer.close()
    return {place: value for place, value in found.items() if value is not None}


def is_compacted(place: CloudPlace) -> bool:
    known = ask(place, lambda metastore: metastore.read_changes(0))
    table = next(topic.topic_id for topic in known.topics if topic.name == "table")
    rows = ask(place, lambda metastore: metastore.read_cloud_partitions())
    return all(row.cleaned_offset == row.end_offset for row in rows if row.topic_id == table)


def stored(place: CloudPlace) -> set[str]:
    return {path.name for path in place.store.objects}


def live(place: CloudPlace) -> set[str]:
    rows = ask(place, lambda metastore: metastore.read_objects([ObjectState.LIVE], None, 100_000))
    return {str(row.object_id) for row in rows}


def until_slowly(what: str, reached: Callable[[], bool]) -> None:
    """Work that failed while something was away is left alone for a while."""
    deadline_s = time.monotonic() + 10 * PATIENCE_S
    while not reached():
        assert time.monotonic() < deadline_s, what
        time.sleep(1)


def ask(place: CloudPlace, question: Callable[[Any], Any]) -> Any:
    async def go() -> Any:
        metastore = open_metastore(place.cluster.metastore_url)
        try:
            return await question(metastore)
        finally:
            await metastore.close()

    return asyncio.run(go())
