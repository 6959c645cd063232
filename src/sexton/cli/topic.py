"""`sexton topic`: topics, their partitions, and where those live."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sexton.cli import show
from sexton.cli.connect import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    confirm,
    parse_ids,
    parse_time_ms,
    with_client,
)
from sexton.cli.topic_repartition import repartition
from sexton.cli.topic_replicas import elect, reassign
from sexton.cli.topic_stats import stats
from sexton.settings.properties import parse_settings

if TYPE_CHECKING:
    from sexton.client.client import Client
    from sexton.client.metadata import TopicInfo

app = typer.Typer(help="Make, show, change and delete topics.", no_args_is_help=True)
app.command()(reassign)
app.command()(elect)
app.command()(stats)
app.command()(repartition)

TopicName = Annotated[str, typer.Argument(metavar="TOPIC")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@app.command("list")
def list_topics(
    internal: Annotated[bool, typer.Option("--internal", help="Also those that the cluster keeps for itself.")] = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show all topics."""

    async def work(client: Client) -> list[TopicInfo]:
        topics = (await client.refresh(None)).topics.values()
        return sorted((info for info in topics if internal or not info.is_internal), key=lambda info: info.name)

    topics = with_client(bootstrap, work)
    if as_json:
        show.print_json([_topic_json(info) for info in topics])
        return
    if not topics:
        Console(stderr=True).print("No topics yet. Make one: [cyan]sexton topic create NAME[/]")
        return
    table = Table("topic", "partitions", "replicas", "state")
    for info in topics:
        replicas = sorted({len(part.replicas) for part in info.partitions.values()})
        table.add_row(
            escape(info.name), str(len(info.partitions)), "/".join(str(each) for each in replicas), _health(info)
        )
    show.results().print(table)


@app.command()
def create(
    topic: TopicName,
    partitions: Annotated[
        int | None, typer.Option(min=1, help="How many. The brokers' num.partitions, if not given.")
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option(
            "--replicas",
            "--replication-factor",
            min=1,
            help="Copies of each. The brokers' default.replication.factor, if not given.",
        ),
    ] = None,
    config: Annotated[
        list[str] | None, typer.Option("--config", metavar="NAME=VALUE", help="A setting of the topic.")
    ] = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="Be content if it exists.")] = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Make a topic."""
    settings = parse_settings(config or [])

    async def work(client: Client) -> tuple[int, int] | None:
        from sexton.client.admin import Admin
        from sexton.client.errors import RefusedError
        from sexton.protocol.errors import ErrorCode

        try:
            return await Admin(client).create_topic(topic, partitions or -1, replicas or -1, settings)
        except RefusedError as error:
            if if_not_exists and error.code == ErrorCode.topic_already_exists:
                return None
            raise

    made = with_client(bootstrap, work)
    if settings.get("compaction.coordination") == "independent":
        Console(stderr=True, highlight=False).print(
            "[yellow]warning:[/] compaction.coordination=independent is for comparison only: a replica that was away "
            "can bring deleted keys and aborted records back"
        )
    if as_json:
        show.print_json({"topic": topic, "created": made is not None})
    elif made is None:
        show.results().print(f"{escape(topic)} exists already")
    else:
        show.results(highlight=False).print(
            f"Created {escape(topic)}: {_counted(made[0], 'partition')}, {_counted(made[1], 'replica')}"
        )


@app.command()
def describe(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...")],
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show a topic's partitions, leaders, replicas and settings."""

    async def work(client: Client) -> list[tuple[TopicInfo, dict[str, str]]]:
        from sexton.client.admin import Admin, Resource
        from sexton.settings.layers import ConfigSource

        found = []
        for name in topics:
            info = await client.topic(name)
            settings = await Admin(client).settings(Resource.TOPIC, name)
            own = {each.name: each.value or "" for each in settings if each.source is ConfigSource.TOPIC}
            found.append((info, own))
        return found

    for info, settings in with_client(bootstrap, work):
        if as_json:
            show.print_json({**_topic_json(info), "settings": settings})
        else:
            _print_topic(info, settings)


@app.command()
def delete(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...")],
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Delete topics with all their records."""
    confirm(f"Delete {', '.join(topics)} with all records?", yes)

    async def work(client: Client) -> None:
        from sexton.client.admin import Admin

        for name in topics:
            await Admin(client).delete_topic(name)
            show.results().print(f"Deleted {escape(name)}")

    with_client(bootstrap, work)


@app.command()
def alter(
    topic: TopicName,
    partitions: Annotated[int, typer.Option(min=1, help="How many it shall have in all.")],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Give a topic more partitions. (Settings: `sexton config set --topic`.)

    Keys move: records with a key written from now on may go to another partition than before.
    """

    async def work(client: Client) -> None:
        from sexton.client.admin import Admin

        await Admin(client).create_partitions(topic, partitions)

    with_client(bootstrap, work)
    show.results(highlight=False).print(f"{escape(topic)} has {_counted(partitions, 'partition')} now")


@app.command()
def offsets(
    topic: TopicName,
    partition: Annotated[str | None, typer.Option(metavar="P,...", help="These partitions only.")] = None,
    at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Also the first offset at or after this time (UTC).")
    ] = None,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show where each partition begins and ends."""
    wanted = parse_ids(partition) if partition is not None else None
    at_ms = parse_time_ms(at) if at is not None else None

    async def work(client: Client) -> list[dict[str, Any]]:
        from sexton.client.consumer import EARLIEST, LATEST, list_offsets

        info = await client.topic(topic)
        places = [(topic, number) for number in (info.partitions if wanted is None else wanted)]
        asked = [EARLIEST, LATEST] + ([at_ms] if at_ms is not None else [])
        found = await asyncio.gather(*(list_offsets(client, dict.fromkeys(places, each)) for each in asked))
        rows = []
        for place in places:
            row = {"partition": place[1], "start": found[0][place], "end": found[1][place]}
            if at_ms is not None:
                row["at"] = found[2][place]
            rows.append(row)
        return rows

    rows = with_client(bootstrap, work)
    if as_json:
        show.print_json(rows)
        return
    table = Table("partition", "start", "end", "end - start", *(["at " + str(at)] if at_ms is not None else []))
    for row in rows:
        extra = [] if at_ms is None else ["-" if row["at"] < 0 else f"{row['at']:,}"]
        cells = [f"{row['start']:,}", f"{row['end']:,}", f"{row['end'] - row['start']:,}"]
        table.add_row(str(row["partition"]), *cells, *extra)
    show.results().print(table)


@app.command("delete-records")
def delete_records(
    topic: TopicName,
    partition: Annotated[int, typer.Option(min=0)],
    before: Annotated[str, typer.Option(metavar="OFFSET|end", help="Everything below this offset goes.")],
    yes: Yes = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Delete the oldest records of a partition."""
    offset = -1 if before == "end" else parse_ids(before)[0]
    confirm(f"Delete all records of {topic}-{partition} before {before}?", yes)

    async def work(client: Client) -> int:
        from sexton.client.admin import Admin

        await client.topic(topic)
        place = (topic, partition)
        return (await Admin(client).delete_records({place: offset}))[place]

    start = with_client(bootstrap, work)
    if as_json:
        show.print_json({"topic": topic, "partition": partition, "start": start})
    else:
        show.results(highlight=False).print(f"{escape(topic)}-{partition} begins at offset {start:,} now")


def _topic_json(info: TopicInfo) -> dict[str, Any]:
    return {
        "topic": info.name,
        "id": str(info.topic_id) if info.topic_id is not None else None,
        "internal": info.is_internal,
        "partitions": [
            {
                "partition": part.partition,
                "leader": part.leader,
                "leader_epoch": part.leader_epoch,
                "replicas": list(part.replicas),
                "isr": list(part.isr),
                "offline": list(part.offline),
            }
            for part in info.partitions.values()
        ],
    }


def _print_topic(info: TopicInfo, settings: dict[str, str]) -> None:
    console = show.results(highlight=False)
    own = ", ".join(f"{name}={value}" for name, value in settings.items()) or "defaults"
    console.print(f"[bold]{escape(info.name)}[/]  {_counted(len(info.partitions), 'partition')}  [dim]{escape(own)}[/]")
    table = Table("partition", "leader", "epoch", "replicas", "in sync", "state")
    for part in info.partitions.values():
        table.add_row(
            str(part.partition),
            str(part.leader) if part.leader >= 0 else "[bold red]none[/]",
            str(part.leader_epoch),
            ", ".join(str(each) for each in part.replicas),
            ", ".join(str(each) for each in part.isr),
            _state(part.leader, part.replicas, part.isr),
        )
    console.print(table)


def _state(leader: int, replicas: tuple[int, ...], isr: tuple[int, ...]) -> str:
    if leader < 0:
        return "[bold red]offline[/]"
    missing = [str(each) for each in replicas if each not in isr]
    if missing:
        return f"[yellow]not in sync: {', '.join(missing)}[/]"
    return "[green]fine[/]" if leader == replicas[0] else "fine, led by another than the preferred replica"


def _health(info: TopicInfo) -> str:
    parts = info.partitions.values()
    offline = sum(part.leader < 0 for part in parts)
    lagging = sum(len(part.isr) < len(part.replicas) for part in parts)
    if offline:
        return f"[bold red]{offline} without a leader[/]"
    return f"[yellow]{lagging} not fully in sync[/]" if lagging else "[green]fine[/]"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
