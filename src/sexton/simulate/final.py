"""What must hold once everything is healed: the cluster is whole again, and everything acknowledged is there."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from sexton.client import apis
from sexton.client import consumer as consuming
from sexton.client.client import Client
from sexton.client.consumer import EARLIEST, LATEST
from sexton.client.errors import RefusedError, check
from sexton.client.fetching import READ_COMMITTED, READ_UNCOMMITTED
from sexton.client.raw import raw_batches
from sexton.protocol.errors import ErrorCode
from sexton.records.batch import Batch
from sexton.simulate import snapshots
from sexton.simulate.cluster import SimulatedCluster
from sexton.simulate.errors import SimulationFailure
from sexton.simulate.history import History, Outcome, Write, identity
from sexton.simulate.journal import Given, Look
from sexton.simulate.observe import Agreement
from sexton.simulate.readers import Reader
from sexton.simulate.transaction_checks import TransactionJudge
from sexton.simulate.truth import Truth, difference, fold
from sexton.types import NO_LEADER, NO_OFFSET, TopicPartition

READER = "last reader"
EMPTY_MAX = 20
LOADING_MS = 500
"""So many fetches from a cloud topic may come back empty, one after the other, each after so long, while its leader
reads the store."""


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
    """Liveness: every replica is open, has the same end as its leader, and knows that all of it is committed. It has
    taken over where its leader's log starts; one that led before may start later."""
    missing: list[str] = []
    for key, row in agreement.rows.items():
        name = agreement.name(key)
        ends: dict[str, tuple[int, int]] = {}
        starts: dict[str, int] = {}
        for broker_id in row.replicas:
            node = cluster.node_of(broker_id)
            found = snapshots.find(node, key)
            if found is None:
                missing.append(f"{node.name} does not have {name} open")
            else:
                ends[node.name] = (found.end_offset, found.high_watermark)
                starts[node.name] = found.start_offset
        if len({end for pair in ends.values() for end in pair}) > 1:
            told = ", ".join(f"{node} end {end} hw {hw}" for node, (end, hw) in ends.items())
            missing.append(f"the replicas of {name} differ: {told}")
        leaders = starts.get(cluster.node_of(row.leader).name, 0)
        late = [f"{node} starts at {start}" for node, start in starts.items() if start < leaders]
        if late:
            missing.append(f"the leader of {name} starts at {leaders}, but {late[0]}")
    return missing


def still_open(cluster: SimulatedCluster) -> list[str]:
    """Liveness, rule 8: nothing hangs. What nobody ended was aborted when its time was over; where the end of a
    transaction was lost, an operator has ended it by hand."""
    missing: list[str] = []
    for node in cluster.nodes.values():
        for replica in snapshots.all_of(node):
            if replica.last_stable_offset < replica.high_watermark:
                missing.append(
                    f"{node.name}: {replica.name} has a transaction open at "
                    f"{replica.last_stable_offset}, its high watermark is {replica.high_watermark}"
                )
    return missing


def misled(reader: Reader, place: TopicPartition, truth: Truth, log_start: int = 0) -> list[str]:
    """Who has read a compacted partition while it was compacted, from whichever replica led, knows what it means
    (rules 3 and 5), if no tombstone can have gone before he came by. Of a key whose newest record lies below the log
    start he may never have heard that."""
    if reader.position(place) < truth.end_offset:
        return [f"a reader of {place} has come to {reader.position(place)}, its end is {truth.end_offset}"]
    kept = truth.fold(truth.end_offset, log_start)
    expected = {key: newest.value for key, newest in kept.values.items()}
    found = reader.folds.get(place, {})
    gone = truth.fold(truth.end_offset)
    unheard = (gone.values.keys() | gone.tombstones.keys()) - kept.values.keys() - kept.tombstones.keys()
    for key in sorted((expected.keys() | found.keys()) - unheard):
        if expected.get(key) != found.get(key):
            raise SimulationFailure(
                "rule 5", f"who has read all of {place} takes {key!r} for {found.get(key)!r}, not {expected.get(key)!r}"
            )
    return []


def behind(cluster: SimulatedCluster, agreement: Agreement, topics: Collection[str]) -> list[str]:
    """Liveness: MTRO and MXRO have reached what every replica has compacted."""
    missing: list[str] = []
    for key, row in agreement.rows.items():
        replicas = [snapshots.find(cluster.node_of(broker_id), key) for broker_id in row.replicas]
        found = [replica.watermarks for replica in replicas if replica is not None and not replica.is_independent]
        if not found or agreement.topics[key[0]] not in topics:
            continue
        mcco, mxfo = min(each.mcco for each in found), min(each.mxfo for each in found)
        for each in found:
            if each.mtro < mcco or each.mxro < mxfo:
                missing.append(
                    f"all replicas of {agreement.name(key)} have compacted up to {mcco}, {mxfo}, one still has MTRO, "
                    f"MXRO at {each.mtro}, {each.mxro}"
                )
    return missing


@dataclass(slots=True)
class FoundLog:
    start_offset: int
    values: dict[int, bytes] = field(default_factory=dict)
    times_ms: dict[int, int] = field(default_factory=dict)

    def first_not_older(self, time_ms: int) -> int:
        """-1 if there is none."""
        return next((offset for offset, each_ms in self.times_ms.items() if each_ms >= time_ms), NO_OFFSET)


def _places(history: History, compacted: Collection[str]) -> list[TopicPartition]:
    """Those that clients wrote to, and of which everything is still promised."""
    places = sorted({write.place for write in history.writes} | set(history.reads))
    return [place for place in places if not history.is_gone(place) and place[0] not in compacted]


async def read_everything(client: Client, history: History, compacted: Collection[str] = ()) -> None:
    """Every record of every partition that clients wrote to, once more, from the leaders."""
    for place in _places(history, compacted):
        log = await _read(client, place, history)
        for evidence in (
            find_changed_reads(place, log, history),
            find_lost(place, log, history),
            find_repeated(place, log, history),
        ):
            if evidence is not None:
                raise evidence
        await check_times(client, place, log)


async def look_again(client: Client, history: History, place: TopicPartition) -> None:
    """As a consumer that begins at the start, for the judge of histories."""
    await _read(client, place, history, READ_COMMITTED)


async def check_times(client: Client, place: TopicPartition, log: FoundLog) -> None:
    """Rule 1, for who begins at a time: nothing that is not older is passed over, and no older record is in its way.
    Markers have times, too, and nobody reads them."""
    times_ms = sorted(log.times_ms.values())
    if not times_ms:
        return
    for time_ms in {times_ms[0], times_ms[len(times_ms) // 2], times_ms[-1], times_ms[-1] + 1}:
        found = (await consuming.list_offsets(client, {place: time_ms}))[place]
        expected = log.first_not_older(time_ms)
        is_marker = found not in log.values and found != NO_OFFSET and (expected == NO_OFFSET or found < expected)
        if found != expected and not is_marker:
            raise SimulationFailure(
                "rule 1", f"{place}: the first record not older than {time_ms} is at {expected}, not {found}"
            )


async def read_committed(client: Client, history: History, compacted: Collection[str]) -> None:
    """Rule 8, by what a read_committed consumer is given: of each transaction everything or nothing."""
    visible: dict[bytes, None] = {}
    starts: dict[TopicPartition, int] = {}
    for place in _places(history, compacted):
        log = await _read(client, place, history, READ_COMMITTED)
        visible.update(dict.fromkeys(log.values.values()))
        starts[place] = log.start_offset
    for transaction in history.transactions:
        expected = [
            value
            for write in transaction.writes
            if write.place in starts and 0 <= starts[write.place] <= write.base_offset and not history.is_torn(write)
            for value in write.values
        ]
        seen = [value for value in expected if value in visible]
        if len(seen) not in (0, len(expected)) or (transaction.outcome is Outcome.OK and len(seen) < len(expected)):
            raise SimulationFailure("rule 8", f"of {transaction}, {len(seen)} of {len(expected)} records can be read")


async def check_offsets(
    client: Client, transactional_id: str, group: str, place: TopicPartition, transactions: TransactionJudge
) -> None:
    """Rule 8: the offsets of a transaction count if and only if its records do."""

    async def attempt() -> int:
        peer = await client.coordinator(group)
        topics = [{"name": place[0], "partition_indexes": [place[1]]}]
        asked = {"group_id": group, "member_id": None, "member_epoch": -1, "topics": topics}
        answer = (await peer.call(apis.OFFSET_FETCH, {"groups": [asked], "require_stable": True})).groups[0]
        check(answer.error_code, group)
        part = answer.topics[0].partitions[0]
        check(part.error_code, group)
        return int(part.committed_offset)

    found = await client.retry(attempt, timeout_ms=30_000, group=group)
    possible = transactions.offsets_possible(transactional_id)
    if found not in possible:
        raise SimulationFailure("rule 8", f"{group} stands at {found}, which should be one of {sorted(possible)}")


async def check_fold(client: Client, place: TopicPartition, truth: Truth, history: History) -> None:
    """Rules 3 and 8, by what a consumer is given that reads a compacted partition from its beginning."""

    async def attempt() -> tuple[int, list[Batch]]:
        while True:
            start = (await consuming.list_offsets(client, {place: EARLIEST}))[place]
            try:
                return start, [batch async for batch in raw_batches(client, *place, start)]
            except RefusedError as error:
                if error.code != ErrorCode.offset_out_of_range:  # retention has moved the start meanwhile
                    raise

    # Its connection may be to a process that is gone.
    start, batches = await client.retry(attempt, timeout_ms=30_000)
    _check_start(place, start, history)
    evidence = difference(truth.fold(truth.end_offset, start), fold(batches, truth.end_offset, start))
    if evidence is not None:
        raise SimulationFailure("rule 3", f"who reads {place} from its beginning finds that {evidence}")


async def _read(client: Client, place: TopicPartition, history: History, isolation: int = READ_UNCOMMITTED) -> FoundLog:
    empty_max, max_wait_ms = (EMPTY_MAX, LOADING_MS) if place[0] in history.cloud_topics else (0, 0)
    ends = await consuming.list_offsets(client, {place: LATEST})
    starts = await consuming.list_offsets(client, {place: EARLIEST})
    log = FoundLog(starts[place])
    _check_start(place, log.start_offset, history)
    offset = log.start_offset
    look = Look(READER, isolation == READ_COMMITTED, is_table=True)
    history.journal.began(look)
    empty_count = 0
    while offset < ends[place]:
        fetched = await consuming.fetch(client, *place, offset, isolation=isolation, max_wait_ms=max_wait_ms)
        for record in fetched.records:
            known = identity(record)
            look.given.append(Given(place, record.offset, known, record.key, record.value is None))
            history.saw(READER, place, record.offset, known, is_committed=isolation == READ_COMMITTED)
            log.values[record.offset] = known or b""
            log.times_ms[record.offset] = record.timestamp_ms
        empty_count = empty_count + 1 if fetched.next_offset <= offset else 0
        if empty_count > empty_max:
            raise SimulationFailure("liveness", f"{place}: nothing can be read at {offset}, the end is {ends[place]}")
        offset = fetched.next_offset
    look.positions = {place: (log.start_offset, offset)}
    history.journal.ended(look)
    return log


def _check_start(place: TopicPartition, start_offset: int, history: History) -> None:
    if not history.may_start_at(place, start_offset) and not history.is_gone(place):
        raise SimulationFailure("rule 1", f"{place} starts at {start_offset}, which nobody asked for")


def find_changed_reads(place: TopicPartition, log: FoundLog, history: History) -> SimulationFailure | None:
    """What a consumer was given once is there for good."""
    for offset, value in history.reads.get(place, {}).items():
        if offset >= log.start_offset and log.values.get(offset) != value:
            if offset not in log.values and history.is_settled(history.written[value], offset):
                continue
            return SimulationFailure("rule 1", f"{place}@{offset} was {value!r} when it was read, and is gone")
    return None


def find_lost(place: TopicPartition, log: FoundLog, history: History) -> SimulationFailure | None:
    """Rule 1: what was acknowledged by all in-sync replicas is where its producer was told that it is."""
    where = {value: offset for offset, value in log.values.items()}
    for write in history.acknowledged(place):
        if write.acks != -1:
            continue
        for index, value in enumerate(write.values):
            offset = where.get(value)
            promised = write.base_offset + index if write.base_offset >= 0 else None
            if history.may_be_lost(write, -1 if promised is None else promised):
                continue
            if offset is None and history.is_settled(write, -1 if promised is None else promised):
                continue
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


def _may_be_deleted(write: Write, log: FoundLog) -> bool:
    """Acknowledged as a duplicate, without an offset: it may lie below the log's start."""
    return write.base_offset < 0 and log.start_offset > 0


def find_repeated(place: TopicPartition, log: FoundLog, history: History) -> SimulationFailure | None:
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
        if history.is_gone(write.place):
            continue
        if write.outcome is Outcome.PENDING:
            raise SimulationFailure("liveness", f"a batch of {write.writer} to {write.place} has no outcome")


def undelivered(
    history: History, delivered: Mapping[TopicPartition, set[int]], compacted: Collection[str] = ()
) -> list[str]:
    """Liveness: a group was given every record that is still there."""
    missing = []
    for place, reads in history.reads.items():
        if place[0] in compacted or history.is_gone(place):
            continue
        start_offset = history.start_bounds.get(place, 0)
        end_offset = history.lost_from(place)  # a group may stand above it, where there is something else now
        kept = range(start_offset, max(reads, default=0) + 1 if end_offset is None else end_offset)
        lacking = [
            offset
            for offset, value in reads.items()
            if offset in kept
            and offset not in delivered.get(place, set())
            and not history.is_settled(history.written.get(value), offset)
        ]
        if lacking:
            missing.append(f"the group was never given {place}@{min(lacking)} and {len(lacking) - 1} others")
    return missing


def _name(value: bytes) -> str:
    return repr(value.rstrip(b"\0"))
