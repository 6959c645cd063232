"""Makes the archives from which the JVMs of tests start: Kafka's brokers and tools, and Spark.

`python -m sexton.harness.warm_jvms` takes half a minute, and nothing if they are there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from sexton.harness import class_archives, jars
from sexton.harness.errors import HarnessError
from sexton.harness.kafka import QUICK_JVM_OPTIONS, KafkaCluster
from sexton.records import batch, names
from sexton.records.batch import Record

SPARK_TIMEOUT_S: Final = 600


def make_all() -> None:
    """Side by side, for each waits most of the time."""
    kafka = class_archives.archive(f"kafka-{jars.DEFAULT_VERSION}", jars.jar_dir())
    spark = class_archives.archive("spark", class_archives.spark_jar_dir())
    with ThreadPoolExecutor() as pool:
        for each in [pool.submit(_make, kafka, _run_kafka), pool.submit(_make, spark, _run_spark)]:
            each.result()


def _make(path: Path, run: Callable[[Path, Path], None]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with jars.locked(path.with_suffix(".lock")), tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        if path.exists():
            return
        partial = Path(scratch) / path.name
        run(partial, Path(scratch))
        if not partial.exists():
            raise HarnessError(f"the JVM has not written {path.name}: is this Java older than 17?")
        partial.rename(path)


def _run_kafka(archive: Path, scratch: Path) -> None:
    """One broker, asked for a topic: what every test's broker does."""
    options = (*QUICK_JVM_OPTIONS, *class_archives.making_options(archive))
    with KafkaCluster(base_dir=scratch / "kafka", jvm_options=options) as cluster:
        cluster.create_topic("t")
        cluster.stop()


def _run_spark(archive: Path, scratch: Path) -> None:
    """`sexton compact` on two records. Its output ends with its JVM, which outlives it."""
    partition = scratch / "t-0"
    partition.mkdir()
    made = batch.encode(batch.make_batch([Record(offset, offset, b"key", b"value") for offset in range(2)]))
    (partition / names.log_file_name(0)).write_bytes(made)
    (partition / names.log_file_name(2)).touch()  # the active segment
    options = " ".join(("-XX:TieredStopAtLevel=1", *class_archives.making_options(archive)))
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "sexton.cli.main",
            "compact",
            str(partition),
            "--config",
            "cleanup.policy=compact",
            "--high-watermark",
            "end",
        ],
        env={**os.environ, "SPARK_SUBMIT_OPTS": options},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SPARK_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise HarnessError(f"sexton compact failed, of which Spark's archive was to be made:\n{done.stdout[-2000:]}")


if __name__ == "__main__":
    try:
        make_all()
    except HarnessError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
