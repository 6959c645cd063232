"""Spark's own Kafka source in a process of its own: prints, as JSON, what it reads of a topic, as a batch and a stream.

python -m tests.transactions.spark_reader BOOTSTRAP TOPIC
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from tests.interop.scenarios.spark import STREAM_TIMEOUT_S, session


def main() -> None:
    bootstrap, topic = sys.argv[1:]
    committed = {**source(bootstrap, topic), "kafka.isolation.level": "read_committed"}
    print(
        json.dumps(
            {
                "batch": batch(committed),
                "stream": stream(committed),
                "uncommitted": batch(source(bootstrap, topic)),
            }
        )
    )


def source(bootstrap: str, topic: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}


def batch(options: dict[str, str]) -> list[str]:
    found = session().read.format("kafka").options(**options).load()
    return sorted(row.value for row in found.selectExpr("cast(value as string) value").collect())


def stream(options: dict[str, str]) -> list[str]:
    with tempfile.TemporaryDirectory() as directory:
        found = session().readStream.format("kafka").options(**options).load()
        query = (
            found.selectExpr("cast(value as string) value")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(Path(directory) / "checkpoint"))
            .option("path", str(Path(directory) / "values"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(STREAM_TIMEOUT_S), "the stream did not end"
        return sorted(row.value for row in session().read.parquet(str(Path(directory) / "values")).collect())


if __name__ == "__main__":
    main()
