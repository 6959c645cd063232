"""A Spark standalone cluster on this machine's loopback: one master, two workers of one core."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyspark

from sexton.harness import class_archives

HOST: Final = "127.0.0.1"
START_TIMEOUT_S: Final = 60
"""A master or worker is up in two seconds on a quiet machine."""

STOP_TIMEOUT_S: Final = 20
MASTER_UP: Final = re.compile(r"Starting Spark master at (spark://127\.0\.0\.1:\d+)")
REGISTERED: Final = re.compile(r"Successfully registered with master")
LAUNCHED: Final = re.compile(r"Asked to launch executor")

SPARK_HOME: Final = Path(pyspark.__file__).parent
QUICK_START: Final = " ".join(
    ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *class_archives.options("spark", SPARK_HOME / "jars"))
)
"""For JVMs that live for seconds."""

ENVIRONMENT: Final = {
    **os.environ,
    "SPARK_HOME": str(SPARK_HOME),
    "SPARK_LOCAL_IP": HOST,
    "SPARK_DAEMON_MEMORY": "256m",
    "SPARK_DAEMON_JAVA_OPTS": QUICK_START,
    "PYSPARK_SUBMIT_ARGS": (
        f"--driver-java-options '{QUICK_START}' --conf 'spark.executor.extraJavaOptions={QUICK_START}' pyspark-shell"
    ),
}


@contextmanager
def standalone_cluster(directory: Path) -> Iterator[tuple[str, list[Path]]]:
    """The master's address and the workers' logs, while it runs."""
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        master_log = directory / "master.log"
        address = ("--host", HOST, "--port", "0", "--webui-port", "0")
        daemons.append(spawn(["org.apache.spark.deploy.master.Master", *address], master_log))
        master = wait_for(MASTER_UP, master_log, daemons)[1]
        worker_logs = [directory / f"worker-{number}.log" for number in range(2)]
        for log in worker_logs:
            work_dir = directory / f"{log.stem}-work"
            size = ("--cores", "1", "--memory", "1g", "--work-dir", str(work_dir))
            daemons.append(spawn(["org.apache.spark.deploy.worker.Worker", *address, *size, master], log))
        for log in worker_logs:
            wait_for(REGISTERED, log, daemons)
        yield master, worker_logs
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in daemons:
            try:
                daemon.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait(STOP_TIMEOUT_S)


def spawn(arguments: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """A Spark daemon in the foreground: the script replaces itself by the JVM, so the process is the daemon."""
    spark_class = Path(ENVIRONMENT["SPARK_HOME"]) / "bin" / "spark-class"
    with log.open("wb") as output:
        return subprocess.Popen(
            [str(spark_class), *arguments],
            env=ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def wait_for(pattern: re.Pattern[str], log: Path, daemons: Sequence[subprocess.Popen[bytes]]) -> re.Match[str]:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while True:
        text = log.read_text(errors="replace")
        found = pattern.search(text)
        if found:
            return found
        assert all(daemon.poll() is None for daemon in daemons), f"a Spark daemon ended:\n{text}"
        assert time.monotonic() < deadline_s, f"waited {START_TIMEOUT_S} s for {pattern.pattern!r} in:\n{text}"
        time.sleep(0.1)
