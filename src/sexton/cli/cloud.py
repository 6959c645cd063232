"""`sexton cloud`: what cloud topics have in their store, what an object is for, and whether all of it is there.

These commands read the metastore and the store themselves, so they work while no broker runs.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sexton.cli import show
from sexton.cli.broker import UsageError
from sexton.cli.cloud_losses import accept_loss
from sexton.cli.cloud_place import DEFAULT_DIRECTORY, Directory, MetastoreUrl, StoreUrl, with_cluster
from sexton.cli.cloud_switch import switch
from sexton.cli.connect import AsJson, confirm
from sexton.errors import SextonError

if TYPE_CHECKING:
    from sexton.cloud.checking import Found
    from sexton.cloud.costs import Costs
    from sexton.cloud.looking import Explanation, Status
    from sexton.cloud.scrubbing import Scrubbed
    from sexton.ports.cloud import CloudPartitionRow, Extent, ObjectRow, ObjectState
    from sexton.ports.metastore import Metastore
    from sexton.ports.objects import ObjectStore
    from sexton.types import PartitionId

app = typer.Typer(
    help="Show what cloud topics have in their store, what an object is for, and whether all is there.",
    no_args_is_help=True,
)

STATES = ("pending", "live", "garbage")
WAITING_SHOWN = 10
NAME_WIDTH_MIN = 12
"""Of a topic: a terminal of 80 columns would show nothing of it."""
LOST_REMEDY = (
    "`sexton cloud why OBJECT` says what each was part of. What is lost for good is given up with "
    "`sexton cloud accept-loss`"
)


class DataLostError(SextonError):
    """The store lacks something that is part of a log."""

    exit_code: ClassVar[int] = 1


def _complete_states(incomplete: str) -> list[str]:
    *before, last = incomplete.split(",")
    return [",".join([*before, state]) for state in STATES if state.startswith(last) and state not in before]


@app.command()
def status(
    directory: Directory = DEFAULT_DIRECTORY,
    metastore: MetastoreUrl = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show how many objects there are and of what size, and what each cloud partition has."""
    from sexton.cloud import looking

    async def work(known: Metastore, _: ObjectStore, __: uuid.UUID) -> Status:
        return await looking.read_status(known)

    found = with_cluster(directory, metastore, store, work)
    if as_json:
        sums = [{**one._asdict(), "level": one.level.name, "state": one.state.name.lower()} for one in found.sums]
        partitions = [
            {
                **asdict(row),
                "topic": found.topics.get(row.topic_id),
                "topic_id": str(row.topic_id),
                "storage": storage_of(found, (row.topic_id, row.partition)),
            }
            for row in found.partitions
        ]
        local = [{"topic": topic, "partition": partition} for topic, partition in still_local(found)]
        pins = [{**pin._asdict(), "pin_id": str(pin.pin_id)} for pin in found.pins]
        told = {"round": found.round, "objects": sums, "partitions": partitions, "local": local, "pins": pins}
        show.print_json(told)
        return
    if not found.partitions and not found.sums and not found.storage:
        Console(stderr=True).print("No cloud topics yet. `sexton topic create NAME --config storage.mode=cloud`")
        return
    console = show.results()
    objects = Table("level", "state", "objects", "bytes", "referred to")
    for one in found.sums:
        sizes = show.bytes_text(one.size_bytes), show.bytes_text(one.live_bytes)
        objects.add_row(one.level.name, one.state.name.lower(), f"{one.objects_count:,}", *sizes)
    console.print(objects)
    now_ms = time.time_ns() // 1_000_000
    table = Table(
        "topic", "partition", "start", "end", "stable", "leveled", "cleaned", "L0 waits", "bytes", "writer", "epoch"
    )
    table.columns[0].min_width = NAME_WIDTH_MIN
    for row in found.partitions:
        table.add_row(
            escape(_name_of(found, row)),
            str(row.partition),
            *(f"{offset:,}" for offset in (row.start_offset, row.end_offset, row.stable_offset)),
            *(f"{offset:,}" for offset in (row.leveled_offset, row.cleaned_offset)),
            _waits(row, now_ms),
            show.bytes_text(row.l0_bytes + row.l1_bytes),
            str(row.writer_id) if row.writer_id >= 0 else "none",
            str(row.writer_epoch),
        )
    console.print(table)
    if waiting := still_local(found):
        names = ", ".join(f"{topic}-{partition}" for topic, partition in waiting[:WAITING_SHOWN])
        more = f" and {len(waiting) - WAITING_SHOWN:,} more" if len(waiting) > WAITING_SHOWN else ""
        console.print(escape(f"Local until their leaders copy them: {names}{more}"))
    for pin in found.pins:
        console.print(escape(f"{pin.owner} ({pin.what}) holds deletions back, until round {pin.until_round}"))
    console.print(f"[dim]round {found.round} of the collection[/]")


def _waits(row: CloudPartitionRow, now_ms: int) -> str:
    """For how long what brokers wrote has waited to be leveled, and in how many extents."""
    if not row.l0_extents_count:
        return ""
    return f"{row.l0_extents_count:,} for {show.duration_text(max(0, now_ms - row.l0_since_ms))}"


def _name_of(found: Status, row: CloudPartitionRow) -> str:
    storage = storage_of(found, (row.topic_id, row.partition))
    name = found.topics.get(row.topic_id, str(row.topic_id))
    return name if storage == "cloud" else f"{name} ({storage})"


def storage_of(found: Status, key: PartitionId) -> str:
    storage = found.storage.get(key)
    return "deleted" if storage is None else storage.name.lower()


def still_local(found: Status) -> list[tuple[str, int]]:
    """Partitions of topics that are to be in the store, whose turn has not come."""
    from sexton.ports.metastore import Storage

    local = (key for key, storage in found.storage.items() if storage is Storage.LOCAL)
    return sorted((found.topics[topic_id], partition) for topic_id, partition in local)


@app.command()
def objects(
    directory: Directory = DEFAULT_DIRECTORY,
    metastore: MetastoreUrl = None,
    store: StoreUrl = None,
    states: Annotated[
        str,
        typer.Option(
            "--state", metavar="STATES", help="pending, live, garbage, with commas.", autocompletion=_complete_states
        ),
    ] = ",".join(STATES),
    limit: Annotated[int, typer.Option(help="At most so many.", min=1)] = 1000,
    as_json: AsJson = False,
) -> None:
    """List objects: their state, who registered them, what they hold."""
    from sexton.cloud import looking
    from sexton.ports.cloud import ObjectState

    wanted = _states(states, ObjectState)

    async def work(known: Metastore, _: ObjectStore, __: uuid.UUID) -> list[ObjectRow]:
        rows = []
        async for row in looking.objects_of(known, wanted):
            rows.append(row)
            if len(rows) == limit:
                break
        return rows

    found = with_cluster(directory, metastore, store, work)
    if as_json:
        show.print_json([_object_json(row) for row in found])
        return
    if not found:
        Console(stderr=True).print(f"No objects that are {' or '.join(states.split(','))}.")
        return
    table = Table("object", "made", "level", "state", "owner", "bytes", "extents", "referred to", "round")
    for row in found:
        table.add_row(
            str(row.object_id),
            _time(row.object_id),
            row.level.name,
            row.state.name.lower(),
            f"{row.owner.kind.name.lower()} {row.owner.id}",
            show.bytes_text(row.size_bytes),
            str(row.refs_count),
            show.bytes_text(row.live_bytes),
            str(row.round),
        )
    show.results().print(table)


@app.command()
def why(
    object_id: Annotated[str, typer.Argument(metavar="OBJECT", help="Its id, or its key in the store.")],
    directory: Directory = DEFAULT_DIRECTORY,
    metastore: MetastoreUrl = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Tell why an object is there, what refers to it, and when it goes."""
    from sexton.cloud import looking

    try:
        asked = uuid.UUID(object_id.rpartition("/")[2])
    except ValueError:
        raise UsageError(f"{object_id} is no object", "OBJECT", "`sexton cloud objects` lists them") from None

    async def work(known: Metastore, bytes_of: ObjectStore, cluster_id: uuid.UUID) -> Explanation:
        return await looking.explain(known, bytes_of, cluster_id, asked)

    found = with_cluster(directory, metastore, store, work)
    references = [_reference_json(found, one) for one in found.references]
    if as_json:
        row = None if found.row is None else _object_json(found.row)
        told = {"object": str(asked), "row": row, "why": found.why, "stored_bytes": found.size_bytes}
        show.print_json({**told, "round": found.round, "references": references})
        return
    console = show.results(highlight=False)
    state = "unknown" if found.row is None else found.row.state.name.lower()
    console.print(f"[bold]{asked}[/]  {state}  [dim]made {_time(asked)}[/]")
    console.print(escape(found.why))
    if references:
        table = Table("topic", "partition", "from", "to", "position", "bytes")
        for one in references:
            offsets = f"{one['base_offset']:,}", f"{one['end_offset'] - 1:,}"
            table.add_row(
                escape(one["topic"]),
                str(one["partition"]),
                *offsets,
                f"{one['position']:,}",
                show.bytes_text(one["size_bytes"]),
            )
        console.print(table)


@app.command()
def check(
    directory: Directory = DEFAULT_DIRECTORY,
    metastore: MetastoreUrl = None,
    store: StoreUrl = None,
    deep: Annotated[bool, typer.Option("--deep", help="Read every byte, and check it.")] = False,
    as_json: AsJson = False,
) -> None:
    """Look whether everything that is part of a cloud topic is in the store. Exits with 1 if something is not."""
    from sexton.cloud import checking
    from sexton.cloud.ownership import REMEDY

    async def work(known: Metastore, bytes_of: ObjectStore, cluster_id: uuid.UUID) -> Found:
        return await checking.check(known, bytes_of, cluster_id, is_deep=deep)

    found = with_cluster(directory, metastore, store, work)
    if as_json:
        lost = [{"object": str(object_id), "what": what} for object_id, what in found.lost]
        show.print_json({**asdict(found), "lost": lost, "is_right": found.is_right})
    else:
        _tell(found, deep)
    if not found.is_right:
        what = f"{len(found.lost)} objects are lost or damaged, {len(found.gaps)} gaps"
        what += "" if found.is_marked else ", and the store has no marker: it was emptied, or is another one"
        raise DataLostError(what, str(directory), LOST_REMEDY if found.is_marked else REMEDY)


@app.command()
def scrub(
    directory: Directory = DEFAULT_DIRECTORY,
    metastore: MetastoreUrl = None,
    store: StoreUrl = None,
    days: Annotated[float, typer.Option(min=0, help="Leave what is younger alone.")] = 7,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete objects that nobody knows of: they were put after they had been given up, which is rare.

    Whoever may want to restore an older metastore keeps them for as long as its backups are old.
    """
    from sexton.cloud import scrubbing

    async def work(known: Metastore, bytes_of: ObjectStore, cluster_id: uuid.UUID) -> Scrubbed:
        now_ms = time.time_ns() // 1_000_000
        age_ms = int(days * 24 * 3_600_000)
        return await scrubbing.scrub(known, bytes_of, cluster_id, now_ms, age_ms=age_ms, is_dry=dry_run)

    found = with_cluster(directory, metastore, store, work)
    if as_json:
        keys = [one.key for one in found.unknown]
        show.print_json({**asdict(found), "unknown": keys, "unknown_bytes": found.unknown_bytes})
        return
    verb = "would be deleted" if dry_run else "were to be deleted"
    done = "" if dry_run else f", {found.deleted_count:,} of them are gone now"
    show.results().print(
        f"{found.listed_count:,} objects are in the store; {len(found.unknown):,} of them are unknown to the metastore "
        f"({show.bytes_text(found.unknown_bytes)}), which {verb}{done}; {found.young_count:,} more are too young",
        highlight=False,
    )


@app.command()
def cost(
    directory: Directory = DEFAULT_DIRECTORY,
    metastore: MetastoreUrl = None,
    store: StoreUrl = None,
    minutes: Annotated[int, typer.Option(min=1, help="Count objects that were made in the last so many.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Estimate what the store costs at the prices of S3 Standard: storage, and requests that write.

    Objects that were deleted meanwhile are not counted: let the minutes be fewer than cloud.delete.delay.ms has.
    """
    from sexton.cloud import costs

    async def work(known: Metastore, _: ObjectStore, __: uuid.UUID) -> Costs:
        return await costs.estimate(known, time.time_ns() // 1_000_000, minutes * 60_000)

    found = with_cluster(directory, metastore, store, work)
    if as_json:
        show.print_json({**asdict(found), "dollars_per_month": found.dollars_per_month})
        return
    table = Table("what", "now", "$ a month", title="At the prices of S3 Standard, us-east-1")
    stored = f"{found.objects_count:,} objects, {show.bytes_text(found.stored_bytes)}"
    table.add_row("storage", stored, f"{found.storage_dollars_per_month:,.2f}")
    for what, puts, dollars in (
        ("L0: objects of brokers", found.l0_puts_per_hour, found.l0_dollars_per_month),
        ("L1: parts of compactors", found.l1_puts_per_hour, found.l1_dollars_per_month),
    ):
        table.add_row(what, f"{puts:,.0f} an hour", f"{dollars:,.2f}")
    table.add_row("together", "", f"{found.dollars_per_month:,.2f}")
    show.results().print(table)


app.command("accept-loss")(accept_loss)
app.command("switch")(switch)


@app.command()
def adopt(
    directory: Directory = DEFAULT_DIRECTORY,
    metastore: MetastoreUrl = None,
    store: StoreUrl = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Make a store that lost its marker, with everything else perhaps, this cluster's again.

    Brokers lead no cloud topic where it is missing. What is lost stays lost: whoever reads it gets an error.
    """
    from sexton.ports.object_names import claim_store

    async def work(_: Metastore, bytes_of: ObjectStore, cluster_id: uuid.UUID) -> str:
        confirm(f"Make {bytes_of.place} the store of this cluster's cloud topics?", yes)
        await claim_store(bytes_of, cluster_id)
        return bytes_of.place

    place = with_cluster(directory, metastore, store, work)
    show.results().print(f"{escape(place)} is this cluster's. `sexton cloud check` says what is lost")


def _tell(found: Found, deep: bool) -> None:
    console = show.results()
    if found.lost:
        table = Table("object", "what is wrong")
        for object_id, what in found.lost:
            table.add_row(str(object_id), escape(what))
        console.print(table)
    for gap in found.gaps:
        console.print(escape(gap))
    looked = "read whole" if deep else "looked at"
    size = show.bytes_text(found.bytes_count)
    console.print(f"{found.objects_count:,} live objects, {size}: {looked}, {len(found.lost)} of them lost or damaged")


def _states(text: str, of: type[ObjectState]) -> list[ObjectState]:
    found = [part.strip().lower() for part in text.split(",") if part.strip()]
    unknown = [part for part in found if part not in STATES]
    if unknown or not found:
        raise UsageError(f"{', '.join(unknown) or 'nothing'} is no state", "--state", f"Choose of {', '.join(STATES)}")
    return [of[part.upper()] for part in found]


def _object_json(row: ObjectRow) -> dict[str, Any]:
    owner = {"kind": row.owner.kind.name.lower(), "id": row.owner.id, "epoch": row.owner.epoch}
    changed = {"object_id": str(row.object_id), "level": row.level.name, "state": row.state.name.lower()}
    return {**asdict(row), **changed, "owner": owner}


def _reference_json(found: Explanation, one: tuple[tuple[uuid.UUID, int], Extent]) -> dict[str, Any]:
    (topic_id, partition), extent = one
    return {
        "topic": found.topics.get(topic_id, str(topic_id)),
        "partition": partition,
        "base_offset": extent.base_offset,
        "end_offset": extent.end_offset,
        "position": extent.position,
        "size_bytes": extent.size_bytes,
    }


def _time(object_id: uuid.UUID) -> str:
    from sexton.ports.object_names import object_id_time_ms

    try:
        made = datetime.fromtimestamp(object_id_time_ms(object_id) / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return "?"
    return f"{made:%Y-%m-%d %H:%M:%S}"
