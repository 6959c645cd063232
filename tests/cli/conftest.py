"""Three real brokers for all tests of the commands, and a way to run those."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from typer.testing import CliRunner, Result

from sexton.cli.main import app
from sexton.harness.brokers import ENVIRONMENT, SextonCluster

TIMEOUT_S = 120


def eventually(condition: Callable[[], bool]) -> None:
    """Brokers learn of a change one after the other, within a fraction of a second."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline_s, "it never came true"
        time.sleep(0.05)


@pytest.fixture(scope="session")
def brokers() -> Iterator[SextonCluster]:
    with SextonCluster(nodes=3, settings={"default.replication.factor": 3, "num.partitions": 2}) as cluster:
        yield cluster


@dataclass(frozen=True, slots=True)
class Sexton:
    """The `sexton` command, told where the brokers are."""

    bootstrap: str

    def __call__(self, *arguments: object, expect: int = 0) -> Result:
        """In this process. Errors that commands expect come out as they are raised."""
        env = {"SEXTON_BOOTSTRAP": self.bootstrap, "COLUMNS": None}
        result = CliRunner().invoke(app, [str(each) for each in arguments], env=env, catch_exceptions=False)
        assert result.exit_code == expect, result.output
        return result

    def process(self, *arguments: object, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """In a process of its own, as people run it."""
        env = {**os.environ, **ENVIRONMENT, "SEXTON_BOOTSTRAP": self.bootstrap}
        env.pop("COLUMNS", None)
        command = [sys.executable, "-m", "sexton.cli.main", *map(str, arguments)]
        return subprocess.run(command, input=stdin, env=env, capture_output=True, timeout=TIMEOUT_S, check=False)

    def produce(self, topic: str, *lines: str, options: tuple[str, ...] = ()) -> None:
        done = self.process("produce", topic, *options, stdin="".join(f"{line}\n" for line in lines).encode())
        assert done.returncode == 0, done.stderr.decode()


@pytest.fixture
def sexton(brokers: SextonCluster) -> Sexton:
    return Sexton(brokers.bootstrap)


_tries = itertools.count(1)
"""A test that is tried again finds the topic of its first try."""


@pytest.fixture
def new_name(request: pytest.FixtureRequest) -> str:
    """A name for a topic, after the test."""
    return str(request.node.name)[:100].replace("[", "-").replace("]", "") + f"-{next(_tries)}"


@pytest.fixture
def topic(new_name: str, sexton: Sexton) -> str:
    """A topic of two partitions."""
    sexton("topic", "create", new_name)
    return new_name
