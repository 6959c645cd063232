"""Java properties files, the syntax of a Kafka broker's configs."""

from __future__ import annotations

import re
from collections.abc import Iterable

from sexton.settings.schema import BadSettingError

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> dict[str, str]:
    """Java's properties syntax: comments with # or !, names ended by =, : or a blank, lines continued by a backslash,
    \\u escapes. The last of several values for a name counts."""
    settings: dict[str, str] = {}
    for line in _logical_lines(text):
        name_end = _end_of_name(line)
        rest = line[name_end:].lstrip(" \t\f")
        if rest[:1] in ("=", ":"):
            rest = rest[1:].lstrip(" \t\f")
        settings[_unescape(line[:name_end])] = _unescape(rest)
    return settings


def parse_settings(texts: Iterable[str]) -> dict[str, str]:
    """Settings as a command is given them, NAME=VALUE each. The last of several values for a name counts."""
    settings: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise BadSettingError(f"{text!r} is not NAME=VALUE", "", "Write it as in segment.bytes=100000")
        settings[name.strip()] = value.strip()
    return settings


def _logical_lines(text: str) -> list[str]:
    lines: list[str] = []
    continued = None
    for raw in re.split(r"\r\n|\n|\r", text):
        line = raw.lstrip(" \t\f")
        if continued is None and (not line or line[0] in "#!"):
            continue
        whole = line if continued is None else continued + line
        trailing = len(whole) - len(whole.rstrip("\\"))
        if trailing % 2:
            continued = whole[:-1]
        else:
            lines.append(whole)
            continued = None
    return lines if continued is None else [*lines, continued]


def _end_of_name(line: str) -> int:
    position = 0
    while position < len(line) and line[position] not in "=: \t\f":
        position += 2 if line[position] == "\\" else 1
    return min(position, len(line))


def _unescape(text: str) -> str:
    def plain(match: re.Match[str]) -> str:
        escaped = match[1]
        return chr(int(escaped[1:], 16)) if len(escaped) == 5 else _ESCAPES.get(escaped, escaped)

    return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", plain, text, flags=re.DOTALL)
