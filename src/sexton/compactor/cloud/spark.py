"""Carries out jobs on cloud partitions by Spark, in the session that all jobs of a compactor share. Until there is one,
PySpark is not imported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sexton.adapters.objects.blocking import BlockingStore
from sexton.compactor.cloud.engine import Register
from sexton.compactor.cloud.plans import ATTEMPTS_MAX, L1_BYTES, Compacted, Output, PartitionPlan, Writer, WrittenL1
from sexton.compactor.engines.spark import SparkEngine
from sexton.errors import SextonError
from sexton.ports.cloud import ObjectId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sexton.compactor.cloud.spark_compact import Prepared


class SparkCloudEngine:
    """Implements `engine.CloudEngine`."""

    def __init__(self, spark: SparkEngine, store_url: str) -> None:
        self._spark = spark
        self._store = BlockingStore(store_url)

    async def level(
        self, plans: Sequence[PartitionPlan], outputs: Sequence[Output], register: Register, writer: Writer
    ) -> list[WrittenL1 | SextonError]:
        ids = list(await register(ATTEMPTS_MAX * len(outputs)))
        dealt = [[[ids.pop()] for _ in range(ATTEMPTS_MAX)] for _ in outputs]
        return await self._spark.call(_level, plans, outputs, dealt, self._store, writer)

    async def compact(
        self, plans: Sequence[PartitionPlan], register: Register, writer: Writer, l1_bytes: int = L1_BYTES
    ) -> list[Compacted]:
        from sexton.compactor.cloud.spark_compact import ids_needed

        prepared = await self._spark.call(_prepare, plans, l1_bytes, writer)
        ids = await register(ids_needed(prepared))
        return await self._spark.call(_compact, plans, prepared, ids, self._store, writer, l1_bytes)


def _level(
    session: SparkSession,
    plans: Sequence[PartitionPlan],
    outputs: Sequence[Output],
    ids: Sequence[Sequence[Sequence[ObjectId]]],
    store: BlockingStore,
    writer: Writer,
) -> list[WrittenL1 | SextonError]:
    from sexton.compactor.cloud import spark_level

    return spark_level.run(session.sparkContext, plans, outputs, ids, store, writer)


def _prepare(session: SparkSession, plans: Sequence[PartitionPlan], l1_bytes: int, writer: Writer) -> Prepared:
    from sexton.compactor.cloud import spark_compact

    return spark_compact.prepare(session.sparkContext, plans, l1_bytes, writer)


def _compact(
    session: SparkSession,
    plans: Sequence[PartitionPlan],
    prepared: Prepared,
    ids: Sequence[ObjectId],
    store: BlockingStore,
    writer: Writer,
    l1_bytes: int,
) -> list[Compacted]:
    from sexton.compactor.cloud import spark_compact

    return spark_compact.run(session.sparkContext, plans, prepared, ids, store, writer, l1_bytes)
