"""The keys that an audit is to look at alone: those of an earlier report, to see whether a repair has helped, or a list
that somebody wrote."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sexton.errors import NotALogError
from sexton.records.keyhash import HashKey, hash_key, random_hash_key


@dataclass(frozen=True, slots=True)
class Only:
    hash_key: HashKey
    firsts: frozenset[int]
    """The first halves of the keys' hashes."""
    partitions: frozenset[str] = frozenset()
    """Where they are; empty: anywhere."""


def read(path: Path) -> Only:
    """A report (`--json`), or a file with a key on each line: as text, or as 0x00ff."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise NotALogError(
            f"cannot be read ({error})", str(path), "Name a report, or a file with a key a line"
        ) from error
    if text.lstrip().startswith("{"):
        return _of_report(text, str(path))
    return of_keys(_key(line) for line in text.splitlines() if line)


def of_keys(keys: Iterable[bytes]) -> Only:
    points = random_hash_key()
    return Only(points, frozenset(hash_key(key, points)[0] for key in keys))


def _of_report(text: str, place: str) -> Only:
    try:
        report = json.loads(text)
        points = HashKey(*map(int, report["hash_key"]))
        found = [(each["partition"], str(name)) for each in report["partitions"] for name in each["key_hashes"]]
        return Only(
            points, frozenset(int(name[:16], 16) for _, name in found), frozenset(partition for partition, _ in found)
        )
    except (ValueError, KeyError, TypeError) as error:
        raise NotALogError(
            f"this is no report of sexton audit ({type(error).__name__}: {error})", place, "Make one with --json"
        ) from error


def _key(line: str) -> bytes:
    if line.startswith("0x"):
        try:
            return bytes.fromhex(line[2:])
        except ValueError:
            pass
    return line.encode()
