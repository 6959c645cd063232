"""One run: a cluster comes up, clients work, things go wrong, everything is healed, and then it must all be right.

virtual time 0     brokers start, topics are made, clients begin
until the plan's end    faults; the judge looks every few callbacks and reads the disks every second
then               everything is healed; within a virtual minute every partition must have its leader and all its
                   replicas in sync, and every writer an answer
at the end         everything that was acknowledged is read again
"""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ParamSpec

from sexton.client.client import Client
from sexton.errors import SextonError
from sexton.ports.metastore import ConfigScope, PartitionRow
from sexton.protocol.errors import KafkaError
from sexton.simulate import final, operators, snapshots, testimony
from sexton.simulate.administrator import NAME as ADMIN
from sexton.simulate.administrator import Administrator
from sexton.simulate.checks import Judge
from sexton.simulate.cloud_checks import CloudJudge
from sexton.simulate.cluster import DATA, SimulatedCluster
from sexton.simulate.compaction_checks import check_acknowledged
from sexton.simulate.crowd import Crowd
from sexton.simulate.errors import SimulationFailure
from sexton.simulate.faults import FORCING_S
from sexton.simulate.history import History
from sexton.simulate.invariants import Invariants
from sexton.simulate.journal import Journal
from sexton.simulate.leveled_checks import Topic
from sexton.simulate.loop import MS, NS, Process, SimulatedLoop, new_loop
from sexton.simulate.movers import NAMES as MOVERS
from sexton.simulate.movers import Movers
from sexton.simulate.nemesis import Nemesis
from sexton.simulate.network import Fabric
from sexton.simulate.observe import Agreement
from sexton.simulate.operators import NAME as OPERATOR
from sexton.simulate.plan import INTERNAL_TOPICS, Plan
from sexton.simulate.trace import Trace
from sexton.simulate.truth import Truth
from sexton.types import PartitionId, TopicPartition

CALLBACKS_PER_LOOK = 16
SWEEP_S = 1
RECOVERY_S = 60
"""How long a healed cluster may take: a virtual minute."""

GROUP_RECOVERY_S = 180
"""A group waits for members that are gone: a rebalance of a minute, after a session, after another rebalance."""

CLOUD_GROUP_RECOVERY_S = 600
"""A broker whose cache holds one run serves one at a time (cloud seed 1035, which had 182 runs to go)."""

COMPACTION_RECOVERY_S = 180
"""A compactor leaves alone for half a minute what it failed at, and another waits for the lease of one that is gone."""

COLLECTION_RECOVERY_S = 180
"""Rounds are counted anew by each controller."""

AFTERMATH_S = 3
"""How long writers go on after everything is healed."""


RUNS_MAX = 10_000

EXPECTED = (OSError, SextonError, KafkaError)
"""What a broker may log with its traceback and go on."""


P = ParamSpec("P")


class Simulation:
    def __init__(self, plan: Plan, *, is_only_history_judged: bool = False) -> None:
        """If only the history is judged, what else is found to be wrong on the way is told in the trace, and no
        more."""
        self.plan = plan
        self._is_lenient = is_only_history_judged
        self.loop: SimulatedLoop = new_loop(random.Random(f"{plan.seed}:order"))
        self.trace = Trace(self.loop)
        self.fabric = Fabric(self.loop, random.Random(f"{plan.seed}:network"), replace(plan.weather))
        self.fabric.on_delivery = self.trace.delivered
        self.cluster = SimulatedCluster(
            loop=self.loop,
            seed=plan.seed,
            brokers_count=plan.brokers_count,
            fabric=self.fabric,
            trace=self.trace,
            times=plan.times,
            store=plan.store,
        )
        self.agreement = Agreement(self.trace)
        self.cluster.metastore.observer = self.agreement.carried_out
        self.history = History(journal=Journal(lambda: self.loop.now_ns), is_lenient=self._is_lenient)
        self.history.cloud_topics = frozenset(plan.cloud_topics)
        self.judge = Judge(
            self.cluster,
            self.agreement,
            self.history,
            self.trace,
            compacted=[
                *plan.compacted_topics,
                *(life.topic for life in plan.lives if life.is_compacted),
                *(INTERNAL_TOPICS if plan.compactors else ()),
            ],
            unflushed=plan.unflushed_topics,
            retentions=plan.retentions,
            has_transactions=bool(plan.transactors),
            unclean=plan.unclean_topics,
        )
        self.cloud = None if plan.store is None else self._cloud_judge()
        self.agreement.on_change = self._told(self.judge.row_changed)
        self.agreement.on_registered = self._told(self.judge.registered)
        self.cluster.on_end = self._told(self.judge.ends)
        self.cluster.on_power_lost = self._told(self.judge.power_lost)
        self.cluster.on_disk_replaced = self._told(self.judge.disk_replaced)
        for name in (ADMIN, OPERATOR, *MOVERS, *plan.clients):
            self.fabric.add_host(name)
        self.nemesis = Nemesis(
            self.cluster,
            [ADMIN, OPERATOR, *MOVERS, *plan.clients],
            self.judge,
            force_leaders=lambda: self.crowd.spawn(self.crowd.clients[OPERATOR][0], self._force_leaders()),
            wipe_store=lambda: None if self.cloud is None else self.cloud.wipe(),
        )
        self.crowd = Crowd(self.cluster, plan, self.history, self.trace)
        self._since_look = 0
        self._invariants = Invariants()
        self._look = self._told(self._look_at_all)
        self._sweep_all = self._told(self.judge.sweep)
        self.cluster.on_start = self._invariants.started

    def run(self) -> None:
        """Raises SimulationFailure."""
        handler = _LogHandler(self.loop, self.trace)
        logger = logging.getLogger("sexton")
        before = logger.level, logger.propagate
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
        self.loop.after_turn = self._after_turn
        try:
            self.loop.run_until_complete(self._main())
        finally:
            logger.removeHandler(handler)
            logger.level, logger.propagate = before
            self.loop.close()

    def _cloud_judge(self) -> CloudJudge:
        cluster = self.cluster
        assert cluster.objects is not None
        topics = {
            topic.name: Topic(topic.is_compacted, int(topic.settings.get("delete.retention.ms", 86_400_000)))
            for topic in self.plan.topics
        }
        cloud = CloudJudge(
            cluster, self.agreement, self.history, self.trace, transactions=self.judge.transactions, topics=topics
        )
        cloud.local_ledger = self.judge.committed_of
        judged = self._told(cloud.carried_out)

        def carried_out(who: str, operation: str, arguments: tuple[Any, ...], result: Any) -> None:
            self.agreement.carried_out(who, operation, arguments, result)
            judged(who, operation, arguments, result)

        cluster.metastore.observer = carried_out
        cluster.objects.observer = self._told(cloud.stored)
        self.agreement.on_cloud_change = cloud.row_changed
        return cloud

    def _look_at_all(self) -> None:
        self.judge.look()
        if self.cloud is not None:
            self.cloud.look()

    def _after_turn(self, process: Process, count: int) -> None:
        self._invariants.after_turn(process)
        self._since_look += count
        if self._since_look >= CALLBACKS_PER_LOOK:
            self._since_look = 0
            self._look()

    def _told(self, check: Callable[P, None]) -> Callable[P, None]:
        if not self._is_lenient:
            return check

        def lenient(*args: P.args, **kwargs: P.kwargs) -> None:
            try:
                check(*args, **kwargs)
            except SimulationFailure as failure:
                self._overlook(failure)

        return lenient

    def _overlook(self, failure: SimulationFailure) -> None:
        if not self._is_lenient:
            raise failure
        self.trace.remark("judge", f"{failure.rule}, overlooked: {failure.evidence}")

    # The course of things

    async def _main(self) -> None:
        plan = self.plan
        self.crowd.watch(asyncio.ensure_future(self._sweep()))
        if plan.store is not None and plan.store.leveling:
            leveling = {name: str(value) for name, value in plan.store.leveling.items()}
            self.cluster.metastore.peek("open_cluster", uuid.UUID(int=plan.seed))
            self.cluster.metastore.peek("change_settings", ConfigScope.BROKER, "", leveling)
        for node in self.cluster.nodes.values():
            self.cluster.start_later(node, node.rng.randrange(NS))
        self.nemesis.plan(plan.faults)
        admin_process, admin_client = self.crowd.clients[ADMIN]
        looks_up = (self._segment_bases, self._bounds)
        admin = Administrator(admin_client, self.history, self.trace, plan.brokers_count, *looks_up)
        await self.crowd.spawn(admin_process, admin.create_all(plan.topics))
        self.crowd.start()
        admin_task = self.crowd.spawn(
            admin_process, admin.run(plan.admin, lambda: self.loop.now_ns // MS, lambda: self.crowd.writing_is_over)
        )
        deletes = [topic.name for topic in plan.topics if topic.deletes]
        clients = [self.crowd.clients[name][1] for name in MOVERS]
        movers = Movers(clients, self.trace, plan.brokers_count, admin.delete_records_of, deletes)
        moving = self.crowd.spawn(
            self.crowd.clients[MOVERS[0]][0],
            movers.run(plan.moves, lambda: self.loop.now_ns // MS, lambda: self.crowd.writing_is_over),
        )
        await asyncio.sleep(max(0, plan.until_ms / 1000 - self.loop.now_ns / NS))
        self.nemesis.heal()
        self.crowd.is_healed = True
        healed_ns = self.loop.now_ns
        self._bring_forth()
        await asyncio.sleep(AFTERMATH_S)
        self.crowd.writing_is_over = True
        await self._recover(admin_task, moving)
        self._look()
        self._sweep_all()
        if not self._is_lenient:
            await self.crowd.spawn(admin_process, self._read_everything(admin_client))
        await self.crowd.spawn(admin_process, self._look_again(admin_client))
        self._told(final.check_history)(self.history, self.agreement)
        if any(each.group for each in plan.readers):
            recovery_s = GROUP_RECOVERY_S if self.cloud is None else CLOUD_GROUP_RECOVERY_S
            await self._recovers("the group has it all", self._undelivered, recovery_s)
        self.crowd.reading_is_over = True
        testimony.check(plan, self.history, healed_ns)
        self.trace.note("world", "all is well")

    async def _recover(self, *administrating: asyncio.Task[None]) -> None:
        """Liveness: once everything is healed, all of this must come true, one after the other."""
        plan = self.plan
        await self._recovers(
            "writers have their answers", lambda: self.crowd.pending(*administrating, *self.crowd.living)
        )
        await self._recovers("the cluster is whole", lambda: final.not_whole(self.cluster, self.agreement))
        await self._recovers("the logs are equal", lambda: final.unequal(self.cluster, self.agreement))
        self._call_operator()
        await self._recovers("no transaction is open", lambda: final.still_open(self.cluster))
        if self.cloud is not None:
            await self._recovers("what is to be in the store is there", self.cloud.not_moved)
            await self._recovers("no log is left of what is in the store", self.cloud.not_freed)
            await self._recovers("cloud topics are led", self.cloud.not_whole)
            await self._recovers("no transaction is open in the cloud", self.cloud.still_open)
            await self._recovers("garbage is collected", self.cloud.uncollected, COLLECTION_RECOVERY_S)
        if plan.compactors:
            if self.cloud is not None:
                await self._recovers("all is leveled", self.cloud.unleveled, COMPACTION_RECOVERY_S)
            await self._recovers("all is compacted", self._uncompacted, COMPACTION_RECOVERY_S)
            await self._recovers("readers have it all", self._misled)

    async def _read_everything(self, client: Client) -> None:
        judge, compacted = self.judge, self.plan.compacted_topics
        for lives in self.crowd.lives:
            for key in [key for key in self._all_rows() if self.agreement.topics[key[0]] == lives.plan.topic]:
                await lives.check(key)
        await final.read_everything(client, self.history, compacted)
        if self.plan.transactors:
            judge.transactions.check_whole()
            await final.read_committed(client, self.history, compacted)
            for plan in self.plan.transactors:
                await final.check_offsets(client, plan.name, plan.group, plan.places[0], judge.transactions)
        for key, row in self.agreement.rows.items():
            place = (self.agreement.topics[key[0]], row.partition)
            if place[0] in compacted:
                if not self.history.is_gone(place):
                    judge.compaction.check_acknowledged(self.history, place, key)
                await final.check_fold(client, place, judge.compaction.truths.get(key) or Truth(), self.history)
        for key in self.agreement.cloud_rows if self.cloud is not None else ():
            place = (self.agreement.topics[key[0]], key[1])
            leveled = self.cloud.leveled.get(key) if self.cloud is not None else None
            if place[0] in compacted and leveled is not None and not self.history.is_gone(place):
                check_acknowledged(leveled.truth, self.history, place)
                await final.check_fold(client, place, leveled.truth, self.history)

    def _all_rows(self) -> dict[PartitionId, PartitionRow]:
        return self.agreement.rows | self.agreement.cloud_rows

    async def _look_again(self, client: Client) -> None:
        """Reads partitions from the start that no reader has read from there yet."""
        for place in sorted({write.place for write in self.history.writes}):
            if not self.history.is_gone(place) and (self._is_lenient or place[0] in self.plan.compacted_topics):
                try:
                    await final.look_again(client, self.history, place)
                except SimulationFailure as failure:
                    self._overlook(failure)

    def _misled(self) -> list[str]:
        kept = {topic.name for topic in self.plan.topics if topic.keeps_tombstones}
        places = {key: (self.agreement.topics[key[0]], key[1]) for key in self.agreement.rows}
        return [
            line
            for key, place in places.items()
            if place[0] in kept
            and place in self.crowd.read_places
            and not self.history.is_gone(place)
            and not self.history.losses_count(place)
            for reader in self.crowd.committed_readers
            for line in final.misled(
                reader,
                place,
                self.judge.compaction.truths.get(key) or Truth(),
                self.history.start_bounds.get(place, 0),
            )
        ]

    def _uncompacted(self) -> list[str]:
        due = self.cluster.metastore.peek("read_work")
        return [
            *(f"broker {row.key.broker_id} has {row.topic}-{row.key.partition} due: {row.why}" for row in due),
            *final.behind(self.cluster, self.agreement, self.plan.compacted_topics),
        ]

    async def _recovers(self, what: str, missing: Callable[[], list[str]], limit_s: int = RECOVERY_S) -> None:
        """Waits until nothing is missing any more."""
        for _ in range(limit_s * 2):
            try:
                found = missing()
            except SimulationFailure as failure:
                return self._overlook(failure)
            if not found:
                self.trace.note("world", what)
                return
            await asyncio.sleep(0.5)
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        told = f"{limit_s} s after all was healed, it is not true that {what}: {found[0]}{more}"
        self._overlook(SimulationFailure("liveness", told))

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            self._sweep_all()

    def _undelivered(self) -> list[str]:
        return [
            f"{group}: {line}"
            for group, delivered in self.crowd.delivered.items()
            for line in final.undelivered(self.history, delivered, self.plan.compacted_topics)
        ]

    # What the administrator and the operator look up, and do

    def _segment_bases(self, place: TopicPartition) -> list[int]:
        """Where segments begin, on any disk."""
        found: set[int] = set()
        for node in self.cluster.nodes.values():
            names = [name for name, _ in node.volume.files(f"{DATA}/{place[0]}-{place[1]}")]
            found.update(int(name.removesuffix(".log")) for name in names if name.endswith(".log"))
        return sorted(found)

    def _bounds(self, place: TopicPartition) -> list[int]:
        """How far it is compacted, on any broker that still has something of that."""
        replicas = (replica for node in self.cluster.nodes.values() for replica in snapshots.all_of(node))
        here = (each for each in replicas if (each.topic, each.partition) == place)
        return sorted({each.kept.mcco for each in here if each.kept.mcco > each.start_offset})

    async def _force_leaders(self) -> None:
        places = [place for topic in self.plan.topics if topic.is_compacted for place in topic.places]
        await operators.force_leaders(self.crowd.clients[OPERATOR][1], places, self.trace, FORCING_S)

    def _bring_forth(self) -> None:
        """Somebody looks after partitions that were placed on brokers whose disks had just been replaced."""
        if self.judge.unborn:
            process, client = self.crowd.clients[OPERATOR]
            places = sorted(self.judge.unborn)
            self.crowd.spawn(process, operators.force_leaders(client, places, self.trace, RECOVERY_S))

    def _call_operator(self) -> None:
        """Somebody looks after transactions in partitions that have lost something."""
        process, client = self.crowd.clients[OPERATOR]
        losses = self.history.losses
        if losses:
            ending = operators.end_hanging(
                client, lambda: sorted(losses), self.trace, lambda: self.crowd.reading_is_over
            )
            self.crowd.spawn(process, ending)

    # For reports

    @property
    def compactions_count(self) -> int:
        runs = self.cluster.metastore.peek("read_runs", RUNS_MAX) if self.plan.compactors else ()
        return sum(run.outcome == "committed" for run in runs)

    def state(self) -> list[str]:
        """Where everything stood when the run ended."""
        lines = [self.cluster.describe()]
        for key, row in self._all_rows().items():
            lines.append(
                f"{self.agreement.name(key)}: leader {row.leader} epoch {row.leader_epoch} isr {list(row.isr)} "
                f"replicas {list(row.replicas)}, committed {self.judge.ledger_end(key)}"
            )
            for node in self.cluster.nodes.values():
                found = snapshots.find(node, key)
                if found is not None:
                    lines.append(
                        f"    {node.name} {found.role} epoch {found.leader_epoch} hw {found.high_watermark} log "
                        f"{found.start_offset}..{found.end_offset} flushed {found.flushed_offset}"
                    )
        return lines


class _LogHandler(logging.Handler):
    """What brokers log becomes part of the trace. An exception in it that nobody expected is a bug."""

    def __init__(self, loop: SimulatedLoop, trace: Trace) -> None:
        super().__init__(logging.INFO)
        self._loop = loop
        self._trace = trace

    def emit(self, record: logging.LogRecord) -> None:
        process = self._loop.current
        self._trace.remark(process.name, f"{record.levelname.lower()}: {record.getMessage()}")
        error = record.exc_info[1] if record.exc_info else None
        if error is None or isinstance(error, EXPECTED) or not process.alive:
            return
        failure = SimulationFailure("crash", f"in {process.name}: {record.getMessage()}: {error!r}")
        failure.__cause__ = error
        self._loop.failures.append(failure)
