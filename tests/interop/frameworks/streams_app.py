"""One instance of a Kafka Streams application: counts records by key, exactly once.

Every count is written, not only the last of a commit (no cache), so that what was counted twice or not at all shows.
"""

from __future__ import annotations

import threading
from typing import Any

from tests.interop.frameworks.jvm import say, start, task

COMMIT_MS = 200


def main() -> None:
    asked = task()
    jvm = start(asked["classpath"])
    say(f"pid {jvm.java.lang.ProcessHandle.current().pid()}")
    streams = jvm.org.apache.kafka.streams.KafkaStreams(topology(jvm, asked), properties(jvm, asked))
    streams.start()
    has_run = False
    while not streams.state().hasCompletedShutdown():
        if not has_run and str(streams.state()) == "RUNNING":
            has_run = True
            say("running")
        threading.Event().wait(0.1)
    say("ended by itself")


def topology(jvm: Any, asked: dict[str, Any]) -> Any:
    streams = jvm.org.apache.kafka.streams
    serdes = jvm.org.apache.kafka.common.serialization.Serdes
    builder = streams.StreamsBuilder()
    records = builder.stream(asked["input"], consumed(jvm, serdes))
    counts = records.groupByKey().count(getattr(streams.kstream.Materialized, "as")("counts"))
    counts.toStream().to(asked["output"], produced(jvm, serdes))
    return builder.build()


def consumed(jvm: Any, serdes: Any) -> Any:
    return getattr(jvm.org.apache.kafka.streams.kstream.Consumed, "with")(serdes.String(), serdes.String())


def produced(jvm: Any, serdes: Any) -> Any:
    return getattr(jvm.org.apache.kafka.streams.kstream.Produced, "with")(serdes.String(), serdes.Long())


def properties(jvm: Any, asked: dict[str, Any]) -> Any:
    strings = "org.apache.kafka.common.serialization.Serdes$StringSerde"
    settings: dict[str, object] = {
        "application.id": asked["application"],
        "bootstrap.servers": asked["bootstrap"],
        "state.dir": asked["state"],
        "processing.guarantee": "exactly_once_v2",
        "default.key.serde": strings,
        "default.value.serde": strings,
        "replication.factor": 3,
        "commit.interval.ms": COMMIT_MS,
        "statestore.cache.max.bytes": 0,
        "auto.offset.reset": "earliest",
        "session.timeout.ms": 6_000,
        "heartbeat.interval.ms": 1_000,
        "producer.transaction.timeout.ms": 10_000,
        "topic.min.insync.replicas": 2,
    }
    made = jvm.java.util.Properties()
    for name, value in settings.items():
        made.put(name, str(value))
    return made


if __name__ == "__main__":
    main()
