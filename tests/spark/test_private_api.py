"""What we use of PySpark that it does not document. A version that changes it fails here, with what that breaks."""

from __future__ import annotations

import inspect

import pyspark.daemon
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, BinaryType, LongType, StructType, TimestampType

pytestmark = pytest.mark.spark


def test_a_context_knows_whether_one_is_active_and_its_gateway(spark: SparkSession) -> None:
    """compactor/spark_engine.py: without these a compactor stops a session that is not its own, or cannot start another
    one after its JVM died."""
    assert SparkContext._active_spark_context is spark.sparkContext
    assert SparkContext._gateway is not None
    assert callable(SparkContext._gateway.shutdown)
    assert SparkContext._gateway.proc.stdin is not None
    assert SparkContext._jvm is not None


def test_a_context_knows_whether_it_has_stopped(spark: SparkSession) -> None:
    """compactor/spark_engine.py: without it a dead JVM is asked again and again."""
    assert spark.sparkContext._jsc.sc().isStopped() is False


def test_a_schema_of_spark_has_one_of_arrow() -> None:
    """spark/datasource.py: without it the source's batches have other types than Spark expects."""
    header = StructType().add("value", BinaryType())
    schema = StructType().add("offset", LongType()).add("time", TimestampType()).add("headers", ArrayType(header))
    found = to_arrow_schema(schema, timezone="UTC")
    assert [str(field.type) for field in found][:2] == ["int64", "timestamp[us, tz=UTC]"]
    assert found.names == ["offset", "time", "headers"]


def test_the_daemon_of_workers_can_be_wrapped() -> None:
    """spark/daemon.py: it loads and freezes our kernels, then goes on as Spark's own, which must still import its
    worker's module as it forks and print what a worker raised through `traceback`."""
    assert not inspect.signature(pyspark.daemon.manager).parameters
    assert hasattr(pyspark.daemon, "traceback")
