"""`sexton produce`: lines from standard input become records."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
import time
from collections.abc import AsyncIterator
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from sexton.cli import show
from sexton.cli.broker import UsageError
from sexton.cli.connect import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, with_client
from sexton.errors import SextonError

if TYPE_CHECKING:
    from sexton.client.client import Client
    from sexton.client.producer import Message, Producer

READ_BYTES: Final = 1 << 18
LINE_BYTES_MAX: Final = 64 << 20
"""A line longer than this is no line."""

PROGRESS_INTERVAL_S: Final = 0.2


class Acks(StrEnum):
    ALL = "all"
    LEADER = "1"
    NONE = "0"


class Compression(StrEnum):
    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class NotAllProducedError(SextonError):
    """Some records were refused, or nobody knows what became of them."""

    exit_code = 1


def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    key_separator: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What stands between key and value in a line; \\t is a tab.")
    ] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="Write to this partition only.")] = None,
    acks: Annotated[Acks, typer.Option(help="Who must have a record before it counts as written.")] = Acks.ALL,
    compression: Annotated[Compression, typer.Option(help="Of the batches.")] = Compression.NONE,
    tombstone: Annotated[
        str | None, typer.Option(metavar="TEXT", help="A value that is this text deletes its key (null value).")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="NAME=VALUE", help="On every record.")
    ] = None,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Write lines from standard input to a topic.

    One line, one record. With a key separator, records of one key go to one partition, in order.
    """
    lines = _Lines(key_separator, tombstone, _headers(header or []))

    async def work(client: Client) -> _Tally:
        from sexton.client.producer import Producer

        info = await client.topic(topic)
        if partition is not None and partition not in info.partitions:
            raise UsageError(f"{topic} has no partition {partition}", "", "`sexton topic describe` shows them")
        producer = Producer(
            client, acks=-1 if acks is Acks.ALL else int(acks), codec=list(Compression).index(compression)
        )
        tally = _Tally(topic)
        targets = _Targets(len(info.partitions), partition, client.rng)
        await _pump(lines, producer, targets, tally)
        await producer.flush()
        return tally

    if sys.stdin.isatty():
        Console(stderr=True).print("[dim]Each line becomes a record. Ctrl-D ends.[/]")
    tally = with_client(bootstrap, work)
    if as_json:
        show.print_json(tally.json())
    else:
        Console(stderr=True, highlight=False).print(tally.text())
    tally.raise_failure()


def _headers(texts: list[str]) -> tuple[tuple[str, bytes | None], ...]:
    parsed = []
    for text in texts:
        name, equals, value = text.partition("=")
        parsed.append((name, value.encode() if equals else None))
    return tuple(parsed)


class _Lines:
    """Reads lines and makes records of them."""

    def __init__(
        self, key_separator: str | None, tombstone: str | None, headers: tuple[tuple[str, bytes | None], ...]
    ) -> None:
        self._separator = None if key_separator is None else key_separator.replace("\\t", "\t").encode()
        self._tombstone = None if tombstone is None else tombstone.encode()
        self._headers = headers
        self._count = 0
        if self._separator == b"":
            raise UsageError("the key separator is empty", "--key-separator", "Give at least one character")

    def message(self, line: bytes) -> Message:
        from sexton.client.producer import Message

        self._count += 1
        key: bytes | None = None
        value: bytes | None = line
        if self._separator is not None:
            key, found, value = line.partition(self._separator)
            if not found:
                what = f"line {self._count} has no key separator: {show.quoted(line, 60)}"
                raise UsageError(what, "standard input", "Every line needs one. Nothing of this line was sent")
        if value == self._tombstone:
            value = None
        return Message(key, value, self._headers)


class _Targets:
    """Which partition: the one asked for, the key's, or for records without a key any, changed from time to time."""

    def __init__(self, count: int, only: int | None, rng: Any) -> None:
        self._count = count
        self._only = only
        self._rng = rng
        self._sticky = rng.randrange(count)

    def change(self) -> None:
        self._sticky = self._rng.randrange(self._count)

    def of(self, key: bytes | None) -> int:
        from sexton.client.partitioner import partition_of

        if self._only is not None:
            return self._only
        return self._sticky if key is None else partition_of(key, self._count)


class _Tally:
    """What became of the records."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.sent_count = 0
        self.acknowledged_count = 0
        self.failed_count = 0
        self.unknown_count = 0
        self.size_bytes = 0
        self.first_error: SextonError | None = None
        self.last_place: tuple[int, int] | None = None
        self._started_s = time.monotonic()

    def delivered(self, partition: int, count: int, outcome: asyncio.Future[int]) -> None:
        from sexton.client.errors import ProduceUnknownError

        error = outcome.exception()
        if error is None:
            self.acknowledged_count += count
            self.last_place = (partition, outcome.result() + count - 1)
            return
        if isinstance(error, ProduceUnknownError):
            self.unknown_count += count
        else:
            self.failed_count += count
        if self.first_error is None and isinstance(error, SextonError):
            self.first_error = error

    @property
    def elapsed_s(self) -> float:
        return max(time.monotonic() - self._started_s, 1e-6)

    def text(self) -> str:
        count = self.acknowledged_count
        records = f"{count:,} record{'' if count == 1 else 's'}"
        text = f"{records} written to {escape(self.topic)}"
        if count == 1 and self.last_place is not None and self.last_place[1] >= 0:
            text += f", partition {self.last_place[0]}, offset {self.last_place[1]:,}"
        elif count > 1:
            rate = (
                f"{count / self.elapsed_s:,.0f} records/s, {show.bytes_text(round(self.size_bytes / self.elapsed_s))}/s"
            )
            text += f" in {show.duration_text(round(self.elapsed_s * 1000))} [dim]({rate})[/]"
        return text

    def json(self) -> dict[str, object]:
        return {
            "topic": self.topic,
            "acknowledged": self.acknowledged_count,
            "failed": self.failed_count,
            "unknown": self.unknown_count,
            "elapsed_ms": round(self.elapsed_s * 1000),
        }

    def raise_failure(self) -> None:
        if self.first_error is None:
            return
        parts = []
        if self.failed_count:
            parts.append(f"{self.failed_count:,} records were not written")
        if self.unknown_count:
            parts.append(f"of {self.unknown_count:,} it is unknown whether they were written")
        what = f"{', '.join(parts)}: {self.first_error.what}"
        raise NotAllProducedError(what, self.first_error.place, self.first_error.remedy)


async def _pump(lines: _Lines, producer: Producer, targets: _Targets, tally: _Tally) -> None:
    """Lines that arrive together are queued together; a refusal ends it, so that a mistake does not repeat itself."""
    console = Console(stderr=True)
    is_bulk = console.is_terminal and not sys.stdin.isatty()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not is_bulk, auto_refresh=False) as progress:
        bar = progress.add_task("reading")
        shown_s = 0.0
        async for group in _line_groups(sys.stdin.fileno()):
            parcels: dict[int, list[Message]] = {}
            for line in group:
                message = lines.message(line)
                tally.size_bytes += len(line)
                parcels.setdefault(targets.of(message.key), []).append(message)
            targets.change()
            for partition, messages in parcels.items():
                await _queue(producer, tally, partition, messages)
            if tally.first_error is not None:
                return
            if is_bulk and tally.elapsed_s - shown_s > PROGRESS_INTERVAL_S:
                shown_s = tally.elapsed_s
                text = f"{tally.acknowledged_count:,} of {tally.sent_count:,} records acknowledged"
                progress.update(bar, description=text, refresh=True)


async def _queue(producer: Producer, tally: _Tally, partition: int, messages: list[Message]) -> None:
    from sexton.client.producer import BATCH_BYTES_MAX

    parcel: list[Message] = []
    size_bytes = 0
    for index, message in enumerate(messages):
        parcel.append(message)
        size_bytes += message.size_bytes
        if size_bytes < BATCH_BYTES_MAX // 2 and index + 1 < len(messages):
            continue
        tally.sent_count += len(parcel)
        outcome = await producer.queue(tally.topic, partition, parcel)
        outcome.add_done_callback(partial(tally.delivered, partition, len(parcel)))
        parcel, size_bytes = [], 0


async def _line_groups(descriptor: int) -> AsyncIterator[list[bytes]]:
    """Whole lines, as many as there are. A last one without a newline counts."""
    rest = b""
    is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
    while True:
        if not is_file:
            await _readable(descriptor)
        chunk = os.read(descriptor, READ_BYTES)
        if is_file:
            await asyncio.sleep(0)
        if not chunk:
            break
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > LINE_BYTES_MAX:
            raise UsageError(f"a line is longer than {LINE_BYTES_MAX:,} bytes", "standard input", "Is it text?")
        if lines:
            yield [line.removesuffix(b"\r") for line in lines]
    if rest:
        yield [rest]


async def _readable(descriptor: int) -> None:
    """Without a thread, which could not be stopped by Ctrl-C while it waits for a terminal."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    try:
        loop.add_reader(descriptor, lambda: None if ready.done() else ready.set_result(None))
    except PermissionError:
        return  # /dev/null and the like are always ready
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)
