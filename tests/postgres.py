"""A real PostgreSQL for tests (`harness.postgres`). Where it is not installed, they are skipped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sexton.harness import postgres
from sexton.harness.errors import HarnessError
from sexton.harness.postgres import Postgres


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    try:
        Postgres.check()
    except HarnessError as error:
        pytest.skip(str(error))
    with postgres.running() as server:
        yield server
