"""Compaction status collected from all brokers, for operators: used by the command line and by HTTP.

The caller has a client of the cluster. A broker that does not respond is left out: what it last reported is in the
responses of its leaders.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from sexton.client.client import Client
from sexton.client.consumer import EARLIEST, start_positions
from sexton.client.health import figures
from sexton.client.raw import raw_batches
from sexton.compaction.cloud_due import STORE
from sexton.compaction.fates import GONE, count
from sexton.errors import SextonError
from sexton.protocol import private
from sexton.protocol.private import PrivateApi
from sexton.records.batch import Batch, Record

Status = Mapping[str, Any]


class NotFoundError(SextonError):
    """Raised if the record or partition in question does not exist."""

    exit_code = 66


async def status(client: Client, topic: str | None = None, partition: int | None = None) -> list[dict[str, Any]]:
    """Status of each compacted replica, in order of partition and broker."""
    return (await overview(client, topic, partition))[0]


async def overview(
    client: Client, topic: str | None = None, partition: int | None = None
) -> tuple[list[dict[str, Any]], int | None]:
    """The same, and the number of compactors, by the broker that sees the most; None if none of them knows."""
    await client.refresh(())
    found: list[dict[str, Any]] = []
    counts: list[int] = []
    for broker in sorted(client.metadata.brokers):
        try:
            answer = await ask(client, broker, PrivateApi.COMPACTION_STATUS, {})
        except SextonError:
            continue
        found += [{"broker": broker, **one} for one in answer["replicas"]]
        compactors = answer.get("compactors_count")
        counts += [] if compactors is None else [compactors]
    found.sort(key=lambda one: (one["topic"], one["partition"], one["broker"]))
    wanted = [one for one in found if topic in (None, one["topic"]) and partition in (None, one["partition"])]
    return wanted, max(counts, default=None)


async def cluster(client: Client) -> dict[str, Any]:
    """Figures that show whether brokers, partitions and compaction are healthy."""
    found = figures(await client.refresh(None))
    replicas, compactors_count = await overview(client)
    due_count = sum(one["is_due"] for one in replicas)
    return {**found, "compactors": compactors_count, "due_for_compaction": due_count}


NEWEST: Final = "it is the newest record of its key"
HORIZON: Final = "its delete horizon has not passed: a slow consumer may still need it"
NOBODY_COMPACTS: Final = "No compactor is running, so nothing is compacted. Start one: sexton compactor --metastore URL"


async def history(client: Client, limit: int, topic: str | None = None) -> Mapping[str, Any]:
    """The last compactions, what is due now, and who works on it."""
    await client.refresh(())
    asked = {"limit": limit, "topic": topic}
    found = await ask(client, min(client.metadata.brokers), PrivateApi.COMPACTION_HISTORY, asked)
    return {**found, "runs": [with_figures(run) for run in found["runs"]]}


def with_figures(run: Mapping[str, Any]) -> dict[str, Any]:
    """Adds to a history entry how many records and markers there were before and after, and its speed. None where they
    were not counted."""
    counts = {label: int(met) for label, met in run["fates"].items()}
    total = sum(counts.values())
    seconds = run["duration_ms"] / 1000
    return {
        **run,
        "records_before": total if counts else None,
        "records_after": total - count(counts, GONE) if counts else None,
        "bytes_per_second": int(run["bytes_before"] / seconds) if seconds else None,
    }


async def why(
    client: Client, topic: str, partition: int, key: bytes | None, offset: int | None, now_ms: int
) -> dict[str, Any]:
    """Why the newest record of a key, or the record at an offset, is still there. Raises NotFoundError."""
    found = await _find(client, topic, partition, key, offset)
    return _explain(found, await status(client, topic, partition), topic, partition, now_ms)


def held_back(replicas: Sequence[Status]) -> list[str]:
    """Lines of text: which replicas tombstones and markers wait for."""
    lines = []
    for one in replicas:
        for broker, pair in (one["holding_back"] or {}).items():
            known = "has not been heard of since this leader took over" if pair is None else f"is at {pair[0]:,}"
            since = "" if one["held_back_since_ms"] is None else f"; since {_time_text(one['held_back_since_ms'])}"
            place = f"{one['topic']}-{one['partition']}"
            lines.append(f"{place}: MTRO and MXRO wait for broker {broker}, which {known}{since}")
    return lines


def uncleanable(replicas: Sequence[Status]) -> list[str]:
    """Lines of text: which replicas cannot be compacted, why, and since when."""
    return [
        f"{one['topic']}-{one['partition']} on broker {one['broker']} cannot be compacted since "
        f"{_time_text(found['since_ms'])}: {found['why']}"
        for one in replicas
        if (found := one["uncleanable"]) is not None
    ]


def _time_text(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms // 1000, UTC).isoformat()


async def _find(
    client: Client, topic: str, partition: int, key: bytes | None, offset: int | None
) -> tuple[Batch, Record]:
    """The newest record of the key, or the one at the offset, with the batch that holds it."""
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
        what = f"key {key.decode(errors='replace')!r}" if key is not None else f"offset {offset}"
        raise NotFoundError(f"there is no record with {what} any more, or there never was", f"{topic}-{partition}")
    return found


def _explain(
    found: tuple[Batch, Record], replicas: Sequence[Status], topic: str, partition: int, now_ms: int
) -> dict[str, Any]:
    batch, record = found
    leader = next((one for one in replicas if one["role"] == "leader"), None)
    if leader is None:
        raise NotFoundError("no leader answers, or the topic is not compacted", f"{topic}-{partition}")
    is_marker = batch.is_control
    what = f"{batch.control_type.name} marker" if is_marker else "tombstone" if record.is_tombstone else "record"
    if leader["broker"] == STORE:
        because, waits_for = _kept_in_store(batch, what, leader, now_ms)
    else:
        because, waits_for = _kept_on_disks(batch, what, leader, replicas, now_ms)
    return {
        "what": what,
        "offset": record.offset,
        "because": because,
        "waits_for": [*waits_for, *uncleanable(replicas)],
        "delete_horizon_ms": batch.delete_horizon_ms if because == HORIZON else None,
    }


def _kept_on_disks(
    batch: Batch, what: str, leader: Status, replicas: Sequence[Status], now_ms: int
) -> tuple[str, list[str]]:
    limit, own, rule = ("mxro", "mxfo", "MXRO") if batch.is_control else ("mtro", "mcco", "MTRO")
    if batch.last_offset >= leader[own]:
        because = f"it has not been compacted yet: the leader's {own.upper()} is {leader[own]:,}"
        return because, [f"the next pass reaches {leader['bound']:,}: {leader['bound_because']}"]
    if what == "record":
        return NEWEST, []
    if batch.last_offset >= leader[limit]:
        waits_for = [f"broker {one['broker']} is at {one[own]:,}" for one in replicas if one[own] <= batch.last_offset]
        waits_for += [line.partition(": ")[2] for line in held_back([leader])]
        return f"{rule} is {leader[limit]:,}: not every replica is known to be past it", waits_for
    if batch.delete_horizon_ms is None:
        return "all replicas are past it: delete.retention.ms starts with the next pass", []
    return _by_horizon(batch.delete_horizon_ms, now_ms), []


def _kept_in_store(batch: Batch, what: str, leader: Status, now_ms: int) -> tuple[str, list[str]]:
    """There is one copy: nothing waits for replicas, and no marker outlives leveling."""
    leveled, cleaned, stable = leader["mxfo"], leader["mcco"], leader["last_stable_offset"]
    if batch.last_offset >= leveled:
        because = f"it is in L0: the partition is leveled up to {leveled:,}"
        if batch.last_offset >= stable:
            return because, [f"a transaction is open at {stable:,}, and leveling stops there"]
        return because, ["the next leveling" + (f": {leader['why']}" if leader["why"] else "")]
    if batch.last_offset >= cleaned:
        because = f"it is leveled, and has not been compacted yet: L1 is compacted up to {cleaned:,}"
        return because, [f"the next pass reaches {leader['bound']:,}: {leader['bound_because']}"]
    if what == "record":
        return NEWEST, []
    if batch.delete_horizon_ms is None:
        return "delete.retention.ms starts with the next pass", []
    return _by_horizon(batch.delete_horizon_ms, now_ms), []


def _by_horizon(delete_horizon_ms: int, now_ms: int) -> str:
    return HORIZON if delete_horizon_ms > now_ms else "nothing keeps it: the next pass takes it"


async def ask(client: Client, broker: int, api_key: int, body: Mapping[str, Any]) -> Mapping[str, Any]:
    peer = await client.peer(broker)
    data = await peer.rpc.call_raw(api_key, [private.encode(dict(body))])
    return private.decode_answer(data, f"broker {broker}")
