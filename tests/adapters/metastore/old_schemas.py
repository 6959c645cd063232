"""Databases as earlier builds made them: every schema that there has been, each with a row in every table."""

from __future__ import annotations

import sqlite3
import uuid
from pathlib import Path
from typing import Any, Final

import psycopg
from sqlalchemy.engine import make_url

FOLDER: Final = Path(__file__).parent / "schemas"
NAMES: Final = sorted(path.stem for path in FOLDER.glob("*.sql"))
CLUSTER: Final = uuid.UUID(hex="c1000000000000000000000000000000")
"""The cluster of all these databases."""


def statements(name: str, is_sqlite: bool) -> list[str]:
    text = (FOLDER / f"{name}.sql").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("--")]
    dialect = "\n".join(lines) if is_sqlite else "\n".join(lines).replace("CHAR(32)", "UUID")
    return [one for one in dialect.split(";\n") if one.strip()]


def run_all(url: str, commands: list[str]) -> list[Any]:
    """What the last command returned."""
    if url.startswith("sqlite"):
        database = sqlite3.connect(make_url(url).database or "", isolation_level=None)
        try:
            return [database.execute(one) for one in commands][-1].fetchall()
        finally:
            database.close()
    with psycopg.connect(url, autocommit=True) as server:
        last = [server.execute(one.encode()) for one in commands][-1]
        return last.fetchall() if last.description else []


def make(name: str, url: str) -> None:
    run_all(url, statements(name, url.startswith("sqlite")))
