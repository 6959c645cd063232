"""Defects that Sexton once had, put back: transactions."""

from __future__ import annotations

from sexton.simulate.broken.switch import Break

TRANSACTIONS: dict[str, Break] = {}
