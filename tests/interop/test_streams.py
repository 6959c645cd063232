"""Kafka Streams with `exactly_once_v2`: reading, counting in a store, writing and committing are one transaction."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.interop.conftest import ClusterUnderTest, start_cluster
from tests.interop.frameworks.programs import Program, fault_settings, kill_and_start, wait_until
from tests.interop.frameworks.versions import STREAMS, Framework
from tests.transactions.reading import places_of, settled

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

BROKERS: Final = 3
PARTITIONS: Final = 4
KEYS: Final = 20
RATE_PER_S: Final = 200
INPUT, OUTPUT, APPLICATION = "words", "counts", "counting"
STATE_TOPICS: Final = ("__transaction_state", "__consumer_offsets", f"{APPLICATION}-counts-changelog")


class Writer(threading.Thread):
    """Records without end, until it is told to stop; each that is acknowledged is one to be counted."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self.written: Counter[bytes] = Counter()
        self.errors: list[str] = []
        self._is_over = threading.Event()
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
        )

    def run(self) -> None:
        number = 0
        while not self._is_over.wait(1 / RATE_PER_S):
            key = b"key-%d" % (number % KEYS)
            self._producer.produce(INPUT, b"%d" % number, key, on_delivery=self._delivered)
            self._producer.poll(0)
            number += 1
        self._producer.flush()

    def stop(self) -> None:
        self._is_over.set()
        self.join()

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.errors.append(str(error))
        else:
            self.written[message.key()] += 1


class Reader:
    """A `read_committed` consumer of the counts, all the while."""

    def __init__(self, bootstrap: str) -> None:
        self._consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "follow", "isolation.level": "read_committed", "log_level": 0}
        )
        self._consumer.assign([TopicPartition(*place, 0) for place in places_of([OUTPUT], PARTITIONS)])
        self.counts: defaultdict[bytes, list[int]] = defaultdict(list)

    @property
    def read_count(self) -> int:
        return sum(map(len, self.counts.values()))

    def going_on(self, count: int) -> Callable[[], bool]:
        """Whether so many more have come since now."""
        wanted = self.read_count + count

        def is_reached() -> bool:
            messages: list[Any] = self._consumer.consume(1_000, 0.1)
            for message in messages:
                if message.error() is None:
                    self.counts[message.key()].append(int.from_bytes(message.value(), "big"))
            return self.read_count >= wanted

        return is_reached

    def close(self) -> None:
        self._consumer.close()


@pytest.mark.parametrize("client", [pytest.param(each, id=each.label) for each in STREAMS])
def test_every_record_is_counted_once_whoever_is_killed(
    client: Framework, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    client.classpath()  # fetched first, if need be
    with start_cluster(request, tmp_path / "cluster", BROKERS, fault_settings(request.config)) as cluster:
        assert cluster.running is not None
        for topic in (INPUT, OUTPUT):
            cluster.running.create_topic(topic, PARTITIONS, BROKERS, {"min.insync.replicas": 2})
        writer, reader = Writer(cluster.bootstrap), Reader(cluster.bootstrap)
        instances = [start(client, cluster, tmp_path, number) for number in range(2)]
        try:
            writer.start()
            go_through_faults(client, cluster, tmp_path, instances, reader)
            writer.stop()
            assert writer.errors == []
            wait_until(reader.going_on(writer.written.total() - reader.read_count), "all is counted")
        finally:
            reader.close()
            for instance in instances:
                instance.kill()
        assert len(settled(cluster.bootstrap, places_of([INPUT], PARTITIONS))) == writer.written.total()
        assert miscounted(reader.counts, writer.written) == []
        assert len(settled(cluster.bootstrap, places_of([OUTPUT], PARTITIONS))) == writer.written.total()


def miscounted(counts: Mapping[bytes, list[int]], written: Mapping[bytes, int]) -> list[str]:
    """Where the counts of a key are not one, two, three and so on: the first such place, and what is around it."""
    found = []
    for key, count in written.items():
        read = counts.get(key, [])
        at = next((index for index, each in enumerate(read) if each != index + 1), min(len(read), count))
        if len(read) != count or at < count:
            found.append(
                f"{key!r}: {len(read)} counts of {count} records, around number {at}: {read[max(0, at - 5) : at + 10]}"
            )
    return found


def start(client: Framework, cluster: ClusterUnderTest, directory: Path, number: int) -> Program:
    task = {
        "classpath": client.classpath(),
        "bootstrap": cluster.bootstrap,
        "application": APPLICATION,
        "input": INPUT,
        "output": OUTPUT,
        "state": str(directory / f"state-{number}"),
    }
    return Program("streams_app", task, directory / f"instance-{number}.log")


def go_through_faults(
    client: Framework, cluster: ClusterUnderTest, directory: Path, instances: list[Program], reader: Reader
) -> None:
    """An instance is killed and another takes its place, then each broker; the next fault comes when work goes on."""
    wait_until(lambda: all(each.has_said("running") for each in instances), "both instances run")
    wait_until(reader.going_on(200), "records are counted")
    instances[0].kill()
    instances[0] = start(client, cluster, directory, number=2)
    for node_id in range(1, BROKERS + 1):
        wait_until(reader.going_on(200), "records are counted")
        kill_and_start(cluster, node_id, [INPUT, OUTPUT, *STATE_TOPICS], reader.going_on(200))
