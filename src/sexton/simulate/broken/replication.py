"""Defects that Sexton once had, put back: how leaders, followers and in-sync sets work."""

from __future__ import annotations

from sexton.simulate.broken.switch import Break

REPLICATION: dict[str, Break] = {}
