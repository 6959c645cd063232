"""What lies in a broker's directories, read with the reference codec: no index, no kernel, no Spark."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from sexton.compaction import reference
from sexton.log.stopped.locks import LOCK_FILE
from sexton.records.batch import Batch, decode_all

Name = tuple[str, int]
"""Topic and partition."""

Fold = dict[bytes, tuple[int, bytes | None]]
"""By key, the offset and value of its newest committed record; deleted keys are gone."""


def partition_name(directory_name: str) -> Name:
    topic, _, partition = directory_name.rpartition("-")
    return topic, int(partition)


def partition_dirs(data_dir: Path, prefix: str) -> dict[Name, Path]:
    """The partitions of all topics whose names begin so."""
    return {partition_name(path.name): path for path in sorted(data_dir.glob(f"{prefix}*")) if path.is_dir()}


def read_log(directory: Path) -> list[Batch]:
    return [batch for path in sorted(directory.glob("*.log")) for batch in decode_all(path.read_bytes(), str(path))]


def fold(log: Sequence[Batch]) -> Fold:
    return {key: (record.offset, record.value) for key, record in reference.fold_by_key(log).items()}


def fold_dir(directory: Path) -> Fold:
    return fold(read_log(directory))


def digests(directory: Path) -> dict[str, str]:
    """Every file below it, with a digest of its bytes. The lock file is nobody's data, and Kafka deletes it."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != LOCK_FILE
    }
