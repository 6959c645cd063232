"""`sexton consume`: a topic's records on standard output."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console

from sexton.cli import show
from sexton.cli.broker import UsageError
from sexton.cli.connect import DEFAULT_BOOTSTRAP, Bootstrap, parse_ids, parse_time_ms, with_client

if TYPE_CHECKING:
    from sexton.client.client import Client
    from sexton.client.consumer import Consumed, Consumer
    from sexton.client.groups import GroupConsumer

COMMIT_INTERVAL_S: Final = 1.0
POLL_MS: Final = 500


class Format(StrEnum):
    TEXT = "text"
    JSON = "json"


class Isolation(StrEnum):
    UNCOMMITTED = "read_uncommitted"
    COMMITTED = "read_committed"


def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="All records that there are, not only new ones.")
    ] = False,
    from_time: Annotated[str | None, typer.Option(metavar="TIME", help="Records from this time on (UTC).")] = None,
    partition: Annotated[str | None, typer.Option(metavar="P,...", help="These partitions only.")] = None,
    offset: Annotated[int | None, typer.Option(min=0, help="From this offset on; needs --partition.")] = None,
    group: Annotated[
        str | None, typer.Option("--group", "-g", help="Share the topic with this group and remember the place.")
    ] = None,
    maximum: Annotated[int | None, typer.Option("--max", "-n", min=1, help="End after so many records.")] = None,
    exit_at_end: Annotated[
        bool, typer.Option("--exit-at-end", "-e", help="End when everything has been read.")
    ] = False,
    style: Annotated[
        Format, typer.Option("--format", help="Values, one a line, or all there is as JSON.")
    ] = Format.TEXT,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    key_separator: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Print keys too, with this between key and value; \\t is a tab.")
    ] = None,
    isolation: Annotated[Isolation, typer.Option(help="Whether records of open transactions are shown.")] = (
        Isolation.COMMITTED
    ),
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Read a topic's records.

    New ones as they come, until Ctrl-C; see --from-beginning, --max and --exit-at-end.
    """
    if group is not None and (partition is not None or offset is not None):
        raise UsageError("a group decides about partitions and offsets", "", "Use --group or --partition, not both")
    if offset is not None and partition is None:
        raise UsageError("an offset of which partition?", "", "Add --partition")
    if sum(map(bool, (from_beginning, from_time is not None, offset is not None))) > 1:
        raise UsageError("where to start is not clear", "", "Give one of --from-beginning, --from-time, --offset")
    wanted = None if partition is None else parse_ids(partition)
    level = list(Isolation).index(isolation)
    write = _json_line if as_json or style is Format.JSON else _text_line(key_separator)
    output = _Output(write, maximum)

    async def work(client: Client) -> None:
        from sexton.client.consumer import EARLIEST, LATEST, Consumer, start_positions
        from sexton.client.groups import GroupConsumer

        info = await client.topic(topic)
        start = EARLIEST if from_beginning else LATEST if from_time is None else parse_time_ms(from_time)
        if group is not None:
            await _run_group(
                GroupConsumer(client, group, [topic], start_at=start, isolation=level), output, exit_at_end
            )
            return
        places = [(topic, number) for number in (info.partitions if wanted is None else wanted)]
        if offset is not None:
            consumer = Consumer(client, isolation=level)
            consumer.assign(dict.fromkeys(places, offset))
        else:
            consumer = Consumer(client, isolation=level, reset_to=EARLIEST)
            consumer.assign(await start_positions(client, places, start, isolation=level))
        await _run(consumer, output, exit_at_end)

    try:
        with_client(bootstrap, work)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # `| head` has read enough
    if sys.stdout.isatty() or output.count == 0:
        Console(stderr=True, highlight=False).print(
            f"[dim]{output.count:,} record{'' if output.count == 1 else 's'}[/]"
        )


class _Output:
    """Writes records until it has written enough."""

    def __init__(self, write: Callable[[Consumed], bytes], maximum: int | None) -> None:
        self._write = write
        self._maximum = maximum
        self.count = 0

    @property
    def is_full(self) -> bool:
        return self._maximum is not None and self.count >= self._maximum

    def take(self, records: list[Consumed]) -> list[Consumed]:
        """Writes them, or the first few; returns those for which there was no room."""
        room = len(records) if self._maximum is None else self._maximum - self.count
        taken = records[:room]
        sys.stdout.buffer.write(b"".join(map(self._write, taken)))
        sys.stdout.buffer.flush()
        self.count += len(taken)
        return records[room:]


def _stop_signal() -> asyncio.Event:
    """Ctrl-C is the usual end, not an accident: the group is left, and offsets are committed."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, stop.set)
    return stop


async def _run(consumer: Consumer, output: _Output, exit_at_end: bool) -> None:
    stop = _stop_signal()
    while not stop.is_set() and not output.is_full and not (exit_at_end and consumer.is_at_end):
        records = await _unless(stop, consumer.poll(POLL_MS))
        output.take(records or [])


async def _run_group(member: GroupConsumer, output: _Output, exit_at_end: bool) -> None:
    """Offsets are committed for what was written out, never for more."""
    stop = _stop_signal()
    loop = asyncio.get_running_loop()
    committed_s = loop.time()
    try:
        while not stop.is_set() and not output.is_full:
            records = await _unless(stop, member.poll(POLL_MS))
            for left in reversed(output.take(records or [])):
                member.consumer.positions[(left.topic, left.partition)] = left.record.offset
            if loop.time() - committed_s > COMMIT_INTERVAL_S:
                await _commit(member)
                committed_s = loop.time()
            if exit_at_end and member.assigned and member.consumer.is_at_end:
                break
        await _commit(member)
    finally:
        await member.close()


async def _commit(member: GroupConsumer) -> None:
    """A group that changes refuses commits; what was read is then read again by somebody."""
    from sexton.client.errors import ConnectionLostError, NotConnectedError, RefusedError

    try:
        await member.commit()
    except (RefusedError, NotConnectedError, ConnectionLostError) as error:
        Console(stderr=True).print(f"[yellow]offsets were not committed: {error.what}[/]")


async def _unless(stop: asyncio.Event, polling: Awaitable[list[Consumed]]) -> list[Consumed] | None:
    """What the poll returns, or None if it is time to stop."""
    task = asyncio.ensure_future(polling)
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait([task, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if task.done():
        return task.result()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return None


def _text_line(key_separator: str | None) -> Callable[[Consumed], bytes]:
    if key_separator is None:
        return lambda each: (each.record.value if each.record.value is not None else b"null") + b"\n"
    separator = key_separator.replace("\\t", "\t").encode()

    def line(each: Consumed) -> bytes:
        key, value = (part if part is not None else b"null" for part in (each.record.key, each.record.value))
        return key + separator + value + b"\n"

    return line


def _json_line(each: Consumed) -> bytes:
    record = each.record
    document = {
        "topic": each.topic,
        "partition": each.partition,
        "offset": record.offset,
        "timestamp": show.time_text(record.timestamp_ms),
        "key": show.bytes_json(record.key),
        "value": show.bytes_json(record.value),
        "headers": [{"name": header.name, "value": show.bytes_json(header.value)} for header in record.headers],
    }
    return json.dumps(document, ensure_ascii=False).encode(errors="surrogateescape") + b"\n"
