"""`sexton topic repartition`: a copy of a topic with another number of partitions, checked against its source."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.markup import escape

from sexton.cli import show
from sexton.cli.broker import UsageError
from sexton.cli.connect import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, CommandConfig
from sexton.cli.topic_stats import DEFAULT_RATE_MB, Master, Rate, connecting_to, reading_at
from sexton.settings.properties import parse_settings

if TYPE_CHECKING:
    from sexton.topics.finding import TopicClient
    from sexton.topics.repartition import Copied, Repartition

DIFFERS: Final = 1
"""Exit code: the copy is not what the source is."""

FOLLOW_PAUSE_S: Final = 1.0


class Which(StrEnum):
    LATEST = "latest"
    ALL = "all"


class Compression(StrEnum):
    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


def repartition(
    source: Annotated[str, typer.Argument(metavar="SOURCE")],
    target: Annotated[str, typer.Argument(metavar="TARGET")],
    partitions: Annotated[
        int | None, typer.Option(min=1, help="How many the target shall have, unless it exists.")
    ] = None,
    replicas: Annotated[
        int | None, typer.Option("--replicas", "--replication-factor", min=1, help="Of the target; as the source.")
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", metavar="NAME=VALUE", help="A setting of the target, over the source's."),
    ] = None,
    records: Annotated[
        Which | None,
        typer.Option(help="The latest record of each key, or all in order. Latest, if the source is compacted."),
    ] = None,
    compression: Annotated[Compression | None, typer.Option(help="Of the copy; as most of the source.")] = None,
    even_if_not_empty: Annotated[
        bool, typer.Option("--even-if-not-empty", help="Copy on top of records that are in the target.")
    ] = False,
    delete_extra: Annotated[
        bool,
        typer.Option("--delete-extra", help="Delete keys in the target that the source has no record of any more."),
    ] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on copying what comes, until Ctrl-C.")] = False,
    verify: Annotated[bool, typer.Option("--verify/--no-verify", help="Compare both topics by key at the end.")] = True,
    show_keys: Annotated[bool, typer.Option("--show-keys", help="Name keys that differ.")] = False,
    command_config: CommandConfig = None,
    rate: Rate = DEFAULT_RATE_MB,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    master: Master = "local[*]",
) -> None:
    """Copy a topic to another number of partitions: tombstones, timestamps, headers and the order by key are kept.

    Run it again after a crash, or to copy what came since. Keys go where Kafka's default partitioner puts them
    (murmur2, as Java clients do). Exit code 1: the copy differs from its source.
    """
    if delete_extra and (even_if_not_empty or not verify):
        what = "what is in the target alone is found by verifying, and must not be somebody else's"
        raise UsageError(what, "--delete-extra", "Leave out --no-verify and --even-if-not-empty")
    from sexton.spark import session
    from sexton.topics.finding import TopicClient
    from sexton.topics.preparing import Request, prepare
    from sexton.topics.repartition import Repartition

    request = Request(
        source=source,
        target=target,
        partitions=partitions,
        replicas=replicas,
        settings=parse_settings(config or []),
        keeps_all=None if records is None else records is Which.ALL,
        codec=None if compression is None else list(Compression).index(compression),
        takes_what_is_there=even_if_not_empty,
    )
    connecting = connecting_to(bootstrap, command_config)
    console = Console(stderr=True, highlight=False)
    with TopicClient(connecting) as client:
        ready = prepare(client, request)
        context = session.start("sexton topic repartition", master).sparkContext
        reading = reading_at(connecting, rate, context)
        with show.spark_progress(context, console) as progress:
            work = Repartition(context, client, reading, ready, progress)
            work.copy()
            found = work.verify() if verify else None
            if delete_extra and work.delete_extra():
                work.copy()
                found = work.verify()
        if follow and (found is None or found.is_same):
            _follow(work, console)
        work.finish()
        keys = _keys_of(client, work.copied) if show_keys else []
    if as_json:
        show.print_json(_json(work, keys))
    else:
        _print(work, keys)
    if found is not None and not found.is_same:
        raise typer.Exit(DIFFERS)


def _follow(work: Repartition, console: Console) -> None:
    console.print("Copying what comes. Ctrl-C ends it", soft_wrap=True)
    with _until_interrupted() as is_over:
        while not is_over():
            count = work.round()
            if count is None:
                time.sleep(FOLLOW_PAUSE_S)
            else:
                console.print(f"{count:,} records more", soft_wrap=True)


@contextmanager
def _until_interrupted() -> Iterator[Any]:
    """A round that has begun is finished."""
    seen: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        seen.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(seen)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _keys_of(client: TopicClient, copied: Copied) -> list[bytes]:
    from sexton.topics.looking import records_at

    places = copied.verified.examples if copied.verified is not None else []
    found = client.run(lambda inside: records_at(inside, places))
    return list(dict.fromkeys(found[place] for place in places if place in found))


def _print(work: Repartition, keys: list[bytes]) -> None:
    console, copied = show.results(highlight=False), work.copied
    what = "all records" if work.keeps_all else "the latest record of each key"
    rounds = "" if copied.round_count < 2 else f", in {copied.round_count:,} rounds"
    console.print(
        f"Copied {copied.record_count:,} records ({what}{rounds}) from {escape(work.source.name)}, "
        f"{_partitions(work.source.partition_count)}, to {escape(work.target.name)}, "
        f"{_partitions(work.target.partition_count)}",
        soft_wrap=True,
    )
    if copied.keyless_count:
        what = f"{copied.keyless_count:,} records without a key were left out"
        console.print(f"[yellow]{what}: a compacted topic takes none[/]", soft_wrap=True)
    for note in copied.notes:
        console.print(escape(note), soft_wrap=True)
    found = copied.verified
    if found is None:
        return
    since = f"; {found.changed_count:,} keys were written to the source since" if found.changed_count else ""
    if found.is_same:
        same = f"[green]{found.same_count:,} keys have the same value in both[/]"
        console.print(f"Verified: {same}, and no others have one{since}", soft_wrap=True)
        return
    extra = f", {found.extra_count:,} of them are in the target alone" if found.extra_count else ""
    console.print(f"[bold red]{found.differing_count:,} keys differ[/]{extra}{since}", soft_wrap=True)
    if found.extra_count:
        console.print(
            "What is in the target alone was deleted in the source, and compacted away before it could be copied; or "
            "somebody else wrote it. --delete-extra deletes it in the target",
            soft_wrap=True,
        )
    for key in keys:
        console.print(f"  {escape(show.quoted(key, 80))}", soft_wrap=True)


def _partitions(count: int) -> str:
    return f"{count:,} partition{'' if count == 1 else 's'}"


def _json(work: Repartition, keys: list[bytes]) -> dict[str, Any]:
    copied, found = work.copied, work.copied.verified
    return {
        "source": work.source.name,
        "target": work.target.name,
        "partitions": work.target.partition_count,
        "records": "all" if work.keeps_all else "latest",
        "copied_records": copied.record_count,
        "rounds": copied.round_count,
        "left_out_without_key": copied.keyless_count,
        "copied_up_to": {str(number): offset for number, offset in sorted(copied.offsets.items())},
        "notes": copied.notes,
        "verified": None
        if found is None
        else {
            "is_same": found.is_same,
            "same_keys": found.same_count,
            "differing_keys": found.differing_count,
            "only_in_target": found.extra_count,
            "changed_since": found.changed_count,
            "examples": [show.bytes_json(key) for key in keys],
        },
    }
