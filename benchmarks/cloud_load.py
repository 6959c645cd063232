"""The clients of the benchmark of cloud topics, in processes of their own.

    python -m benchmarks.cloud_load write BOOTSTRAP TOPIC PARTITIONS MB_PER_S SECONDS LINGER_MS
    python -m benchmarks.cloud_load tail BOOTSTRAP TOPIC PARTITIONS SECONDS
    python -m benchmarks.cloud_load read BOOTSTRAP TOPIC PARTITIONS COUNT
    python -m benchmarks.cloud_load outage BOOTSTRAP TOPIC PARTITIONS SECONDS

All are librdkafka and print one JSON object. A record's value begins with the time at which it was handed to the
producer; every fiftieth is looked at. MB_PER_S 0 is: as fast as it goes.
"""

from __future__ import annotations

import json
import struct
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, Producer, TopicPartition

RECORD_BYTES: Final = 1_000
LOOKED_AT: Final = 50
TURN_S: Final = 0.005
PATIENCE_S: Final = 120.0
_TIME: Final = struct.Struct(">q")
_FILLING: Final = bytes(range(250)) * 4


def percentiles(latencies_ns: list[int]) -> dict[str, float]:
    if not latencies_ns:
        return {"p50_ms": float("nan"), "p99_ms": float("nan")}
    p50, p99 = np.percentile(np.array(latencies_ns), (50, 99)) / 1e6
    return {"p50_ms": float(p50), "p99_ms": float(p99)}


def write(bootstrap: str, topic: str, partitions: int, mb_per_s: float, seconds: float, linger_ms: int) -> Any:
    latencies_ns: list[int] = []
    failed = [0]

    def told(error: object, message: Any) -> None:
        if error is not None:
            failed[0] += 1
        else:
            latencies_ns.append(time.time_ns() - _TIME.unpack_from(message.value())[0])

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": linger_ms,
            "batch.size": 1 << 20,
            "message.max.bytes": 1_000_000,
            "queue.buffering.max.kbytes": 64 << 10,
            "delivery.timeout.ms": int(PATIENCE_S * 1000),
            "log_level": 2,
        }
    )
    body = _FILLING[: RECORD_BYTES - _TIME.size]
    started_s = time.monotonic()
    count = 0
    while (elapsed_s := time.monotonic() - started_s) < seconds:
        due = int(elapsed_s * mb_per_s * 1e6 / RECORD_BYTES) + 1 if mb_per_s else count + 500
        while count < due:
            callback = told if count % LOOKED_AT == 0 else None
            value = _TIME.pack(time.time_ns()) + body
            try:
                producer.produce(topic, value, partition=count // 16 % partitions, callback=callback)
            except BufferError:
                producer.poll(TURN_S)
                continue
            count += 1
        producer.poll(TURN_S if mb_per_s else 0)
    producer.flush(PATIENCE_S)
    took_s = time.monotonic() - started_s
    rate = count * RECORD_BYTES / 1e6 / took_s
    return {"records": count, "failed": failed[0], "mb_per_s": rate, "seconds": took_s, **percentiles(latencies_ns)}


def _reader(bootstrap: str, topic: str, partitions: int, offset: int) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": topic,
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 500,
            "fetch.message.max.bytes": 4 << 20,
            "queued.max.messages.kbytes": 64 << 10,
            "log_level": 2,
        }
    )
    consumer.assign([TopicPartition(topic, number, offset) for number in range(partitions)])
    return consumer


def tail(bootstrap: str, topic: str, partitions: int, seconds: float) -> Any:
    """Reads along. What was written while it began does not count."""
    consumer = _reader(bootstrap, topic, partitions, OFFSET_END)
    latencies_ns: list[int] = []
    count = 0
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        messages: list[Any] = consumer.consume(2_000, timeout=0.05)
        now_ns = time.time_ns()
        for message in messages:
            if message.error() is None:
                count += 1
                if count % LOOKED_AT == 0:
                    latencies_ns.append(now_ns - _TIME.unpack_from(message.value())[0])
    consumer.close()
    return {"records": count, **percentiles(latencies_ns)}


def read(bootstrap: str, topic: str, partitions: int, count: int) -> Any:
    consumer = _reader(bootstrap, topic, partitions, OFFSET_BEGINNING)
    found = 0
    first_s = None
    idle_s = time.monotonic()
    while found < count and time.monotonic() - idle_s < PATIENCE_S:
        messages: list[Any] = consumer.consume(5_000, timeout=0.2)
        got = sum(message.error() is None for message in messages)
        if got:
            first_s = first_s or time.monotonic()
            idle_s = time.monotonic()
        found += got
    took_s = time.monotonic() - (first_s or idle_s)
    consumer.close()
    return {"records": found, "mb_per_s": found * RECORD_BYTES / 1e6 / max(took_s, 1e-9), "seconds": took_s}


def outage(bootstrap: str, topic: str, partitions: int, seconds: float) -> Any:
    """The longest time for which a partition had no acknowledgement."""
    last_s = [time.monotonic()] * partitions
    longest_s = [0.0] * partitions

    def heard(partition: int) -> Callable[[object, object], None]:
        def told(error: object, _: object) -> None:
            if error is None:
                now_s = time.monotonic()
                longest_s[partition] = max(longest_s[partition], now_s - last_s[partition])
                last_s[partition] = now_s

        return told

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "retry.backoff.ms": 50, "log_level": 0})
    end_s = time.monotonic() + seconds
    last_s[:] = [time.monotonic()] * partitions
    while time.monotonic() < end_s:
        for partition in range(partitions):
            producer.produce(topic, b"x", partition=partition, callback=heard(partition))
        producer.poll(0.02)
    producer.flush(PATIENCE_S)
    return {"longest_s": max(longest_s)}


COMMANDS: Final[dict[str, Callable[..., Any]]] = {"write": write, "tail": tail, "read": read, "outage": outage}
KINDS: Final[dict[str, tuple[Callable[[str], Any], ...]]] = {
    "write": (str, str, int, float, float, int),
    "tail": (str, str, int, float),
    "read": (str, str, int, int),
    "outage": (str, str, int, float),
}

if __name__ == "__main__":
    name, *given = sys.argv[1:]
    made = [kind(text) for kind, text in zip(KINDS[name], given, strict=True)]
    print(json.dumps(COMMANDS[name](*made)))
