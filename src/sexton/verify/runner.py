"""A run: asks clients for one operation after the other while faults come and go, and writes down what came of each.

One thread decides everything and writes the history. Clients are processes (`process`); faults and looks at the brokers
may take long, so each has a thread of its own, and at most one of each is under way.

The phases: calm, then faults, then everything is healed and whole again, then every thread's client is replaced by a
new one that reads all that was written, and at last every replica of what is compacted is read (`final`). Ctrl-C ends
the first two early, and nothing else; a second one ends the final reads.
"""

from __future__ import annotations

import random
import selectors
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Protocol

from sexton.errors import SextonError
from sexton.harness.cluster import Cluster
from sexton.history.lines import Writer
from sexton.history.op import HEAL, NEMESIS, UNKNOWN, Ext, F, Op, Poll, Send, Type
from sexton.verify import probes
from sexton.verify.clients.base import Place
from sexton.verify.clients.known import CLIENTS, PLAIN, consumer_settings
from sexton.verify.faults.base import Fault, Scene, Told, heal
from sexton.verify.faults.known import FAULTS
from sexton.verify.faults.schedule import Act, Kind, schedule
from sexton.verify.final import ReplicaPasses
from sexton.verify.generator import NS, Ask, Generator, Processes, Question, Wait, Workload
from sexton.verify.process import ClientProcess
from sexton.verify.session import Completion, Options, Topics
from sexton.verify.systems import System

HANG_NS: Final = 60 * NS
"""A client that has not answered by then is killed (KAFKA-17734: it may never)."""

HEALED_HANG_NS: Final = 15 * NS
"""The same once everything is healed: a little longer than a client is allowed to try (`known.CALL_TIMEOUT_S`)."""

PROBE_EVERY_NS: Final = NS
PROBED_LOGS_MAX: Final = 12
"""The newest: the older ones are not written any more."""

AFTERMATH_NS: Final = 5 * NS
"""Operations go on for so long after the last fault has ended: some end with a cluster that is worth looking at."""

INTERRUPTED: Final = "interrupted: heals, reads, judges"
WHOLE_S: Final = 60
TICK_S: Final = 0.05

FETCH_BYTES: Final = (500, 5_000, 1 << 20)
"""Of a partition: one of these for each client, so that batches are cut off in many ways."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run is, beside its workload and its system. With the workload's own choices, all of it follows from the
    seed."""

    seed: int
    concurrency: int = 6
    rate: float = 1_000.0
    """Operations a second, at most."""
    calm_ns: int = 5 * NS
    main_ns: int = 60 * NS
    final_ns: int = 200 * NS
    period_ns: int = 30 * NS
    interval_ns: int = 10 * NS
    faults: tuple[str, ...] = ()
    clients: tuple[str, ...] = ("confluent-kafka",)
    crash_every_ns: int = 0
    topic_prefix: str = ""
    isolation: str = "read_committed"
    transaction_timeout_ms: int = 1_000


class Listener(Protocol):
    """Who tells a person how far it is."""

    def phase(self, name: str) -> None: ...

    def progress(self, now_ns: int, counts: Mapping[Type, int]) -> None:
        """Once a second."""

    def fault(self, what: str) -> None: ...


@dataclass(slots=True)
class _History:
    """Numbers and stamps operations, as they happen."""

    writer: Writer
    now_ns: Callable[[], int]
    ops: list[Op] = field(default_factory=list)
    counts: dict[Type, int] = field(default_factory=dict)

    def write(self, process: int, type_: Type, f: str, **more: Any) -> Op:
        return self.add(Op(index=0, time_ns=0, process=process, type=type_, f=f, **more))

    def add(self, op: Op) -> Op:
        now_ns = self.now_ns()
        op = replace(op, index=len(self.ops), time_ns=now_ns)
        self.ops.append(op)
        self.writer.write(op, now_ns)
        if op.process != NEMESIS:
            self.counts[op.type] = self.counts.get(op.type, 0) + 1
        return op


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

    def run(self) -> Sequence[Op]:
        with (self.directory / "history.jsonl").open("wb") as file, ThreadPoolExecutor(2) as pool:
            going = _Going(self, Writer(file), pool)
            try:
                going.run()
            finally:
                going.close()
            return going.history.ops


class _Going:
    def __init__(self, runner: Runner, writer: Writer, pool: ThreadPoolExecutor) -> None:
        self.plan, self.system, self.workload = runner.plan, runner.system, runner.workload
        self._listener = runner.listener
        self._directory = runner.directory
        self._pool = pool
        self._start_ns = time.monotonic_ns()
        self.history = _History(writer, self._now)
        self._prober = self.plan.concurrency
        """The last thread's only process."""
        self._processes = Processes(self.plan.concurrency + 1)
        self._clients: dict[int, _Client] = {}
        """By thread."""
        self._selector = selectors.DefaultSelector()
        self._places: dict[int, Place] = {}
        self._topics: dict[str, Topics] = {}
        self._rng = random.Random(self.plan.seed ^ 0x5EED)
        self._faults: dict[str, Fault] = {}
        self._is_healing = threading.Event()
        if self.system.cluster is not None:
            scene = Scene(
                self.system.cluster,
                self._places_in_use,
                self._is_healing,
                self._clients_to_hit,
                self.system.compactor,
                self.system.metastore,
            )
            self._faults = {name: FAULTS[name](scene) for name in self.plan.faults}
        self._nemesis: Future[Told] | None = None
        self._act: Op | None = None
        self._probe: Future[Mapping[str, Any]] | None = None
        self._probe_ns = 0
        self._told_ns = 0
        self._hang_ns = HANG_NS
        self._last: dict[int, Op] = {}
        """By process, its newest completion."""

    def _now(self) -> int:
        return time.monotonic_ns() - self._start_ns

    def run(self) -> None:
        try:
            self._main()
        except KeyboardInterrupt:
            self._listener.phase(INTERRUPTED)
        self._heal()
        try:
            self._read_all()
            self._read_replicas()
        except KeyboardInterrupt:
            self._listener.phase("interrupted again: judges what there is")

    # -- phases

    def _main(self) -> None:
        self._listener.phase("calm")
        end_ns = self.plan.calm_ns + self.plan.main_ns
        generator = Generator(
            self.workload, random.Random(self.plan.seed), self.plan.rate, end_ns, self.plan.crash_every_ns
        )
        kinds = [Kind(name, FAULTS[name].targets) for name in self._faults]
        acts = schedule(
            kinds,
            random.Random(self.plan.seed + 1),
            begin_ns=self.plan.calm_ns,
            end_ns=end_ns,
            period_ns=self.plan.period_ns,
            interval_ns=self.plan.interval_ns,
        )
        acts.reverse()
        is_calm = True
        while True:
            if acts or self._nemesis is not None:
                generator.end_ns = max(end_ns, self._now() + AFTERMATH_NS)
            if (question := generator.next(self._now(), self._free())) is None:
                return
            if isinstance(question, Question):
                self._ask(question.process, question.ask)
            if is_calm and self._now() >= self.plan.calm_ns:
                is_calm = False
                self._listener.phase("faults" if self._faults else "main")
            if acts and acts[-1].at_ns <= self._now() and self._nemesis is None:
                self._begin_act(acts.pop())
            wait_ns = question.until_ns - self._now() if isinstance(question, Wait) else 0
            self._turn(min(max(wait_ns, 0) / NS, TICK_S))

    def _heal(self) -> None:
        """Whatever happens: what was broken is mended."""
        self._listener.phase("heals")
        self._is_healing.set()
        self._wait(lambda: self._nemesis is None)
        if self.system.cluster is not None and self._faults:
            self._begin(HEAL, {}, self._heal_all)
            self._wait(lambda: self._nemesis is None)
        self._hang_ns = HEALED_HANG_NS
        self._wait(lambda: all(client.asked is None for client in self._clients.values()))
        self._hang_ns = HANG_NS
        topics = sorted({topic for topic, _ in self._places.values()})
        whole = self._pool.submit(_wait_until_whole, self.system.bootstrap, topics)
        self._wait(whole.done)
        if not whole.result():
            self._listener.fault(f"not every log has a leader and all its replicas after {WHOLE_S} s")

    def _heal_all(self) -> Told:
        cluster = self.system.cluster
        assert cluster is not None
        try:
            heal(self._faults.values())
        finally:
            told = self._bring_back(cluster)
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
            self._ask(process, Ask(F.CRASH))
        waiting = set(range(self.plan.concurrency)) if final.logs else set()
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
        """Each of every compacted log, by whoever is free: also in clusters that are not ours."""
        places = {log: place for log, place in self._places.items() if self.workload.log(log).is_compacted}
        if not places:
            return
        self._listener.phase("reads every replica")
        deadline_ns = self._now() + self.plan.final_ns
        topics = sorted({topic for topic, _ in places.values()})
        told = self._pool.submit(probes.partitions, self.system.bootstrap, topics)
        self._wait(told.done)
        try:
            found = told.result()
        except SextonError as error:
            self._listener.fault(f"nobody says who has which log: {error}")
            return
        replicas = {log: found[place].replicas for log, place in places.items() if place in found}
        passes = ReplicaPasses(replicas, self.workload.final().offsets)
        asked_before: dict[int, Op | None] = {}
        """By process that was asked for one: its completion before."""
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
            self._listener.fault(f"not read to the end: brokers {', '.join(map(str, passes.left))}")

    # -- one turn

    def _turn(self, timeout_s: float) -> None:
        for key, _ in self._selector.select(timeout_s):
            self._answered(key.data)
        now_ns = self._now()
        for client in list(self._clients.values()):
            if client.asked is not None and now_ns - client.asked.time_ns > self._hang_ns:
                client.at.end()
                self._completed(client, Completion(type=Type.INFO, error="it has not answered, and was killed"))
        self._take_act()
        self._look(now_ns)
        self.history.writer.tick(now_ns)
        if now_ns - self._told_ns >= NS:
            self._told_ns = now_ns
            self._listener.progress(now_ns, self.history.counts)

    def _wait(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            self._turn(TICK_S)

    # -- clients

    def _free(self) -> list[int]:
        return [process for process in self._processes.free if process != self._prober]

    def _ask(self, process: int, ask: Ask) -> None:
        self._name_places(ask)
        thread = self._processes.thread_of(process)
        client = self._clients.get(thread) or self._start(thread, process)
        self._processes.invoked(process)
        client.asked = self.history.write(
            process, Type.INVOKE, ask.f, micro_ops=ask.micro_ops, logs=ask.logs, client=client.at.client, ext=ask.ext
        )
        if ask.f == F.CRASH:
            self._completed(client, Completion(type=Type.INFO))
        else:
            client.at.ask(ask, self._places, self._topics)

    def _name_places(self, ask: Ask) -> None:
        for log in {*ask.logs, *(each.log for each in ask.micro_ops if isinstance(each, Send))} - self._places.keys():
            named = self.workload.log(log)
            topic = self.plan.topic_prefix + named.topic
            self._places[log] = (topic, named.partition)
            self._topics[topic] = self._topic(log)

    def _topic(self, log: int) -> Topics:
        partitions, settings = self.workload.topic(log)
        return Topics(partitions, self.system.replication, {**self.system.topic_settings, **settings})

    def _start(self, thread: int, process: int) -> _Client:
        name = self.plan.clients[thread % len(self.plan.clients)]
        known = CLIENTS[name]
        needs = self.workload.needs(process)
        options = Options(
            driver=known.driver,
            bootstrap=self.system.bootstrap,
            transactional_id=f"{self.plan.topic_prefix}{self.plan.seed}-{process}",
            group=f"{self.plan.topic_prefix}{self.plan.seed}{needs.group}",
            isolation=self.plan.isolation,
            transaction_timeout_ms=self.plan.transaction_timeout_ms,
            producer=known.producer,
            plain_producer=PLAIN if needs.has_plain_producer and known.has_retries else {},
            consumer={
                **consumer_settings(name, speaks_kip848=needs.speaks_kip848 and self.system.has_kip848),
                "max.partition.fetch.bytes": self._rng.choice(FETCH_BYTES),
                **needs.consumer,
            },
            has_generation=needs.has_generation,
        )
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
        op = replace(
            asked,
            type=completion.type,
            micro_ops=completion.micro_ops or asked.micro_ops,
            offsets=completion.offsets,
            spans=completion.spans,
            rebalanced=completion.rebalanced,
            error=completion.error,
            ext={**asked.ext, **completion.ext},
        )
        written = self.history.add(op)
        client.asked = None
        self._last[op.process] = written
        self._processes.completed(written)
        self.workload.completed(written)
        if op.type is Type.INFO:
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
        busy = [client for client in clients if client.asked is not None and client.asked.f == F.TXN]
        return [client.at for client in busy or clients]

    def _begin_act(self, act: Act) -> None:
        fault = self._faults[act.fault]
        ext = {str(Ext.PHASE): "start" if act.begins else "stop", "target": str(act.target)}
        self._begin(act.fault, ext, (lambda: fault.begin(act)) if act.begins else fault.end)

    def _begin(self, f: str, ext: Mapping[str, Any], action: Callable[[], Told]) -> None:
        self._act = self.history.write(NEMESIS, Type.INVOKE, f, ext=ext)
        self._nemesis = self._pool.submit(action)

    def _take_act(self) -> None:
        if self._nemesis is None or not self._nemesis.done():
            return
        future, asked = self._nemesis, self._act
        self._nemesis = None
        assert asked is not None
        error = ""
        told = Told()
        try:
            told = future.result()
        except (SextonError, OSError) as failed:  # of a disk that another fault has broken, for one
            error = str(failed)
        ext = {**asked.ext, **told.ext, "value": list(told.hit)}
        if asked.ext.get(Ext.PHASE) == "start" and not told.hit:
            del ext[str(Ext.PHASE)]  # nobody was there to be hit: no fault is in force
        self.history.add(replace(asked, type=Type.INFO, error=error, ext=ext))
        more = [f"{name} {value}" for name, value in told.ext.items()]
        words = [asked.f, str(asked.ext.get(Ext.PHASE, "")), *map(str, told.hit), *more, error.partition("\n")[0]]
        self._listener.fault(" ".join(filter(None, words)))

    # -- looks at the brokers

    def _look(self, now_ns: int) -> None:
        if self._probe is not None:
            if not self._probe.done():
                return
            future, self._probe = self._probe, None
            try:
                self.history.write(self._prober, Type.OK, F.DEBUG, ext=future.result())
            except SextonError as failed:
                error = str(failed).partition("\n")[0]
                self.history.write(self._prober, Type.FAIL, F.DEBUG, error=error)
        elif now_ns - self._probe_ns >= PROBE_EVERY_NS and self._places:
            self._probe_ns = now_ns
            newest = dict(list(self._places.items())[-PROBED_LOGS_MAX:])
            self.history.write(self._prober, Type.INVOKE, F.DEBUG)
            self._probe = self._pool.submit(probes.watermarks, self.system.bootstrap, newest)

    def close(self) -> None:
        for client in list(self._clients.values()):
            self._forget(client)
        self._selector.close()
        self._is_healing.set()
        heal(self._faults.values())
        self.history.writer.flush()


def _wait_until_whole(bootstrap: str, topics: Sequence[str]) -> bool:
    deadline_s = time.monotonic() + WHOLE_S
    while time.monotonic() < deadline_s:
        if probes.is_whole(bootstrap, topics):
            return True
        time.sleep(TICK_S)
    return False


def _is_beyond(op: Op, final: Ask) -> bool:
    """Whether a final read has passed every offset of which it is known that it was written."""
    reached = {log: span.end_offset for log, span in op.spans.items()}
    for micro_op in op.micro_ops:
        if isinstance(micro_op, Poll):
            for log, records in micro_op.records.items():
                reached[log] = max(reached.get(log, 0), records[-1].offset + 1)
    return all(reached.get(log, UNKNOWN) >= end for log, end in final.offsets.items())
