"""`sexton group`: who consumes what, and how far they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sexton.cli import show
from sexton.cli.broker import UsageError
from sexton.cli.connect import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, confirm, parse_ids, parse_time_ms, with_client
from sexton.types import TopicPartition

if TYPE_CHECKING:
    from sexton.client.client import Client
    from sexton.client.group_admin import GroupDescription, GroupListing

app = typer.Typer(help="Show consumer groups, move their offsets, delete them.", no_args_is_help=True)

GroupName = Annotated[str, typer.Argument(metavar="GROUP")]


@app.command("list")
def list_groups(as_json: AsJson = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Show all groups."""

    async def work(client: Client) -> list[GroupListing]:
        from sexton.client import group_admin

        return await group_admin.list_groups(client)

    groups = with_client(bootstrap, work)
    if as_json:
        show.print_json([{"group": each.group, "state": each.state, "kind": each.kind} for each in groups])
        return
    if not groups:
        Console(stderr=True).print("No groups yet. `sexton consume TOPIC --group NAME` makes one.")
        return
    table = Table("group", "state", "kind")
    for each in groups:
        table.add_row(escape(each.group), each.state, each.kind)
    show.results().print(table)


@dataclass(frozen=True, slots=True)
class _Position:
    place: TopicPartition
    committed: int | None
    end: int
    member: str | None

    @property
    def lag(self) -> int | None:
        return None if self.committed is None else max(0, self.end - self.committed)


@app.command()
def describe(group: GroupName, as_json: AsJson = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Show a group's members, committed offsets and lag."""

    async def work(client: Client) -> tuple[GroupDescription, list[_Position]]:
        from sexton.client import group_admin, groups
        from sexton.client.consumer import LATEST, list_offsets

        described = await group_admin.describe_group(client, group)
        committed = await groups.fetch_offsets(client, group)
        owners = {place: member.member_id for member in described.members for place in member.assigned}
        places = sorted({*committed, *owners})
        metadata = await client.refresh(sorted({topic for topic, _ in places}))
        places = [place for place in places if metadata.leader(*place) is not None]  # topics may be gone
        ends = await list_offsets(client, dict.fromkeys(places, LATEST))
        return described, [_Position(each, committed.get(each), ends[each], owners.get(each)) for each in places]

    described, positions = with_client(bootstrap, work)
    if as_json:
        show.print_json(_json(described, positions))
    else:
        _print(described, positions)


def _json(described: GroupDescription, positions: list[_Position]) -> dict[str, Any]:
    return {
        "group": described.group,
        "state": described.state,
        "kind": described.kind,
        "assignor": described.assignor,
        "coordinator": described.coordinator,
        "members": [
            {"member": each.member_id, "instance": each.instance_id, "client": each.client_id, "host": each.host}
            for each in described.members
        ],
        "offsets": [
            {
                "topic": each.place[0],
                "partition": each.place[1],
                "committed": each.committed,
                "end": each.end,
                "lag": each.lag,
                "member": each.member,
            }
            for each in positions
        ],
    }


def _print(described: GroupDescription, positions: list[_Position]) -> None:
    console = show.results(highlight=False)
    console.print(
        f"[bold]{escape(described.group)}[/]  {described.state}  [dim]{described.kind}, "
        f"{escape(described.assignor) or 'no assignor'}, coordinated by broker {described.coordinator}[/]"
    )
    if described.members:
        members = Table("member", "client", "host", "partitions")
        for each in described.members:
            members.add_row(escape(each.member_id), escape(each.client_id), each.host, str(len(each.assigned)))
        console.print(members)
    table = Table("topic", "partition", "committed", "end", "lag", "member")
    for position in positions:
        committed, lag = ("-" if each is None else f"{each:,}" for each in (position.committed, position.lag))
        name, partition = position.place
        table.add_row(
            escape(name), str(partition), committed, f"{position.end:,}", lag, escape(position.member or "nobody")
        )
    console.print(table)


@app.command()
def delete(
    groups: Annotated[list[str], typer.Argument(metavar="GROUP...")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Delete groups and their committed offsets."""
    confirm(f"Delete {', '.join(groups)} with all committed offsets?", yes)

    async def work(client: Client) -> None:
        from sexton.client import group_admin

        for name in groups:
            await group_admin.delete_group(client, name)
            show.results().print(f"Deleted {escape(name)}")

    with_client(bootstrap, work)


@app.command("reset-offsets")
def reset_offsets(
    group: GroupName,
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    to: Annotated[
        str | None, typer.Option(metavar="earliest|latest|OFFSET|TIME", help="Where to go on reading. Times are UTC.")
    ] = None,
    shift_by: Annotated[int | None, typer.Option(metavar="N", help="So many records on, or back if negative.")] = None,
    partition: Annotated[str | None, typer.Option(metavar="P,...", help="These partitions only.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change. Change nothing.")] = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Move a group to other offsets. It must have no members."""
    if (to is None) == (shift_by is None):
        raise UsageError("where to is not clear", "", "Give --to or --shift-by")
    wanted = parse_ids(partition) if partition is not None else None

    async def work(client: Client) -> list[tuple[TopicPartition, int | None, int]]:
        from sexton.client import groups

        info = await client.topic(topic)
        places = [(topic, number) for number in (info.partitions if wanted is None else wanted)]
        before = await groups.fetch_offsets(client, group, places)
        after = await _destinations(client, places, to, shift_by, before)
        if not dry_run:
            await _check_empty(client, group)
            await groups.commit_offsets(client, group, groups.commit_body(group, after))
        return [(place, before.get(place), after[place]) for place in after]

    changes = with_client(bootstrap, work)
    if as_json:
        show.print_json(
            [{"topic": place[0], "partition": place[1], "before": old, "after": new} for place, old, new in changes]
        )
        return
    table = Table("topic", "partition", "before", "after", title="Nothing was changed" if dry_run else None)
    for (name, number), old, new in changes:
        table.add_row(escape(name), str(number), "-" if old is None else f"{old:,}", f"{new:,}")
    show.results().print(table)


async def _check_empty(client: Client, group: str) -> None:
    from sexton.client import group_admin
    from sexton.client.errors import RefusedError
    from sexton.protocol.errors import ErrorCode

    try:
        described = await group_admin.describe_group(client, group)
    except RefusedError as error:
        if error.code == ErrorCode.group_id_not_found:
            return  # the commit makes it
        raise
    if described.members:
        what = f"the group has {len(described.members)} members, who would go on where they are"
        raise RefusedError(what, f"group {group}", "Stop its consumers first", ErrorCode.non_empty_group)


async def _destinations(
    client: Client,
    places: list[TopicPartition],
    to: str | None,
    shift_by: int | None,
    before: dict[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """Within each partition's bounds: an offset that is not there would only be reset again by the consumer."""
    from sexton.client.consumer import EARLIEST, LATEST, list_offsets, start_positions

    starts = await list_offsets(client, dict.fromkeys(places, EARLIEST))
    ends = await list_offsets(client, dict.fromkeys(places, LATEST))
    if shift_by is not None:
        wanted = {place: before[place] + shift_by for place in places if place in before}
        if not wanted:
            raise UsageError("the group has no committed offsets to shift", "", "Use --to")
    elif to == "earliest":
        wanted = starts
    elif to == "latest":
        wanted = ends
    elif to is not None and to.isdigit() and len(to) < 12:
        wanted = dict.fromkeys(places, int(to))
    else:
        wanted = await start_positions(client, places, parse_time_ms(to or ""))
    return {place: min(max(offset, starts[place]), ends[place]) for place, offset in wanted.items()}
