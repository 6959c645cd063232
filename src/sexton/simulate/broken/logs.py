"""Defects that Sexton once had, put back: one log on one disk."""

from __future__ import annotations

from sexton.simulate.broken.switch import Break

LOGS: dict[str, Break] = {}
