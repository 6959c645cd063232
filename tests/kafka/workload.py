"""Random logs, written by real clients through a real broker.

A `Mix` says what a topic's log is made of and is drawn from a seed. `write_all` plays it: several producers, plain,
idempotent and transactional, take turns in an order that the seed decides, so that their batches and transactions
interleave. The broker adds chance of its own (when a marker lands, where a segment ends), so a seed repeats a log's
kind, not its bytes; what is compared afterwards are copies of one log.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource

from sexton.harness.kafka import KafkaCluster
from sexton.harness.kafka_tools import run_tool
from sexton.harness.properties import Settings

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
KINDS: Final = ("plain", "idempotent", "transactional")

WORDS: Final = (b"the", b"sexton", b"tends", b"a", b"graveyard", b"no", b"stone", b"is", b"taken", b"away")
"""What values are made of: enough repetition that every codec finds some."""

DAY_MS: Final = 24 * 60 * 60 * 1000
DELIVERY_TIMEOUT_S: Final = 60
CONSUME_TIMEOUT_S: Final = 60
TRANSACTION_TIMEOUT_MS: Final = 15 * 60 * 1000
"""The most that a broker allows: transactions left open on purpose must outlive the test."""

LINGER_MS: Final = 10_000
"""A batch leaves when the workload says so, by flush: its borders are the seed's."""

WRITERS_AT_ONCE: Final = 4
"""Topics written at the same time: most of the time is waiting for the broker."""

NO_CLEANING: Final = {"log.cleaner.min.cleanable.ratio": 1.0}
"""Broker settings: no log is ever dirtier than that."""

QUIET: Final[Mapping[str, Any]] = {"log_level": 0}
"""Clients say nothing about a broker that is stopped on purpose."""


@dataclass(frozen=True, slots=True)
class Mix:
    """What one topic's logs are made of."""

    topic: str
    seed: str
    partitions: int
    steps: int
    key_count: int
    tombstone_share: float
    header_share: float
    value_bytes_max: int
    batch_records_max: int
    producers: tuple[tuple[str, str], ...]
    """Kind and codec of each."""
    segment_bytes: int
    delete_retention_ms: int
    age_ms: int = 0
    """How old the first half of the records claims to be."""
    min_compaction_lag_ms: int = 0
    log_append_time: bool = False
    leaves_open: bool = False
    """A transaction is left open in the middle: nothing after it may be cleaned."""
    keyless: bool = False
    """Begins as a topic that is not compacted, where records need no key."""

    def config(self, version: str) -> dict[str, str | int]:
        """The topic's settings. Kafka 4 refuses small segments, except under an internal name."""
        segment_bytes = "segment.bytes" if version.startswith("3.") else "internal.segment.bytes"
        return {
            "cleanup.policy": "delete" if self.keyless else "compact",
            segment_bytes: self.segment_bytes,
            "delete.retention.ms": self.delete_retention_ms,
            "min.compaction.lag.ms": self.min_compaction_lag_ms,
            "message.timestamp.type": "LogAppendTime" if self.log_append_time else "CreateTime",
            "index.interval.bytes": 1024,
        }


def draw_mixes(seed: int, topics: int) -> list[Mix]:
    """As many mixes; the rare kinds come at fixed places, so that every run has some of each."""
    mixes = [_draw(f"{seed}-{number}", number) for number in range(topics)]
    for number, kind in enumerate(RARE_KINDS[:topics]):
        mixes[number] = replace(mixes[number], **kind)
    return mixes


RARE_KINDS: Final[Sequence[dict[str, Any]]] = (
    {"keyless": True, "producers": (("plain", "none"), ("idempotent", "lz4"), ("transactional", "gzip"))},
    {"leaves_open": True, "producers": (("transactional", "zstd"), ("transactional", "none"), ("plain", "snappy"))},
    {"age_ms": 2 * DAY_MS, "min_compaction_lag_ms": DAY_MS},
    {
        "log_append_time": True,
        "tombstone_share": 0.3,
        "delete_retention_ms": DAY_MS,
        "producers": (("idempotent", "none"), ("transactional", "zstd"), ("transactional", "gzip")),
    },
    {
        "partitions": 3,
        "delete_retention_ms": 0,
        "producers": (("transactional", "lz4"), ("transactional", "snappy"), ("transactional", "none")),
    },
    {"tombstone_share": 0.9, "key_count": 40, "delete_retention_ms": 0},
    {"key_count": 2_000, "tombstone_share": 0.05},
    {"batch_records_max": 1},
)


def _draw(seed: str, number: int) -> Mix:
    rng = random.Random(seed)
    kinds = [rng.choice(KINDS) for _ in range(rng.randint(1, 3))]
    if number % 2:
        kinds += ["transactional", "transactional"]
    partitions, steps = rng.choice([1, 1, 2]), rng.randint(60, 140)
    value_bytes_max, batch_records_max = rng.choice([20, 200, 1000]), rng.choice([3, 20])
    return Mix(
        topic=f"mix-{number:02d}",
        seed=seed,
        partitions=partitions,
        steps=steps,
        key_count=rng.choice([5, 60, 300]),
        tombstone_share=rng.choice([0.0, 0.1, 0.3]),
        header_share=rng.choice([0.0, 0.2, 1.0]),
        value_bytes_max=value_bytes_max,
        batch_records_max=batch_records_max,
        producers=tuple((kind, rng.choice(CODECS)) for kind in kinds),
        # About half a dozen segments, but any batch must fit into one.
        segment_bytes=max(
            steps * (50 + batch_records_max * value_bytes_max // 8) // partitions // rng.randint(4, 8),
            1024 + batch_records_max * (value_bytes_max + 100),
        ),
        delete_retention_ms=rng.choice([0, 0, DAY_MS]),
        age_ms=rng.choice([0, 0, 2 * DAY_MS]),
    )


# ---- Writing.


def create_topics(kafka: KafkaCluster, mixes: Iterable[Mix]) -> None:
    for mix in mixes:
        kafka.create_topic(mix.topic, mix.partitions, config=mix.config(kafka.version))


def write_all(kafka: KafkaCluster, mixes: Sequence[Mix], part: int = 0, share: float = 1.0) -> list[Producer]:
    """Play all mixes, some at the same time. Returns producers whose transactions are open: keep them.

    A later `part` of the same mixes continues their logs, with the same transactional ids: what they left open is
    aborted then. `share` scales how much is written.
    """
    with ThreadPoolExecutor(WRITERS_AT_ONCE) as pool:
        played = pool.map(lambda mix: _play(kafka, mix, part, share), mixes)
        return [producer for opened in played for producer in opened]


def _play(kafka: KafkaCluster, mix: Mix, part: int, share: float) -> list[Producer]:
    rng = random.Random(f"{mix.seed}-{part}")
    steps = max(8, int(mix.steps * share))
    writers = [_Writer(kafka, mix, number, rng) for number in range(len(mix.producers))]
    if mix.keyless and part == 0:
        writers[0].send(keyless=True)
    for step in range(steps):
        if mix.keyless and part == 0 and step == steps // 2:
            for writer in writers:
                writer.finish()
            alter_config(kafka, mix.topic, {"cleanup.policy": "compact"})
        may_be_keyless = mix.keyless and part == 0 and step < steps // 2 and rng.random() < 0.3
        age_ms = mix.age_ms if step < steps // 2 else 0
        if mix.leaves_open and part == 0 and step == steps * 2 // 3:
            writers[0].leave_open()
        rng.choice(writers).step(may_be_keyless, age_ms)
    for writer in writers:
        writer.finish()
    return [writer.producer for writer in writers if writer.is_left_open]


class _Writer:
    """One producer of a mix, and where it is in its transaction."""

    def __init__(self, kafka: KafkaCluster, mix: Mix, number: int, rng: random.Random) -> None:
        self._bootstrap = kafka.bootstrap
        self._mix = mix
        self._number = number
        self._rng = rng
        self._in_transaction = False
        self.is_left_open = False
        self.kind = mix.producers[number][0]
        self.producer = self._connect()

    def _connect(self) -> Producer:
        settings: dict[str, Any] = {
            **QUIET,
            "bootstrap.servers": self._bootstrap,
            "linger.ms": LINGER_MS,
            "compression.type": self._mix.producers[self._number][1],
            "enable.idempotence": self.kind != "plain",
        }
        if self.kind == "transactional":
            settings["transactional.id"] = f"{self._mix.topic}-{self._number}"
            settings["transaction.timeout.ms"] = TRANSACTION_TIMEOUT_MS
        producer = Producer(settings)
        if self.kind == "transactional":
            patiently(lambda: producer.init_transactions(DELIVERY_TIMEOUT_S))
        return producer

    def step(self, may_be_keyless: bool, age_ms: int) -> None:
        if self.is_left_open:
            return
        if self.kind != "transactional":
            self.send(may_be_keyless, age_ms)
        elif not self._in_transaction:
            self._begin()
            self.send(may_be_keyless, age_ms)
        elif self._rng.random() < 0.6:
            self.send(may_be_keyless, age_ms)
        elif self._rng.random() < 0.05:
            # The same transactional id again, as after a crash: the broker aborts what was open and raises the epoch.
            self._in_transaction = False
            self.producer = self._connect()
        else:
            self.finish()

    def send(self, keyless: bool = False, age_ms: int = 0) -> None:
        partition = self._rng.randrange(self._mix.partitions)
        for _ in range(self._rng.randint(1, self._mix.batch_records_max)):
            self.producer.produce(
                self._mix.topic,
                key=None if keyless and self._rng.random() < 0.5 else self._key(),
                value=self._value(keyless),
                headers=self._headers(),
                partition=partition,
                timestamp=time.time_ns() // 1_000_000 - age_ms - self._rng.randint(0, 60_000),
                on_delivery=delivered,
            )
        flush(self.producer)

    def leave_open(self) -> None:
        if not self._in_transaction:
            self._begin()
        self.send()
        self.is_left_open = True

    def finish(self) -> None:
        if self._in_transaction and not self.is_left_open:
            end = self.producer.commit_transaction if self._rng.random() < 0.6 else self.producer.abort_transaction
            patiently(lambda: end(DELIVERY_TIMEOUT_S))
            self._in_transaction = False

    def _begin(self) -> None:
        self.producer.begin_transaction()
        self._in_transaction = True

    def _key(self) -> bytes:
        """Few keys get most of the updates. The first one is empty, which is a key like any other."""
        number = int(self._mix.key_count * self._rng.random() ** 3)
        return f"{number}".encode() * (1 + number % 3) if number else b""

    def _value(self, keyless: bool) -> bytes | None:
        if not keyless and self._rng.random() < self._mix.tombstone_share:
            return None
        if self._rng.random() < 0.03:
            return b""  # empty, which is not a tombstone
        size = self._rng.randint(1, self._mix.value_bytes_max)
        return b" ".join(self._rng.choices(WORDS, k=size // 4 + 1))[:size]

    def _headers(self) -> list[tuple[str, str | bytes | None]]:
        if self._rng.random() >= self._mix.header_share:
            return []
        names = ["trace", "größe", "", "trace"]
        return [
            (name, self._rng.choice([None, b"", self._rng.randbytes(8)]))
            for name in names[: self._rng.randint(1, len(names))]
        ]


def delivered(error: KafkaError | None, _: Message) -> None:
    """For every record: what it raises comes out of `flush`."""
    if error is not None:
        raise KafkaException(error)


def flush(producer: Producer) -> None:
    """All that was produced is in the log when this returns."""
    assert producer.flush(DELIVERY_TIMEOUT_S) == 0, f"not all records were acknowledged in {DELIVERY_TIMEOUT_S} s"


def patiently(action: Callable[[], object]) -> None:
    """Run it again while the client says that this may help: a coordinator is loading, a broker is slow."""
    deadline_s = time.monotonic() + DELIVERY_TIMEOUT_S
    while True:
        try:
            action()
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline_s:
                raise
            time.sleep(0.1)
        else:
            return


def alter_config(kafka: KafkaCluster, topic: str, config: Settings) -> None:
    admin = AdminClient({**QUIET, "bootstrap.servers": kafka.bootstrap})
    entries = [
        ConfigEntry(name, str(value), incremental_operation=AlterConfigOpType.SET) for name, value in config.items()
    ]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
    for altered in admin.incremental_alter_configs([resource]).values():
        altered.result(DELIVERY_TIMEOUT_S)


# ---- Java clients.

JAVA_TOPIC: Final = "mix-java"
JAVA_CONFIG: Final[Settings] = {
    "cleanup.policy": "delete",
    "internal.segment.bytes": 4096,
    "index.interval.bytes": 512,
    "delete.retention.ms": 0,
}
PRODUCER_TOOL: Final = "org.apache.kafka.tools.ConsoleProducer"
TRANSACTIONS_TOOL: Final = "org.apache.kafka.tools.ProducerPerformance"


def write_with_java(kafka: KafkaCluster, part: int = 0) -> None:
    """One more log, written by Kafka's own client, as its tools use it (Kafka 4's names and options).

    It frames snappy differently, and each end of a transaction raises its producer's epoch (KIP-890), so that a
    marker is the only trace of the last one. The tool that does transactions gives its records no keys.
    """
    if part == 0:
        kafka.create_topic(JAVA_TOPIC, config=JAVA_CONFIG)
        load = ("--num-records", "300", "--record-size", "60", "--throughput", "2000")
        settings = (f"bootstrap.servers={kafka.bootstrap}", "batch.size=400")
        transactions = ("--transactional-id", JAVA_TOPIC, "--transaction-duration-ms", "20")
        target = ("--topic", JAVA_TOPIC, "--command-property", *settings)
        run_tool(TRANSACTIONS_TOOL, *target, *load, *transactions, version=kafka.version)
        alter_config(kafka, JAVA_TOPIC, {"cleanup.policy": "compact"})
    for codec in ("snappy", "lz4") if part == 0 else ("zstd",):
        lines = [f"key-{n % 17}|{'NULL' if n % 5 == 0 else f'{part} {codec} {n}'}" for n in range(200)]
        reader = ("parse.key=true", "key.separator=|", "null.marker=NULL")
        properties = [word for name in reader for word in ("--reader-property", name)]
        client = ("--bootstrap-server", kafka.bootstrap, "--command-property", "batch.size=300")
        what = ("--topic", JAVA_TOPIC, "--compression-codec", codec, "--request-required-acks", "all")
        run_tool(PRODUCER_TOOL, *client, *what, *properties, version=kafka.version, stdin="\n".join(lines) + "\n")


# ---- Reading.

Row = tuple[int, bytes | None, bytes | None]
"""Offset, key, value."""


def consume_committed(bootstrap: str, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], list[Row]]:
    """What a read_committed consumer gets from each partition, from its beginning to its last stable offset."""
    consumer = Consumer(
        {
            **QUIET,
            "bootstrap.servers": bootstrap,
            "group.id": "workload",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "check.crcs": True,
        }
    )
    rows: dict[tuple[str, int], list[Row]] = {key: [] for key in partitions}
    unfinished = set(rows)
    consumer.assign([TopicPartition(topic, partition, 0) for topic, partition in rows])
    deadline_s = time.monotonic() + CONSUME_TIMEOUT_S
    try:
        while unfinished:
            assert time.monotonic() < deadline_s, f"not read to the end in {CONSUME_TIMEOUT_S} s: {unfinished}"
            for message in consumer.consume(1000, timeout=0.5):
                key: Any = (message.topic(), message.partition())
                offset: Any = message.offset()
                error = message.error()
                if error is None:
                    rows[key].append((offset, message.key(), message.value()))
                elif error.code() == KafkaError._PARTITION_EOF:
                    unfinished.discard(key)
                else:
                    raise KafkaException(error)
    finally:
        consumer.close()
    return rows


def fold_rows(rows: Iterable[Row]) -> dict[bytes, tuple[int, bytes]]:
    """The newest value of each key and its offset; deleted keys are gone."""
    fold: dict[bytes, tuple[int, bytes]] = {}
    for offset, key, value in rows:
        if key is None:
            continue
        if value is None:
            fold.pop(key, None)
        else:
            fold[key] = (offset, value)
    return fold
