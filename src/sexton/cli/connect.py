"""What all commands that talk to a cluster share: where it is, and how a client is made and ended."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from sexton.cli.broker import UsageError

if TYPE_CHECKING:
    from sexton.client.client import Client

DEFAULT_BOOTSTRAP: Final = "localhost:9092"
DEFAULT_PORT: Final = 9092

CONNECT_TIMEOUT_MS: Final = 5_000
UNKNOWN_TOPIC_PATIENCE_MS: Final = 1_000
"""People mistype names; they need not wait long to be told."""

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap-server",
        "-b",
        metavar="HOST:PORT,...",
        envvar="SEXTON_BOOTSTRAP",
        help="One or more brokers of the cluster.",
    ),
]
CommandConfig = Annotated[
    Path | None,
    typer.Option("--command-config", metavar="FILE", help="Kafka's client settings: security.protocol, sasl.*, ssl.*."),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document instead of tables.")]

T = TypeVar("T")


def parse_bootstrap(text: str, option: str = "--bootstrap-server") -> list[tuple[str, int]]:
    addresses = []
    for part in filter(None, (each.strip() for each in text.split(","))):
        host, colon, port = part.rpartition(":")
        if not colon or part.endswith("]"):
            host, port = part, str(DEFAULT_PORT)
        if not port.isdigit() or not 0 < int(port) < 65_536:
            raise UsageError(f"{part} is no address", option, "Write host:port, several with commas")
        addresses.append((host.strip("[]"), int(port)))
    if not addresses:
        raise UsageError("no address was given", option, "Write host:port, several with commas")
    return addresses


def with_client(bootstrap: str, work: Callable[[Client], Awaitable[T]]) -> T:
    """Connects, works, closes. A cluster that is not there is told at once."""
    addresses = parse_bootstrap(bootstrap)

    async def run() -> T:
        from sexton.adapters.clock import SystemClock
        from sexton.adapters.sockets import SocketNetwork
        from sexton.client.client import Client

        client = Client(
            SocketNetwork(),
            addresses,
            clock=SystemClock(),
            rng=random.Random(secrets.randbits(128)),
            client_id="sexton-cli",
            connect_timeout_ms=CONNECT_TIMEOUT_MS,
            unknown_topic_patience_ms=UNKNOWN_TOPIC_PATIENCE_MS,
        )
        try:
            await client.open()
            return await work(client)
        finally:
            client.close()

    return asyncio.run(run())


def parse_ids(text: str) -> list[int]:
    """Broker ids or partitions: 1,2,3."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"{text} is no list of numbers", "", "Write numbers with commas: 1,2,3") from None


def parse_time_ms(text: str) -> int:
    """Milliseconds since 1970, or ISO 8601; without a zone, UTC, as all commands print it."""
    if text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{text} is no time", "", "Write 2025-01-31T12:00:00, or milliseconds since 1970") from None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def confirm(question: str, is_sure: bool) -> None:
    """Before something that cannot be undone. Outside a terminal nobody can answer, so it must be said beforehand."""
    import sys

    if is_sure:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{question} There is no terminal to answer on", "", "Say --yes")
    if not typer.confirm(question):
        raise typer.Exit(1)
