"""Programs of a framework, each in a process with a JVM of its own, and brokers that are killed while they work."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from sexton.harness.properties import Settings
from tests.interop.conftest import ClusterUnderTest, against
from tests.project import PROJECT_DIR

WAIT_S: Final = 120
TAIL_LINES: Final = 60


def fault_settings(config: pytest.Config) -> Settings:
    """Of brokers whose work others should take over soon."""
    common: Settings = {"transaction.state.log.num.partitions": 6, "offsets.topic.num.partitions": 6}
    if against(config).startswith("kafka"):
        return {**common, "broker.session.timeout.ms": 3_000, "broker.heartbeat.interval.ms": 600}
    return {**common, "broker.lease.ms": 3_000, "broker.lease.renew.ms": 600}


def wait_until(reached: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not reached():
        assert time.monotonic() < deadline_s, f"not within {WAIT_S} s: {what}"
        time.sleep(0.05)


class Program:
    """One of this folder's programs, at work."""

    def __init__(self, module: str, task: Mapping[str, Any], log_path: Path) -> None:
        self._log_path = log_path
        command = [sys.executable, "-m", f"tests.interop.frameworks.{module}", json.dumps(task)]
        with log_path.open("wb") as log:
            self._process = subprocess.Popen(
                command, cwd=PROJECT_DIR, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )

    def has_said(self, what: str) -> bool:
        """Whether it has said so. If it has ended without a word about it, the test has failed."""
        has_ended = self._process.poll() is not None
        said = re.search(rf"^{what}$", self.printed, re.MULTILINE) is not None
        assert said or not has_ended, f"it ended ({self._process.returncode}):\n{self.tail}"
        return said

    @property
    def printed(self) -> str:
        return self._log_path.read_text(errors="replace")

    @property
    def tail(self) -> str:
        return "\n".join(self.printed.splitlines()[-TAIL_LINES:])

    def kill(self) -> None:
        """The JVM first: it must not hear of an end and leave in good order."""
        if (started := re.search(r"^pid (\d+)$", self.printed, re.MULTILINE)) is not None:
            with suppress(ProcessLookupError):  # it has finished
                os.kill(int(started[1]), signal.SIGKILL)
        self._process.kill()
        self._process.wait()


def kill_and_start(cluster: ClusterUnderTest, node_id: int, topics: Sequence[str], goes_on: Callable[[], bool]) -> None:
    """It is away until work goes on without it; then all replicas are in sync again."""
    assert cluster.running is not None
    cluster.running.kill_node(node_id)
    wait_until(goes_on, f"work goes on without broker {node_id}")
    cluster.running.start_node(node_id)
    wait_until(lambda: is_healed(cluster, topics), f"all is in sync after broker {node_id} has come back")


def is_healed(cluster: ClusterUnderTest, topics: Sequence[str]) -> bool:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    try:
        found = admin.list_topics(timeout=10).topics
    except KafkaException:
        return False
    return all(
        name in found and all(len(each.isrs) == cluster.brokers for each in found[name].partitions.values())
        for name in topics
    )
