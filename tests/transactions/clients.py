"""The clients that know transactions, each in a process of its own, as tests/interop runs them."""

from __future__ import annotations

import os
import pickle
import select
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast

from sexton.harness.properties import tail_of
from sexton.verify.clients.base import (
    CALL_TIMEOUT_S,
    Consumer,
    Failure,
    Frozen,
    Producer,
    Reference,
    Session,
    Settings,
)
from sexton.verify.clients.serve import MODULE
from tests.interop.clients import CLIENTS as ALL_CLIENTS
from tests.interop.clients import Client, client_classpath
from tests.interop.golang import MODULE_FILES, franz_go_client
from tests.project import PROJECT_DIR, PYTHON_PATH

ANSWER_TIMEOUT_S: Final = CALL_TIMEOUT_S + 40
"""Longer than any client is allowed to try, so that it says itself what it waited for."""

TAIL_LINES: Final = 100
"""kafka-python says thirty lines of a consumer that joins a group."""

FRANZ_GO: Final = "franz-go"
DRIVERS: Final = {
    "confluent-kafka": "confluent",
    "kafka-python": "kafka_python",
    "aiokafka": "aio",
    "Java client": "java",
    FRANZ_GO: "franz",
}
WITHOUT_TRANSACTIONS: Final = ("kafka-python 2.0.2",)

TOLD_OFFSETS: Final = tuple(
    client for client in ALL_CLIENTS if client.name in DRIVERS and client.label not in WITHOUT_TRANSACTIONS
)
"""Their producers can be told the offsets of any consumer. franz-go has sessions instead, which are both."""

SESSIONS: Final = tuple(Client(FRANZ_GO, version, "") for version in MODULE_FILES)

CLIENTS: Final = TOLD_OFFSETS + SESSIONS


def client_named(label: str) -> Client:
    return next(client for client in CLIENTS if client.label == label)


def newest(name: str) -> Client:
    """The version that the project's own environment holds."""
    return next(client for client in CLIENTS if client.name == name)


NEW_EPOCHS: Final = (client_named("Java client 4.3.0"), newest(FRANZ_GO))
"""They speak transaction version 2: a new epoch with every transaction."""

NEWEST: Final = tuple(newest(name) for name in DRIVERS if name != FRANZ_GO)
"""One of each kind that can be told offsets, where a client's age changes nothing."""


IMPATIENT: Final[dict[str, Settings]] = {
    "confluent-kafka": {"socket.timeout.ms": 1_500},
    "kafka-python": {"request_timeout_ms": 1_000, "delivery_timeout_ms": 4_000},
    "aiokafka": {"request_timeout_ms": 1_500},
    "Java client": {"request.timeout.ms": 1_500, "delivery.timeout.ms": 30_000},
    FRANZ_GO: {"overhead_ms": 1_500},
}
"""How long each waits for an answer before it gives up on the connection."""


def process_environment(client: Client) -> dict[str, str]:
    """What the driver of a client finds its client by."""
    found = {**os.environ, "PYTHONPATH": PYTHON_PATH}
    if client.kafka_jars:
        found["SEXTON_CLIENT_CLASSPATH"] = client_classpath(client.kafka_jars)
    if client.name == FRANZ_GO:
        found["SEXTON_CLIENT_PROGRAM"] = str(franz_go_client(client.version))
    return found


class Remote:
    """An object in a client's process: its methods are called there."""

    def __init__(self, process: ClientProcess, reference: Reference) -> None:
        self._process = process
        self.reference = reference

    def __getattr__(self, method: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            return self._process.call(self.reference, method, *arguments)

        return call


class ClientProcess:
    """One client's process. A call that takes too long ends it."""

    def __init__(self, client: Client, log_path: Path) -> None:
        self.client = client
        self.log_path = log_path
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [client.python(), "-m", "sexton.verify.clients.serve", f"sexton.verify.clients.{DRIVERS[client.name]}"],
                cwd=PROJECT_DIR,
                env=process_environment(client),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )

    def producer(
        self, bootstrap: str, transactional_id: str, timeout_ms: int = 60_000, settings: Settings | None = None
    ) -> Producer:
        return cast(Producer, self._make("Producer", bootstrap, transactional_id, timeout_ms, settings or {}))

    def consumer(
        self, bootstrap: str, isolation: str, group: str | None = None, settings: Settings | None = None
    ) -> Consumer:
        return cast(Consumer, self._make("Consumer", bootstrap, isolation, group, settings or {}))

    def session(self, bootstrap: str, transactional_id: str, group: str) -> Session:
        return cast(Session, self._make("Session", bootstrap, transactional_id, group))

    def frozen(self, consumer: Consumer) -> Frozen:
        return cast(Frozen, self._make("Frozen", consumer))

    def _make(self, kind: str, *arguments: Any) -> Remote:
        return Remote(self, self.call(Reference(MODULE), kind, *arguments))

    def call(self, target: Reference, method: str, *arguments: Any) -> Any:
        """Raises the Failure that the driver raised."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        resolved = [each.reference if isinstance(each, Remote) else each for each in arguments]
        try:
            pickle.dump((int(target), method, resolved), self._process.stdin)
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._complaint(method, "has ended") from None
        ready, _, _ = select.select([self._process.stdout], [], [], ANSWER_TIMEOUT_S)
        if not ready:
            self.end(signal.SIGABRT)  # Python says where each thread was
            raise self._complaint(method, "did not answer in time")
        try:
            result, failure = pickle.load(self._process.stdout)
        except EOFError:
            raise self._complaint(method, "ended the process") from None
        if failure is not None:
            if failure.name == "unexpected":
                raise AssertionError(f"{self.client.label}, {method}: {failure.message}")
            raise cast(Failure, failure)
        return result

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def end(self, how: signal.Signals = signal.SIGKILL) -> None:
        """As a crash does: nothing is flushed, nobody is told."""
        self._process.send_signal(how)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def describe_end(self) -> str:
        """How its log ends, for errors."""
        return tail_of(self.log_path, TAIL_LINES)

    def _complaint(self, method: str, what: str) -> AssertionError:
        return AssertionError(f"{self.client.label}, {method}: {what}.\n{self.describe_end()}")
