"""`sexton compaction`: how far each replica is, what it waits for, what was done, and why something is still there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

from sexton.cli import show
from sexton.cli.broker import UsageError
from sexton.cli.connect import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, with_client
from sexton.errors import SextonError
from sexton.protocol.private import PrivateApi

if TYPE_CHECKING:
    from sexton.client.client import Client

app = typer.Typer(help="Show how compaction goes, ask for it, ask why.", no_args_is_help=True)

POLL_S: Final = 0.5

STORE: Final = "store"
CLOUD_WORK: Final = {-1: "compacted", -2: "leveled", -3: "merged"}
"""What the kinds of `ports.work_queue.CloudWork` are called."""

Replica = Mapping[str, Any]


class TookTooLongError(SextonError):
    """It goes on without us."""

    exit_code = 75


@app.command()
def status(
    topic: Annotated[str | None, typer.Argument(metavar="[TOPIC[:PARTITION]]")] = None,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show each replica's watermarks, its dirty ratio, and what it waits for."""
    name, partition = _parse_place(topic) if topic else (None, None)

    async def work(client: Client) -> tuple[list[dict[str, Any]], int | None]:
        from sexton.broker.compaction import answers

        return await answers.overview(client, name, partition)

    replicas, compactors_count = with_client(bootstrap, work)
    if as_json:
        show.print_json({"replicas": replicas, "compactors_count": compactors_count})
        return
    if not replicas:
        remedy = "sexton config set --topic NAME cleanup.policy=compact"
        Console(stderr=True).print(f"Nothing here is compacted. To change that: [cyan]{remedy}[/]")
        return
    now_ms = time.time_ns() // 1_000_000
    table = Table()
    for column in (
        "partition",
        "broker",
        "role",
        "MCCO",
        "MXFO",
        "MTRO",
        "MXRO",
        "end",
        "dirty",
        "size",
        "saved",
        "waiting",
        "compacted",
        "due",
    ):
        is_text = column in ("partition", "role", "due")
        table.add_column(column, justify="left" if is_text else "right", overflow="fold")
    for one in replicas:
        table.add_row(
            f"{one['topic']}-{one['partition']}",
            str(one["broker"]),
            one["role"] + ("" if one["is_in_sync"] else " (behind)"),
            *(f"{one[name]:,}" for name in ("mcco", "mxfo", "mtro", "mxro", "log_end_offset")),
            f"{one['dirty_ratio']:.0%}",
            show.bytes_text(one["size_bytes"]),
            show.bytes_text(one["last_run"]["bytes_saved"]) if one["last_run"] else "",
            _waiting_text(one),
            "" if one["compacted_ms"] is None else f"{show.duration_text(now_ms - one['compacted_ms'])} ago",
            _due_text(one),
        )
    console = show.results()
    console.print(table)
    due = {
        f"{one['topic']}-{one['partition']} on broker {one['broker']}: {one['why']}"
        for one in replicas
        if one["is_due"] and one["uncleanable"] is None
    }
    from sexton.broker.compaction.answers import NOBODY_COMPACTS, held_back, uncleanable

    for line in (*sorted(due), *held_back(replicas), *uncleanable(replicas)):
        console.print(line, highlight=False)
    if compactors_count == 0:
        console.print(f"[bold red]{NOBODY_COMPACTS}[/]", highlight=False)


@app.command()
def run(
    topic: Annotated[str, typer.Argument(metavar="TOPIC[:PARTITION]")],
    timeout_s: Annotated[float, typer.Option("--timeout", min=0, help="How long to wait, in seconds.")] = 300,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Compact a topic now, on all its replicas, the newest records too, and wait until it is done."""
    name, partition = _parse_place(topic)

    async def work(client: Client) -> dict[str, Any]:
        from sexton.broker.compaction import answers

        before = {_place(one): one for one in await answers.status(client, name)}
        await client.refresh((name,))
        asked: dict[tuple[int | str, int], int] = {}
        for broker in sorted(client.metadata.brokers):
            answer = await answers.ask(
                client, broker, PrivateApi.COMPACTION_REQUEST, {"topic": name, "partition": partition}
            )
            for index in answer["partitions"]:
                asked[broker, index] = before[broker, index]["log_end_offset"] if (broker, index) in before else 0
            for index in answer.get("in_store", ()):
                asked[STORE, index] = before[STORE, index]["log_end_offset"] if (STORE, index) in before else 0
        if not asked:
            raise answers.NotFoundError(
                f"no broker has a compacted replica of {topic}", "", "cleanup.policy must include compact"
            )
        after = await _wait(client, name, asked, timeout_s)
        return {
            "replicas": [
                {
                    "broker": broker,
                    "partition": index,
                    "mcco": after[broker, index]["mcco"],
                    "bytes_before": before.get((broker, index), {}).get("size_bytes"),
                    "bytes_after": after[broker, index]["size_bytes"],
                }
                for broker, index in sorted(asked)
            ]
        }

    done = with_client(bootstrap, work)
    if as_json:
        show.print_json(done)
        return
    table = Table()
    for column in ("partition", "broker", "compacted to", "before", "after"):
        table.add_column(column, justify="left" if column == "partition" else "right")
    for one in done["replicas"]:
        sizes = (show.bytes_text(one[size] or 0) for size in ("bytes_before", "bytes_after"))
        table.add_row(f"{name}-{one['partition']}", str(one["broker"]), f"{one['mcco']:,}", *sizes)
    show.results().print(table)


async def _wait(
    client: Client, topic: str, asked: Mapping[tuple[int | str, int], int], timeout_s: float
) -> Mapping[tuple[int | str, int], Replica]:
    """Waits until every replica is compacted up to where its log ended when the command began."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from sexton.broker.compaction import answers

    deadline_s = time.monotonic() + timeout_s
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"compacting {topic}", total=len(asked))
        while True:
            now = {_place(one): one for one in await answers.status(client, topic)}
            done = [place for place, end in asked.items() if place in now and now[place]["mcco"] >= end]
            bar.update(task, completed=len(done))
            if len(done) == len(asked):
                return now
            if time.monotonic() > deadline_s:
                waiting = sorted(set(asked) - set(done))
                names = ", ".join(f"{topic}-{index} on broker {broker}" for broker, index in waiting)
                raise TookTooLongError(
                    f"not compacted yet: {names}", "", "Is a compactor running? `sexton compaction history` tells"
                )
            await asyncio.sleep(POLL_S)


@app.command()
def history(
    topic: Annotated[str | None, typer.Argument(metavar="[TOPIC]", help="Only of this topic.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many runs.")] = 20,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show the last runs, what is due now, and who works on it."""

    async def work(client: Client) -> Mapping[str, Any]:
        from sexton.broker.compaction import answers

        return await answers.history(client, limit, topic)

    found = with_client(bootstrap, work)
    if as_json:
        show.print_json(dict(found))
        return
    table = Table(title="Runs, the newest first")
    for column in ("when", "partition", "broker", "dirty section", "bytes", "records", "took", "speed", "outcome"):
        table.add_column(column, justify="left" if column in ("when", "partition", "outcome") else "right")
    for one in found["runs"]:
        table.add_row(
            show.time_text(one["finished_ms"]),
            f"{one['topic']}-{one['partition']}",
            _broker_text(one["broker_id"]),
            ("" if one["first_dirty_offset"] < 0 else f"{one['first_dirty_offset']:,} ") + f"to {one['bound']:,}",
            f"{show.bytes_text(one['bytes_before'])} → {show.bytes_text(one['bytes_after'])}",
            "" if one["records_before"] is None else f"{one['records_before']:,} → {one['records_after']:,}",
            show.duration_text(one["duration_ms"]),
            "" if not one["bytes_per_second"] else f"{show.bytes_text(one['bytes_per_second'])}/s",
            one["outcome"],
        )
    console = show.results()
    console.print(table)
    held = sum(one["holder"] is not None for one in found["work"])
    console.print(
        f"{len(found['work']):,} replicas are due, {held:,} of them are being worked on; compactors: "
        f"{', '.join(one['name'] for one in found['compactors']) or 'none'}",
        highlight=False,
    )


@app.command()
def why(
    place: Annotated[str, typer.Argument(metavar="TOPIC:PARTITION")],
    key: Annotated[str | None, typer.Option(help="The newest record of this key.")] = None,
    offset: Annotated[int | None, typer.Option(min=0, help="The record or marker at this offset.")] = None,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Say why a record, tombstone or transaction marker is still there, and which replica it waits for."""
    if (key is None) is (offset is None):
        raise UsageError("one of --key and --offset is needed", "", "As in --key order-17")
    topic, partition = _parse_place(place)
    if partition is None:
        raise UsageError(f"{place} names no partition", "", "As in orders:0")

    now_ms = time.time_ns() // 1_000_000

    async def work(client: Client) -> dict[str, Any]:
        from sexton.broker.compaction import answers

        return await answers.why(client, topic, partition, None if key is None else key.encode(), offset, now_ms)

    answer = with_client(bootstrap, work)
    if as_json:
        show.print_json(answer)
        return
    console = show.results(highlight=False)
    left = answer["delete_horizon_ms"]
    because = answer["because"] + ("" if left is None else f", for {show.duration_text(left - now_ms)}")
    console.print(f"[bold]{answer['what']}[/] at offset {answer['offset']:,}: {because}")
    for line in answer["waits_for"]:
        console.print(f"  {line}")


# What all of them need


def _waiting_text(one: Replica) -> str:
    """How many tombstones and markers wait to go, and what is kept for replicas that are not past them."""
    count = one["tombstones_count"] + one["markers_count"]
    held = f", {show.bytes_text(one['held_back_bytes'])} for replicas" if one["held_back_bytes"] else ""
    return f"{count:,}{held}" if count else ""


def _due_text(one: Replica) -> str:
    if one["uncleanable"] is not None:
        return "uncleanable"
    return "waits for leader" if one["waits_for_leader"] else "yes" if one["is_due"] else ""


def _broker_text(broker_id: int) -> str:
    """What was done to a cloud partition was done in the store."""
    return str(broker_id) if broker_id >= 0 else f"{STORE} ({CLOUD_WORK.get(broker_id, '?')})"


def _place(one: Replica) -> tuple[int | str, int]:
    return one["broker"], one["partition"]


def _parse_place(text: str) -> tuple[str, int | None]:
    topic, colon, partition = text.partition(":")
    if not colon:
        return topic, None
    if not partition.isdecimal():
        raise UsageError(f"{text} names no partition", "", "As in orders:0")
    return topic, int(partition)
