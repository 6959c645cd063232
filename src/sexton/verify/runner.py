"""A run: asks clients for one operation after the other while faults come and go, and writes down what came of each.

One thread decides everything and writes the history. Clients are processes (`process`); faults and looks at the brokers
may take long, so each has a thread of its own, and at most one of each is under way.

The phases: calm, then faults, then everything is healed and whole again, then every thread's client is replaced by a
new one that reads all that was written, and at last every replica of what is compacted is read (`final`). Ctrl-C ends
the first two early, and nothing else; a second one ends the rest, and then it is mended as quickly as it can be.
"""

from __future__ import annotations

import random
import selectors
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from sexton.errors import SextonError
from sexton.harness.asking import Door
from sexton.harness.cluster import Cluster
from sexton.history import flat
from sexton.history.lines import Writer
from sexton.history.load import LINES, load
from sexton.history.op import HEAL, UNKNOWN, Ext, F, Op, Poll, Type
from sexton.verify import probes, samples
from sexton.verify.clients.base import Place
from sexton.verify.faults.base import Scene, Told, heal
from sexton.verify.faults.schedule import Act, without
from sexton.verify.final import ReplicaPasses, replica_ext
from sexton.verify.generator import NS, Ask, Generator, Processes, Question, Workload
from sexton.verify.interrupts import Interrupts
from sexton.verify.looking import Looked, look_at
from sexton.verify.nemesis import Nemesis
from sexton.verify.outside import Outside, fault
from sexton.verify.placing import Placing
from sexton.verify.plan import FETCHES, Plan, options_of
from sexton.verify.process import ClientProcess
from sexton.verify.reading import POLL_S
from sexton.verify.run_history import FAULTS, Listener, RunHistory
from sexton.verify.samples import Sample
from sexton.verify.session import Completion
from sexton.verify.systems import System

if TYPE_CHECKING:
    from sexton.verify.sharding import Shards

HANG_NS: Final = 60 * NS
"""A client that has not answered by then is killed (KAFKA-17734: it may never)."""

HEALED_HANG_NS: Final = 15 * NS
"""The same once everything is healed: a little longer than a client is allowed to try (`known.CALL_TIMEOUT_S`)."""

PROBE_EVERY_NS: Final = NS
PROBED_LOGS_MAX: Final = 12
"""The newest: the older ones are not written any more."""

AFTERMATH_NS: Final = 5 * NS
"""Operations go on for so long after the last fault has ended: some end with a cluster that is worth looking at."""

BY_SHARDS: Final = 1 << 20
"""More clients than shards can have in a thread, one after the other."""

SHARDS_END_NS: Final = 40 * NS
"""For shards to come to their ends: longer than a client may take for one operation, but for one that hangs."""

PIECE: Final = "piece-leader.jsonl"
INTERRUPTED: Final = "interrupted: heals, reads, judges"
WHOLE_S: Final = 60
TICK_S: Final = 0.05


@dataclass(slots=True)
class _Client:
    process: int
    at: ClientProcess
    asked: Op | None = None
    """What it is at."""


@dataclass(frozen=True, slots=True)
class Runner:
    """`run` returns every operation of the history, as it was written."""

    workload: Workload
    system: System
    plan: Plan
    directory: Path
    listener: Listener
    start_shards: Callable[[System, Plan, Path], Shards] | None = None
    """They write to this directory."""
    began: Callable[[int], None] = lambda began_ms: None
    """Told when the run's time is 0, in milliseconds since 1970."""

    def run(self) -> Sequence[Op]:
        name = LINES if self.start_shards is None else PIECE
        with (
            (self.directory / name).open("wb") as file,
            (self.directory / FAULTS).open("wb") as faults,
            ThreadPoolExecutor(2) as pool,
        ):
            going = _Going(self, Writer(file), faults, pool)
            try:
                with going.interrupts:
                    going.run()
            finally:
                going.close()
                samples.write(self.directory, going.samples)
        return going.history.ops if self.start_shards is None else list(flat.to_ops(load(self.directory).history))


class _Going:
    def __init__(self, runner: Runner, writer: Writer, faults: BinaryIO, pool: ThreadPoolExecutor) -> None:
        self.plan, self.system, self.workload = runner.plan, runner.system, runner.workload
        self._listener = runner.listener
        self._directory = runner.directory
        self._pool = pool
        self.interrupts = Interrupts()
        self._start_ns = time.monotonic_ns()
        self.history = RunHistory(writer, self._now, faults)
        self._start_shards = runner.start_shards
        self._began = runner.began
        self._shards: Shards | None = None
        self._processes = Processes(self.plan.threads_count, 0 if self._start_shards is None else BY_SHARDS)
        self._prober = self._processes.free[-1]
        """The last thread's only process."""
        self._clients: dict[int, _Client] = {}
        """Clients, by thread."""
        self._selector = selectors.DefaultSelector()
        self._placing = Placing(self.workload, self.system, self.plan.topic_prefix)
        self._places = self._placing.places
        self._rng = random.Random(self.plan.seed ^ 0x5EED)
        self._is_healing = threading.Event()
        self._is_closed = threading.Event()
        outside: Any = Outside(self.system.door)
        scene = Scene(
            own_cluster=outside if self.system.cluster is None else self.system.cluster,
            own_door=self.system.door,
            places=self._places_in_use,
            is_over=self._is_healing,
            clients=self._clients_to_hit,
            compactor=self.system.compactor,
            metastore=self.system.metastore,
            store=self.system.store,
            own_proxy=self.system.proxy,
            late=self.plan.late,
        )
        known = {name: fault(name, self.plan.fault_command, scene) for name in self.plan.faults}
        self._nemesis = Nemesis(known, self.history, pool, self._listener)
        self._acts: list[Act] = []
        """Acts to come, the next one last."""
        self._end_ns = 0
        self._is_calm = True
        self._probe: Future[Looked] | None = None
        self.samples: list[Sample] = []
        self._probe_ns = 0
        self._told_ns = 0
        self._hang_ns = HANG_NS
        self._last: dict[int, Op] = {}
        """The newest completion of each process."""

    def _now(self) -> int:
        return time.monotonic_ns() - self._start_ns

    def run(self) -> None:
        try:
            self._main()
        except KeyboardInterrupt:
            self._listener.phase(INTERRUPTED)
        try:
            self._heal()
            self._read_all()
            self._read_replicas()
        except KeyboardInterrupt:
            self._listener.phase("interrupted again: judges what there is")

    # -- phases

    def _main(self) -> None:
        self._listener.phase("calm")
        self._end_ns = self.plan.calm_ns + self.plan.main_ns
        self._acts = list(reversed(without(self.plan.schedule(), self.plan.left_out)))
        if self._start_shards is None:
            self._lead()
        else:
            self._let_shards_go(self._start_shards)

    def _lead(self) -> None:
        self._tell_began()
        plan = self.plan
        generator = Generator(self.workload, random.Random(plan.seed), plan.rate, self._end_ns, plan.crash_every_ns)
        while True:
            self._advance()
            generator.end_ns = self._end_ns
            asked = generator.next(self._now(), self._free())
            while isinstance(asked, Question):
                self._ask(asked.process, asked.ask)
                asked = generator.next(self._now(), self._free())
            if asked is None:
                return
            self._turn(min(max(asked.until_ns - self._now(), 0) / NS, TICK_S))

    def _let_shards_go(self, start: Callable[[System, Plan, Path], Shards]) -> None:
        """The run begins when all of them are there."""
        self._shards = shards = start(self.system, self.plan, self._directory)
        while shards.is_starting:
            self.interrupts.take()
            shards.take(TICK_S)
        self._start_ns = time.monotonic_ns()
        self._tell_began()
        shards.go(self._start_ns)
        while self._now() < self._end_ns:
            self._advance()
            self._placing.name_logs(shards.take(TICK_S))
            self._turn(0)

    def _tell_began(self) -> None:
        self._began((time.time_ns() - self._now()) // 1_000_000)

    def _stop_shards(self) -> None:
        """Those that do not end are killed: what they were at, nobody knows."""
        shards = self._shards
        if shards is None:
            return
        shards.stop()
        deadline_ns = self._now() + SHARDS_END_NS
        while shards.left and self._now() < deadline_ns:
            self._placing.name_logs(shards.take(TICK_S))
            self._turn(0)
        lost = sorted(set(range(self.plan.shards)) - shards.is_told)
        if lost:
            self._listener.fault(f"shards that did not report what they wrote: {', '.join(map(str, lost))}")
        shards.close()

    def _advance(self) -> None:
        """Faults, as they are scheduled. As long as there are some, the end is not near."""
        if self._acts or self._nemesis.is_busy:
            self._end_ns = max(self._end_ns, self._now() + AFTERMATH_NS)
        if self._is_calm and self._now() >= self.plan.calm_ns:
            self._is_calm = False
            self._listener.phase("faults" if self._nemesis.faults else "main")
        if self._acts and self._acts[-1].at_ns <= self._now() and not self._nemesis.is_busy:
            self._nemesis.begin_act(self._acts.pop())

    def _heal(self) -> None:
        """Whatever happens: what was broken is mended."""
        self._stop_shards()
        self._listener.phase("heals")
        self._is_healing.set()
        self._wait(lambda: not self._nemesis.is_busy)
        if self._nemesis.faults:
            self._nemesis.begin(HEAL, {}, self._heal_all)
            self._wait(lambda: not self._nemesis.is_busy)
        self._hang_ns = HEALED_HANG_NS
        self._wait(lambda: all(client.asked is None for client in self._clients.values()))
        self._hang_ns = HANG_NS
        topics = sorted({topic for topic, _ in self._places.values()})
        whole = self._pool.submit(_wait_until_whole, self.system.door, topics, self._is_closed)
        self._wait(whole.done)
        if not whole.result():
            self._listener.fault(f"not every log has a leader and all its replicas after {WHOLE_S} s")

    def _heal_all(self) -> Told:
        cluster = self.system.cluster
        try:
            heal(self._nemesis.faults.values())
        finally:
            told = Told() if cluster is None else self._bring_back(cluster)
        return told

    @staticmethod
    def _bring_back(cluster: Cluster[Any]) -> Told:
        away = [node_id for node_id in cluster.node_ids if not cluster.is_running(node_id)]
        for node_id in away:
            cluster.start_node(node_id, wait=False)
        cluster.wait_ready()
        return Told(away)

    def _read_all(self) -> None:
        """Each thread's client is replaced, and the new one reads until it has passed all that is known to be there."""
        self._listener.phase("final reads")
        deadline_ns = self._now() + self.plan.final_ns
        final = self.workload.final()
        for process in self._free():
            if self._processes.thread_of(process) in self._clients:
                self._ask(process, Ask(F.CRASH))
        waiting = set(range(self.plan.readers_count)) if final.logs else set()
        started: set[int] = set()
        polling: set[int] = set()
        """Who could not read a table to its end: polls show where it is stuck."""
        while waiting and self._now() < deadline_ns:
            for process in self._free():
                thread = self._processes.thread_of(process)
                if thread not in waiting:
                    continue
                last = self._last.get(process)
                if last is not None and last.f == F.TABLE and last.type is not Type.OK:
                    polling.add(process)
                ask = final._replace(f=F.POLL) if process in polling else final
                if ask.f == F.POLL and process not in started:
                    started.add(process)
                    self._ask(process, Ask(F.ASSIGN, logs=final.logs, ext={str(Ext.SEEK_TO_BEGINNING): True}))
                elif last is not None and last.f == ask.f and last.type is Type.OK and _is_beyond(last, final):
                    waiting.discard(thread)
                else:
                    self._ask(process, ask)
            self._turn(TICK_S)
        self._wait(lambda: all(client.asked is None for client in self._clients.values()))

    def _read_replicas(self) -> None:
        """Each of every compacted log, by whoever is free: also in clusters that are not ours. Of a cloud topic its
        leader: nobody else has it."""
        places = {log: place for log, place in self._places.items() if self.workload.log(log).is_compacted}
        if not places:
            return
        self._listener.phase("reads every replica")
        deadline_ns = self._now() + self.plan.final_ns
        topics = sorted({topic for topic, _ in places.values()})
        told = self._pool.submit(probes.partitions, self.system.door, topics)
        self._wait(told.done)
        try:
            found = told.result()
        except SextonError as error:
            self._listener.fault(f"cannot find out which brokers have which log: {error}")
            self._tell_unread([(log, UNKNOWN) for log in sorted(places)])
            return
        known = {log: found[place] for log, place in places.items() if place in found}
        is_cloud = self.system.store is not None
        replicas = {log: (each.leader,) if is_cloud else each.replicas for log, each in known.items()}
        passes = ReplicaPasses(replicas, self.workload.final().offsets)
        asked_before: dict[int, Op | None] = {}
        """For each process that was asked for a pass: its completion before that."""
        while passes.left and self._now() < deadline_ns:
            for process in [each for each, before in asked_before.items() if self._last.get(each) is not before]:
                passes.completed(self._last[process])
                del asked_before[process]
            for process in self._free():
                if (ask := passes.next(process)) is not None:
                    asked_before[process] = self._last.get(process)
                    self._ask(process, ask)
            self._turn(TICK_S)
        if passes.left:
            left = ", ".join(f"log {log} at broker {broker}" for log, broker in passes.left)
            self._listener.fault(f"not read to the end: {left}")
            self._tell_unread(passes.left)

    def _tell_unread(self, replicas: Sequence[tuple[int, int]]) -> None:
        """The judge knows nothing but the history. Whoever is still at one of them counts, too."""
        for log, broker in replicas:
            ext = replica_ext(log, broker)
            self.history.write(self._prober, Type.INVOKE, F.SCAN, ext=ext)
            self.history.write(self._prober, Type.FAIL, F.SCAN, ext=ext, error="it was not read to its end in time")

    # -- one turn

    def _turn(self, timeout_s: float) -> None:
        self.interrupts.take()
        for key, _ in self._selector.select(timeout_s):
            self._answered(key.data)
        now_ns = self._now()
        for client in list(self._clients.values()):
            if client.asked is not None and now_ns - client.asked.time_ns > self._hang_ns:
                client.at.end()
                self._completed(client, Completion(type=Type.INFO, error="it has not answered, and was killed"))
        self._nemesis.take()
        self._look(now_ns)
        self.history.writer.tick(now_ns)
        if now_ns - self._told_ns >= NS:
            self._told_ns = now_ns
            self._listener.progress(now_ns, self._counts())

    def _counts(self) -> Mapping[Type, int]:
        own = self.history.counts
        if self._shards is None:
            return own
        return {type_: count + own.get(type_, 0) for type_, count in self._shards.counts.items()}

    def _wait(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            self._turn(TICK_S)

    # -- clients

    def _free(self) -> list[int]:
        return [process for process in self._processes.free if process != self._prober]

    def _ask(self, process: int, ask: Ask) -> None:
        self._placing.name(ask)
        thread = self._processes.thread_of(process)
        client = self._clients.get(thread) or self._start(thread, process)
        self._processes.invoked(process)
        client.asked = self.history.write(
            process,
            Type.INVOKE,
            ask.f,
            micro_ops=ask.micro_ops,
            logs=ask.named_logs,
            client=client.at.client,
            ext=ask.ext,
        )
        if ask.f == F.CRASH:
            self._completed(client, Completion(type=Type.INFO))
        else:
            client.at.ask(ask, self._places, self._placing.topics)

    def _start(self, thread: int, process: int) -> _Client:
        name = self.plan.clients[thread % len(self.plan.clients)]
        needs = self.workload.needs(process)
        options = options_of(self.plan, self.system, needs, name, thread, process, self._rng.choice(FETCHES))
        if self._is_healing.is_set():  # it is to read everything, and has time
            options = replace(options, poll_s=POLL_S)
        client = _Client(process, ClientProcess(name, options, self._directory / "clients.log"))
        self._clients[thread] = client
        self._selector.register(client.at, selectors.EVENT_READ, client)
        return client

    def _answered(self, client: _Client) -> None:
        completion = client.at.answer()
        if completion is None:
            return
        if client.asked is None:  # it died while nobody asked it for anything
            self._forget(client)
        else:
            self._completed(client, completion)

    def _completed(self, client: _Client, completion: Completion) -> None:
        asked = client.asked
        assert asked is not None
        written = self.history.add(completion.op(asked, *self.history.next()))
        client.asked = None
        self._last[written.process] = written
        self._processes.completed(written)
        self.workload.completed(written)
        if written.type is Type.INFO:
            self._forget(client)

    def _forget(self, client: _Client) -> None:
        self._selector.unregister(client.at)
        client.at.end()
        del self._clients[self._processes.thread_of(client.process)]

    # -- faults

    def _places_in_use(self) -> Sequence[Place]:
        return [*self._places.values()][-PROBED_LOGS_MAX:]

    def _clients_to_hit(self) -> Sequence[ClientProcess]:
        """Called by faults, in another thread. Whoever leads finds out that they have died, as of any other."""
        clients = list(self._clients.values())
        busy = [client for client in clients if client.asked is not None and client.asked.f in (F.TXN, F.EOS)]
        return [client.at for client in busy or clients]

    # -- looks at the brokers

    def _look(self, now_ns: int) -> None:
        if self._probe is not None:
            if not self._probe.done():
                return
            future, self._probe = self._probe, None
            looked = future.result()
            self.samples += looked.samples
            if looked.error:
                self.history.write(self._prober, Type.FAIL, F.DEBUG, error=looked.error)
            else:
                self.history.write(self._prober, Type.OK, F.DEBUG, ext=probes.ext_of(looked.seen))
        elif now_ns - self._probe_ns >= PROBE_EVERY_NS and self._places:
            self._probe_ns = now_ns
            newest = dict(list(self._places.items())[-PROBED_LOGS_MAX:])
            self.history.write(self._prober, Type.INVOKE, F.DEBUG)
            compacted = {log: place for log, place in newest.items() if self.workload.log(log).is_compacted}
            self._probe = self._pool.submit(look_at, self.system, newest, compacted, now_ns)

    def close(self) -> None:
        if self._shards is not None:
            self._shards.close()
        for client in list(self._clients.values()):
            self._forget(client)
        self._selector.close()
        self._is_healing.set()
        self._is_closed.set()
        self._nemesis.close()
        self.history.writer.flush()


def _wait_until_whole(where: Door, topics: Sequence[str], is_over: threading.Event) -> bool:
    deadline_s = time.monotonic() + WHOLE_S
    while time.monotonic() < deadline_s:
        if probes.is_whole(where, topics):
            return True
        if is_over.wait(TICK_S):
            break
    return False


def _is_beyond(op: Op, final: Ask) -> bool:
    """Whether a final read has passed every offset of which it is known that it was written."""
    reached = {log: span.end_offset for log, span in op.spans.items()}
    for micro_op in op.micro_ops:
        if isinstance(micro_op, Poll):
            for log, records in micro_op.records.items():
                reached[log] = max(reached.get(log, 0), records[-1].offset + 1)
    return all(reached.get(log, UNKNOWN) >= end for log, end in final.offsets.items())
