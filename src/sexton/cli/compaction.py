"""`sexton compaction`: how far each replica is, what it waits for, what was done, and why something is still there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

from sexton.cli import show
from sexton.cli.broker import UsageError
from sexton.cli.connect import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, with_client
from sexton.errors import SextonError

if TYPE_CHECKING:
    from sexton.client.client import Client
    from sexton.records.batch import Batch, Record

app = typer.Typer(help="Show how compaction goes, ask for it, ask why.", no_args_is_help=True)

POLL_S: Final = 0.5

Replica = Mapping[str, Any]


class NotFoundError(SextonError):
    """What was asked about is not there."""

    exit_code = 66


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

    async def work(client: Client) -> list[dict[str, Any]]:
        found = await _replicas(client)
        return [one for one in found if name in (None, one["topic"]) and partition in (None, one["partition"])]

    replicas = with_client(bootstrap, work)
    if as_json:
        show.print_json({"replicas": replicas})
        return
    table = Table()
    for column in ("partition", "broker", "role", "MCCO", "MXFO", "MTRO", "MXRO", "end", "dirty", "size", "due"):
        is_text = column in ("partition", "role", "due")
        table.add_column(column, justify="left" if is_text else "right", no_wrap=column == "partition")
    for one in replicas:
        table.add_row(
            f"{one['topic']}-{one['partition']}",
            str(one["broker"]),
            one["role"] + ("" if one["is_in_sync"] else " (behind)"),
            *(f"{one[name]:,}" for name in ("mcco", "mxfo", "mtro", "mxro", "log_end_offset")),
            f"{one['dirty_ratio']:.0%}",
            show.bytes_text(one["size_bytes"]),
            "yes" if one["is_due"] else "",
        )
    console = Console()
    console.print(table)
    due = {
        f"{one['topic']}-{one['partition']} on broker {one['broker']}: {one['why']}"
        for one in replicas
        if one["is_due"]
    }
    for line in (*sorted(due), *_held_back(replicas)):
        console.print(line, highlight=False)


def _held_back(replicas: Sequence[Replica]) -> list[str]:
    """In words: for whom tombstones and markers wait."""
    lines = []
    for one in replicas:
        for broker, pair in (one["holding_back"] or {}).items():
            known = "has not been heard of since this leader took over" if pair is None else f"is at {pair[0]:,}"
            lines.append(f"{one['topic']}-{one['partition']}: MTRO and MXRO wait for broker {broker}, which {known}")
    return lines


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
        from sexton.broker.compaction import requests

        before = {_place(one): one for one in await _replicas(client) if one["topic"] == name}
        await client.refresh((name,))
        asked: dict[tuple[int, int], int] = {}
        for broker in sorted(client.metadata.brokers):
            answer = await _ask(client, broker, requests.REQUEST, {"topic": name, "partition": partition})
            for index in answer["partitions"]:
                asked[broker, index] = before[broker, index]["log_end_offset"] if (broker, index) in before else 0
        if not asked:
            raise NotFoundError(
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
    Console().print(table)


async def _wait(
    client: Client, topic: str, asked: Mapping[tuple[int, int], int], timeout_s: float
) -> Mapping[tuple[int, int], Replica]:
    """Until every replica is compacted as far as its log reached."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    deadline_s = time.monotonic() + timeout_s
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"compacting {topic}", total=len(asked))
        while True:
            now = {_place(one): one for one in await _replicas(client) if one["topic"] == topic}
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
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many runs.")] = 20,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show the last runs, what is due now, and who works on it."""

    async def work(client: Client) -> Mapping[str, Any]:
        from sexton.broker.compaction import requests

        await client.refresh(())
        return await _ask(client, min(client.metadata.brokers), requests.HISTORY, {"limit": limit})

    found = with_client(bootstrap, work)
    if as_json:
        show.print_json(dict(found))
        return
    table = Table(title="Runs, the newest first")
    for column in ("when", "partition", "broker", "compacted to", "before", "after", "took", "outcome"):
        table.add_column(column, justify="left" if column in ("when", "partition", "outcome") else "right")
    for one in found["runs"]:
        table.add_row(
            show.time_text(one["finished_ms"]),
            f"{one['topic']}-{one['partition']}",
            str(one["broker_id"]),
            f"{one['bound']:,}",
            show.bytes_text(one["bytes_before"]),
            show.bytes_text(one["bytes_after"]),
            show.duration_text(one["duration_ms"]),
            one["outcome"],
        )
    console = Console()
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

    async def work(client: Client) -> dict[str, Any]:
        found = await _find(client, topic, partition, None if key is None else key.encode(), offset)
        replicas = [one for one in await _replicas(client) if (one["topic"], one["partition"]) == (topic, partition)]
        return _explain(found, replicas, topic, partition, time.time_ns() // 1_000_000)

    answer = with_client(bootstrap, work)
    if as_json:
        show.print_json(answer)
        return
    console = Console(highlight=False)
    console.print(f"[bold]{answer['what']}[/] at offset {answer['offset']:,}: {answer['because']}")
    for line in answer["waits_for"]:
        console.print(f"  {line}")


async def _find(
    client: Client, topic: str, partition: int, key: bytes | None, offset: int | None
) -> tuple[Batch, Record]:
    """The newest record of the key, or the one at the offset, with the batch that holds it."""
    from sexton.client.consumer import EARLIEST, start_positions
    from sexton.client.raw import raw_batches

    start = offset
    if start is None:
        start = (await start_positions(client, [(topic, partition)], EARLIEST))[topic, partition]
    found: tuple[Batch, Record] | None = None
    async for batch in raw_batches(client, topic, partition, start):
        for record in batch.records:
            if record.offset == offset or (key is not None and record.key == key and not batch.is_control):
                found = batch, record
        if offset is not None and batch.next_offset > offset:
            break
    if found is None:
        what = f"key {key.decode()!r}" if key is not None else f"offset {offset}"
        raise NotFoundError(f"there is no record with {what} any more, or there never was", f"{topic}-{partition}")
    return found


def _explain(
    found: tuple[Batch, Record], replicas: Sequence[Replica], topic: str, partition: int, now_ms: int
) -> dict[str, Any]:
    batch, record = found
    leader = next((one for one in replicas if one["role"] == "leader"), None)
    if leader is None:
        raise NotFoundError("no leader answers, or the topic is not compacted", f"{topic}-{partition}")
    is_marker = batch.is_control
    what = f"{batch.control_type.name} marker" if is_marker else "tombstone" if record.is_tombstone else "record"
    limit, own, rule = ("mxro", "mxfo", "MXRO") if is_marker else ("mtro", "mcco", "MTRO")
    waits_for: list[str] = []
    if batch.last_offset >= leader[own]:
        because = f"it has not been compacted yet: the leader's {own.upper()} is {leader[own]:,}"
        waits_for.append(f"the next pass reaches {leader['bound']:,}: {leader['bound_because']}")
    elif what == "record":
        because = "it is the newest record of its key"
    elif batch.last_offset >= leader[limit]:
        because = f"{rule} is {leader[limit]:,}: not every replica is known to be past it"
        waits_for += [f"broker {one['broker']} is at {one[own]:,}" for one in replicas if one[own] <= batch.last_offset]
        waits_for += [line.partition(": ")[2] for line in _held_back([leader])]
    elif batch.delete_horizon_ms is None:
        because = "all replicas are past it: delete.retention.ms starts with the next pass"
    elif batch.delete_horizon_ms > now_ms:
        left = show.duration_text(batch.delete_horizon_ms - now_ms)
        because = f"its delete horizon has not passed: a slow consumer may still need it, for {left}"
    else:
        because = "nothing keeps it: the next pass takes it"
    return {"what": what, "offset": record.offset, "because": because, "waits_for": waits_for}


# What all of them need


async def _replicas(client: Client) -> list[dict[str, Any]]:
    """Of all brokers that answer, in order of partition and broker."""
    from sexton.broker.compaction import requests

    await client.refresh(())
    found = []
    for broker in sorted(client.metadata.brokers):
        try:
            answer = await _ask(client, broker, requests.STATUS, {})
        except SextonError:
            continue  # away: its last report is what its leaders hold
        found += [{"broker": broker, **one} for one in answer["replicas"]]
    return sorted(found, key=lambda one: (one["topic"], one["partition"], one["broker"]))


async def _ask(client: Client, broker: int, api_key: int, body: Mapping[str, Any]) -> Mapping[str, Any]:
    from sexton.broker.compaction import plans

    peer = await client.peer(broker)
    answer = plans.decode(await peer.rpc.call_raw(api_key, [plans.encode(dict(body))]))
    if "error" in answer:
        raise SextonError(str(answer["error"]["what"]), f"broker {broker}")
    return answer


def _place(one: Replica) -> tuple[int, int]:
    return one["broker"], one["partition"]


def _parse_place(text: str) -> tuple[str, int | None]:
    topic, colon, partition = text.partition(":")
    if not colon:
        return topic, None
    if not partition.isdecimal():
        raise UsageError(f"{text} names no partition", "", "As in orders:0")
    return topic, int(partition)
