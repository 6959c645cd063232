"""Defects that Sexton once had, put back: how followers take what their leaders send, and adopt what they compacted."""

from __future__ import annotations

from sexton.simulate.broken.switch import Break

FETCHING: dict[str, Break] = {}
