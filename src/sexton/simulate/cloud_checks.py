"""Rules C1 to C12 of cloud topics (docs/rules.md), as far as they can be seen from outside a broker while it runs.

The judge reads the metastore's tables and the store's bytes, with the plain parser of `records`, and never asks the
code that wrote them:

- after every change of the metastore, what `adapters.metastore.cloud.checks` says must hold of the tables, and of every
  step (C1 to C3, C5, C6);
- every object that extents refer to is in the store, as long as they do (C2, C4); nothing is put that was not
  registered, or twice with other bytes (C1); nothing is deleted that is not garbage, for its grace (C4);
- what an extent says is what the bytes are: batches that follow each other from its base to its end (C5). That is the
  *ledger* of the partition: from then on it stays (rule 2). Each batch passes by the judge of transactions (rule 8);
  stable offsets and aborted lists must be what the batches say;
- what a leader serves is committed: no high watermark lies above the metastore's end (rule 1), or moves back (rule 7);
- what waits in a broker's memory is bounded (C11);
- what a local topic had committed when it became a cloud topic is what its copy has, batch for batch (rule 1). Until
  then the copy is nobody's log, and no log of a replica is deleted before;
- what compactors make of a partition means what was committed (`leveled_checks`; C5, C7, C8).

That nothing is skipped when an object cannot be read (C12), and all that clients are promised, is seen by what clients
see: cloud topics are written and read by the same clients as all others.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import crc32c

from sexton.adapters.metastore.cloud.checks import CloudTables, read_tables, step_violations, violations
from sexton.errors import SextonError
from sexton.ports.cloud import CLOUD, STORAGE_MODE, CloudPartitionRow, Extent, ObjectId, ObjectRow, ObjectState
from sexton.ports.metastore import ConfigScope, PartitionRow
from sexton.ports.object_names import parse_key
from sexton.records import batch as batches
from sexton.records.batch import Batch, ControlType
from sexton.records.header import ATTRIBUTES_POSITION
from sexton.simulate import snapshots
from sexton.simulate.clock import START_MS
from sexton.simulate.cluster import DATA, Node, SimulatedCluster
from sexton.simulate.copies import Entry
from sexton.simulate.errors import SimulationFailure
from sexton.simulate.history import History
from sexton.simulate.ledger import Ledger
from sexton.simulate.leveled_checks import LeveledLog, Topic
from sexton.simulate.loop import MS
from sexton.simulate.metastore import READS
from sexton.simulate.observe import Agreement
from sexton.simulate.snapshots import CloudSnapshot
from sexton.simulate.trace import Trace
from sexton.simulate.transaction_checks import TransactionJudge
from sexton.simulate.truth import Truth
from sexton.types import NO_LEADER, PartitionId, TopicPartition

CHANGING: Final = (
    "register_objects",
    "release_objects",
    "claim_partitions",
    "commit_",
    "advance_",
    "expire_owners",
    "forget_objects",
    "purge_topic",
    "begin_move",
    "abandon_move",
    "finish_move",
    "create_topic",
    "add_partitions",
    "delete_topic",
)
"""How the names of operations begin that may change the tables of cloud topics."""

GRACE_ROUNDS_MIN: Final = 2

MARKERS_BYTES: Final = 4_096
"""Of markers that wait among batches: they are not refused for want of room."""


@dataclass(slots=True)
class CloudLedger:
    """How far a partition's committed batches go, and what they mean for who reads them. The batches themselves cannot
    change: keys are put with one content, and extents stay."""

    base_offset: int = 0
    """Where it began."""
    end_offset: int = 0
    copied: list[tuple[Entry, Batch]] | None = None
    """While the log is still that of its replicas."""
    open: dict[int, int] = field(default_factory=dict)
    """By producer: where its open transaction begins."""
    aborted: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By the marker's offset: producer and first offset."""

    def add(self, batch: Batch) -> None:
        self.end_offset = batch.next_offset
        if not batch.is_transactional:
            return
        if not batch.is_control:
            self.open.setdefault(batch.producer_id, batch.base_offset)
        elif batch.control_type is not ControlType.UNKNOWN:
            first = self.open.pop(batch.producer_id, None)
            if first is not None and batch.control_type is ControlType.ABORT:
                self.aborted[batch.base_offset] = batch.producer_id, first


class CloudJudge:
    def __init__(
        self,
        cluster: SimulatedCluster,
        agreement: Agreement,
        history: History,
        trace: Trace,
        transactions: TransactionJudge,
        topics: Mapping[str, Topic],
    ) -> None:
        """`topics` are those whose settings are known; of others nothing is compacted."""
        assert cluster.objects is not None
        assert cluster.store is not None
        self._cluster = cluster
        self._store = cluster.objects
        self._agreement = agreement
        self._history = history
        self._trace = trace
        self._transactions = transactions
        self._topics = topics
        settings = cluster.store.settings
        self._grace = max(GRACE_ROUNDS_MIN, -(-settings["cloud.delete.delay.ms"] // settings["cloud.gc.round.ms"]))
        self._pending_bytes_max = settings["cloud.pending.bytes.max"]
        self._tables: CloudTables | None = None
        self._known: dict[ObjectId, ObjectRow] = {}
        """Every object that ever had a row, as it was last."""
        self._ledgers: dict[PartitionId, CloudLedger] = {}
        self.leveled: dict[PartitionId, LeveledLog] = {}
        self._contents: dict[str, bytes] = {}
        """What was put under each key."""
        self.local_ledger: Callable[[PartitionId], Ledger] = lambda key: Ledger()
        """What replicas have committed of a partition that was local."""
        self._seen: dict[tuple[str, PartitionId, int], int] = {}
        """High watermarks, by process, partition and leader epoch."""
        self.commits_count = 0
        self.deleted_count = 0

    # The metastore

    def carried_out(self, who: str, operation: str, arguments: tuple[Any, ...], result: Any) -> None:
        """An observer of the metastore."""
        if not operation.startswith(CHANGING) or operation.startswith(READS):
            return
        after: CloudTables = self._cluster.metastore.look(read_tables)
        self.commits_count += operation.startswith("commit_")
        wrong = next(violations(after), None)
        if wrong is None and self._tables is not None:
            wrong = next(step_violations(self._tables, after), None)
        if wrong is not None:
            raise _failure(wrong, f" (by {operation} of {who})")
        for object_id in after.objects.keys() - (self._tables.objects.keys() if self._tables else set()):
            if object_id in self._known:
                raise SimulationFailure("C1", f"object {object_id} was registered again, by {who}")
        self._known.update(after.objects)
        before, self._tables = self._tables, after
        for object_id, found in after.objects.items():
            if before is None or before.objects.get(object_id) != found:
                self._check_there(found, f"{operation} of {who}")
        for key in self._ledgers.keys() - after.partitions.keys():
            del self._ledgers[key]  # its topic was deleted, or its copy given up
            self.leveled.pop(key, None)
        for key, row in after.partitions.items():
            if before is None or before.partitions.get(key) != row:
                self._learn(key, row, after)
        if operation == "finish_move" and result is not None:
            self._moved((result.topic_id, result.partition))

    def row_changed(self, who: str, key: PartitionId, row: PartitionRow) -> None:
        self._history.leader_epochs[self._place(key)] = row.leader_epoch

    def _check_there(self, row: ObjectRow, after_what: str) -> None:
        """What extents refer to is in the store. It stays there: each deletion is looked at."""
        if row.state is ObjectState.LIVE and self._key(row) not in self._store.objects:
            raise SimulationFailure("C2", f"after {after_what}, {row.object_id} is live and not in the store")

    def _key(self, row: ObjectRow) -> str:
        text = str(row.object_id)
        return f"{self._cluster_id}/l{int(row.level)}/{text[-2:]}/{text}"

    @cached_property
    def _cluster_id(self) -> uuid.UUID:
        found: uuid.UUID = self._cluster.metastore.peek("open_cluster", uuid.UUID(int=0))
        return found

    # What extents say, and what the bytes are

    def _learn(self, key: PartitionId, row: CloudPartitionRow, tables: CloudTables) -> None:
        place = self._place(key)
        ledger = self._ledgers.get(key)
        if ledger is None:
            ledger = self._ledgers[key] = CloudLedger(row.start_offset, row.start_offset)
            ledger.copied = [] if key in self._agreement.rows else None
            self.leveled[key] = LeveledLog(Truth(gaps_below=row.start_offset))
        if ledger.end_offset < row.end_offset:
            for extent in tables.extents.get(key, ()):
                if extent.base_offset >= ledger.end_offset:
                    self._take(key, ledger, extent)
            if ledger.end_offset != row.end_offset:
                raise SimulationFailure("C5", f"{place} ends at {row.end_offset}, its batches at {ledger.end_offset}")
        self._history.starts(place, row.start_offset, row.end_offset)
        if key in self._agreement.cloud_rows and not self._history.may_start_at(place, row.start_offset):
            raise SimulationFailure("rule 1", f"{place} starts at {row.start_offset}, and nobody asked for that")
        first_open = min(ledger.open.values(), default=row.end_offset)
        if row.stable_offset > max(first_open, row.start_offset):
            raise SimulationFailure(
                "rule 8", f"{place} is stable up to {row.stable_offset}, and a transaction is open since {first_open}"
            )
        told = {one.marker_offset: (one.producer_id, one.first_offset) for one in tables.aborted.get(key, ())}
        for marker, expected in ledger.aborted.items():
            if marker >= row.leveled_offset and not self._is_told(told.get(marker), expected, ledger):
                raise SimulationFailure(
                    "rule 8", f"the transaction that {place}@{marker} aborts is {expected}, not {told.get(marker)}"
                )
        if row.leveled_offset:
            self._check_leveled(key, row, tables)

    def _check_leveled(self, key: PartitionId, row: CloudPartitionRow, tables: CloudTables) -> None:
        place = self._place(key)
        where = f"{place[0]}-{place[1]}"
        self._history.settled(place, row.leveled_offset)
        self.leveled[key].check(
            where,
            row,
            tables.extents.get(key, ()),
            self._topics.get(place[0], Topic()),
            lambda extent: (batch for _, batch in self._batches(extent, where)),
            self._now_ms,
        )

    @property
    def _now_ms(self) -> int:
        return START_MS + self._cluster.loop.now_ns // MS

    @staticmethod
    def _is_told(told: tuple[int, int] | None, expected: tuple[int, int], ledger: CloudLedger) -> bool:
        """A transaction may have begun below where a copy begins."""
        began_before = told is not None and told[0] == expected[0] and told[1] < ledger.base_offset
        return told == expected or began_before

    def _moved(self, key: PartitionId) -> None:
        """A local partition is a cloud partition now: all that was committed is there."""
        ledger = self._ledgers[key]
        if ledger.copied is None:
            return  # told again
        place, local = self._place(key), self.local_ledger(key)
        copied = {entry.base_offset: entry for entry, _ in ledger.copied}
        deleted_below = max(ledger.base_offset, self._history.start_bounds.get(place, 0))
        for base, entry in local.entries.items():
            if entry.last_offset >= deleted_below and copied.get(base) != entry:
                evidence = f"committed is {entry}, and the copy has {copied.get(base)}"
                raise SimulationFailure("rule 1", f"{place} was moved to the store: {evidence}")
        if ledger.end_offset < local.end_offset:
            evidence = f"{local.end_offset} is committed, and the copy ends at {ledger.end_offset}"
            raise SimulationFailure("rule 1", f"{place} was moved to the store: {evidence}")
        self._trace.note("judge", f"{place} is in the store, up to {ledger.end_offset}")
        for entry, batch in ledger.copied:
            if entry.base_offset >= local.end_offset:
                self._transactions.committed(place, batch)
        ledger.copied = None

    def _take(self, key: PartitionId, ledger: CloudLedger, extent: Extent) -> None:
        place = self._place(key)
        leveled = self.leveled[key]
        where = f"{place[0]}-{place[1]}@{extent.base_offset}"
        if extent.base_offset != ledger.end_offset:
            raise SimulationFailure("C5", f"{where}: an extent after {ledger.end_offset}")
        for entry, batch in self._batches(extent, where):
            if batch.base_offset != ledger.end_offset:
                raise SimulationFailure("C5", f"{where}: the batch after {ledger.end_offset} has {batch.base_offset}")
            ledger.add(batch)
            leveled.add(batch, self._now_ms)
            if ledger.copied is None:
                self._transactions.committed(place, batch)
            else:
                ledger.copied.append((entry, batch))
        if ledger.end_offset != extent.end_offset:
            raise SimulationFailure(
                "C5", f"{where}: the batches end at {ledger.end_offset}, the extent at {extent.end_offset}"
            )

    def _batches(self, extent: Extent, where: str) -> Iterator[tuple[Entry, Batch]]:
        data = extent.inline
        if data is None:
            assert self._tables is not None
            assert extent.object_id is not None
            whole = self._store.objects[self._key(self._tables.objects[extent.object_id])]
            data = whole[extent.position : extent.position + extent.size_bytes]
        try:
            position = 0
            for batch in batches.decode_all(bytes(data)):
                content = data[position + ATTRIBUTES_POSITION : position + batch.size_bytes]
                yield Entry(batch.base_offset, batch.last_offset, batch.leader_epoch, crc32c.crc32c(content)), batch
                position += batch.size_bytes
        except SextonError as error:
            raise SimulationFailure("C5", f"{where}: the extent's bytes are no batches: {error}") from error

    # The store

    def stored(self, who: str, operation: str, arguments: tuple[Any, ...], result: Any) -> None:
        """An observer of the store."""
        if operation not in ("put", "delete"):
            return
        key: str = arguments[0]
        name = parse_key(key)
        if name is None:
            raise SimulationFailure("C1", f"{who}: {operation} of {key}, which is no object of ours")
        row = self._known.get(name.object_id)
        if row is None:
            raise SimulationFailure("C1", f"{who}: {operation} of {key}, which was not registered")
        if operation == "put":
            if self._contents.setdefault(key, arguments[1]) != arguments[1]:
                raise SimulationFailure("C1", f"{who} put {key} again with other bytes")
            return
        now = self._tables.objects.get(name.object_id) if self._tables is not None else None
        if now is not None and (now.state is not ObjectState.GARBAGE or self._round - now.round < self._grace):
            raise SimulationFailure("C4", f"{who} deletes {key} in round {self._round}, and its row is {now}")
        self.deleted_count += 1

    @property
    def _round(self) -> int:
        found: int = self._cluster.metastore.peek("read_collection").round
        return found

    def wipe(self) -> None:
        """Everything goes that nobody may rely on: keys of garbage, and those that no row knows."""
        kept = [
            key
            for key in self._store.objects
            if (name := parse_key(key)) is None
            or (
                self._tables is not None
                and (row := self._tables.objects.get(name.object_id)) is not None
                and row.state is not ObjectState.GARBAGE
            )
        ]
        gone = self._store.wipe(kept)
        self._trace.note("nemesis", f"{len(gone)} objects that nobody needs are gone")

    # What brokers believe

    def look(self) -> None:
        for node in self._cluster.nodes.values():
            if node.process is None:
                continue
            for replica in snapshots.led_in_cloud(node):
                place = (node.process.name, replica.key, replica.leader_epoch)
                if self._seen.get(place) != replica.high_watermark:
                    self._look_at(node, replica, self._seen.get(place))
                    self._seen[place] = replica.high_watermark
            waiting = snapshots.waiting_bytes(node)
            if waiting > self._pending_bytes_max + MARKERS_BYTES:
                raise SimulationFailure("C11", f"{node.name}: {waiting} bytes wait, and {self._pending_bytes_max} may")

    def _look_at(self, node: Node, replica: CloudSnapshot, before: int | None) -> None:
        row = self._tables.partitions.get(replica.key) if self._tables is not None else None
        if row is None or replica.topic_id not in self._agreement.topics:
            return  # its topic is deleted, and its broker has not heard of it
        hw = replica.high_watermark
        self._trace.note(node.name, f"{replica.name} high watermark {hw} (cloud, epoch {replica.leader_epoch})")
        if hw > row.end_offset:
            raise SimulationFailure("rule 1", f"{node.name}: {replica.name} serves {hw}, committed is {row.end_offset}")
        if before is not None and hw < before:
            raise SimulationFailure(
                "rule 7", f"{node.name}: the high watermark of {replica.name} went {before} -> {hw}"
            )
        if replica.start_offset > row.start_offset:
            raise SimulationFailure(
                "C6", f"{node.name}: {replica.name} starts at {replica.start_offset}, not {row.start_offset}"
            )

    def _place(self, key: PartitionId) -> TopicPartition:
        return self._agreement.topics.get(key[0], str(key[0])), key[1]

    # Once everything is healed

    def not_whole(self) -> list[str]:
        """Liveness: who is to lead does, and knows all that is committed."""
        missing: list[str] = []
        for key, row in self._agreement.cloud_rows.items():
            name = self._agreement.name(key)
            if row.leader == NO_LEADER:
                missing.append(f"{name} has no leader")
                continue
            node = self._cluster.node_of(row.leader)
            found = next((one for one in snapshots.led_in_cloud(node) if one.key == key), None)
            end = self._tables.partitions[key].end_offset if self._tables is not None else 0
            if found is None:
                missing.append(f"{node.name} does not lead {name}")
            elif (found.high_watermark, found.end_offset) != (end, end):
                told = f"{found.high_watermark}, {found.end_offset}"
                missing.append(f"{node.name} knows {name} up to {told}, the metastore up to {end}")
        return missing

    def not_moved(self) -> list[str]:
        """Liveness: what somebody wants in the store gets there."""
        wanted = {
            row.name
            for row in self._cluster.metastore.peek("read_changes", 0).configs
            if row.scope is ConfigScope.TOPIC and row.settings.get(STORAGE_MODE) == CLOUD
        }
        return [
            f"{self._agreement.name(key)} is {row.storage.name.lower()}"
            for key, row in self._agreement.rows.items()
            if self._agreement.topics[key[0]] in wanted
        ]

    def not_freed(self) -> list[str]:
        """Liveness: no replica keeps a log of what is in the store."""
        names = {self._agreement.name(key) for key in self._agreement.cloud_rows}
        return [
            f"{node.name} still has {name}"
            for node in self._cluster.nodes.values()
            for name in node.volume.directories(DATA)
            if name in names
        ]

    def still_open(self) -> list[str]:
        return [
            f"{node.name}: {one.name} has a transaction open at {one.last_stable_offset}, of {one.high_watermark}"
            for node in self._cluster.nodes.values()
            for one in snapshots.led_in_cloud(node)
            if one.last_stable_offset < one.high_watermark
        ]

    def unleveled(self) -> list[str]:
        """Liveness: all of L0 becomes L1, and all of a compacted topic is compacted."""
        if self._tables is None:
            return []
        missing: list[str] = []
        for key, row in self._tables.partitions.items():
            if key not in self._agreement.cloud_rows or key[0] not in self._agreement.topics:
                continue
            if row.leveled_offset < row.end_offset:
                missing.append(
                    f"{self._place(key)} ends at {row.end_offset}, and is leveled up to {row.leveled_offset}"
                )
        return missing

    def uncollected(self) -> list[str]:
        """Liveness: what is garbage goes, and what deleted topics had."""
        if self._tables is None:
            return []
        garbage = [row for row in self._tables.objects.values() if row.state is ObjectState.GARBAGE]
        gone = [key for key in self._tables.partitions if key[0] not in self._agreement.topics]
        return [*(f"object {row.object_id} is garbage since {row.round}" for row in garbage), *map(str, gone)]


def _failure(wrong: str, more: str) -> SimulationFailure:
    head, _, rest = wrong.partition(": ")
    is_rule = rest and ((head[:1] == "C" and head[1:].isdigit()) or head.startswith("rule "))
    return SimulationFailure(head, rest + more) if is_rule else SimulationFailure("C5", wrong + more)
