"""Settings of brokers and topics, and the files that hold them: Kafka's and Sexton's look the same."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

Settings = Mapping[str, str | int | float | bool]


def text_of(value: str | int | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def write_properties(path: Path, settings: Settings) -> Path:
    path.write_text("".join(f"{key}={text_of(value)}\n" for key, value in settings.items()))
    return path


def tail_of(path: Path, lines_count: int) -> str:
    """How a log ends, under its name, for errors."""
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    return "\n".join([f"--- the end of {path}", *lines[-lines_count:]])
