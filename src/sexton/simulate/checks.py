"""The rules (docs/rules.md), as far as they can be seen from outside a broker while it runs.

**The ledger.** A batch is *committed* once any replica's high watermark has passed it. From then on it is written down
here: offset, epoch, checksum. Whatever happens later,

- no replica may hold anything else at those offsets below its own high watermark (rules 2 and 4),
- every in-sync replica of the partition, by the metastore's own row, running or not, must hold it on its disk (rule 1):
  also when the machine has just lost power, which is how an acknowledgement before the flush is found,
- and no high watermark moves back while a process lives and its replica is the same incarnation (rule 7).

Log starts are the exception: what was deleted on request may be gone. Compacted partitions have a judge of their own
(`compaction_checks`), and every committed batch is shown to the judge of transactions.

**Topics that acknowledge before the flush** promise less, and leaders that are forced have less: `losses` says when,
and what is excused. Everything else is held against such partitions as well.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from sexton.ports.metastore import PartitionRow
from sexton.simulate import beliefs, snapshots
from sexton.simulate.beliefs import Joins, Shapes
from sexton.simulate.clock import SimulatedClock
from sexton.simulate.cluster import DATA, Node, SimulatedCluster
from sexton.simulate.compaction_checks import CompactionJudge, Known
from sexton.simulate.copies import Copy
from sexton.simulate.errors import SimulationFailure
from sexton.simulate.history import History
from sexton.simulate.ledger import Ledger
from sexton.simulate.losses import Line, Losses
from sexton.simulate.observe import Agreement
from sexton.simulate.snapshots import Glances, Snapshot
from sexton.simulate.trace import Trace
from sexton.simulate.transaction_checks import TransactionJudge
from sexton.simulate.truth import Retention
from sexton.simulate.unclean import UncleanElections
from sexton.types import PartitionId, TopicPartition


@dataclass(slots=True)
class _Verified:
    """How far a copy has been compared with the ledger, and at which version of the copy."""

    copy: Copy
    version: int = 0
    until_offset: int = 0


class Judge:
    def __init__(
        self,
        cluster: SimulatedCluster,
        agreement: Agreement,
        history: History,
        trace: Trace,
        *,
        compacted: Collection[str] = (),
        unflushed: Collection[str] = (),
        retentions: Mapping[str, Retention] | None = None,
        has_transactions: bool = False,
        unclean: Collection[str] = (),
    ) -> None:
        """`compacted` and `unflushed` name topics: those that are compacted, and those that acknowledge too early.
        `retentions` are those of compacted topics whose log starts move. On `unclean` the controller may make one lead
        who is not in sync."""
        self.cluster = cluster
        self._agreement = agreement
        self._history = history
        self._trace = trace
        self._compacted = frozenset(compacted)
        self._unflushed = frozenset(unflushed)
        self._retentions = retentions or {}
        self._latest_ms = 0
        """What the fastest clock of the brokers showed at the last sweep: one may have jumped back since."""
        self._has_transactions = has_transactions
        self._unclean = UncleanElections(frozenset(unclean))
        self._losses = Losses(history)
        self.transactions = TransactionJudge(history)
        self.compaction = CompactionJudge(self.transactions.committed, is_left_behind=self._losses.is_left_behind)
        self._ledgers: dict[PartitionId, Ledger] = {}
        self._watermarks: dict[tuple[str, PartitionId, uuid.UUID | None], tuple[int, int]] = {}
        """High watermarks, and how many losses of their partitions had been followed by then."""
        self._glances = Glances()
        self._shapes = Shapes()
        self._joins = Joins()
        self._replaced: set[int] = set()
        """Brokers whose disk was replaced, and that have not registered since."""
        self.unborn: set[TopicPartition] = set()
        """Partitions that were placed on such brokers alone: nobody has ever had a log of them."""
        self._verified: dict[tuple[str, PartitionId], _Verified] = {}

    # Every few callbacks: what brokers believe

    def look(self) -> None:
        """High watermarks: traced, and never back (rule 7). After a restart they may be as old as their checkpoint."""
        for node, replica in self._glances.changed(self.cluster.nodes.values()):
            self.look_at(node, replica)

    def look_at(self, node: Node, replica: Snapshot) -> None:
        """Judges a replica as its broker shows it now, and remembers it."""
        assert node.process is not None
        if replica.topic_id not in self._agreement.topics:
            return  # its topic is deleted, and its broker has not heard of it
        self._history.starts((replica.topic, replica.partition), replica.start_offset, replica.high_watermark)
        place = (node.process.name, replica.key, replica.incarnation)
        hw = replica.high_watermark
        before, followed_count = self._watermarks.get(place, (None, 0))
        losses_count = followed_count
        row = self._agreement.rows.get(replica.key)
        if row is not None:
            beliefs.check_counted(node, replica, row)
            if replica.is_leader and replica.leader_epoch < row.leader_epoch and replica.topic in self._unclean.allowed:
                self._history.goes_on_losing((replica.topic, replica.partition), self.cluster.loop.now_ns)
        self._settle(node, replica)
        if replica.topic in self._compacted:
            self.compaction.look(node.name, place[1], (replica.topic, replica.partition), replica)
            self._check_start(node, place[1], replica)
        if before == hw:
            return
        # One that is not in sync, and has just started, say, may still have to follow a loss that came before.
        if row is not None and node.broker_id in row.isr:
            losses_count = self._history.losses_count((replica.topic, replica.partition))
        self._watermarks[place] = hw, losses_count
        self._trace.note(node.name, f"{replica.name} high watermark {hw} ({replica.role})")
        if replica.topic in self._compacted:
            self._learn(node, place[1], replica)
        elif place[1] not in self._losses.doubts and (
            self._has_transactions or replica.topic in self._unflushed or replica.topic in self._unclean.allowed
        ):
            # At once: what is deleted on request, or lost, within a second was committed, too.
            ledger = self._ledgers.setdefault(place[1], Ledger())
            self._commit(node, place[1], ledger, hw, replica.start_offset)
        if before is not None and hw < before and not self._may_go_back(replica, followed_count):
            raise SimulationFailure(
                "rule 7",
                f"{node.name}: the high watermark of {replica.name} went {before} -> {hw}",
            )
        if hw > replica.end_offset and not self._is_about_to_start(replica):
            raise SimulationFailure(
                "rule 1",
                f"{node.name}: {replica.name} has committed {hw}, but ends at {replica.end_offset}",
            )

    def _may_go_back(self, replica: Snapshot, losses_count: int) -> bool:
        """A high watermark goes back with what was lost since it was seen, as far as that and no further."""
        place = (replica.topic, replica.partition)
        since = self._history.losses.get(place, [])[losses_count:]
        return self._history.is_gone(place) or any(replica.high_watermark >= loss.offset for loss in since)

    def _is_about_to_start(self, replica: Snapshot) -> bool:
        """An empty copy of a log that starts in the middle of a batch takes that batch first: it knows that everything
        up to the start is committed, and begins below it. Nobody asked for records to be deleted above that."""
        is_empty = replica.start_offset == replica.end_offset and not replica.is_leader
        deleted_below = self._history.start_bounds.get((replica.topic, replica.partition), 0)
        return is_empty and replica.high_watermark <= deleted_below

    # Every now and then, and whenever a row changes: what disks hold

    def sweep(self) -> None:
        self._glances.forget()
        self._latest_ms = self._fastest_clock_ms()
        for node in self.cluster.nodes.values():
            beliefs.check_damage(node)
            beliefs.check_strays(node)
        for key, row in list(self._agreement.rows.items()):
            self.sweep_partition(key, row)

    def row_changed(self, who: str, key: PartitionId, row: PartitionRow) -> None:
        """Whoever is no longer in sync and comes back has copied what it lost. But a leader's last words may be carried
        out when it is dead: that it alone is in sync, say, when it has lost power. Nobody can tell that from a loss of
        power that came later. From one who lives, such a change would be a mistake: unless an operator has removed the
        replica that had everything, and left those that have not."""
        self._joins.check(who, row, self._leader_of(who, key))
        if row.leader_epoch == row.partition_epoch == 0 and self._replaced.issuperset(row.isr):
            self.unborn.add(self._place(key))
        self._losses.isr_changed(key, row)
        if who not in self._process_names() or self._unclean.removes_in_sync(row):
            self._note_loss(key, row)
        place = self._place(key)
        if self._unclean.is_one(place[0], row):
            self._trace.note("judge", f"{row.leader} leads {self._agreement.name(key)} and was not in sync")
            self._losses.doubt(key, place, row.leader_epoch, is_forced=False)
            self._losses.elected_uncleanly(key, row.leader, self._shared_end(row.leader, key))

        self._history.leader_epochs[place] = row.leader_epoch
        if row.generation > self._history.generations.get(place, 0):
            self._trace.note("judge", f"a leader was forced on {self._agreement.name(key)}")
            self._history.generations[place] = row.generation
            self._losses.doubt(key, place, row.leader_epoch, is_forced=True)
            self._losses.force(key, row.leader, row.leader_epoch, self._left_end(row.leader, key))
        self.sweep_partition(key, row)

    def _left_end(self, broker_id: int, key: PartitionId) -> int:
        node = self.cluster.node_of(broker_id)
        return 0 if node.is_wiped else self._seen(node, key).copy.intact_end

    def _shared_end(self, broker_id: int, key: PartitionId) -> int:
        """Up to where the log on that disk is what was committed. Of a topic that is not compacted."""
        ledger = self._ledgers.get(key)
        if ledger is None:
            return 0
        entries = list(self._seen(self.cluster.node_of(broker_id), key).copy.entries_from(0))
        start = entries[0].base_offset if entries else 0
        return ledger.agreed_end(entries, start, self._history.start_bounds.get(self._place(key), 0))

    def power_lost(self, node: Node) -> None:
        """What was not flushed on that machine is gone."""
        for key in self._losses.forced_on(node.broker_id):
            self._losses.left(key, self._left_end(node.broker_id, key))
        for key, row in self._agreement.rows.items():
            name = self._agreement.topics[key[0]]
            if name in self._unflushed and node.broker_id in row.replicas:
                self._losses.power_lost(key, row, node.broker_id, self._seen(node, key).copy.intact_end)
                if node.broker_id in row.isr:
                    self._note_loss(key, row)

    def registered(self, broker_id: int, broker_epoch: int) -> None:
        self._joins.registered(broker_id, broker_epoch)
        self._replaced.discard(broker_id)
        self._losses.registered(broker_id)

    def _note_loss(self, key: PartitionId, row: PartitionRow) -> None:
        if not self._losses.is_any_left(key, row):
            self._trace.note("judge", f"all in-sync replicas of {self._agreement.name(key)} have lost power")
            self._losses.doubt(key, self._place(key), row.leader_epoch + 1, is_forced=False)

    def _settle(self, node: Node, replica: Snapshot) -> None:
        """Ends the doubt about a partition, if this leader shows what is left of it."""
        key = replica.key
        if not self._losses.is_shown_by(key, replica) or key not in self._agreement.rows:
            return
        if self._losses.doubts[key].is_forced and replica.kept.generation < self._agreement.rows[key].generation:
            return  # it has not begun the new one
        is_forced = self._losses.doubts[key].is_forced
        place, copy = self._place(key), self._seen(node, key).copy
        known = self.compaction.truths.get(key) if place[0] in self._compacted else self._ledgers.get(key)
        forced = self._losses.settle(key, place)
        if known is None:
            return
        where = f"{node.name}: {replica.name}"
        if is_forced:
            line = Line(0, replica.leader_epoch)  # a log that was copied half may lack what it had replaced later
            if forced is not None and forced.broker_id == node.broker_id:
                self._losses.check_left(where, forced.left_end, _own_from(copy, forced.first_epoch), known.end_offset)
        else:
            offset = self._agreed_end(key, replica, copy)
            kept = frozenset((entry.base_offset, entry.leader_epoch) for entry in copy.entries_from(offset))
            line = Line(offset, replica.leader_epoch, kept)
            left_end = self._losses.left_on(key, node.broker_id)
            self._losses.check_left(where, left_end, line.offset, known.end_offset)
            if line.offset == known.end_offset and not self._losses.brings_back(key, line):
                self._losses.caught_up(key, node.broker_id)
                return  # all of it is left
        self._trace.note("judge", f"{replica.name} goes on from {line.offset}, {known.end_offset} had been committed")
        self._losses.caught_up(key, node.broker_id)
        self._begin_line(key, line, copy, is_forced=is_forced)
        if is_forced and place[0] in self._compacted:
            self._learn(node, key, replica)  # at once: it may be gone before anybody looks again

    def _agreed_end(self, key: PartitionId, replica: Snapshot, copy: Copy) -> int:
        truth, start = self.compaction.truths.get(key), replica.start_offset
        if truth is not None:
            return truth.agreed_end(copy.batches_from(start), start)
        deleted_below = self._history.start_bounds.get(self._place(key), 0)
        return self._ledgers[key].agreed_end(copy.entries_from(start), start, deleted_below)

    def _begin_line(self, key: PartitionId, line: Line, copy: Copy, *, is_forced: bool) -> None:
        place, truth = self._place(key), self.compaction.truths.get(key)
        self.compaction.forget(key)
        left = copy.batches_from(0)
        if is_forced:
            self._history.lost(place, line.offset, self.cluster.loop.now_ns)
        else:
            self._losses.begin_line(key, place, line, self.cluster.loop.now_ns)
            if truth is not None:
                truth.cut(line.offset)
                left = iter(truth.batches)
            else:
                self._ledgers[key].cut(line.offset)
        if self._has_transactions:
            self.transactions.begin_anew(place, (batch for batch in left if batch.base_offset < line.offset))
        for (_, of), seen in self._verified.items():
            if of == key:
                seen.until_offset = min(seen.until_offset, line.offset)

    def _leader_of(self, who: str, key: PartitionId) -> Snapshot | None:
        """The replica that this process leads, if it does, and lives."""
        found = ((node.process, snapshots.find(node, key)) for node in self.cluster.nodes.values())
        return next((each for process, each in found if process is not None and process.name == who), None)

    def _process_names(self) -> set[str]:
        return {node.process.name for node in self.cluster.nodes.values() if node.process is not None}

    def ends(self, node: Node) -> None:
        """A process is about to be killed: what it has done so far counts."""
        self.look()

    def disk_replaced(self, node: Node) -> None:
        for key in self._losses.forced_on(node.broker_id):
            self._losses.left(key, 0)
        self._replaced.add(node.broker_id)
        self.compaction.disk_replaced(node.name)

    def _place(self, key: PartitionId) -> TopicPartition:
        return self._agreement.topics[key[0]], key[1]

    def _learn(self, node: Node, key: PartitionId, replica: Snapshot) -> None:
        if key in self._losses.doubts:
            return
        generation = replica.kept.generation
        known = self.compaction.truths.get(key)
        if generation > (known.generation if known is not None else 0) and replica.is_leader:
            known = None
            self._losses.begin_generation(key)
            self.compaction.begin_generation(key, generation, replica.end_offset)
        if known is not None and generation != known.generation:
            return
        copy = self._seen(node, key).copy
        self.compaction.learn(self._place(key), key, copy, replica.high_watermark, self._others(key, node, replica))

    def _others(self, key: PartitionId, of: Node, than: Snapshot) -> Iterator[Known]:
        for node, replica in self._running(key):
            if node.broker_id != of.broker_id and replica.kept.generation == than.kept.generation:
                yield self._seen(node, key).copy, replica.high_watermark

    def _running(self, key: PartitionId) -> list[tuple[Node, Snapshot]]:
        found = ((node, snapshots.find(node, key)) for node in self.cluster.nodes.values())
        return [(node, replica) for node, replica in found if replica is not None]

    def _check_start(self, node: Node, key: PartitionId, replica: Snapshot) -> None:
        """Where nobody asked for it, only retention moves a log start. From here on, what is below may be gone."""
        place, start = (replica.topic, replica.partition), replica.start_offset
        allowed = self._history.start_bounds.get(place, 0)
        if start <= allowed or self._history.is_gone(place) or key in self._losses.doubts:
            return
        self._learn(node, key, replica)
        retention = self._retentions.get(replica.topic, Retention(-1, -1))
        tail = self._seen(node, key).copy.batches_from(self.compaction.truths[key].end_offset)
        tail_bytes = sum(batch.size_bytes for batch in tail)
        now_ms = max(self._latest_ms, self._fastest_clock_ms())
        where = f"{node.name}: {replica.name}"
        self.compaction.check_start(where, key, (allowed, start), retention, now_ms, tail_bytes)
        self._trace.note(node.name, f"{replica.name} now starts at {start}")
        self._history.deleting_records(place, start)

    def _fastest_clock_ms(self) -> int:
        loop = self.cluster.loop
        running = [(node.wall, node.process) for node in self.cluster.nodes.values() if node.process is not None]
        return max((SimulatedClock(wall, process, loop).now_ms() for wall, process in running), default=0)

    def _sweep_compacted(self, key: PartitionId, row: PartitionRow) -> None:
        found = self._running(key)
        for node, replica in found:
            self._settle(node, replica)
        if key in self._losses.doubts:
            return
        for node, replica in found:
            self._learn(node, key, replica)
            self._check_start(node, key, replica)
        for node, replica in found:
            copy = self._seen(node, key).copy
            in_sync = node.broker_id in row.isr
            self.compaction.check(node.name, key, self._place(key), replica, copy, in_sync=in_sync)
        self._require_ends(key, row, {node.broker_id for node, _ in found})

    def _require_ends(self, key: PartitionId, row: PartitionRow, running: Collection[int]) -> None:
        """Rule 1, of those that do not run, too: compaction leaves the last batch of a log where it is. What lies
        before that is judged as well."""
        truth = self.compaction.truths.get(key)
        place = self._place(key)
        if truth is None or self._history.is_gone(place):
            return
        if self._history.start_bounds.get(place, 0) >= truth.end_offset:
            return
        for broker_id in row.isr:
            node = self.cluster.node_of(broker_id)
            copy = self._seen(node, key).copy
            lacks = copy.end_offset < truth.end_offset
            if node.is_wiped:
                continue
            if self._losses.is_suspect(key, broker_id):
                if lacks or not node.is_started:
                    continue  # until it is, what it said before may still be counted, and it may have holes
                self._losses.caught_up(key, broker_id)
            if lacks:
                self._missing(node, key, copy.end_offset, truth.end_offset)
            if broker_id not in running:
                start_bound = self._history.start_bounds.get(place, 0)
                self.compaction.check_stopped(node.name, key, place, copy, start_bound)

    def sweep_partition(self, key: PartitionId, row: PartitionRow) -> None:
        place = self._place(key)
        for node, replica in self._running(key):
            self._history.starts(place, replica.start_offset, replica.high_watermark)
            beliefs.check_counted(node, replica, row)
            self._shapes.check(node, replica, self._seen(node, key).copy, is_compacted=place[0] in self._compacted)
        if place[0] in self._compacted:
            self._sweep_compacted(key, row)
            return
        ledger = self._ledgers.setdefault(key, Ledger())
        running = self._running(key)
        for node, replica in running:
            self._settle(node, replica)
        if key in self._losses.doubts:
            return
        for node, replica in running:
            self._commit(node, key, ledger, replica.high_watermark, replica.start_offset)
        for broker_id in row.isr:
            node = self.cluster.node_of(broker_id)
            if node.is_wiped:
                continue
            if self._losses.is_suspect(key, broker_id):
                if not node.is_started or self._seen(node, key).copy.end_offset < ledger.end_offset:
                    continue  # until it is, it may leave what it has to one that has less, and may have holes
                self._losses.caught_up(key, broker_id)
            self._require(node, key, ledger)

    def _commit(self, node: Node, key: PartitionId, ledger: Ledger, hw: int, start_offset: int) -> None:
        """What lies below a replica's high watermark is committed, and agrees with what already was. What was deleted
        on request may have gone from the first replica that is looked at before it was written down."""
        seen = self._seen(node, key)
        deleted_below = self._history.start_bounds.get(self._place(key), 0)
        for entry in seen.copy.entries_from(max(seen.until_offset, start_offset)):
            if entry.base_offset >= hw or self._losses.is_left_behind(key, entry.base_offset, entry.leader_epoch):
                break
            evidence = ledger.conflict(entry)
            if evidence is not None and entry.last_offset >= deleted_below:
                raise SimulationFailure("rule 2", f"{node.name}: {self._agreement.name(key)} {evidence}")
            if entry.base_offset >= ledger.end_offset:
                ledger.add(entry)
                if self._has_transactions:
                    self.transactions.committed(self._place(key), next(seen.copy.batches_from(entry.base_offset)))
            seen.until_offset = entry.last_offset + 1

    def _require(self, node: Node, key: PartitionId, ledger: Ledger) -> None:
        """An in-sync replica holds everything that is committed (rule 1), and nothing else there (rule 4)."""
        seen = self._seen(node, key)
        start_offset = self._history.start_bounds.get((self._agreement.topics[key[0]], key[1]), 0)
        expected = seen.until_offset
        if expected >= ledger.end_offset:
            return
        for entry in seen.copy.entries_from(expected):
            if entry.base_offset >= ledger.end_offset:
                break
            evidence = ledger.conflict(entry)
            if evidence is not None and entry.last_offset >= start_offset:
                raise SimulationFailure("rule 4", f"{node.name}, in sync: {self._agreement.name(key)} {evidence}")
            if entry.base_offset > expected and entry.base_offset > start_offset:
                self._missing(node, key, expected, entry.base_offset)
            expected = entry.last_offset + 1
        if expected < ledger.end_offset and start_offset < ledger.end_offset:
            self._missing(node, key, expected, ledger.end_offset)
        seen.until_offset = max(seen.until_offset, expected)

    def _missing(self, node: Node, key: PartitionId, low: int, high: int) -> None:
        state = "is running" if node.is_started else "is starting" if node.is_up else "is down"
        raise SimulationFailure(
            "rule 1",
            f"{node.name}, which {state}, is in sync for {self._agreement.name(key)} but its disk lacks the committed "
            f"offsets {low} to {high - 1}",
        )

    def _seen(self, node: Node, key: PartitionId) -> _Verified:
        seen = self._verified.get((node.name, key))
        if seen is None or seen.copy.volume is not node.volume:
            directory = f"{DATA}/{self._agreement.topics[key[0]]}-{key[1]}"
            seen = self._verified[node.name, key] = _Verified(Copy(node.volume, directory))
        seen.copy.refresh()
        if seen.version != seen.copy.version:
            seen.version = seen.copy.version
            seen.until_offset = 0
        return seen

    # For others

    def holds_something_alone(self, node: Node) -> bool:
        """Whether losing this machine would lose something that was acknowledged."""
        nodes = self.cluster.nodes.values()
        holders = {other.broker_id for other in nodes if other is not node and not other.is_wiped}
        return any(
            node.broker_id in row.isr and not (holders - self._losses.suspects.get(key, {}).keys()) & set(row.isr)
            for key, row in self._agreement.rows.items()
        )

    def is_in_sync(self, node: Node) -> bool:
        return any(node.broker_id in row.isr for row in self._agreement.rows.values())

    def depends_on_lost_disks(self, node: Node) -> bool:
        """Whether a topic that acknowledges before the flush has it in sync with nobody but machines whose disks are
        gone, which the metastore need not know yet."""
        lost = {other.broker_id for other in self.cluster.nodes.values() if other.is_wiped}
        return any(
            node.broker_id in row.isr
            and (others := set(row.isr) - {node.broker_id})
            and others <= lost
            and self._agreement.topics.get(topic_id) in self._unflushed
            for (topic_id, _), row in self._agreement.rows.items()
        )

    def committed_of(self, key: PartitionId) -> Ledger:
        """All that any replica shows to be committed by now."""
        ledger = self._ledgers.setdefault(key, Ledger())
        if key not in self._losses.doubts:
            for node, replica in self._running(key):
                self._commit(node, key, ledger, replica.high_watermark, replica.start_offset)
        return ledger

    def ledger_end(self, key: PartitionId) -> int:
        known = self._ledgers.get(key) or self.compaction.truths.get(key)
        return known.end_offset if known is not None else 0


def _own_from(copy: Copy, leader_epoch: int) -> int:
    """Where what a log holds of that epoch and later ones begins."""
    own = (entry.base_offset for entry in copy.entries_from(0) if entry.leader_epoch >= leader_epoch)
    return min(own, default=copy.end_offset)
