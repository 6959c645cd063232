"""franz-go: each producer, consumer and session is a process of its own (go/main.go)."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from sexton.verify.clients.base import (
    ABORT,
    CALL_TIMEOUT_S,
    FATAL,
    FENCED,
    RETRY,
    Failure,
    Place,
    Record,
    Settings,
)

OVERHEAD_MS = 10_000
"""franz-go's own default."""

POLL_RECORDS_MAX = 500

FENCING = ("PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH")
ABORTING = (
    "OPERATION_NOT_ATTEMPTED",
    "TRANSACTION_ABORTABLE",
    "UNKNOWN_PRODUCER_ID",
    "UNKNOWN_SERVER_ERROR",
    "CONCURRENT_TRANSACTIONS",
    "",
)
"""As its documentation of EndTransaction has it: what leaves the producer usable once it is aborted. An error that did
not come from a broker (empty) means that the outcome is not known, and that an abort is the way to find out."""


def prepare() -> None:
    """Nothing is shared."""


class Program:
    """The process; asked one thing at a time."""

    def __init__(self, **asked: Any) -> None:
        wanted = {"call_timeout_ms": int(CALL_TIMEOUT_S * 1000), "overhead_ms": OVERHEAD_MS, **asked}
        wanted["max_poll_records"] = POLL_RECORDS_MAX
        self._process = subprocess.Popen(
            [os.environ["SEXTON_CLIENT_PROGRAM"], json.dumps(wanted)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lock = threading.Lock()

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Raises the Failure that an application would make of the error."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        if not line:
            raise Failure(FATAL, "gone", f"the client's process ended at {do}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise failure_of(do, answer.get("code", ""), answer["error"])
        return answer

    def end(self) -> None:
        try:
            self.ask("close")
        finally:
            self._process.kill()
            self._process.wait()


def failure_of(do: str, code: str, message: str) -> Failure:
    if do in ("send", "flush"):  # whatever befell a record, the end says whether the producer can go on
        todo = ABORT
    elif do == "init" and not code:
        todo = RETRY
    elif code in FENCING:
        todo = FENCED
    else:
        todo = ABORT if code in ABORTING and do != "begin" else FATAL
    return Failure(todo, code or "not a broker's", message)


def coded(values: Sequence[bytes]) -> list[str]:
    return [base64.b64encode(value).decode() for value in values]


def records_of(answer: dict[str, Any]) -> list[Record]:
    return [
        Record(each["topic"], each["partition"], each["offset"], base64.b64decode(each["value"] or ""))
        for each in answer["records"]
    ]


class Producer:
    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int, settings: Settings) -> None:
        self._program = Program(
            kind="producer", bootstrap=bootstrap, id=transactional_id, timeout_ms=timeout_ms, **settings
        )

    def init(self) -> None:
        self._program.ask("init")

    def begin(self) -> None:
        self._program.ask("begin")

    def send(self, topic: str, partition: int, values: Sequence[bytes]) -> None:
        self._program.ask("send", topic=topic, partition=partition, values=coded(values))

    def flush(self) -> list[int]:
        return [int(offset) for offset in self._program.ask("flush")["offsets"] or ()]

    def commit(self) -> None:
        self._program.ask("end", commit=True)

    def abort(self) -> None:
        self._program.ask("end", commit=False)

    def close(self) -> None:
        self._program.end()


class Reader:
    """What consumers and sessions have in common."""

    _program: Program

    def subscribe(self, topics: Sequence[str]) -> None:
        self._program.ask("subscribe", topics=list(topics))

    def poll(self, timeout_s: float) -> list[Record]:
        return records_of(self._program.ask("poll", timeout_ms=int(timeout_s * 1000)))

    def close(self) -> None:
        self._program.end()


class Consumer(Reader):
    def __init__(self, bootstrap: str, isolation: str, group: str | None, settings: Settings) -> None:
        self._program = Program(
            kind="consumer", bootstrap=bootstrap, isolation=isolation, group=group or "", **settings
        )

    def assign(self, starts: Mapping[Place, int]) -> None:
        places = [{"topic": topic, "partition": number, "offset": at} for (topic, number), at in starts.items()]
        self._program.ask("assign", places=places)


class Session(Reader):
    def __init__(self, bootstrap: str, transactional_id: str, group: str) -> None:
        self._program = Program(
            kind="session",
            bootstrap=bootstrap,
            id=transactional_id,
            timeout_ms=60_000,
            isolation="read_committed",
            group=group,
        )

    def begin(self) -> None:
        self._program.ask("begin")

    def send(self, topic: str, partition: int, values: Sequence[bytes]) -> None:
        self._program.ask("send", topic=topic, partition=partition, values=coded(values))

    def end(self, commit: bool) -> bool:
        return bool(self._program.ask("end_session", commit=commit)["committed"])
