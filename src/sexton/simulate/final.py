"""What must hold once everything is healed: the cluster is whole again, and everything acknowledged is there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sexton.client import consumer as consuming
from sexton.client.client import Client
from sexton.client.consumer import EARLIEST, LATEST
from sexton.ports.metastore import NO_LEADER
from sexton.simulate.checks import replicas_of
from sexton.simulate.cluster import SimulatedCluster
from sexton.simulate.errors import SimulationFailure
from sexton.simulate.history import History, Outcome, Place, Write
from sexton.simulate.observe import Agreement

READER = "last reader"


def not_whole(cluster: SimulatedCluster, agreement: Agreement) -> list[str]:
    """Liveness: every broker runs, every partition has a leader, all replicas are in sync, nothing is being moved."""
    missing = [f"{node.name} has not started" for node in cluster.nodes.values() if not node.is_started]
    for key, row in agreement.rows.items():
        name = agreement.name(key)
        if row.leader == NO_LEADER:
            missing.append(f"{name} has no leader")
        elif set(row.isr) != set(row.replicas):
            missing.append(f"{name} has replicas {list(row.replicas)}, in sync are {list(row.isr)}")
        elif row.adding or row.removing:
            missing.append(f"{name} is still being reassigned")
    return missing


def unequal(cluster: SimulatedCluster, agreement: Agreement) -> list[str]:
    """Liveness: every replica is open, has the same end as its leader, and knows that all of it is committed."""
    missing: list[str] = []
    for key, row in agreement.rows.items():
        name = agreement.name(key)
        ends: dict[str, tuple[int, int]] = {}
        for broker_id in row.replicas:
            node = cluster.node_of(broker_id)
            found = [each for each in replicas_of(node.broker) if (each.topic_id, each.partition) == key]
            if not found:
                missing.append(f"{node.name} does not have {name} open")
            else:
                ends[node.name] = (found[0].log.end_offset, found[0].high_watermark)
        if len({end for pair in ends.values() for end in pair}) > 1:
            told = ", ".join(f"{node} end {end} hw {hw}" for node, (end, hw) in ends.items())
            missing.append(f"the replicas of {name} differ: {told}")
    return missing


@dataclass(slots=True)
class _Log:
    start_offset: int
    values: dict[int, bytes] = field(default_factory=dict)


async def read_everything(client: Client, agreement: Agreement, history: History) -> None:
    """Every record of every partition that clients wrote to, once more, from the leaders."""
    places = sorted({write.place for write in history.writes} | set(history.reads))
    for place in places:
        if place[0] in history.dropped_topics:
            continue
        log = await _read(client, place, history)
        for evidence in (
            _changed_reads(place, log, history),
            _lost(place, log, history),
            _repeated(place, log, history),
        ):
            if evidence is not None:
                raise evidence


async def _read(client: Client, place: Place, history: History) -> _Log:
    ends = await consuming.list_offsets(client, {place: LATEST})
    starts = await consuming.list_offsets(client, {place: EARLIEST})
    log = _Log(starts[place])
    if log.start_offset > history.start_bounds.get(place, 0):
        raise SimulationFailure("rule 1", f"{place} starts at {log.start_offset}, which nobody asked for")
    offset = log.start_offset
    while offset < ends[place]:
        fetched = await consuming.fetch(client, *place, offset)
        for record in fetched.records:
            history.saw(READER, place, record.offset, record.value)
            log.values[record.offset] = record.value or b""
        if fetched.next_offset <= offset:
            raise SimulationFailure("liveness", f"{place}: nothing can be read at {offset}, the end is {ends[place]}")
        offset = fetched.next_offset
    return log


def _changed_reads(place: Place, log: _Log, history: History) -> SimulationFailure | None:
    """What a consumer was given once is there for good."""
    for offset, value in history.reads.get(place, {}).items():
        if offset >= log.start_offset and log.values.get(offset) != value:
            return SimulationFailure("rule 1", f"{place}@{offset} was {value!r} when it was read, and is gone")
    return None


def _lost(place: Place, log: _Log, history: History) -> SimulationFailure | None:
    """Rule 1: what was acknowledged by all in-sync replicas is where its producer was told that it is."""
    where = {value: offset for offset, value in log.values.items()}
    for write in history.acknowledged(place):
        if write.acks != -1:
            continue
        for index, value in enumerate(write.values):
            offset = where.get(value)
            promised = write.base_offset + index if write.base_offset >= 0 else None
            if (
                offset is None
                and (promised is None or promised >= log.start_offset)
                and not _may_be_deleted(write, log)
            ):
                return SimulationFailure(
                    "rule 1", f"{_name(value)} was acknowledged at {place}@{promised}, and is lost"
                )
            if offset is not None and promised is not None and offset != promised:
                return SimulationFailure("rule 2", f"{_name(value)} was acknowledged at {promised}, but is at {offset}")
    return None


def _may_be_deleted(write: Write, log: _Log) -> bool:
    """Acknowledged as a duplicate, without an offset: it may lie below the log's start."""
    return write.base_offset < 0 and log.start_offset > 0


def _repeated(place: Place, log: _Log, history: History) -> SimulationFailure | None:
    """Every value is there at most once, and those of an idempotent producer in the order in which it sent them."""
    seen: dict[bytes, int] = {}
    newest: dict[str, tuple[int, int]] = {}
    for offset, value in sorted(log.values.items()):
        if value in seen:
            return SimulationFailure("rule 2", f"{_name(value)} is in {place} twice, at {seen[value]} and at {offset}")
        seen[value] = offset
        write = history.written[value]
        if not write.is_idempotent:
            continue
        number = int(value.split(b":")[2])
        before = newest.get(write.writer)
        if before is not None and before[0] > number:
            return SimulationFailure(
                "rule 2",
                f"{_name(value)} at {place}@{offset} comes after {before[0]} at {before[1]}: order has changed",
            )
        newest[write.writer] = (number, offset)
    return None


def check_history(history: History, agreement: Agreement) -> None:
    """Every write has an outcome, and what an idempotent producer kept trying has been acknowledged."""
    for write in history.writes:
        if write.place[0] in history.dropped_topics:
            continue
        if write.outcome is Outcome.PENDING:
            raise SimulationFailure("liveness", f"a batch of {write.writer} to {write.place} has no outcome")


def undelivered(history: History, delivered: Mapping[Place, set[int]]) -> list[str]:
    """Liveness: a group was given every record that is still there."""
    missing = []
    for place, reads in history.reads.items():
        start_offset = history.start_bounds.get(place, 0)
        lacking = [offset for offset in reads if offset >= start_offset and offset not in delivered.get(place, set())]
        if lacking:
            missing.append(f"the group was never given {place}@{min(lacking)} and {len(lacking) - 1} others")
    return missing


def _name(value: bytes) -> str:
    return repr(value.rstrip(b"\0"))
