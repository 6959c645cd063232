"""Who uses transactions: one transactional id each, and the instances that follow each other under it.

Instances die, are stopped and go on later, or go on beside the next one, which has to lock them out: zombies. What each
of them was told goes into the history; how its transactions really ended is for the judge to see.
"""

from __future__ import annotations

import asyncio
import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sexton.client.client import Client
from sexton.simulate.errors import SimulationFailure
from sexton.simulate.history import History, Outcome, Transaction, Write
from sexton.simulate.loop import Process, SimulatedLoop
from sexton.simulate.pipeline import AbortableError
from sexton.simulate.trace import Trace
from sexton.simulate.transactional import BACKOFF_S, QUICK_BACKOFF_S, FencedError, TransactionalProducer
from sexton.simulate.values import Values
from sexton.types import TopicPartition

IN_FLIGHT_MAX = 5
"""Batches of one partition, as with Java's clients."""

SPREAD_S = 0.005
"""At most so much time passes between two batches."""

LIFETIME_S = 12
"""How long an instance is left alone, on average."""


@dataclass(frozen=True, slots=True)
class TransactorPlan:
    name: str
    """Also its transactional id."""
    places: tuple[TopicPartition, ...]
    version: int
    timeout_ms: int
    interval_ms: int
    batches_max: int
    records_max: int
    value_bytes_max: int
    patience_s: int
    abort_probability: float
    linger_probability: float
    """How often it takes longer than its timeout."""
    change_probability: float
    """How often an instance is replaced, at the end of each lifetime."""
    sends_offsets: bool
    codec: int = 0

    @property
    def group(self) -> str:
        return f"group-of-{self.name}"


@dataclass(slots=True)
class _Instance:
    number: int
    process: Process
    producer: TransactionalProducer
    task: asyncio.Task[None]


class Transactor:
    def __init__(
        self,
        *,
        plan: TransactorPlan,
        history: History,
        trace: Trace,
        loop: SimulatedLoop,
        seed: int,
        values: Values,
        start: Callable[[str], tuple[Process, Client]],
        kill: Callable[[Process], None],
        watch: Callable[[asyncio.Task[None]], asyncio.Task[None]],
        is_over: Callable[[], bool],
    ) -> None:
        """`start` begins a process on this one's host; `watch` sees to it that a task that fails is noticed."""
        self.plan = plan
        self._history = history
        self._trace = trace
        self._loop = loop
        self._rng = random.Random(f"{seed}:{plan.name}:life")
        self._seed = seed
        self._values = values
        self._start = start
        self._kill = kill
        self._watch = watch
        self._is_over = is_over
        self._instances: list[_Instance] = []
        self._instances_count = 0
        self._transactions_count = 0

    # Instances

    async def run(self) -> None:
        """Runs as the simulator's own process, because it outlives all its instances."""
        newest = self._begin_instance()
        while not self._is_over():
            await self._wait(LIFETIME_S * 2 * self._rng.random(), newest)
            if self._is_over():
                break
            if newest.task.done():
                newest = self._begin_instance()  # as a supervisor would
            elif self._rng.random() < self.plan.change_probability:
                newest = self._replace(newest)
        for each in self._instances:
            self._loop.resume(each.process)
        await asyncio.gather(*(each.task for each in self._instances if each.process.alive))

    async def _wait(self, seconds: float, newest: _Instance) -> None:
        end_ns = self._loop.now_ns + int(seconds * 1e9)
        while self._loop.now_ns < end_ns and not self._is_over() and not newest.task.done():
            await asyncio.sleep(0.5)

    def _replace(self, old: _Instance) -> _Instance:
        what = self._rng.choice(("killed", "killed", "paused", "forgotten"))
        self._trace.note(self.plan.name, f"instance {old.number} is {what}")
        if what == "killed":
            self._kill(old.process)
        elif what == "paused":
            self._loop.pause(old.process)
            delay_ns = int(self._rng.random() * 20e9)
            self._loop.call_for(self._loop.world, delay_ns, self._loop.resume, old.process)
        return self._begin_instance()

    def _begin_instance(self) -> _Instance:
        self._instances_count += 1
        number, plan = self._instances_count, self.plan
        process, client = self._start(f"{plan.name}.{number}")
        rng = random.Random(f"{self._seed}:{plan.name}.{number}")
        is_quick = zlib.crc32(f"{self._seed} {plan.name}".encode()) % 2 == 0  # not drawn: plans are what they were
        backoff_s = QUICK_BACKOFF_S if is_quick else BACKOFF_S
        producer = TransactionalProducer(
            client=client,
            transactional_id=plan.name,
            version=plan.version,
            timeout_ms=plan.timeout_ms,
            patience_s=plan.patience_s,
            rng=rng,
            may_start_at=self._history.may_start_at,
            codec=plan.codec,
            backoff_s=backoff_s,
        )
        task = self._watch(self._loop.spawn(process, self._live(number, producer, client, rng)))
        self._instances.append(_Instance(number, process, producer, task))
        return self._instances[-1]

    def stuck(self) -> list[str]:
        return [
            f"{self.plan.name}.{each.number} is not done, last told {each.producer.last_error or 'nothing'}"
            for each in self._instances
            if each.process.alive and not each.task.done()
        ]

    # One of them

    async def _live(self, number: int, producer: TransactionalProducer, client: Client, rng: random.Random) -> None:
        who = f"{self.plan.name}.{number}"
        try:
            await producer.init()
            while not self._is_over():
                await asyncio.sleep(self.plan.interval_ms * (0.5 + rng.random()) / 1000)
                transaction = self._begin(number)
                try:
                    await self._transact(transaction, producer, client, rng)
                except AbortableError as error:
                    if not transaction.is_commit_asked:
                        transaction.outcome = Outcome.FAILED
                        self._history.journal.ended(transaction)
                    self._trace.note(who, f"{transaction}: {error}")
                    await producer.recover()
        except (FencedError, AbortableError) as error:
            self._trace.note(who, f"ends: {error}")

    def _begin(self, instance: int) -> Transaction:
        self._transactions_count += 1
        transaction = Transaction(self.plan.name, instance, self._transactions_count)
        self._history.transactions.append(transaction)
        self._history.journal.began(transaction)
        return transaction

    async def _transact(
        self, transaction: Transaction, producer: TransactionalProducer, client: Client, rng: random.Random
    ) -> None:
        plan = self.plan
        places = rng.sample(plan.places, rng.randint(1, len(plan.places)))
        await producer.add(places)
        sends = (self._send(transaction, producer, place, client, rng) for place in places)
        _raise_first(await asyncio.gather(*sends, return_exceptions=True))
        if plan.sends_offsets and rng.random() < 0.7:
            transaction.offset = transaction.number
            await producer.send_offset(plan.group, plan.places[0], transaction.number)
        if rng.random() < plan.linger_probability:
            await asyncio.sleep(plan.timeout_ms * (0.8 + rng.random()) / 1000)
        if rng.random() < plan.abort_probability:
            transaction.outcome = Outcome.FAILED
            await producer.abort()
        else:
            transaction.is_commit_asked = True
            transaction.outcome = await producer.commit()
        self._history.journal.ended(transaction)
        self._trace.note(f"{plan.name}.{transaction.instance}", f"{transaction}: {transaction.outcome}")
        if transaction.outcome is not Outcome.OK and transaction.is_commit_asked:
            await producer.recover()

    async def _send(
        self,
        transaction: Transaction,
        producer: TransactionalProducer,
        place: TopicPartition,
        client: Client,
        rng: random.Random,
    ) -> None:
        """Several batches, none of which waits for the one before it."""
        room = asyncio.Semaphore(IN_FLIGHT_MAX)

        async def send_one(count: int) -> None:
            async with room:
                records, identities = self._values.records(place, count, client.clock.now_ms())
                writer = f"{self.plan.name}.{transaction.instance}"
                write = Write(
                    writer=writer,
                    place=place,
                    acks=-1,
                    is_idempotent=True,
                    values=identities,
                    started_ns=self._loop.now_ns,
                    transaction=transaction,
                    records=records,
                )
                transaction.writes.append(self._history.begin(write))
                write.outcome = Outcome.UNKNOWN
                write.base_offset = await producer.send(place, records)
                write.outcome = Outcome.OK
                self._history.acknowledged_count += 1

        sends = []
        for _ in range(rng.randint(1, self.plan.batches_max)):
            sends.append(asyncio.ensure_future(send_one(rng.randint(1, self.plan.records_max))))
            if rng.random() < 0.5:
                await asyncio.sleep(rng.random() * SPREAD_S)
        _raise_first(await asyncio.gather(*sends, return_exceptions=True))


def _raise_first(results: Sequence[object]) -> None:
    """What went wrong with the cluster counts before what went wrong for the client."""
    failures = [each for each in results if isinstance(each, BaseException)]
    for failure in sorted(failures, key=lambda each: not isinstance(each, SimulationFailure)):
        raise failure
