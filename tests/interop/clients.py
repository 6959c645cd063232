"""The clients under test: which version runs in which environment, and what it cannot do by itself.

Each client and version gets one process for the whole run (`Worker`), in a virtual environment of its own unless it is
the version that the project's own environment holds.
"""

from __future__ import annotations

import hashlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Final

from sexton.harness.errors import HarnessError
from sexton.harness.jars import VERSIONS, classpath, fetched_jars
from tests.interop.scenarios.run import load
from tests.project import PROJECT_DIR, PYTHON_PATH

SCENARIO_TIMEOUT_S: Final = 180
"""Longer than any wait inside a scenario (`common.WAIT_S`), so that a scenario says itself what it waited for."""

ENVIRONMENTS_DIR: Final = PROJECT_DIR / "build" / "clients"
OLDER_POM: Final = Path(__file__).with_name("java") / "pom.xml"
STAMP_NAME: Final = "installed"
TAIL_LINES: Final = 30


@dataclass(frozen=True, eq=False)
class Client:
    """One client in one version. `cannot` are features that this version itself does not have, with the reason."""

    name: str
    version: str
    module: str
    """Of its scenarios, in tests/interop/scenarios."""
    requirements: tuple[str, ...] = ()
    """What to install into an environment of its own; nothing: the project's environment."""
    cannot: Mapping[str, str] = field(default_factory=dict)
    kafka_jars: str = ""
    """The version of Kafka's jars that the process is given, for the Java client."""
    broker_before_4: bool = False
    """Whether Apache Kafka 4 no longer speaks with it (KIP-896); Sexton does."""

    marks: tuple[str, ...] = ()
    """pytest's, beside "cluster"."""

    @property
    def label(self) -> str:
        return f"{self.name} {self.version}"

    @property
    def features(self) -> list[str]:
        with warnings.catch_warnings():  # what clients do when they are imported is not ours to mend
            warnings.simplefilter("ignore", DeprecationWarning)
            return [feature for feature in load(self.module).by_feature if feature not in self.cannot]

    def python(self) -> str:
        return str(environment(self.requirements) / "bin" / "python") if self.requirements else sys.executable


CODEC_LIBRARIES: Final = ("cramjam", "lz4", "python-snappy", "zstandard")

CLIENTS: Final = (
    Client("confluent-kafka", installed_version("confluent-kafka"), "confluent"),
    Client(
        "confluent-kafka",
        "2.0.2",
        "confluent",
        ("confluent-kafka==2.0.2",),
        {"kip848": "since 2.4", "server_pattern": "since 2.10", "delete_records": "since 2.5"},
    ),
    Client(
        "kafka-python",
        installed_version("kafka-python"),
        "kafka_python",
        (f"kafka-python=={installed_version('kafka-python')}", *CODEC_LIBRARIES),
    ),
    Client(
        "kafka-python",
        "2.0.2",
        "kafka_python",
        ("kafka-python==2.0.2", *CODEC_LIBRARIES, "six"),
        {
            "idempotent": "since 2.1",
            "static": "since 2.1",
            "cooperative": "since 3.0",
            "delete_records": "since 2.1",
        },
    ),
    Client(
        "aiokafka",
        installed_version("aiokafka"),
        "aio",
        (f"aiokafka=={installed_version('aiokafka')}", *CODEC_LIBRARIES),
    ),
    Client(
        "aiokafka",
        "0.8.1",
        "aio",
        ("aiokafka==0.8.1", "kafka-python==2.0.2", *CODEC_LIBRARIES),
        {"delete_records": "since 0.10", "static": "since 0.9"},
    ),
    Client("kcat", "1.7.1", "kcat"),
    Client("Java client", "4.3.0", "java", kafka_jars="4.3.0"),
    Client("Java client", "3.9.2", "java", kafka_jars="3.9.2", cannot={"server_pattern": "since 4.0"}),
    Client(
        "Java client",
        "2.8.2",
        "java",
        kafka_jars="2.8.2",
        cannot={"kip848": "since 3.7", "server_pattern": "since 4.0"},
    ),
    Client(
        "Java client",
        "1.0.2",
        "java",
        kafka_jars="1.0.2",
        cannot={
            "kip848": "since 3.7",
            "server_pattern": "since 4.0",
            "cooperative": "since 2.4",
            "static": "since 2.3",
            "groups": "since 2.0",
            "group_offsets": "since 2.5",
            "delete_records": "since 1.1",
            "configs": "asks for version 0 of DescribeConfigs, which Kafka 4 has dropped too (KIP-896)",
        },
        broker_before_4=True,
    ),
    Client("Spark", installed_version("pyspark"), "spark", kafka_jars="spark-4.2.0", marks=("spark",)),
    Client("Spark", "3.5.7", "spark", ("pyspark==3.5.7", "setuptools"), kafka_jars="spark-3.5.7", marks=("spark",)),
    Client("Java tools", "4.3.0", "java_tools", kafka_jars="4.3.0"),
    Client(
        "Java tools",
        "2.8.2",
        "java_tools",
        kafka_jars="2.8.2",
        cannot={"tool_resources": "since 3.7", "tool_features": "since 3.3"},
    ),
)


class Worker:
    """A client's process. A scenario that takes too long ends it; the next one gets a new one."""

    def __init__(self, client: Client, log_path: Path) -> None:
        self.client = client
        self.log_path = log_path
        self._process: subprocess.Popen[str] | None = None

    def run(self, feature: str, cluster: Mapping[str, object]) -> None:
        """Raises AssertionError with the scenario's traceback, or with where it hung. `cluster` are the fields of
        `common.Cluster`."""
        process = self._running()
        log_start = self.log_path.stat().st_size
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"feature": feature, "cluster": cluster}) + "\n")
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], SCENARIO_TIMEOUT_S)
        line = process.stdout.readline() if ready else ""
        if not line:
            how = "did not end in time" if not ready else "ended the process"
            self._abort()
            raise AssertionError(f"{self.client.label}, {feature}: {how}\n{self._log_end(log_start)}")
        failure = json.loads(line)["failure"]
        if failure:
            raise AssertionError(f"{self.client.label}, {feature}:\n{failure}\n{self._log_end(log_start)}")

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _running(self) -> subprocess.Popen[str]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        environment = {**os.environ, "PYTHONPATH": PYTHON_PATH}
        if self.client.kafka_jars:
            environment["SEXTON_CLIENT_CLASSPATH"] = client_classpath(self.client.kafka_jars)
        command = [self.client.python(), "-m", "tests.interop.scenarios.run", self.client.module]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=PROJECT_DIR,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        return self._process

    def _abort(self) -> None:
        """SIGABRT makes Python say where each thread was."""
        if self._process is not None:
            self._process.send_signal(signal.SIGABRT)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self.close()

    def _log_end(self, start: int) -> str:
        with self.log_path.open("rb") as log:
            log.seek(start)
            lines = log.read().decode(errors="replace").splitlines()
        return "\n".join(["--- what the client printed", *lines[-TAIL_LINES:]])


def client_classpath(version: str) -> str:
    """Kafka's jars of that version, be it one of those that brokers are started from or an older one."""
    return classpath(version) if version in VERSIONS else str(fetched_jars(OLDER_POM, version) / "*")


_MAKING: Final = threading.Lock()
"""Several clients are started at a time, and two versions of one may need the same environment."""


def environment(requirements: tuple[str, ...]) -> Path:
    """A virtual environment with exactly these, made once and kept below build/."""
    with _MAKING:
        return _environment(requirements)


def _environment(requirements: tuple[str, ...]) -> Path:
    wanted = "\n".join([sys.version, *requirements])
    name = requirements[0].replace("==", "-")
    target = ENVIRONMENTS_DIR / f"{name}-{hashlib.sha256(wanted.encode()).hexdigest()[:8]}"
    if (target / STAMP_NAME).exists():
        return target
    shutil.rmtree(target, ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run([sys.executable, "-m", "venv", str(target)], check=True)
    done = subprocess.run(
        [
            str(target / "bin" / "python"),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            *requirements,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise HarnessError(
            f"{' '.join(requirements)} could not be installed for Python {sys.version.split()[0]}. Old clients have "
            f"wheels for old Pythons only; the tests run with 3.11 (PYTHON=python3.11 scripts/setup test).\n"
            f"{done.stdout}"
        )
    (target / STAMP_NAME).write_text(wanted)
    return target
