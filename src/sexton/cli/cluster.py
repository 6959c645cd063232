"""`sexton cluster`: is everything well, and where is everything?"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from sexton.cli import show
from sexton.cli.connect import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, parse_ids, with_client

if TYPE_CHECKING:
    from sexton.client.admin import LogDirectory
    from sexton.client.client import Client
    from sexton.client.metadata import Metadata

app = typer.Typer(help="Show brokers, their health and their disks.", no_args_is_help=True)


@app.command()
def status(
    check: Annotated[bool, typer.Option("--check", help="End with exit code 1 unless all is well.")] = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show whether all is well."""

    async def work(client: Client) -> dict[str, Any]:
        from sexton.broker.compaction import answers

        return await answers.cluster(client)

    figures = with_client(bootstrap, work)
    if as_json:
        show.print_json(figures)
    else:
        _print_status(figures)
    if check and not figures["healthy"]:
        raise typer.Exit(1)


def _print_status(figures: dict[str, Any]) -> None:
    def some(names: list[str]) -> str:
        more = f" and {len(names) - 5:,} more" if len(names) > 5 else ""
        return f"{len(names):,}: {', '.join(names[:5])}{more}" if names else "none"

    missing = f"; missing: {', '.join(map(str, figures['missing_brokers']))}" if figures["missing_brokers"] else ""
    facts = {
        "cluster": str(figures["cluster_id"]),
        "brokers": ", ".join(map(str, figures["brokers"])) + missing,
        "controller": str(figures["controller"]),
        "topics": f"{figures['topics']:,}",
        "partitions": f"{figures['partitions']:,}",
        "without a leader": some(figures["offline"]),
        "not fully in sync": some(figures["not_in_sync"]),
        "compactors": "not known yet" if figures["compactors"] is None else f"{figures['compactors']:,}",
        "due for compaction": f"{figures['due_for_compaction']:,}",
    }
    console = show.results()
    console.print(show.facts_table("", facts))
    console.print("[green]All is well[/]" if figures["healthy"] else "[bold red]Not all is well[/]")
    if figures["compactors"] == 0:
        from sexton.broker.compaction.answers import NOBODY_COMPACTS

        console.print(f"[bold red]{NOBODY_COMPACTS}[/]", highlight=False)


@app.command()
def brokers(as_json: AsJson = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Show the brokers and what they hold."""

    async def work(client: Client) -> Metadata:
        return await client.refresh(None)

    metadata = with_client(bootstrap, work)
    parts = [part for info in metadata.topics.values() for part in info.partitions.values()]
    rows = [
        {
            "broker": each.broker_id,
            "address": f"{each.host}:{each.port}",
            "rack": each.rack,
            "controller": each.broker_id == metadata.controller_id,
            "leads": sum(part.leader == each.broker_id for part in parts),
            "replicas": sum(each.broker_id in part.replicas for part in parts),
            "not_in_sync": sum(each.broker_id in part.replicas and each.broker_id not in part.isr for part in parts),
        }
        for each in sorted(metadata.brokers.values(), key=lambda each: each.broker_id)
    ]
    if as_json:
        show.print_json(rows)
        return
    table = Table("broker", "address", "rack", "leads", "replicas", "not in sync", "")
    for row in rows:
        table.add_row(
            str(row["broker"]),
            escape(str(row["address"])),
            escape(str(row["rack"] or "-")),
            f"{row['leads']:,}",
            f"{row['replicas']:,}",
            f"{row['not_in_sync']:,}",
            "controller" if row["controller"] else "",
        )
    show.results().print(table)


@app.command("log-dirs")
def log_dirs(
    broker: Annotated[str | None, typer.Option(metavar="ID,...", help="These brokers only.")] = None,
    topic: Annotated[list[str] | None, typer.Option(help="These topics only.")] = None,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show how much the logs take on each broker's disk."""
    wanted = parse_ids(broker) if broker is not None else None

    async def work(client: Client) -> list[LogDirectory]:
        from sexton.client.admin import Admin

        ids = sorted((await client.refresh(())).brokers) if wanted is None else wanted
        found = await asyncio.gather(*(Admin(client).log_directories(each, topic) for each in ids))
        return [each for part in found for each in part]

    directories = with_client(bootstrap, work)
    if as_json:
        show.print_json([_directory_json(each) for each in directories])
        return
    table = Table("broker", "folder", "log", "size", "behind")
    for each in directories:
        total = f"{show.bytes_text(each.usable_bytes)} of {show.bytes_text(each.total_bytes)} free"
        size = show.bytes_text(sum(log.size_bytes for log in each.logs))
        what = f"[red]{escape(each.error)}[/]" if each.error else f"[dim]{len(each.logs):,} logs; disk: {total}[/]"
        table.add_row(str(each.broker_id), escape(each.path), what, f"[bold]{size}[/]", "")
        for log in sorted(each.logs, key=lambda log: (-log.size_bytes, log.topic, log.partition)):
            name = f"{escape(log.topic)}-{log.partition}"
            table.add_row("", "", name, show.bytes_text(log.size_bytes), f"{log.lag:,}" if log.lag else "")
    show.results().print(table)


def _directory_json(each: LogDirectory) -> dict[str, Any]:
    return {
        "broker": each.broker_id,
        "path": each.path,
        "error": each.error,
        "total_bytes": each.total_bytes,
        "usable_bytes": each.usable_bytes,
        "logs": [
            {"topic": log.topic, "partition": log.partition, "size_bytes": log.size_bytes, "lag": log.lag}
            for log in each.logs
        ],
    }
