"""The frame of every page that Sexton writes: one file that needs no other, in the reader's light or dark theme."""

from __future__ import annotations

from html import escape
from importlib.resources import files


def document(title: str, body: str, style: str = "") -> str:
    """`style` is what this page has beyond `report.css`."""
    common = (files("sexton.reproduce") / "report.css").read_text(encoding="utf-8")
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>{common}{style}</style></head><body><main>
{body}
</main></body></html>
"""
