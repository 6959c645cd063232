"""How Spark's tasks read extents and write objects of L1.

An extent is to the passes of a compaction what a segment is: its path names the object and where the run lies in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from pyspark import TaskContext

from sexton.adapters.objects.blocking import BlockingStore, Upload
from sexton.compaction.chunking import Extent as Range
from sexton.compaction.chunking import Output
from sexton.compactor.cloud.plans import RUN_BYTES_MAX, Writer, WrittenL1
from sexton.errors import EnvironmentFailure
from sexton.ports.cloud import Extent, ObjectId
from sexton.ports.object_names import ObjectName
from sexton.records import names
from sexton.records.kernels.primitives import Bytes
from sexton.records.objects import MAGIC, Level, ObjectEncoder, Run
from sexton.records.objects import Writer as ObjectWriter
from sexton.spark.storage import PartFile
from sexton.types import NO_OFFSET, PartitionId


def key_of(extent: Extent, writer: Writer) -> str:
    assert extent.object_id is not None
    return ObjectName(writer.cluster_id, Level(int(extent.level)), extent.object_id).key


@dataclass(frozen=True, slots=True)
class ObjectFiles:
    """Implements `sexton.spark.storage.Storage` for reading alone: what is written becomes whole objects."""

    store: BlockingStore

    @property
    def reads_anew(self) -> bool:
        return True

    @staticmethod
    def path(extent: Extent, writer: Writer) -> str:
        return f"{key_of(extent, writer)}/{extent.position}/{names.log_file_name(extent.base_offset)}"

    @contextmanager
    def reading(self, path: str, start: int, end: int) -> Iterator[Bytes]:
        key, position, _ = path.rsplit("/", 2)
        data = np.frombuffer(self.store.read(key, int(position) + start, end - start), dtype=np.uint8)
        if start:
            data = np.concatenate([np.zeros(start, dtype=np.uint8), data])
        yield data

    def new_part(self, base_offset: int, source: Range | None) -> PartFile:
        raise NotImplementedError("an extent is written into an object, not into a part file")

    def write_segment(self, output: Output) -> str:
        raise NotImplementedError("an extent is written into an object, not into a segment")

    def remove_parts(self) -> None:
        """Does nothing: there are none."""


def ids_of_attempt(attempts: Sequence[Sequence[ObjectId]]) -> Sequence[ObjectId]:
    """Each attempt of a task has ids of its own: one that Spark has given up on may still be writing. (Where Spark
    repeats a whole stage, it counts from one again: such an attempt puts the same bytes under the same key.)"""
    context = TaskContext.get()
    number = 0 if context is None else context.attemptNumber()
    if number >= len(attempts):
        raise EnvironmentFailure(
            f"attempt {number + 1} of a task, and {len(attempts)} were prepared for", "", "The job is planned anew"
        )
    return attempts[number]


class ObjectsWriter:
    """Streams runs into objects, one after the other: memory follows the part of an upload, not the object."""

    def __init__(self, store: BlockingStore, writer: Writer, ids: Sequence[ObjectId], l1_bytes: int) -> None:
        self._store = store
        self._writer = writer
        self._ids = list(ids)
        self._l1_bytes = l1_bytes
        self._upload: Upload | None = None
        self._encoder: ObjectEncoder | None = None
        self._id: ObjectId | None = None
        self._open: tuple[PartitionId, int] | None = None
        """Partition of the run that is open, and where the next extent must begin to continue it."""
        self._run_bytes = 0
        self.written: list[WrittenL1] = []

    def continues(self, key: PartitionId, base_offset: int) -> bool:
        return self._open == (key, base_offset) and self._run_bytes < min(self._l1_bytes, RUN_BYTES_MAX)

    def begin(self, key: PartitionId, base_offset: int, *, epoch: int, cleaned_offset: int = NO_OFFSET) -> None:
        if self._encoder is not None and self._encoder.size_bytes >= self._l1_bytes and self._ids:
            self._finish_object()
        if self._encoder is None:
            self._id = self._ids.pop(0)
            self._encoder = ObjectEncoder(
                Level.L1, self._writer.cluster_id, ObjectWriter.compactor(self._writer.compactor_id)
            )
            self._upload = self._store.upload(ObjectName(self._writer.cluster_id, Level.L1, self._id).key)
            self._upload.write(MAGIC)
        self._encoder.begin_run(*key, base_offset, epoch=epoch, cleaned_offset=cleaned_offset)
        self._open = key, base_offset
        self._run_bytes = 0

    def add(self, data: bytes | memoryview) -> None:
        """Whole batches of the run that is open."""
        assert self._encoder is not None
        assert self._upload is not None
        self._encoder.add(data)
        self._upload.write(data)
        self._run_bytes += len(data)

    def reached(self, end_offset: int) -> None:
        """All of the run below that offset was added."""
        assert self._open is not None
        self._open = self._open[0], end_offset

    def end(self) -> Run | None:
        """Ends the run that is open, if one is. It must end with its last batch (C7)."""
        if self._open is None:
            return None
        assert self._encoder is not None
        run = self._encoder.end_run()
        if run.end_offset != self._open[1]:
            raise AssertionError(f"C7: a run ends at {run.end_offset}, and its extents at {self._open[1]}")
        self._open = None
        return run

    def finish(self) -> list[WrittenL1]:
        self.end()
        if self._encoder is not None:
            self._finish_object()
        return self.written

    def _finish_object(self) -> None:
        encoder, upload, object_id = self._encoder, self._upload, self._id
        assert encoder is not None
        assert upload is not None
        assert object_id is not None
        footer = encoder.finish()
        upload.write(footer)
        upload.finish()
        self.written.append(WrittenL1(object_id, encoder.size_bytes + len(footer), tuple(encoder.runs)))
        self._encoder = self._upload = self._id = None

    def abort(self) -> None:
        if self._upload is not None:
            self._upload.abort()
        self._encoder = self._upload = self._open = None
