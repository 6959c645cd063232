"""`sexton audit` of directories beside `kafka-dump-log`, in the same run: how many megabytes of replicas a second.

Three replicas of the same records, cleaned as it would be with compaction off: the most there is to read. Each kind of
data (100 bytes, 1 KB, lz4, zstd) is audited from directories, one partition each, and one segment of it is dumped by
Kafka's own tool with `--print-data-log`, which reads what an audit reads and compares nothing. Then `keys`, 50 million
of them in one partition, in less than 4 GB of memory; and `partitions`, 1,000 in one job.

    make bench-audit
    python -m benchmarks.audit --mb 256 --kinds 100B,lz4 --no-kafka
    python -m benchmarks.audit --kinds keys,partitions --keys 1000000 --partitions 50 --mb 64
"""

from __future__ import annotations

import argparse
import os
import shutil
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import numpy as np
from crc32c import crc32c

from benchmarks.memory import PeakMemory
from sexton.audit.folders import FolderSource
from sexton.audit.run import audit
from sexton.harness import jars
from sexton.harness.kafka_tools import DUMP_TOOL
from sexton.records import checkpoints, names
from sexton.records.batch import Record, encode, make_batch
from sexton.records.codecs import Codec
from sexton.records.header import ATTRIBUTES_POSITION
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

KEYS: Final = "keys"
PARTITIONS: Final = "partitions"
KEYS_A_BATCH: Final = 400
MEMORY_BYTES_MAX: Final = 4 << 30
"""All processes together."""
NOW_MS: Final = 1_700_000_000_000


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


class Placed(NamedTuple):
    """A batch where it belongs."""

    base_offset: int
    record_count: int
    data: bytes


def repeated(kind: Kind, size_bytes: int) -> Iterator[Placed]:
    """So much of it. A batch is encoded once and used again at other offsets, which its CRC does not cover."""
    rng = np.random.default_rng(7)
    count = max(1, BATCH_BYTES // (kind.value_bytes + 20))
    batches = []
    for first_key in range(0, max(1, min(KEYS_COUNT, size_bytes // kind.value_bytes)), count):
        words = rng.integers(97, 105, size=(count, kind.value_bytes), dtype=np.uint8)
        records = [
            Record(index, NOW_MS + index, b"key-%07d" % (first_key + index), words[index].tobytes())
            for index in range(count)
        ]
        batches.append(encode(make_batch(records, attributes=int(kind.codec), producer_id=-1)))
    made = number = 0
    while made < size_bytes:
        batch = batches[number % len(batches)]
        offset = number * count
        yield Placed(offset, count, offset.to_bytes(8, "big") + batch[8:])
        made += len(batch)
        number += 1


def distinct(keys_count: int) -> Iterator[Placed]:
    """So many keys, each once. Their digits are written into a batch that was encoded once, and its CRC made anew."""
    count = min(KEYS_A_BATCH, keys_count)
    digits = len(str(keys_count))
    records = [Record(index, NOW_MS, b"key-%0*d" % (digits, index), b"x" * 16) for index in range(count)]
    batch = bytearray(encode(make_batch(records, producer_id=-1)))
    starts = [batch.index(record.key or b"") + len(b"key-") for record in records]
    places = np.array(starts)[:, None] + np.arange(digits)
    content = np.frombuffer(batch, dtype=np.uint8)
    powers = 10 ** np.arange(digits - 1, -1, -1)
    for first in range(0, keys_count - count + 1, count):
        content[places] = np.arange(first, first + count)[:, None] // powers % 10 + ord("0")
        struct.pack_into(">Q", batch, 0, first)
        struct.pack_into(">I", batch, ATTRIBUTES_POSITION - 4, crc32c(memoryview(batch)[ATTRIBUTES_POSITION:]))
        yield Placed(first, count, bytes(batch))


def write_partition(directories: Sequence[Path], batches: Iterable[Placed]) -> None:
    """The same segments into each."""
    for directory in directories:
        directory.mkdir(parents=True)
    with ExitStack() as stack:
        files: list[BinaryIO] = []
        left = 0
        for batch in batches:
            if left <= 0:
                stack.pop_all().close()
                paths = [directory / names.log_file_name(batch.base_offset) for directory in directories]
                files, left = [stack.enter_context(path.open("wb")) for path in paths], SEGMENT_BYTES
            for file in files:
                file.write(batch.data)
            left -= len(batch.data)


def write_replicas(parent: Path, partitions: Sequence[Iterable[Placed]]) -> dict[int, list[Path]]:
    dirs = {broker: [parent / f"b{broker}"] for broker in BROKERS}
    for number, batches in enumerate(partitions):
        write_partition([log_dir / f"orders-{number}" for (log_dir,) in dirs.values()], batches)
    starts = {("orders", number): 0 for number in range(len(partitions))}
    for (log_dir,) in dirs.values():
        checkpoints.write_offset_checkpoint(log_dir / checkpoints.LOG_START_OFFSET_CHECKPOINT, starts)
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


@dataclass(frozen=True, slots=True)
class Measured:
    speeds_mb_per_s: Sequence[float]
    took_s: float
    keys_count: int
    partitions_count: int
    peak_bytes: int

    @property
    def memory(self) -> str:
        verdict = "ok" if self.peak_bytes < MEMORY_BYTES_MAX else f"MORE than {MEMORY_BYTES_MAX >> 30}"
        return f"memory {self.peak_bytes / (1 << 30):.1f} GB ({verdict})"


def measured(dirs: dict[int, list[Path]], rounds: int) -> Measured:
    """The first round compiles nothing, but starts workers. Memory is that of Spark's JVM, its workers and this
    process."""
    spark = session.start("audit benchmark")
    speeds = []
    with PeakMemory(os.getpid()) as memory:
        for _ in range(rounds):
            report = audit(spark.sparkContext, [FolderSource(dirs)])
            assert report.verdict.value == "agree", report
            speeds.append(report.size_bytes / 1e6 / report.took_s)
    keys_count = sum(each.counts.key_count for each in report.partitions)
    return Measured(speeds, report.took_s, keys_count, len(report.partitions), memory.peak_bytes)


def beside_kafka(kind: Kind, size_bytes: int, parent: Path, best_mb_per_s: float) -> str:
    write_partition([parent / "dump"], repeated(kind, size_bytes))
    dumped = dump_mb_per_s(parent / "dump" / names.log_file_name(0))
    ratio = best_mb_per_s / dumped
    verdict = "ok" if ratio >= TIMES_LEAST else f"LESS than {TIMES_LEAST}"
    return f"; kafka-dump-log {dumped:,.1f}; {ratio:,.0f} times ({verdict})"


def line_of(name: str, given: argparse.Namespace, parent: Path) -> str:
    if name == KEYS:
        found = measured(write_replicas(parent, [distinct(given.keys)]), rounds=1)
        assert found.keys_count > given.keys - KEYS_A_BATCH, found
        what = f"{len(BROKERS)} x {found.keys_count:,} keys"
    elif name == PARTITIONS:
        each_bytes = (given.mb << 20) // given.partitions
        partitions = [repeated(KINDS["100B"], each_bytes) for _ in range(given.partitions)]
        found = measured(write_replicas(parent, partitions), rounds=1)
        what = f"{len(BROKERS)} x {found.partitions_count:,} partitions, {given.mb} MiB together"
    else:
        found = measured(write_replicas(parent, [repeated(KINDS[name], given.mb << 20)]), given.rounds)
        what = f"{len(BROKERS)} x {given.mb} MiB"
    speeds = ", ".join(f"{speed:,.0f}" for speed in found.speeds_mb_per_s)
    line = f"{name:>10}: audit of {what}, MB/s: {speeds}; the last took {found.took_s:,.1f} s; {found.memory}"
    if name in KINDS and not given.no_kafka:
        line += beside_kafka(KINDS[name], given.dump_mb << 20, parent, max(found.speeds_mb_per_s))
    return line


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=2048, help="of each replica, of one partition or of many")
    parser.add_argument("--kinds", default=",".join((*KINDS, KEYS, PARTITIONS)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keys", type=int, default=50_000_000, help="how many the kind `keys` has")
    parser.add_argument("--partitions", type=int, default=1_000, help="how many the kind `partitions` has")
    parser.add_argument("--dump-mb", type=int, default=64, help="that Kafka's tool reads")
    parser.add_argument("--no-kafka", action="store_true")
    parser.add_argument("--dir", type=Path, help="where replicas are made, and deleted again")
    given = parser.parse_args(arguments)
    for name in given.kinds.split(","):
        parent = Path(tempfile.mkdtemp(prefix="sexton-audit-", dir=given.dir))
        try:
            print(line_of(name, given, parent), flush=True)
        finally:
            shutil.rmtree(parent, ignore_errors=True)


if __name__ == "__main__":
    main()
