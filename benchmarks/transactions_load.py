"""The clients of the transaction benchmark, in processes of their own: producers that commit, a reader that waits.

    python -m benchmarks.transactions_load produce BOOTSTRAP TOPIC PARTITIONS PRODUCERS SECONDS
    python -m benchmarks.transactions_load read BOOTSTRAP TOPIC PARTITIONS

Both are librdkafka and print one JSON object. A record's value is the time at which it was handed to the producer.
"""

from __future__ import annotations

import json
import struct
import sys
import threading
import time
from typing import Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition

RECORDS_PER_TRANSACTION: Final = 10
RECORD_BYTES: Final = 100
CALL_TIMEOUT_S: Final = 60
IDLE_S: Final = 20
"""A reader that has not seen everything after so long of nothing says what it has."""

METADATA_REFRESH_MS: Final = 1_000
"""The topic is new: a reader that asked a broker which did not know it yet would ask again in five minutes."""

_TIME: Final = struct.Struct(">q")
_FILLING: Final = b"x" * (RECORD_BYTES - _TIME.size)


def produce(bootstrap: str, topic: str, partitions: int, producers: int, seconds: float) -> dict[str, Any]:
    """All initialised first, then all at once, each as fast as it can."""
    made = [_producer(bootstrap, f"{topic}-{number}") for number in range(producers)]
    counts = [0] * producers
    start = threading.Barrier(producers + 1)
    end_s = [0.0]

    def work(number: int) -> None:
        producer = made[number]
        start.wait()
        while time.monotonic() < end_s[0]:
            producer.begin_transaction()
            for record in range(RECORDS_PER_TRANSACTION):
                value = _TIME.pack(time.time_ns()) + _FILLING
                producer.produce(topic, value, partition=(number + record) % partitions)
            producer.commit_transaction(CALL_TIMEOUT_S)
            counts[number] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(producers)]
    for thread in threads:
        thread.start()
    start_s = time.monotonic()
    end_s[0] = start_s + seconds
    start.wait()
    for thread in threads:
        thread.join()
    return {"transactions": sum(counts), "seconds": time.monotonic() - start_s}


def _producer(bootstrap: str, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name, "linger.ms": 0, "log_level": 2})
    producer.init_transactions(CALL_TIMEOUT_S)
    return producer


def read(bootstrap: str, topic: str, partitions: int) -> dict[str, Any]:
    """Until it has seen as many records as the number that comes on its standard input once all are written."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": topic,
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 100,
            "topic.metadata.refresh.interval.ms": METADATA_REFRESH_MS,
            "log_level": 2,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    expected: list[int] = []
    threading.Thread(target=lambda: expected.append(int(sys.stdin.readline())), daemon=True).start()
    print("ready", flush=True)
    latencies_ms: list[float] = []
    last_s = time.monotonic()
    while not expected or len(latencies_ms) < expected[0]:
        messages: list[Any] = consumer.consume(1_000, 0.05)
        now_ns = time.time_ns()
        latencies_ms += [(now_ns - _TIME.unpack_from(each.value())[0]) / 1e6 for each in messages if not each.error()]
        if messages:
            last_s = time.monotonic()
        elif expected and time.monotonic() - last_s > IDLE_S:
            break
    consumer.close()
    latencies_ms.sort()
    return {"records": len(latencies_ms), "p50_ms": _at(latencies_ms, 0.5), "p99_ms": _at(latencies_ms, 0.99)}


def _at(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else float("nan")


def main() -> None:
    kind, bootstrap, topic, *numbers = sys.argv[1:]
    if kind == "produce":
        told = produce(bootstrap, topic, int(numbers[0]), int(numbers[1]), float(numbers[2]))
    else:
        told = read(bootstrap, topic, int(numbers[0]))
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
