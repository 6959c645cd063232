"""The client of the live-compaction benchmark, in a process of its own: a producer that updates keys, a consumer behind
it. Both are librdkafka.

    python -m benchmarks.live_load BOOTSTRAP TOPIC PARTITIONS SECONDS WARM_UP_SECONDS RATE

Records of 1 KB over 2,000 keys a partition, acks=all, RATE a second; 0: as fast as they are taken. Prints one JSON
object: what was acknowledged a second, how long an acknowledgement took, and what was read, after the warm-up.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from typing import Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition

RECORD_BYTES: Final = 1_000
KEYS: Final = 2_000
QUEUED_MAX: Final = 2_000
"""Records that wait for their acknowledgement: enough to keep brokers busy, few enough for latency to mean much."""

BEHIND_S_MAX: Final = 0.01


def produce(bootstrap: str, topic: str, partitions: int, seconds: float, warm_up_s: float, rate: int) -> dict[str, Any]:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "linger.ms": 2,
            "batch.size": 65_536,
            "queue.buffering.max.messages": QUEUED_MAX,
            "log_level": 2,
        }
    )
    rng, value = random.Random(1), random.Random(2).randbytes(RECORD_BYTES)
    latencies_ms: list[float] = []
    failed: list[str] = []
    next_s = time.monotonic()
    counts_from_s = next_s + warm_up_s
    end_s = counts_from_s + seconds

    def handed_over(sent_s: float) -> Any:
        def acknowledged(error: object, _: object) -> None:
            if error is not None:
                failed.append(str(error))
            elif sent_s >= counts_from_s:
                latencies_ms.append((time.monotonic() - sent_s) * 1e3)

        return acknowledged

    while (now_s := time.monotonic()) < end_s:
        if rate and now_s < next_s:
            producer.poll(0.001)
            continue
        key = rng.randrange(KEYS * partitions)
        try:
            producer.produce(topic, value, b"%d" % key, key % partitions, on_delivery=handed_over(now_s))
        except BufferError:
            producer.poll(0.01)
            continue
        if rate:  # what could not be sent in time is not made up for: the rate would not be steady
            next_s = max(next_s, now_s - BEHIND_S_MAX) + 1 / rate
        producer.poll(0)
    producer.flush(60)
    if failed:
        raise RuntimeError(f"{len(failed)} records were refused: {failed[0]}")
    latencies_ms.sort()
    return {
        "rate": len(latencies_ms) / seconds,
        "p50_ms": latencies_ms[len(latencies_ms) // 2],
        "p99_ms": latencies_ms[int(len(latencies_ms) * 0.99)],
    }


def consume(bootstrap: str, topic: str, partitions: int, is_over: threading.Event, counts: list[int]) -> None:
    settings = {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False, "log_level": 2}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    while not is_over.is_set():
        counts[0] += sum(not message.error() for message in consumer.consume(1_000, 0.1))
    consumer.close()


def main() -> None:
    bootstrap, topic, *numbers = sys.argv[1:]
    partitions, seconds, warm_up_s, rate = int(numbers[0]), float(numbers[1]), float(numbers[2]), int(numbers[3])
    is_over, counts = threading.Event(), [0]
    reading = threading.Thread(target=consume, args=(bootstrap, topic, partitions, is_over, counts))
    reading.start()
    try:
        told = produce(bootstrap, topic, partitions, seconds, warm_up_s, rate)
    finally:
        is_over.set()
        reading.join()
    print(json.dumps({**told, "read": counts[0]}), flush=True)


if __name__ == "__main__":
    main()
