"""`sexton txn`: what transactions are open, since when, and ending one that hangs."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sexton.cli import show
from sexton.cli.broker import UsageError
from sexton.cli.connect import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, confirm, with_client

if TYPE_CHECKING:
    from sexton.client.client import Client
    from sexton.client.transaction_admin import ProducerAt, TransactionDescription, TransactionListing

app = typer.Typer(help="Show transactions, find those that hang, end one by force.", no_args_is_help=True)

OLDER_THAN_S: Final = 900
"""Kafka's default of transaction.max.timeout.ms: no coordinator lets a transaction live longer."""

TransactionalId = Annotated[str, typer.Argument(metavar="TRANSACTIONAL_ID")]
TopicOption = Annotated[str | None, typer.Option("--topic", "-t", metavar="NAME", help="This topic only.")]


@app.command("list")
def list_transactions(as_json: AsJson = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Show all transactional ids and what becomes of their last transaction."""

    async def work(client: Client) -> list[TransactionListing]:
        from sexton.client import transaction_admin

        return await transaction_admin.list_transactions(client)

    found = with_client(bootstrap, work)
    if as_json:
        show.print_json([asdict(each) for each in found])
        return
    if not found:
        Console(stderr=True).print("No transactions yet. A producer with a transactional.id makes the first.")
        return
    table = Table("transactional id", "coordinator", "producer id", "state")
    for each in found:
        table.add_row(escape(each.transactional_id), str(each.coordinator), str(each.producer_id), each.state)
    show.results().print(table)


@app.command()
def describe(
    transactional_id: TransactionalId, as_json: AsJson = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP
) -> None:
    """Show one transactional id: its producer, its state, its partitions and its age."""

    async def work(client: Client) -> TransactionDescription:
        from sexton.client import transaction_admin

        return await transaction_admin.describe_transaction(client, transactional_id)

    found = with_client(bootstrap, work)
    age_ms = None if found.start_ms is None or not found.is_open else max(0, round(time.time() * 1000) - found.start_ms)
    if as_json:
        places = [{"topic": topic, "partition": partition} for topic, partition in found.places]
        show.print_json({**asdict(found), "places": places, "age_ms": age_ms})
        return
    age = "none is open" if age_ms is None else f"open for {age_ms / 1000:.1f} s"
    console = show.results(highlight=False)
    console.print(
        f"[bold]{escape(found.transactional_id)}[/]  {found.state}  [dim]{age}, timeout {found.timeout_ms / 1000:g} s, "
        f"producer {found.producer_id} in epoch {found.producer_epoch}, coordinated by broker {found.coordinator}[/]"
    )
    if found.places:
        table = Table("topic", "partition")
        for topic, partition in found.places:
            table.add_row(escape(topic), str(partition))
        console.print(table)


@app.command("find-hanging")
def find_hanging(
    topic: TopicOption = None,
    older_than_s: Annotated[
        int, typer.Option("--older-than", metavar="SECONDS", help="Without a record for so long.", min=0)
    ] = OLDER_THAN_S,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Find transactions that are open in a partition and that no coordinator will end."""

    async def work(client: Client) -> list[ProducerAt]:
        from sexton.client import transaction_admin

        metadata = await client.refresh(None if topic is None else [topic])
        if topic is not None:
            await client.topic(topic)
        names = [topic] if topic is not None else sorted(metadata.topics)
        places = [(name, number) for name in names for number in sorted(client.metadata.topics[name].partitions)]
        return await transaction_admin.find_hanging(client, places, older_than_s * 1000)

    found = with_client(bootstrap, work)
    if as_json:
        show.print_json([_json(each) for each in found])
        return
    if not found:
        Console(stderr=True).print("No transaction hangs.")
        return
    table = Table("topic", "partition", "start offset", "producer id", "epoch", "silent for")
    now_ms = time.time() * 1000
    for each in found:
        table.add_row(
            escape(each.place[0]),
            str(each.place[1]),
            f"{each.start_offset:,}",
            str(each.producer_id),
            str(each.producer_epoch),
            f"{(now_ms - each.last_ms) / 1000:,.0f} s",
        )
    console = show.results()
    console.print(table)
    console.print("`sexton txn abort TOPIC PARTITION START_OFFSET` ends one.")


def _json(found: ProducerAt) -> dict[str, Any]:
    topic, partition = found.place
    return {
        **{key: value for key, value in asdict(found).items() if key != "place"},
        "topic": topic,
        "partition": partition,
    }


@app.command()
def abort(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    partition: Annotated[int, typer.Argument(metavar="PARTITION", min=0)],
    start_offset: Annotated[int, typer.Argument(metavar="START_OFFSET", min=0)],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Abort what a transaction wrote to one partition, without its coordinator. For those that hang.

    The transaction that begins at that offset: `find-hanging` shows it. One that does not hang is torn by this: its
    records in other partitions are still its coordinator's to commit or to abort.
    """
    confirm(f"Abort the transaction that begins at offset {start_offset:,} of {topic}-{partition}?", yes)

    async def work(client: Client) -> int:
        from sexton.client import transaction_admin

        await client.topic(topic)
        for each in await transaction_admin.describe_producers(client, [(topic, partition)]):
            if each.start_offset == start_offset:
                await transaction_admin.abort_at(client, each)
                return each.producer_id
        what = f"no open transaction begins at offset {start_offset:,}"
        raise UsageError(what, f"{topic}-{partition}", "`sexton txn find-hanging` shows those that hang")

    producer_id = with_client(bootstrap, work)
    show.results().print(
        f"Aborted what producer {producer_id} wrote to {escape(topic)}-{partition} from {start_offset:,} on"
    )
