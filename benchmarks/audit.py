"""`sexton audit` of directories beside `kafka-dump-log`, in the same run: how many megabytes of replicas a second.

Three replicas of one partition of the same records, cleaned as it would be with compaction off: the most there is to
read. Each kind of data (100 bytes, 1 KB, lz4, zstd) is audited from directories, and one segment of it is dumped by
Kafka's own tool with `--print-data-log`, which reads what an audit reads and compares nothing.

    python -m benchmarks.audit --mb 2048
    python -m benchmarks.audit --mb 256 --kinds 100B,lz4 --no-kafka
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from sexton.audit.folders import FolderSource
from sexton.audit.run import audit
from sexton.harness import jars
from sexton.harness.kafka_tools import DUMP_TOOL
from sexton.records import checkpoints, names
from sexton.records.batch import Record, encode, make_batch
from sexton.records.codecs import Codec
from sexton.spark import session

KAFKA_VERSION: Final = "4.3.0"
BROKERS: Final = (1, 2, 3)
SEGMENT_BYTES: Final = 256 << 20
BATCH_BYTES: Final = 16_384
KEYS_COUNT: Final = 300_000
"""Each has one record in what is made; beyond that batches repeat at other offsets, for making them takes longer than
reading them."""
TIMES_LEAST: Final = 20
"""What we want to be faster than Kafka's tool."""


@dataclass(frozen=True, slots=True)
class Kind:
    value_bytes: int
    codec: Codec


KINDS: Final = {
    "100B": Kind(100, Codec.NONE),
    "1KB": Kind(1024, Codec.NONE),
    "lz4": Kind(300, Codec.LZ4),
    "zstd": Kind(300, Codec.ZSTD),
}


def segments(kind: Kind, size_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Base offsets and contents. A batch is encoded once and used again at other offsets, which its CRC does not
    cover."""
    rng = np.random.default_rng(7)
    count = max(1, BATCH_BYTES // (kind.value_bytes + 20))
    batches = []
    for first_key in range(0, min(KEYS_COUNT, size_bytes // kind.value_bytes), count):
        words = rng.integers(97, 105, size=(count, kind.value_bytes), dtype=np.uint8)
        records = [
            Record(index, 1_700_000_000_000 + index, b"key-%07d" % (first_key + index), words[index].tobytes())
            for index in range(count)
        ]
        batches.append(encode(make_batch(records, attributes=int(kind.codec), producer_id=-1)))
    offset = made = number = 0
    while made < size_bytes:
        base, parts, size = offset, [], 0
        while size < min(SEGMENT_BYTES, size_bytes - made):
            batch = batches[number % len(batches)]
            parts.append(offset.to_bytes(8, "big") + batch[8:])
            size += len(batch)
            offset += count
            number += 1
        made += size
        yield base, b"".join(parts)


def write_replicas(parent: Path, kind: Kind, size_bytes: int) -> dict[int, list[Path]]:
    dirs = {broker: [parent / f"b{broker}"] for broker in BROKERS}
    end = 0
    for base, content in segments(kind, size_bytes):
        for (log_dir,) in dirs.values():
            partition = log_dir / "orders-0"
            partition.mkdir(parents=True, exist_ok=True)
            (partition / names.log_file_name(base)).write_bytes(content)
        end = base + 1
    for (log_dir,) in dirs.values():
        checkpoints.write_offset_checkpoint(log_dir / checkpoints.LOG_START_OFFSET_CHECKPOINT, {("orders", 0): 0})
    assert end > 0
    return dirs


def dump_mb_per_s(path: Path) -> float:
    """Of `kafka-dump-log --print-data-log`, which is what could be compared by key; its output is thrown away."""
    command = [
        str(jars.java()),
        "-cp",
        jars.classpath(KAFKA_VERSION),
        DUMP_TOOL,
        "--print-data-log",
        "--files",
        str(path),
    ]
    began_s = time.monotonic()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return path.stat().st_size / 1e6 / (time.monotonic() - began_s)


def audit_mb_per_s(dirs: dict[int, list[Path]], rounds: int) -> list[float]:
    """The first round compiles nothing, but starts workers."""
    spark = session.start("audit benchmark")
    speeds = []
    for _ in range(rounds):
        report = audit(spark.sparkContext, [FolderSource(dirs)])
        assert report.verdict.value == "agree", report
        speeds.append(report.size_bytes / 1e6 / report.took_s)
    return speeds


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=2048, help="of each replica")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dump-mb", type=int, default=64, help="that Kafka's tool reads")
    parser.add_argument("--no-kafka", action="store_true")
    given = parser.parse_args(arguments)
    for name in given.kinds.split(","):
        parent = Path(tempfile.mkdtemp(prefix="sexton-audit-"))
        try:
            dirs = write_replicas(parent, KINDS[name], given.mb << 20)
            speeds = audit_mb_per_s(dirs, given.rounds)
            line = f"{name:>5}: audit of {len(BROKERS)} x {given.mb} MiB, MB/s: " + ", ".join(
                f"{speed:,.0f}" for speed in speeds
            )
            if not given.no_kafka:
                ((base, content),) = list(segments(KINDS[name], given.dump_mb << 20))[:1]
                path = parent / names.log_file_name(base)
                path.write_bytes(content)
                dumped = dump_mb_per_s(path)
                ratio = max(speeds) / dumped
                verdict = "ok" if ratio >= TIMES_LEAST else f"LESS than {TIMES_LEAST}"
                line += f"; kafka-dump-log {dumped:,.1f}; {ratio:,.0f} times ({verdict})"
            print(line, flush=True)
        finally:
            shutil.rmtree(parent, ignore_errors=True)


if __name__ == "__main__":
    main()
