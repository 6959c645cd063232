"""Carries out jobs on cloud partitions without Spark, through the port of the store: one object per record, by the
reference compactor. For the simulator and for tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from sexton.compaction import reference, rules
from sexton.compaction.rules import Action
from sexton.compactor.cloud.engine import Register
from sexton.compactor.cloud.plans import L1_BYTES, Compacted, Output, PartitionPlan, Piece, Writer, WrittenL1
from sexton.errors import SextonError
from sexton.ports.cloud import AbortedRow, Extent, Level, ObjectId
from sexton.ports.object_names import ObjectName
from sexton.ports.objects import ObjectStore
from sexton.records.batch import Batch, decode_all, encode
from sexton.records.header import CODEC_MASK, CONTROL, DELETE_HORIZON, TRANSACTIONAL
from sexton.records.objects import MAGIC, ObjectEncoder, Run, read_batches
from sexton.records.objects import Level as ObjectLevel
from sexton.records.objects import Writer as ObjectWriter
from sexton.types import NO_TIMESTAMP


class ReferenceCloudEngine:
    """Implements `engine.CloudEngine`."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    async def level(
        self, plans: Sequence[PartitionPlan], outputs: Sequence[Output], register: Register, writer: Writer
    ) -> list[WrittenL1 | SextonError]:
        ids = await register(len(outputs))
        made: list[WrittenL1 | SextonError] = []
        for object_id, output in zip(ids, outputs, strict=True):
            try:
                made.append(await self._level(plans, output, object_id, writer))
            except SextonError as error:
                made.append(error)
        return made

    async def _level(
        self, plans: Sequence[PartitionPlan], output: Output, object_id: ObjectId, writer: Writer
    ) -> WrittenL1:
        writing = _Writing(writer)
        for piece in output:
            plan = plans[piece.plan]
            batches = [batch for extent in piece.extents for batch in await self._read(extent, writer)]
            left = leveled(batches, plan.aborted) if piece.extents[0].level is Level.L0 else batches
            writing.add_run(plan, piece, left)
        return await writing.put(self._store, object_id)

    async def _read(self, extent: Extent, writer: Writer) -> list[Batch]:
        """Raises DamagedObjectError, ObjectMissingError: never fewer batches (T9)."""
        data = extent.inline
        place = "inline"
        if data is None:
            assert extent.object_id is not None
            key = ObjectName(writer.cluster_id, ObjectLevel(int(extent.level)), extent.object_id).key
            data = bytes(await self._store.get(key, extent.position, extent.size_bytes))
            place = f"{self._store.place}/{key}"
        read_batches(data, ObjectLevel(int(extent.level)), extent.base_offset, extent.end_offset, place)
        return list(decode_all(data, place))

    async def compact(
        self, plans: Sequence[PartitionPlan], register: Register, writer: Writer, l1_bytes: int = L1_BYTES
    ) -> list[Compacted]:
        return [await self._compact(plan, register, writer) for plan in plans]

    async def _compact(self, plan: PartitionPlan, register: Register, writer: Writer) -> Compacted:
        assert plan.terms is not None
        try:
            before = [(extent, await self._read(extent, writer)) for extent in plan.extents]
        except SextonError as error:
            return Compacted(failure=error)
        batches = [batch for _, some in before for batch in some]
        ends = {some[-1].last_offset for _, some in before}
        result = reference.compact(batches, plan.terms, (), ends, min(plan.row.cleaned_offset, plan.terms.bound))
        fates = Counter(verdict.fate.label for verdict in result.verdicts)
        writing = _Writing(writer)
        for extent, some in before:
            left = [one for one in result.batches if extent.base_offset <= one.base_offset < extent.end_offset]
            if left != some:
                writing.add_run(plan, Piece(0, (extent,)), left)
        if writing.is_empty:
            return Compacted(fates=dict(fates))
        (object_id,) = await register(1)
        return Compacted([await writing.put(self._store, object_id)], dict(fates))


class _Writing:
    """An object in memory: what the reference writes is small."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._encoder = ObjectEncoder(
            ObjectLevel.L1, writer.cluster_id, ObjectWriter.compactor(writer.compactor_id), index_interval_bytes=1 << 18
        )
        self._data = bytearray(MAGIC)

    @property
    def is_empty(self) -> bool:
        return not self._encoder.runs

    def add_run(self, plan: PartitionPlan, piece: Piece, batches: Iterable[Batch]) -> Run:
        self._encoder.begin_run(*plan.key, piece.base_offset, epoch=plan.row.compaction_epoch)
        data = b"".join(map(encode, batches))
        self._encoder.add(data)
        self._data += data
        return self._encoder.end_run()

    async def put(self, store: ObjectStore, object_id: ObjectId) -> WrittenL1:
        self._data += self._encoder.finish()
        key = ObjectName(self._writer.cluster_id, ObjectLevel.L1, object_id).key
        await store.put(key, bytes(self._data))
        return WrittenL1(object_id, len(self._data), tuple(self._encoder.runs))


def leveled(batches: Sequence[Batch], aborted: Sequence[AbortedRow]) -> Iterator[Batch]:
    for batch in batches:
        is_transactional = batch.is_transactional and not batch.is_control
        action = rules.leveled_action(
            is_control=batch.is_control,
            is_aborted=is_transactional and _is_aborted(batch, aborted),
            is_transactional=is_transactional,
            is_end=batch is batches[-1],
        )
        settled = batch.attributes & ~(TRANSACTIONAL | CONTROL)
        if action == Action.EMPTY:
            yield replace(
                batch,
                attributes=settled & ~(CODEC_MASK | DELETE_HORIZON),
                base_timestamp_ms=NO_TIMESTAMP,
                records=(),
                record_count=0,
            )
        elif action != Action.DROP:
            yield replace(batch, attributes=settled)


def _is_aborted(batch: Batch, aborted: Sequence[AbortedRow]) -> bool:
    return any(
        row.producer_id == batch.producer_id and row.first_offset <= batch.base_offset < row.marker_offset
        for row in aborted
    )
