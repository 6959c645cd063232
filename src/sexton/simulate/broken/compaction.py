"""Defects that Sexton once had, put back: watermarks and the logs that they are about."""

from __future__ import annotations

from sexton.simulate.broken.switch import Break

COMPACTION: dict[str, Break] = {}
