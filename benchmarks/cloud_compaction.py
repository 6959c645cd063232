"""What compactors make of cloud topics, and how long it takes them: no broker takes part.

    python -m benchmarks.cloud_compaction                  # every line, about half an hour
    python -m benchmarks.cloud_compaction --only level,due --scale 0.1

Logs are written into a folder store and a SQLite metastore as brokers would have; then `sexton compactor` processes,
whose Spark is warm, find due what they are to do. A line's time is from then until the metastore says that all is done.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import struct
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.logs import LogShape, write_partition
from benchmarks.memory import PeakMemory
from sexton.adapters.metastore import open_metastore
from sexton.adapters.objects import open_store
from sexton.cloud.looking import objects_of
from sexton.harness.compactor import CompactorProcess
from sexton.harness.processes import HOST, Port
from sexton.ports.cloud import (
    CLAIMS_MAX,
    CLOUD,
    STORAGE_MODE,
    CloudPartitionRow,
    Gather,
    Level,
    ObjectState,
    Owner,
    Run,
)
from sexton.ports.metastore import BrokerRow, BrokerStatus, ConfigScope, Metastore, PartitionRow, Storage, TopicRow
from sexton.ports.object_names import ObjectName, new_object_id
from sexton.ports.objects import ObjectStore
from sexton.records.objects import MAGIC, ObjectEncoder, Writer
from sexton.records.objects import Level as ObjectLevel
from sexton.types import LeaderEpoch

L0_BYTES: Final = 4 << 20
PART_BYTES: Final = 8 << 20
RECORD_BYTES: Final = 1_000
NEVER: Final = str(2**53)
PATIENCE_S: Final = 3_600
PUT_DOLLARS, GET_DOLLARS = 0.005 / 1000, 0.0004 / 1000
_HEAD: Final = struct.Struct(">qi")

Piece = tuple[int, int, int, bytes]
"""Partition, base and end offset, batches."""


class Cluster:
    """A metastore and a store, and what brokers would have put there."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "objects").mkdir()
        self.metastore_url = f"sqlite:///{directory}/metastore.sqlite"
        self.store_url = f"file://{directory}/objects"
        self._rng = random.Random(1)
        self._cluster_id = uuid.uuid4()
        self._epoch = asyncio.run(self._with(self._begin))
        self._topics_count = 0

    async def _with(self, work: Callable[[Metastore, ObjectStore], object]) -> int:
        metastore, store = open_metastore(self.metastore_url, timeout_ms=60_000), open_store(self.store_url)
        try:
            return await work(metastore, store)  # type: ignore[misc,no-any-return]
        finally:
            await store.close()
            await metastore.close()

    async def _begin(self, metastore: Metastore, _: ObjectStore) -> int:
        await metastore.open_cluster(self._cluster_id)
        row = BrokerRow(1, -1, HOST, 1, None, uuid.uuid4(), 5_000, 0, BrokerStatus.STARTING)
        return (await metastore.register_broker(row, None)).epoch

    def set(self, scope: ConfigScope, name: str, **settings: str) -> None:
        async def go(metastore: Metastore, _: ObjectStore) -> int:
            await metastore.change_settings(scope, name, {one.replace("_", "."): to for one, to in settings.items()})
            return 0

        asyncio.run(self._with(go))

    def level_after(self, ms: str) -> None:
        self.set(ConfigScope.BROKER, "", cloud_level_ms=ms)

    def write(self, partitions: int, shape: LogShape, **settings: str) -> TopicRow:
        """One topic, of which each partition has such a log: its L0 objects have about 4 MiB, of many partitions."""
        self._topics_count += 1
        topic = TopicRow(uuid.uuid4(), f"topic-{self._topics_count}", False)
        logs = self.directory / "logs"

        async def go(metastore: Metastore, store: ObjectStore) -> int:
            rows = [
                PartitionRow(topic.topic_id, n, (1,), (1,), 1, LeaderEpoch(1), 0, storage=Storage.CLOUD)
                for n in range(partitions)
            ]
            wanted = {STORAGE_MODE: CLOUD, **{one.replace("_", "."): to for one, to in settings.items()}}
            await metastore.create_topic(topic, rows, wanted)
            for first in range(0, partitions, CLAIMS_MAX):
                keys = [
                    ((topic.topic_id, n), LeaderEpoch(1)) for n in range(first, min(partitions, first + CLAIMS_MAX))
                ]
                await metastore.claim_partitions(1, self._epoch, keys)
            write_partition(logs, shape)
            for pieces in gathered(logs, partitions):
                await self._put(metastore, store, topic, pieces)
            return 0

        try:
            asyncio.run(self._with(go))
        finally:
            shutil.rmtree(logs, ignore_errors=True)
        return topic

    async def _put(self, metastore: Metastore, store: ObjectStore, topic: TopicRow, pieces: Sequence[Piece]) -> None:
        owner, object_id = Owner.broker(1, self._epoch), new_object_id(time.time_ns() // 1_000_000, self._rng)
        await metastore.register_objects(owner, Level.L0, [object_id])
        encoder = ObjectEncoder(ObjectLevel.L0, self._cluster_id, Writer.broker(1, self._epoch))
        content, runs = bytearray(MAGIC), []
        for partition, base, end, data in pieces:
            encoder.begin_run(topic.topic_id, partition, base, epoch=LeaderEpoch(1))
            encoder.add(data)
            made = encoder.end_run()
            content += data
            runs.append(
                Run(
                    topic_id=topic.topic_id,
                    partition=partition,
                    writer_epoch=LeaderEpoch(1),
                    base_offset=base,
                    end_offset=end,
                    position=made.position,
                    size_bytes=made.size_bytes,
                    first_timestamp_ms=made.first_timestamp_ms,
                    max_timestamp_ms=made.max_timestamp_ms,
                    records_count=made.record_count,
                    stable_offset=end,
                )
            )
        content += encoder.finish()
        await store.put(ObjectName(self._cluster_id, ObjectLevel.L0, object_id).key, bytes(content))
        gather = Gather(object_id=object_id, size_bytes=len(content), runs=runs)
        await metastore.commit_l0(owner, [gather], time.time_ns() // 1_000_000)

    def rows(self, topic: TopicRow) -> list[CloudPartitionRow]:
        found: list[CloudPartitionRow] = []

        async def go(metastore: Metastore, _: ObjectStore) -> int:
            found.extend(row for row in await metastore.read_cloud_partitions() if row.topic_id == topic.topic_id)
            return 0

        asyncio.run(self._with(go))
        return found

    def wait(self, topic: TopicRow, is_done: Callable[[CloudPartitionRow], bool]) -> float:
        """Returns how long it took."""
        began_s = time.monotonic()
        while not all(map(is_done, self.rows(topic))):
            if time.monotonic() - began_s > PATIENCE_S:
                raise TimeoutError("a compactor does not get on: see its log")
            time.sleep(0.2)
        return time.monotonic() - began_s

    def puts(self) -> tuple[int, int]:
        """Of brokers and of compactors, so far."""
        found = [0, 0]

        async def go(metastore: Metastore, _: ObjectStore) -> int:
            async for row in objects_of(metastore, [ObjectState.LIVE, ObjectState.GARBAGE]):
                if row.size_bytes:
                    found[row.level is Level.L1] += 1 if row.level is Level.L0 else 2 + -(-row.size_bytes // PART_BYTES)
            return 0

        asyncio.run(self._with(go))
        return found[0], found[1]

    def refused(self, topic: TopicRow) -> int:
        found: list[int] = []

        async def go(metastore: Metastore, _: ObjectStore) -> int:
            runs = await metastore.read_runs(10_000, topic.name)
            found.append(sum(run.outcome.startswith("refused") for run in runs))
            return 0

        asyncio.run(self._with(go))
        return found[0]


def gathered(logs: Path, partitions: int) -> Iterator[list[Piece]]:
    """The log cut into pieces, each of which every partition gets; as many of them in an object as fit."""
    share = max(1, L0_BYTES // partitions)
    pieces: list[Piece] = []
    filled = 0
    for base, end, data in stretches(logs, share):
        for partition in range(partitions):
            pieces.append((partition, base, end, data))
            filled += len(data)
            if filled >= L0_BYTES or (partition == partitions - 1 and filled + share * partitions > L0_BYTES):
                yield pieces
                pieces, filled = [], 0
    if pieces:
        yield pieces


def stretches(logs: Path, size_bytes: int) -> Iterator[tuple[int, int, bytes]]:
    """Whole batches, of about that size."""
    for path in sorted(logs.glob("*.log")):
        data = memoryview(path.read_bytes())
        at = begin = 0
        while at < len(data):
            _, length = _HEAD.unpack_from(data, at)
            last_delta = int.from_bytes(data[at + 23 : at + 27])
            end = _HEAD.unpack_from(data, at)[0] + last_delta + 1
            at += length + _HEAD.size
            if at - begin >= size_bytes or at == len(data):
                yield _HEAD.unpack_from(data, begin)[0], end, bytes(data[begin:at])
                begin = at


def is_leveled(row: CloudPartitionRow) -> bool:
    return row.leveled_offset == row.end_offset


def is_clean(row: CloudPartitionRow) -> bool:
    return row.cleaned_offset == row.end_offset


@dataclass
class Place:
    cluster: Cluster
    scale: float
    compactors: list[CompactorProcess] = field(default_factory=list)
    ports: list[Port] = field(default_factory=list)

    def shape(self, megabytes: float, keys: int = 0, record_bytes: int = RECORD_BYTES) -> LogShape:
        count = max(1, int(megabytes * 1e6 * self.scale / (record_bytes + 10)))
        return LogShape(count, record_bytes, keys or max(1, count // 10))

    @contextmanager
    def working(self, count: int = 1) -> Iterator[list[CompactorProcess]]:
        """So many compactors, whose Spark has done something already."""
        with ExitStack() as stack:
            ports = [Port() for _ in range(count)]
            cluster = self.cluster
            running = [
                stack.enter_context(
                    CompactorProcess(
                        cluster.metastore_url,
                        cluster.directory,
                        *("--store", cluster.store_url, "--nice", "0", "--admin-listener", f"{HOST}:{port.number}"),
                        name=f"compactor-{number}",
                    )
                )
                for number, port in enumerate(ports)
            ]
            cluster.level_after("0")
            for _ in range(2 * count):
                warm = cluster.write(2, LogShape(2_000, 100, 200), **COMPACTED)
                cluster.wait(warm, is_clean)
            cluster.level_after(NEVER)
            self.ports = ports
            yield running
            for port in ports:
                port.release()

    def wasted_mb(self) -> float:
        total = 0.0
        for port in self.ports:
            with urllib.request.urlopen(f"http://{HOST}:{port.number}/metrics", timeout=10) as page:
                for line in page.read().decode().splitlines():
                    if line.startswith("sexton_compactor_wasted_bytes_total "):
                        total += float(line.split()[1])
        return total / 1e6


COMPACTED: Final = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0.01"}
Line = Callable[[Place], tuple[str, str, bool | None]]
"""Returns figures, the goal, and whether it was met; None if there is none to meet."""


def level(place: Place) -> tuple[str, str, bool | None]:
    with place.working():
        topic = place.cluster.write(300, place.shape(1000 / 300))
        place.cluster.level_after("0")
        took_s = place.cluster.wait(topic, is_leveled)
    return f"{took_s:.1f} s", "<= 30 s", took_s <= 30


def compact(place: Place) -> tuple[str, str, bool | None]:
    """Beside the same log in a directory, on a session that is as warm."""
    from pyspark import SparkContext

    from sexton.records import checkpoints
    from sexton.spark import session
    from sexton.spark.offline import OfflineCoordination, Options, compact_directories

    shape = place.shape(2000)
    with place.working():
        topic = place.cluster.write(1, shape)
        place.cluster.level_after("0")
        place.cluster.wait(topic, is_leveled)
        place.cluster.set(ConfigScope.TOPIC, topic.name, **COMPACTED)
        took_s = place.cluster.wait(topic, is_clean)
    local = place.cluster.directory / "local"
    end = write_partition(local / "t-0", shape)
    checkpoints.write_offset_checkpoint(local / checkpoints.REPLICATION_OFFSET_CHECKPOINT, {("t", 0): end})
    warm = place.cluster.directory / "warm"
    warm_end = write_partition(warm / "t-0", LogShape(20_000, 100, 200))
    checkpoints.write_offset_checkpoint(warm / checkpoints.REPLICATION_OFFSET_CHECKPOINT, {("t", 0): warm_end})
    context: SparkContext = session.start("benchmark").sparkContext
    settings = {"cleanup.policy": "compact", "retention.ms": "-1"}
    options = Options(time.time_ns() // 1_000_000, OfflineCoordination.INDEPENDENT, settings)
    compact_directories(context, [warm], options)
    began_s = time.monotonic()
    compact_directories(context, [local], options)
    local_s = time.monotonic() - began_s
    context.stop()
    shutil.rmtree(local)
    return f"{took_s:.1f} s, local {local_s:.1f} s, {took_s / local_s:.2f}x", "<= 2x", took_s <= 2 * local_s


def due(place: Place) -> tuple[str, str, bool | None]:
    partitions = max(2, int(1000 * min(1.0, place.scale)))
    with place.working():
        topic = place.cluster.write(partitions, LogShape(990, RECORD_BYTES, 99), **COMPACTED)
        place.cluster.level_after("0")
        took_s = place.cluster.wait(topic, is_clean)
    return f"{partitions} partitions of 1 MB leveled and compacted in {took_s:.1f} s", "<= 60 s", took_s <= 60


def memory(place: Place) -> tuple[str, str, bool | None]:
    """Peaks of all of the compactor's processes, JVM and workers, while it levels and compacts the same log."""
    peaks = []
    for l1_bytes in (64 << 20, 1 << 30):
        place.cluster.set(ConfigScope.BROKER, "", cloud_l1_bytes=str(l1_bytes))
        with place.working() as (compactor,), PeakMemory(compactor.pid) as peak:
            topic = place.cluster.write(1, place.shape(2000), **COMPACTED)
            place.cluster.level_after("0")
            place.cluster.wait(topic, is_clean)
        peaks.append(peak.peak_bytes / 1e6)
    place.cluster.set(ConfigScope.BROKER, "", cloud_l1_bytes=str(64 << 20))
    small, large = peaks
    return f"objects of 64 MB: {small:.0f} MB, of 1 GB: {large:.0f} MB", "the same (<= 1.1x)", large <= 1.1 * small


def keys(place: Place) -> tuple[str, str, bool | None]:
    count = int(20e6 * place.scale)
    with place.working() as (compactor,), PeakMemory(compactor.pid) as peak:
        topic = place.cluster.write(1, LogShape(count, 100, count))
        place.cluster.level_after("0")
        place.cluster.wait(topic, is_leveled)
        place.cluster.set(ConfigScope.TOPIC, topic.name, **COMPACTED)
        took_s = place.cluster.wait(topic, is_clean)
    (row,) = place.cluster.rows(topic)
    figures = f"{count / 1e6:.1f} million keys: {took_s:.1f} s, {peak.peak_bytes / 1e6:.0f} MB"
    return f"{figures}, {row.compaction_epoch} pass(es)", "one pass", row.compaction_epoch == 1


def compactors(place: Place) -> tuple[str, str, bool | None]:
    told = []
    for count in (1, 2, 4):
        with place.working(count):
            topic = place.cluster.write(60, place.shape(10), **COMPACTED)
            before_mb = place.wasted_mb()
            place.cluster.level_after("0")
            took_s = place.cluster.wait(topic, is_clean)
            wasted_mb = place.wasted_mb() - before_mb
        told.append(f"{count}: {took_s:.1f} s, {wasted_mb:.1f} MB wasted, {place.cluster.refused(topic)} refused")
    return "; ".join(told), "told", None


def dollars(place: Place) -> tuple[str, str, bool | None]:
    """Written in full objects, leveled, and compacted once. GETs by arithmetic: an L0 object once, an L1 run twice."""
    with place.working():
        before = place.cluster.puts()
        topic = place.cluster.write(60, place.shape(1000 / 60), **COMPACTED)
        place.cluster.level_after("0")
        place.cluster.wait(topic, is_clean)
    l0, l1 = (after - at for after, at in zip(place.cluster.puts(), before, strict=True))
    gigabytes = place.scale
    gets = l0 + 2 * 60
    cost = ((l0 + l1) * PUT_DOLLARS + gets * GET_DOLLARS) / gigabytes
    return f"{l0} PUTs of brokers, {l1} of compactors, ${cost:.4f}/GB; two zones more: $0.04/GB", "told", None


LINES: Final[dict[str, tuple[str, Line]]] = {
    "level": ("leveling, 1 GB over 300 partitions", level),
    "compact": ("compaction of 2 GB, one partition", compact),
    "due": ("1,000 partitions of 1 MB due at once", due),
    "memory": ("peak memory by size of objects", memory),
    "keys": ("20 million distinct keys", keys),
    "compactors": ("1, 2 and 4 compactors on 60 partitions", compactors),
    "dollars": ("written, leveled, compacted", dollars),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help=f"of {', '.join(LINES)}, with commas")
    parser.add_argument("--scale", type=float, default=1.0, help="of all sizes; goals are those of 1")
    given = parser.parse_args()
    wanted = [name for name in given.only.split(",") if name] or list(LINES)
    if unknown := [name for name in wanted if name not in LINES]:
        parser.error(f"no such line: {', '.join(unknown)}. There are {', '.join(LINES)}")
    missed = []
    for name in wanted:
        told, line = LINES[name]
        directory = Path(tempfile.mkdtemp(prefix="sexton-cloud-compaction-", dir=os.environ.get("SEXTON_BENCH_DIR")))
        try:
            figures, goal, is_met = line(Place(Cluster(directory), given.scale))
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        verdict = "" if is_met is None else ("met" if is_met else "MISSED")
        print(f"{told:40} {figures:80} {goal}: {verdict}", flush=True)
        missed += [name] if is_met is False else []
    print(f"missed: {', '.join(missed)}" if missed else "all goals met")


if __name__ == "__main__":
    main()
