"""Leveling and compaction on Spark's passes make of a random history what the reference makes of it, batch by batch;
and what a consumer folds from it is what it would fold from the history itself.

Most histories run on an in-process stand-in for Spark. ``SEXTON_SEEDS=1000 pytest …`` tries more of them.
"""

from __future__ import annotations

import asyncio
import os
import random
import uuid
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from sexton.adapters.objects import open_store
from sexton.adapters.objects.blocking import BlockingStore
from sexton.compaction import cloud_due
from sexton.compaction.reference import compact as compact_locally
from sexton.compaction.reference import fold_by_key
from sexton.compaction.terms import Terms
from sexton.compactor.cloud import spark_compact, spark_level
from sexton.compactor.cloud.jobs import replacement_of
from sexton.compactor.cloud.plans import ATTEMPTS_MAX, Compacted, PartitionPlan, Writer, WrittenL1, extent_of, group
from sexton.compactor.cloud.reference import ReferenceCloudEngine
from sexton.errors import DamagedObjectError
from sexton.harness.versitygw import VersityGateway
from sexton.ports.cloud import Extent, ObjectId
from sexton.ports.object_names import MARKER_KEY, ObjectName
from sexton.records.batch import Batch, decode_all
from sexton.records.objects import Level, check_object
from sexton.types import OFFSET_MAX, PartitionId
from tests.compactor.cloud.histories import CLUSTER, NOW_MS, History, leveled_row, objects_of, random_history
from tests.spark.local_context import LocalContext

WRITER = Writer(CLUSTER, uuid.UUID(int=9))
SEEDS = int(os.environ.get("SEXTON_SEEDS", "5"))
RETENTION_MS = 60_000


class Folder:
    """A store in a folder, seen by both engines."""

    def __init__(self, path: Path, rng: random.Random, url: str = "") -> None:
        """With a URL, the folder is what a gateway shows there as a bucket."""
        self._rng = rng
        path.mkdir(exist_ok=bool(url))
        (path / MARKER_KEY).write_bytes(b"{}")
        self.path = path
        self.blocking = BlockingStore(url or f"file://{path}")
        self.store = open_store(self.blocking.url)

    async def register(self, count: int) -> Sequence[ObjectId]:
        return [uuid.UUID(int=self._rng.getrandbits(128), version=4) for _ in range(count)]

    def ids(self, count: int) -> list[ObjectId]:
        return list(asyncio.run(self.register(count)))

    def put(self, objects: dict[str, bytes]) -> None:
        for key, data in objects.items():
            target = self.path / key
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)

    def content(self, extent: Extent) -> list[Batch]:
        assert extent.object_id is not None
        key = ObjectName(CLUSTER, Level.L1, extent.object_id).key
        data = (self.path / key).read_bytes()
        check_object(data, key)
        return list(decode_all(data[extent.position : extent.position + extent.size_bytes]))


def plans_of(
    rng: random.Random, folder: Folder, histories: list[History], bounds: dict[PartitionId, int]
) -> list[PartitionPlan]:
    since = {one.key: 0 for one in histories}
    objects, extents = objects_of(rng, histories, bounds, since)
    folder.put(objects)
    return [
        PartitionPlan(
            topic="t",
            row=leveled_row(one.key, 0),
            extents=tuple(extents[one.key]),
            aborted=tuple(one.aborted),
        )
        for one in histories
        if extents[one.key]
    ]


def bounds_of(histories: list[History]) -> dict[PartitionId, int]:
    return {one.key: max((b.next_offset for b in one.stable()), default=0) for one in histories}


def level(context: SparkContext, folder: Folder, plans: list[PartitionPlan], l1_bytes: int) -> list[WrittenL1]:
    outputs = group(plans, l1_bytes)
    ids = [[folder.ids(1) for _ in range(ATTEMPTS_MAX)] for _ in outputs]
    found = spark_level.run(context, plans, outputs, ids, folder.blocking, WRITER)
    made = [one for one in found if isinstance(one, WrittenL1)]
    assert len(made) == len(found), found
    return made


def level_plainly(folder: Folder, plans: list[PartitionPlan], l1_bytes: int) -> list[WrittenL1]:
    engine = ReferenceCloudEngine(folder.store)
    found = asyncio.run(engine.level(plans, group(plans, l1_bytes), folder.register, WRITER))
    return [one for one in found if isinstance(one, WrittenL1)]


def extents_of(made: list[WrittenL1], key: PartitionId) -> list[Extent]:
    found = [extent_of(run, one.object_id) for one in made for run in one.runs if (run.topic_id, run.partition) == key]
    return sorted(found, key=lambda extent: extent.base_offset)


def content(folder: Folder, extents: Sequence[Extent]) -> list[Batch]:
    return [batch for extent in extents for batch in folder.content(extent)]


def terms_of(bound: int, now_ms: int) -> Terms:
    return Terms(now_ms, bound, RETENTION_MS, mtro=OFFSET_MAX, mxro=OFFSET_MAX, settle_below=bound)


def compact(context: SparkContext, folder: Folder, plans: list[PartitionPlan], l1_bytes: int) -> list[Compacted]:
    prepared = spark_compact.prepare(context, plans, l1_bytes, WRITER)
    ids = folder.ids(spark_compact.ids_needed(prepared))
    return spark_compact.run(context, plans, prepared, ids, folder.blocking, WRITER, l1_bytes)


def replaced(plan: PartitionPlan, made: Compacted) -> list[Extent]:
    """The extents of the partition after the commit."""
    assert made.failure is None, made.failure
    change = replacement_of(plan, made)
    assert not set(change.inputs) & set(change.outputs)
    left = [one for one in plan.extents if one not in change.inputs]
    after = sorted([*left, *change.outputs], key=lambda extent: extent.base_offset)
    assert after[0].base_offset == plan.base_offset
    assert after[-1].end_offset == plan.end_offset
    assert all(one.end_offset == other.base_offset for one, other in pairwise(after))
    return after


def check(context: SparkContext, tmp_path: Path, seed: int, url: str = "") -> None:
    rng = random.Random(seed)
    folder = Folder(tmp_path if url else tmp_path / f"store-{seed}", rng, url)
    histories = [random_history(rng, index, rng.randrange(5, 60)) for index in range(rng.randrange(1, 5))]
    l1_bytes = rng.choice((300, 2_000, 1 << 20))
    plans = plans_of(rng, folder, histories, bounds_of(histories))
    if not plans:
        return
    made = level(context, folder, plans, l1_bytes)
    plainly = level_plainly(folder, plans, l1_bytes)
    cleaned: dict[PartitionId, int] = {}
    for round_ in range(3):
        now_ms = NOW_MS + round_ * (RETENTION_MS + 1)
        compactions: list[PartitionPlan] = []
        for plan in plans:
            extents = extents_of(made, plan.key)
            batches = content(folder, extents)
            if round_ == 0:
                assert batches == content(folder, extents_of(plainly, plan.key)), f"seed {seed}"
                check_leveled(next(one for one in histories if one.key == plan.key), plan, batches)
            bound = extents[-1].end_offset
            row = leveled_row(plan.key, bound, cleaned.get(plan.key, 0))
            cleaned[plan.key] = rng.choice([extent.end_offset for extent in extents]) if round_ == 0 else bound
            compactions.append(PartitionPlan(topic="t", row=row, extents=tuple(extents), terms=terms_of(bound, now_ms)))
        result = compact(context, folder, compactions, l1_bytes)
        engine = ReferenceCloudEngine(folder.store)
        expected = asyncio.run(engine.compact(compactions, folder.register, WRITER))
        made = []
        for plan, one, other in zip(compactions, result, expected, strict=True):
            after = replaced(plan, one)
            assert one.fates == other.fates, f"seed {seed}"
            left, plain = content(folder, after), content(folder, replaced(plan, other))
            assert left == plain, f"seed {seed}, round {round_}"
            history = next(each for each in histories if each.key == plan.key)
            below = [batch for batch in history.batches if batch.base_offset < plan.end_offset]
            assert fold_by_key(left) == fold_by_key(_without_open(history, below)), f"seed {seed}"
            made += [_as_written(folder, extent, plan.key) for extent in after]
            cleaned[plan.key] = plan.end_offset


def _without_open(history: History, below: list[Batch]) -> list[Batch]:
    """The history up to an offset, with the outcomes that only markers above it tell."""
    ends = [batch for batch in history.batches if batch.is_control and batch not in below]
    return [*below, *ends]


def _as_written(folder: Folder, extent: Extent, key: PartitionId) -> WrittenL1:
    assert extent.object_id is not None
    data = (folder.path / ObjectName(CLUSTER, Level.L1, extent.object_id).key).read_bytes()
    footer = check_object(data)
    runs = [run for run in footer.runs if (run.topic_id, run.partition) == key and run.position == extent.position]
    return WrittenL1(extent.object_id, len(data), tuple(runs))


def check_leveled(history: History, plan: PartitionPlan, batches: list[Batch]) -> None:
    """L1 is settled, and has the records that committed; the local compactor settles to the same."""
    assert not any(batch.is_transactional or batch.is_control for batch in batches)
    assert batches[-1].next_offset == plan.end_offset
    gone = {
        batch.base_offset
        for batch in history.batches
        for row in history.aborted
        if batch.producer_id == row.producer_id and row.first_offset <= batch.base_offset < row.marker_offset
    }
    below = [batch for batch in history.batches if batch.base_offset < plan.end_offset and not batch.is_control]
    kept = [record for batch in below if batch.base_offset not in gone for record in batch.records]
    assert [record for batch in batches for record in batch.records] == kept


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_random_history_is_leveled_and_compacted_as_by_the_reference(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_compact, "CHUNK_BYTES_MIN", 200)
    monkeypatch.setattr(spark_level, "TASK_BYTES", 700)
    monkeypatch.setattr(spark_level, "ROW_BYTES", 150)
    monkeypatch.setattr(cloud_due, "MERGE_BYTES", 400)
    monkeypatch.setattr(spark_compact, "MERGE_BYTES", 400)
    check(LocalContext(random.Random(seed)).as_spark, tmp_path, seed)


@pytest.mark.spark
@pytest.mark.parametrize("seed", [100])
def test_the_same_on_spark_itself(seed: int, tmp_path: Path, spark: SparkSession) -> None:
    check(spark.sparkContext, tmp_path, seed)


def test_the_same_on_s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with VersityGateway(tmp_path) as gateway:
        for name, value in gateway.credentials.items():
            monkeypatch.setenv(name, value)
        gateway.make_bucket("bucket")
        check(LocalContext(random.Random(1)).as_spark, gateway.bucket_dir("bucket"), 200, gateway.url("bucket"))


@pytest.mark.parametrize("seed", range(4))
def test_the_local_compactor_and_the_cloud_pass_fold_the_same_history_to_the_same(seed: int, tmp_path: Path) -> None:
    rng = random.Random(1000 + seed)
    folder = Folder(tmp_path / "store", rng)
    history = random_history(rng, 0, 120)
    bound = max((batch.next_offset for batch in history.stable()), default=0)
    if not bound:
        return
    context = LocalContext(rng).as_spark
    plans = plans_of(rng, folder, [history], {history.key: bound})
    extents = extents_of(level(context, folder, plans, 1 << 20), history.key)
    plan = PartitionPlan(
        topic="t", row=leveled_row(history.key, bound), extents=tuple(extents), terms=terms_of(bound, NOW_MS)
    )
    (made,) = compact(context, folder, [plan], 1 << 20)
    in_cloud = content(folder, replaced(plan, made))
    on_disk = compact_locally(history.batches, terms_of(bound, NOW_MS)).batches
    below = [batch for batch in on_disk if batch.base_offset < bound and not batch.is_control]
    assert [(r.offset, r.key, r.value) for b in in_cloud for r in b.records] == [
        (r.offset, r.key, r.value) for b in below for r in b.records
    ]


@pytest.mark.parametrize("damage", ["missing", "short", "flipped"])
def test_what_cannot_be_read_fails_the_outputs_that_need_it_and_shrinks_none(damage: str, tmp_path: Path) -> None:
    """T9."""
    rng = random.Random(5)
    folder = Folder(tmp_path / "store", rng)
    histories = [random_history(rng, 0, 30), random_history(rng, 1, 30)]
    plans = [
        plan for one in histories for plan in plans_of(rng, folder, [one], bounds_of([one]))
    ]  # two partitions, no object in common
    extent = next(one for one in plans[0].extents if one.object_id is not None)
    assert extent.object_id is not None
    path = folder.path / ObjectName(CLUSTER, Level.L0, extent.object_id).key
    data = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    elif damage == "short":
        path.write_bytes(data[: extent.position + extent.size_bytes - 1])
    else:
        data[extent.position + 70 - 61 + 61] ^= 1
        path.write_bytes(data)
    outputs = [*group([plans[0]]), *[tuple(p._replace(plan=1) for p in output) for output in group([plans[1]])]]
    ids = [[folder.ids(1) for _ in range(ATTEMPTS_MAX)] for _ in outputs]
    context = LocalContext(rng)
    found = spark_level.run(context.as_spark, plans, outputs, ids, folder.blocking, WRITER)
    assert isinstance(found[0], Exception)
    assert isinstance(found[1], WrittenL1)
    assert context.held == []
    plainly = asyncio.run(ReferenceCloudEngine(folder.store).level(plans, outputs, folder.register, WRITER))
    assert isinstance(plainly[0], Exception)
    if damage == "flipped":
        assert isinstance(plainly[0], DamagedObjectError)
