"""`sexton topic reassign` and `sexton topic elect`: where replicas live, and which of them leads."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from sexton.cli import show
from sexton.cli.broker import UsageError
from sexton.cli.connect import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, parse_ids, with_client

if TYPE_CHECKING:
    from sexton.client.admin import Reassignment
    from sexton.client.client import Client
    from sexton.client.metadata import TopicInfo

POLL_S: Final = 0.3

Targets = dict[tuple[str, int], list[int] | None]


def reassign(
    topic: Annotated[str | None, typer.Argument(metavar="[TOPIC]", help="Without one, show what is moving.")] = None,
    moves: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PARTITION=BROKER,...]...", help="Where replicas shall be, the leader first."),
    ] = None,
    brokers: Annotated[
        str | None, typer.Option(metavar="BROKER,...", help="Spread all partitions over these brokers instead.")
    ] = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="Go back to where the replicas were.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Until all data has moved.")] = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Move partitions to other brokers, or show what is moving."""
    if topic is not None and sum(map(bool, (moves, brokers, cancel))) != 1:
        raise UsageError("say one thing", "", "Give PARTITION=BROKER,... or --brokers or --cancel")

    async def work(client: Client) -> list[Reassignment]:
        from sexton.client.admin import Admin

        admin = Admin(client)
        if topic is not None:
            info = await client.topic(topic)
            moving = [each.partition for each in await admin.list_reassignments() if each.topic == topic]
            await admin.reassign(_targets(info, moves or [], brokers, moving if cancel else None))
        if wait:
            await _wait_until_moved(client, topic)
        return [each for each in await admin.list_reassignments() if topic in (None, each.topic)]

    moving = with_client(bootstrap, work)
    if as_json:
        show.print_json([_json(each) for each in moving])
    elif not moving:
        show.results().print("Nothing is moving")
    else:
        table = Table("topic", "partition", "replicas", "adding", "removing")
        for each in moving:
            ids = (each.replicas, each.adding, each.removing)
            table.add_row(escape(each.topic), str(each.partition), *(", ".join(map(str, part)) for part in ids))
        show.results().print(table)


def _targets(info: TopicInfo, moves: list[str], brokers: str | None, cancelled: list[int] | None) -> Targets:
    if cancelled is not None:
        return {(info.name, each): None for each in cancelled}
    if brokers is not None:
        ids = parse_ids(brokers)
        spread: Targets = {}
        for index, part in enumerate(info.partitions.values()):
            count = min(len(part.replicas), len(ids))
            spread[(info.name, part.partition)] = [ids[(index + each) % len(ids)] for each in range(count)]
        return spread
    targets: Targets = {}
    for move in moves:
        partition, equals, replicas = move.partition("=")
        if not equals or not partition.isdigit():
            raise UsageError(f"{move} is no move", "", "Write PARTITION=BROKER,BROKER,...: 0=1,2,3")
        if int(partition) not in info.partitions:
            raise UsageError(f"{info.name} has no partition {partition}", "", "`sexton topic describe` shows them")
        targets[(info.name, int(partition))] = parse_ids(replicas)
    return targets


async def _wait_until_moved(client: Client, topic: str | None) -> None:
    from sexton.client.admin import Admin

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("partitions moved", total=None)
        total = 0
        while True:
            moving = [each for each in await Admin(client).list_reassignments() if topic in (None, each.topic)]
            total = max(total, len(moving))
            progress.update(bar, total=total, completed=total - len(moving))
            if not moving:
                return
            await asyncio.sleep(POLL_S)


def _json(each: Reassignment) -> dict[str, object]:
    return {
        "topic": each.topic,
        "partition": each.partition,
        "replicas": list(each.replicas),
        "adding": list(each.adding),
        "removing": list(each.removing),
    }


def elect(
    topic: Annotated[str | None, typer.Argument(metavar="[TOPIC]", help="All topics, if not given.")] = None,
    partition: Annotated[str | None, typer.Option(metavar="P,...", help="These partitions only.")] = None,
    unclean: Annotated[
        bool,
        typer.Option("--unclean", help="Let a replica lead that is not in sync. LOSES what only the absent ones have."),
    ] = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Give leadership back to the preferred replicas."""
    if unclean and (topic is None or partition is None):
        raise UsageError("an unclean election may lose records", "", "Name the topic and its --partition")
    wanted = parse_ids(partition) if partition is not None else None

    async def work(client: Client) -> dict[tuple[str, int], str | None]:
        from sexton.client.admin import Admin
        from sexton.protocol.errors import ErrorCode

        places = None
        if topic is not None:
            info = await client.topic(topic)
            places = [(topic, number) for number in (info.partitions if wanted is None else wanted)]
        results = await Admin(client).elect_leaders(places, unclean=unclean)
        fine = (ErrorCode.none, ErrorCode.election_not_needed)
        return {
            place: None if failure is None or failure.code in fine else failure.what
            for place, failure in results.items()
        }

    results = with_client(bootstrap, work)
    failed = {place: what for place, what in results.items() if what is not None}
    if as_json:
        show.print_json([{"topic": name, "partition": each, "error": what} for (name, each), what in results.items()])
    else:
        console = show.results(highlight=False)
        console.print(f"{len(results) - len(failed)} partitions: elected, or led as asked already")
        for (name, each), what in failed.items():
            console.print(f"[red]{escape(name)}-{each}:[/] {escape(what)}")
    if failed:
        raise typer.Exit(1)
