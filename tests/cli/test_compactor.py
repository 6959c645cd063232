"""The command `sexton compactor`, as a process."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import uuid
from contextlib import closing
from pathlib import Path

import pytest

from sexton.adapters.metastore import open_metastore
from sexton.adapters.metastore.schema import SCHEMA_VERSION
from sexton.errors import UnsupportedFormatError
from sexton.harness.brokers import ENVIRONMENT


@pytest.mark.cluster
def test_a_metastore_of_a_newer_build_is_refused_with_a_code_of_its_own(tmp_path: Path) -> None:
    newer = SCHEMA_VERSION + 1
    path, log_path = tmp_path / "metastore.sqlite", tmp_path / "compactor.log"

    async def make() -> None:
        store = open_metastore(f"sqlite:///{path}")
        await store.open_cluster(uuid.uuid4())
        await store.close()

    asyncio.run(make())
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE sexton_cluster SET schema_version = ?", (newer,))
    command = [sys.executable, "-m", "sexton.cli.main", "compactor", "--metastore", f"sqlite:///{path}"]
    ended = subprocess.run(
        [*command, "--log-file", str(log_path)], env=dict(ENVIRONMENT), capture_output=True, timeout=60, check=False
    )
    assert ended.returncode == UnsupportedFormatError.exit_code == 76
    assert f"the metastore has schema {newer}" in log_path.read_text()
