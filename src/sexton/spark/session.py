"""A Spark session with the configs that these jobs need. On a cluster, spark-defaults.conf may override the rest."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from sexton.errors import EnvironmentFailure

LOGGING = Path(__file__).with_name("log4j2.properties")

SETTINGS = {
    # Arrays of hashes and offsets do not compress; trying costs more than writing them.
    "spark.shuffle.compress": "false",
    "spark.shuffle.spill.compress": "false",
    "spark.broadcast.compress": "false",
    # Workers keep their kernels and buffers between tasks, and are forked from a process that has them loaded.
    "spark.python.worker.reuse": "true",
    "spark.python.daemon.module": "sexton.spark.daemon",
    # Rows between the JVM and its Python workers are megabytes: avoids the TCP stack, and a collector that treats each
    # as a humongous object.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.driver.extraJavaOptions": f"-XX:+UseParallelGC -Dlog4j2.configurationFile={LOGGING.as_uri()}",
    "spark.executor.extraJavaOptions": "-XX:+UseParallelGC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "1g",
    "spark.driver.maxResultSize": "0",
    # A corrupt batch is a result, not a task failure; any other failure is worth one retry.
    "spark.task.maxFailures": "2",
}


def start(app_name: str, master: str = "local[*]", settings: Mapping[str, str] | None = None) -> SparkSession:
    """Returns the running session of this process, or a new one."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name).master(master)
    if master.startswith("local"):
        builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    for name, value in {**SETTINGS, **(settings or {})}.items():
        builder = builder.config(name, value)
    try:
        session = builder.getOrCreate()
    except Exception as error:
        raise EnvironmentFailure(
            f"Spark could not start ({str(error).splitlines()[0]})",
            master,
            "Java 17 or newer must be on the PATH (Debian: apt-get install openjdk-17-jre-headless), and a cluster's "
            "master must be reachable",
        ) from error
    return session
