"""What a cluster looked like from outside, once a second: `samples.parquet`, for people who ask what brokers were at
when something went wrong. No judge reads it.

Three kinds of rows in one table: of a broker that this machine runs (memory, processor, disk), of a log (what brokers
say of it), and of a broker's replica of a compacted log, on Sexton (how far what is obsolete may be removed). What does
not apply is null.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from sexton.harness.cluster import Cluster
from sexton.harness.errors import HarnessError
from sexton.verify.probes import Seen

NAME: Final = "samples.parquet"

SCHEMA: Final = pa.schema(
    [
        ("time_ns", pa.int64()),
        ("broker", pa.int32()),
        ("resident_bytes", pa.int64()),
        ("cpu_ms", pa.int64()),
        ("disk_bytes", pa.int64()),
        ("log", pa.int32()),
        ("high_watermark", pa.int64()),
        ("last_stable_offset", pa.int64()),
        ("log_start", pa.int64()),
        ("leader", pa.int32()),
        ("leader_epoch", pa.int32()),
        ("isr", pa.list_(pa.int32())),
        ("mtro", pa.int64()),
        ("mxro", pa.int64()),
    ]
)

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_TICK_MS: Final = 1_000 // os.sysconf("SC_CLK_TCK")
_BEHIND_NAME: Final = ")"
"""In /proc/PID/stat: the name of a program may contain anything, this included."""
_USER_AT, _SYSTEM_AT = 11, 12


@dataclass(frozen=True, slots=True)
class Sample:
    """One row; the names are those of its columns."""

    time_ns: int
    broker: int | None = None
    resident_bytes: int | None = None
    cpu_ms: int | None = None
    """Since its process was started."""
    disk_bytes: int | None = None
    log: int | None = None
    high_watermark: int | None = None
    last_stable_offset: int | None = None
    log_start: int | None = None
    leader: int | None = None
    leader_epoch: int | None = None
    isr: tuple[int, ...] | None = None
    mtro: int | None = None
    """Max tombstone removable offset: below it tombstones may go."""
    mxro: int | None = None
    """The same of transactions' markers."""


def of_brokers(cluster: Cluster[Any], time_ns: int) -> Iterator[Sample]:
    """Those that run; one that is killed meanwhile is left out."""
    for node_id in cluster.node_ids:
        try:
            resident_bytes, cpu_ms = _of_process(cluster.pid(node_id))
            disk_bytes = _bytes_below(cluster.log_dir(node_id))
        except (HarnessError, OSError):
            continue
        yield Sample(
            time_ns=time_ns, broker=node_id, resident_bytes=resident_bytes, cpu_ms=cpu_ms, disk_bytes=disk_bytes
        )


def _of_process(pid: int) -> tuple[int, int]:
    """Resident bytes, and milliseconds of processor time."""
    resident_pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(_BEHIND_NAME)[2].split()
    return resident_pages * _PAGE_BYTES, (int(fields[_USER_AT]) + int(fields[_SYSTEM_AT])) * _TICK_MS


def _bytes_below(directory: Path) -> int:
    """As much as the disk gives for it: index files are large, and mostly holes."""
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.stat(os.path.join(folder, name), follow_symlinks=False).st_blocks * 512
            except OSError:  # it was removed meanwhile
                continue
    return total


def of_logs(seen: Mapping[int, Seen], time_ns: int) -> Iterator[Sample]:
    for log, each in sorted(seen.items()):
        yield Sample(time_ns=time_ns, log=log, **each._asdict())


def write(directory: Path, samples: Iterable[Sample]) -> None:
    rows = list(samples)
    columns = {name: pa.array([getattr(row, name) for row in rows], SCHEMA.field(name).type) for name in SCHEMA.names}
    pq.write_table(pa.table(columns, SCHEMA), directory / NAME, compression="zstd")


def read(path: Path) -> list[Sample]:
    rows = pq.read_table(path, schema=SCHEMA).to_pylist()
    return [Sample(**{**row, "isr": None if row["isr"] is None else tuple(row["isr"])}) for row in rows]
