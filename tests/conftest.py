"""What all tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from sexton.pipelines import session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One small local Spark for the whole run: starting it takes longer than most jobs."""
    running = session.start("sexton tests", "local[2]")
    yield running
    running.stop()
