"""What brokers and controllers logged while something went wrong: Sexton's `broker.log` and Kafka's `server.log`.

They tell the time by clocks of their own; a fault may have set these. A line without a time (of a traceback) belongs to
the one before it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from operator import itemgetter
from pathlib import Path
from typing import Final

LOGS: Final = ("broker.log", "server.log")
DIRECTORIES: Final = ("node-*", "controller-*")
"""Controllers of Kafka's that are not in its brokers say more than these when one is elected."""
TAIL_BYTES: Final = 32 << 20
"""Most bytes that are shown of each broker's log: of a larger one, the end."""
AROUND_MS: Final = 500
LINES_MAX: Final = 40
"""Of a case: those that warn or name its topic before others, and then the last."""
LINE_CHARS_MAX: Final = 400
_TIME_CHARS: Final = len("2026-11-19T01:52:51.861Z")
_time_of: Final = itemgetter(0)
_WARNS: Final = (" WARN", " ERROR", " CRITICAL", " FATAL")


@dataclass(frozen=True, slots=True)
class BrokerLogs:
    """`lines` are by time; `began_ms` is when the run's time was 0."""

    began_ms: int
    lines: Sequence[tuple[int, str]]

    @classmethod
    def of(cls, cluster: Path, began_ms: int) -> BrokerLogs:
        """None of a run that does not say when it began, or whose brokers are somebody else's."""
        found = (cluster.glob(f"{directory}/{name}") for name in LOGS for directory in DIRECTORIES)
        paths = [path for each in found for path in each] if began_ms else []
        return cls(began_ms, sorted((line for path in sorted(paths) for line in _lines(path)), key=_time_of))

    def html(self, start_ns: int, end_ns: int, topics: Sequence[str]) -> str:
        """Nothing if nothing was logged."""
        start_ms, end_ms = (self.began_ms + time_ns // 1_000_000 for time_ns in (start_ns, end_ns))
        first = bisect_left(self.lines, start_ms - AROUND_MS, key=_time_of)
        last = bisect_right(self.lines, end_ms + AROUND_MS, key=_time_of)
        found = [text for _, text in self.lines[first:last]]
        if not found:
            return ""
        shown = found
        if len(found) > LINES_MAX:
            telling = [text for text in found if any(word in text for word in (*_WARNS, *topics))]
            shown = (telling or found)[-LINES_MAX:]
        more = f", {len(shown)} of {len(found):,} lines" if len(shown) < len(found) else ""
        lines = "\n".join(escape(text[:LINE_CHARS_MAX]) for text in shown)
        return f"<details><summary>What brokers logged then{more}</summary><pre>{lines}</pre></details>"


NO_LOGS: Final = BrokerLogs(0, ())


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """With their times in milliseconds since 1970, and the broker's directory before each."""
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - TAIL_BYTES, 0))
        data = file.read()
    at_ms = 0
    for text in data.decode(errors="replace").splitlines():
        at_ms = _time_ms(text) or at_ms
        if at_ms:
            yield at_ms, f"{path.parent.name}  {text}"


def _time_ms(text: str) -> int:
    """0 if the line begins with none."""
    try:
        told = text[:_TIME_CHARS].strip("[] ").replace(",", ".")
        return round(datetime.fromisoformat(told).timestamp() * 1_000)
    except (ValueError, OverflowError):
        return 0
