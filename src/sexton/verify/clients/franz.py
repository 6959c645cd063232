"""franz-go: each producer, consumer, session and admin is a process of its own (go/main.go).

It does not say where a consumer stands. So consumers are made to return transactions' markers as well, which move the
position as records do; the driver keeps them to itself.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sexton.verify.clients import secured
from sexton.verify.clients.base import (
    ABORT,
    CALL_TIMEOUT_S,
    CREATE_TIME,
    FATAL,
    FENCED,
    LOG_APPEND_TIME,
    RETRY,
    Failure,
    Headers,
    Message,
    Place,
    Record,
    Refused,
    Settings,
)

if TYPE_CHECKING:
    from sexton.client.security.properties import Security

SENDS_OFFSETS = False
"""Only its sessions do."""

OVERHEAD_MS = 10_000
"""franz-go's own default."""

POLL_RECORDS_MAX = 500

TOPIC_EXISTS = 36

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
        wanted["max_poll_records"] = wanted.pop("max.poll.records", POLL_RECORDS_MAX)
        self._process = subprocess.Popen(
            [os.environ["SEXTON_CLIENT_PROGRAM"]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._lock = threading.Lock()
        self._say(wanted)

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Raises the Failure that an application would make of the error."""
        assert self._process.stdout is not None
        with self._lock:
            self._say({"do": do, **arguments})
            line = self._process.stdout.readline()
        if not line:
            raise Failure(FATAL, "gone", f"the client's process ended at {do}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise failure_of(do, answer.get("code", ""), answer["error"])
        return answer

    def _say(self, what: Mapping[str, Any]) -> None:
        """Never as an argument of the program: everybody on the machine could read passwords there."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()

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


def coded(values: Sequence[bytes | None]) -> list[str | None]:
    return [None if value is None else base64.b64encode(value).decode() for value in values]


def decoded(value: str | None) -> bytes | None:
    return None if value is None else base64.b64decode(value)


def records_of(answer: dict[str, Any]) -> list[Record]:
    return [
        Record(each["topic"], each["partition"], each["offset"], base64.b64decode(each["value"] or ""))
        for each in answer["records"]
        if not each["control"]
    ]


def message_of(each: dict[str, Any]) -> Message:
    return Message(
        topic=each["topic"],
        partition=each["partition"],
        offset=each["offset"],
        key=decoded(each["key"]),
        value=decoded(each["value"]),
        headers=[(header["key"], decoded(header["value"])) for header in each["headers"] or ()],
        timestamp_ms=each["timestamp_ms"],
        timestamp_type=LOG_APPEND_TIME if each["appended"] else CREATE_TIME,
    )


class Producer:
    def __init__(
        self,
        bootstrap: str,
        transactional_id: str,
        timeout_ms: int,
        settings: Settings,
        security: Security | None = None,
    ) -> None:
        self._program = Program(
            kind="producer",
            bootstrap=bootstrap,
            id=transactional_id,
            timeout_ms=timeout_ms,
            **settings,
            **secured.franz(security),
        )

    def init(self) -> None:
        self._program.ask("init")

    def begin(self) -> None:
        self._program.ask("begin")

    def send(
        self,
        topic: str,
        partition: int,
        values: Sequence[bytes | None],
        key: bytes | None = None,
        headers: Headers = (),
    ) -> None:
        (coded_key,) = coded([key])
        pairs = [{"key": name, "value": coded([content])[0]} for name, content in headers]
        values_coded = coded(values)
        self._program.ask("send", topic=topic, partition=partition, values=values_coded, key=coded_key, headers=pairs)

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
    def __init__(
        self,
        bootstrap: str,
        isolation: str,
        group: str | None,
        settings: Settings,
        security: Security | None = None,
    ) -> None:
        self._program = Program(
            kind="consumer",
            bootstrap=bootstrap,
            isolation=isolation,
            group=group or "",
            keeps_control=True,
            **settings,
            **secured.franz(security),
        )
        self._positions: dict[Place, int] = {}

    def assign(self, starts: Mapping[Place, int]) -> None:
        places = [{"topic": topic, "partition": number, "offset": at} for (topic, number), at in starts.items()]
        self._positions = dict(starts)
        self._program.ask("assign", places=places)

    def _poll(self, timeout_s: float) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._program.ask("poll", timeout_ms=int(timeout_s * 1000))["records"]
        for each in found:
            self._positions[each["topic"], each["partition"]] = each["offset"] + 1
        return [each for each in found if not each["control"]]

    def poll_messages(self, timeout_s: float) -> list[Message]:
        return [message_of(each) for each in self._poll(timeout_s)]

    def position(self, place: Place) -> int:
        return self._positions.get(place, -1)

    def bounds(self, place: Place) -> tuple[int, int]:
        first, end = self._program.ask("bounds", topic=place[0], partition=place[1])["offsets"]
        return int(first), int(end)


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


class Admin:
    """It makes topics, and no more."""

    def __init__(self, bootstrap: str, security: Security | None = None) -> None:
        self._program = Program(kind="admin", bootstrap=bootstrap, **secured.franz(security))

    def create(self, topic: str, partitions: int, replication: int, config: Mapping[str, str]) -> None:
        try:
            self._program.ask(
                "create", topic=topic, partitions=partitions, replication=replication, settings=dict(config)
            )
        except Failure as failure:
            code = TOPIC_EXISTS if failure.name == "TOPIC_ALREADY_EXISTS" else None
            raise Refused(code, failure.name) from None

    def close(self) -> None:
        self._program.end()
