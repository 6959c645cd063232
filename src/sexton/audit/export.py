"""Every differing key that was looked at, as a Parquet file: for the list of what to look at downstream."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from sexton.audit.classes import Class
from sexton.audit.judge import Case, PartitionReport
from sexton.audit.keys import Sight
from sexton.audit.report import Report
from sexton.errors import EnvironmentFailure

KEYS_MAX: Final = 1_000_000
"""Of a partition: their records are looked up one by one."""

_SHOWN: Final = pa.struct(
    [("broker", pa.int32()), ("offset", pa.int64()), ("timestamp_ms", pa.int64()), ("value", pa.binary())]
)
_FIELDS: Final[list[tuple[str, pa.DataType]]] = [
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("key_hash", pa.string()),
    ("key", pa.binary()),
    ("class", pa.int8()),
    ("label", pa.string()),
    ("sure", pa.bool_()),
    ("or", pa.list_(pa.string())),
    ("wrong", pa.list_(pa.int32())),
    ("right", pa.list_(pa.int32())),
    ("shown", pa.list_(_SHOWN)),
    ("because", pa.string()),
]
SCHEMA: Final = pa.schema(_FIELDS)


def write(report: Report, path: Path, *, shows_values: bool) -> None:
    """Keys and values are null unless they were asked for."""
    rows = list(_rows(report, shows_values))
    try:
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), path)
    except OSError as error:
        raise EnvironmentFailure(f"cannot be written ({error})", str(path), "Name another file") from error


def _rows(report: Report, shows_values: bool) -> Iterator[dict[str, Any]]:
    for each in report.partitions:
        for case in each.cases:
            yield _row(each, case, shows_values)


def _row(each: PartitionReport, case: Case, shows_values: bool) -> dict[str, Any]:
    explained = case.explained
    topic, partition = each.topic_partition
    broker = {number: standing.replica.id.broker for number, standing in each.standings.items()}
    return {
        "topic": topic,
        "partition": partition,
        "key_hash": case.key.name,
        "key": case.key.key if shows_values else None,
        "class": explained.is_class,
        "label": Class(explained.is_class).label,
        "sure": explained.is_sure,
        "or": [Class(other).label for other in explained.alternatives],
        "wrong": [broker[number] for number in explained.accused],
        "right": [broker[number] for number in explained.right],
        "shown": [
            _shown(broker[number], one.shown, shows_values)
            for number, one in case.key.replicas.items()
            if one.shown is not None
        ],
        "because": explained.because,
    }


def _shown(broker: int, sight: Sight, shows_values: bool) -> dict[str, Any]:
    return {
        "broker": broker,
        "offset": sight.offset,
        "timestamp_ms": sight.timestamp_ms if sight.was_looked_up else None,
        "value": sight.value if shows_values else None,
    }
