"""What a broker does to a partition directory when it starts: a plain model, written from Kafka's LogLoader.

It shares no code with what it judges. It models the four passes over the file names, and of the fourth only
what decides whether a segment is taken as it is: whether its index files are there. Directory listings come
in any order, as they do in Java, so the model takes one from a seeded generator.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

NEVER = 2**63 - 1
INDEX_SUFFIXES = (".index", ".timeindex", ".txnindex")


@dataclass
class Loaded:
    """`rebuilt`: base offsets of segments whose indexes Kafka has to build again from the log. `phantoms`:
    index files that Kafka made up (preallocated zeros) because it opened a `.log.swap` that had none."""

    rebuilt: list[int] = field(default_factory=list)
    without_time_index: list[int] = field(default_factory=list)
    phantoms: list[str] = field(default_factory=list)


def load(directory: Path, rng: random.Random, before_change: Callable[[], None] = lambda: None) -> Loaded:
    loaded = Loaded()

    def delete(path: Path) -> None:
        before_change()
        path.unlink(missing_ok=True)

    swap = _first_pass(directory, rng, delete)
    low, high = NEVER, -NEVER
    for path in swap:
        if path.name.endswith(".log.swap"):
            index = path.with_name(path.name.replace(".log.swap", ".index.swap"))
            if not index.exists():
                loaded.phantoms.append(index.name)
                index.write_bytes(bytes(80))
            low = min(low, offset_of(path))
            high = max(high, next_offset(path))
    for path in listing(directory, rng):
        try:
            if not path.name.endswith(".swap") and low <= offset_of(path) < high:
                delete(path)
        except ValueError:
            continue
    for path in listing(directory, rng):
        if path.name.endswith(".swap"):
            before_change()
            path.rename(path.with_name(path.name.removesuffix(".swap")))
    _fourth_pass(directory, loaded, delete)
    return loaded


def _first_pass(directory: Path, rng: random.Random, delete: Callable[[Path], None]) -> list[Path]:
    swap, cleaned = [], []
    for path in listing(directory, rng):
        if path.name.endswith(".deleted") and not path.name.endswith(".checkpoint.deleted"):
            delete(path)
        elif path.name.endswith(".cleaned"):
            cleaned.append(path)
        elif path.name.endswith(".swap"):
            swap.append(path)
    lowest = min((offset_of(path) for path in cleaned), default=NEVER)
    for path in swap:
        if offset_of(path) >= lowest:
            delete(path)
    for path in cleaned:
        delete(path)
    return [path for path in swap if offset_of(path) < lowest]


def _fourth_pass(directory: Path, loaded: Loaded, delete: Callable[[Path], None]) -> None:
    bases = []
    for path in sorted(directory.iterdir()):
        if path.name.endswith(INDEX_SUFFIXES):
            if not path.with_suffix(".log").exists():
                delete(path)
        elif path.name.endswith(".log"):
            bases.append(offset_of(path))
            if not path.with_suffix(".timeindex").exists():
                loaded.without_time_index.append(offset_of(path))
            if not path.with_suffix(".index").exists():
                loaded.rebuilt.append(offset_of(path))
    stray = [path for path in sorted(directory.glob("*.snapshot")) if offset_of(path) not in bases]
    for path in stray:
        if path != stray[-1] or offset_of(path) < max(bases):
            delete(path)


def listing(directory: Path, rng: random.Random) -> list[Path]:
    paths = sorted(path for path in directory.iterdir() if path.is_file())
    rng.shuffle(paths)
    return paths


def offset_of(path: Path) -> int:
    return int(path.name[: path.name.index(".")])


def next_offset(log: Path) -> int:
    data, position, end = log.read_bytes(), 0, offset_of(log)
    while position < len(data):
        base, length = struct.unpack_from(">qi", data, position)
        end = base + struct.unpack_from(">i", data, position + 23)[0] + 1
        position += 12 + length
    return end
