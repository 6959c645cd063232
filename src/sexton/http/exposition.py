"""Metrics as Prometheus reads them. Our own writer, because a scrape must not hold a broker's event loop: decision 26
has the figures.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

CONTENT_TYPE: Final = "text/plain; version=0.0.4"

Labels = Mapping[str, object]


class Exposition:
    """Families one after another: a help line, a type line, samples."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def family(self, name: str, kind: str, doc: str, samples: Iterable[tuple[Labels, float]]) -> None:
        lines = [f"{name}{_labels(labels)} {_number(value)}" for labels, value in samples]
        if lines:
            self._lines += [f"# HELP {name} {doc}", f"# TYPE {name} {kind}", *lines]

    def gauge(self, name: str, doc: str, value: float, labels: Labels | None = None) -> None:
        self.family(name, "gauge", doc, [(labels or {}, value)])

    def counter(self, name: str, doc: str, value: float) -> None:
        self.family(name, "counter", doc, [({}, value)])

    def histogram(
        self, name: str, doc: str, bounds: Sequence[float], samples: Iterable[tuple[Labels, Sequence[int], float]]
    ) -> None:
        """Of each sample: how many values were up to each bound and above the one before it, then above the last; and
        their sum."""
        lines = []
        for labels, counts, total in samples:
            below = 0
            for bound, count in zip((*bounds, "+Inf"), counts, strict=True):
                below += count
                lines.append(f"{name}_bucket{_labels({**labels, 'le': bound})} {below}")
            lines.append(f"{name}_sum{_labels(labels)} {_number(total)}")
            lines.append(f"{name}_count{_labels(labels)} {below}")
        if lines:
            self._lines += [f"# HELP {name} {doc}", f"# TYPE {name} histogram", *lines]

    def encode(self) -> bytes:
        return ("\n".join(self._lines) + "\n").encode()


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(str(value))}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))
