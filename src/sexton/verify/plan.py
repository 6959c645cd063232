"""What a run of `sexton verify` is to be: its length, its faults, its clients, and the options of each client."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from sexton.verify.clients import known as clients
from sexton.verify.clients.base import Settings
from sexton.verify.clients.known import PLAIN
from sexton.verify.faults.known import FAULTS
from sexton.verify.faults.late import LATE
from sexton.verify.faults.schedule import Act, Kind, schedule
from sexton.verify.generator import NS, Needs
from sexton.verify.reading import POLL_S
from sexton.verify.session import Options
from sexton.verify.systems import System

if TYPE_CHECKING:
    pass


ACKS_ALL: Final = "all"


POLL_MIN_S: Final = 0.001


FETCH_WAIT_MS: Final = 100


MIN_BYTES: Final = "fetch.min.bytes"


FETCHES: Final[Sequence[Settings]] = tuple(
    {"max.partition.fetch.bytes": most, MIN_BYTES: least, "fetch.max.wait.ms": FETCH_WAIT_MS}
    for most, least in ((500, 400), (1 << 20, 1), *[(5_000, 4_000), (1 << 20, 20_000)] * 2)
)
"""One of these for each client, so that batches are cut off in many ways. Most are patient: who asks for whatever there
is asks again after each record that somebody writes, and if all did, brokers would do little else. Not those that read
whole logs: they would wait at the end of each."""


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
    late: tuple[str, ...] = tuple(LATE)
    """Which requests come late, where `late` is among the faults."""
    acks: str = ACKS_ALL
    is_idempotent: bool = True
    client_settings: Mapping[str, str] = field(default_factory=dict)
    """On top of all others, as `known.split` takes them."""
    aborts_after_timeout: bool = False
    rewinds: bool = True
    shares_transactional_ids: bool = False
    """Whether every two clients have one between them, and fence each other."""
    fault_command: str = ""
    """Of a cluster that is not ours: what its owner breaks and mends it with."""
    left_out: tuple[int, ...] = ()
    """Episodes of the schedule of faults that do not happen."""
    shards: int = 0
    """Processes that decide for themselves what they do. 0: whoever leads decides everything."""

    def schedule(self) -> list[Act]:
        """Returns the whole schedule of faults."""
        return schedule(
            [Kind(name, FAULTS[name].targets, FAULTS[name].is_steady) for name in self.faults],
            random.Random(self.seed + 1),
            begin_ns=self.calm_ns,
            end_ns=self.calm_ns + self.main_ns,
            period_ns=self.period_ns,
            interval_ns=self.interval_ns,
        )

    @property
    def threads_count(self) -> int:
        """Number of threads, including the one that looks at brokers."""
        return self.concurrency + 1

    @property
    def readers_count(self) -> int:
        """Number of processes that read everything at the end."""
        return self.shards or self.concurrency

    @property
    def poll_s(self) -> float:
        """No longer than an operation may take if the rate is to be kept."""
        return max(min(POLL_S, self.concurrency / self.rate), POLL_MIN_S)

    @property
    def patience_ms(self) -> int:
        """How long a transaction may take."""
        return max([self.transaction_timeout_ms, *(FAULTS[name].transaction_timeout_ms for name in self.faults)])

    def producer_settings(self, client: str) -> Settings:
        known = clients.client_of(client)
        found = dict(known.producer)
        if any(FAULTS[name].needs_impatience for name in self.faults):
            found |= known.impatient
        if self.acks != ACKS_ALL:
            found["acks"] = int(self.acks)
        if not self.is_idempotent:
            found["enable.idempotence"] = False
        return {**found, **clients.split(self.client_settings)[0]}

    def consumer_settings(self, client: str, needed: Settings, *, speaks_kip848: bool) -> Settings:
        known = clients.consumer_settings(client, speaks_kip848=speaks_kip848)
        return {**known, **needed, **clients.split(self.client_settings)[1]}

    def transactional_id(self, thread: int, process: int) -> str:
        number = f"shared-{thread // 2}" if self.shares_transactional_ids else str(process)
        return f"{self.topic_prefix}{self.seed}-{number}"


def options_of(
    plan: Plan, system: System, needs: Needs, client: str, thread: int, process: int, fetch: Settings
) -> Options:
    """Options of a process's client."""
    known = clients.client_of(client)
    return Options(
        driver=known.driver,
        bootstrap=system.clients_bootstrap,
        transactional_id=plan.transactional_id(thread, process),
        group=f"{plan.topic_prefix}{plan.seed}{needs.group}",
        isolation=plan.isolation,
        transaction_timeout_ms=plan.patience_ms,
        poll_s=plan.poll_s,
        producer=plan.producer_settings(client),
        plain_producer=PLAIN if needs.has_plain_producer and known.has_retries else {},
        consumer=plan.consumer_settings(
            client,
            {**fetch, **needs.consumer},
            speaks_kip848=needs.speaks_kip848 and system.has_kip848,
        ),
        fresh_consumer={} if MIN_BYTES in plan.client_settings else {MIN_BYTES: 1},
        has_generation=needs.has_generation,
        aborts_after_timeout=plan.aborts_after_timeout,
        rewinds=plan.rewinds,
        security=system.security,
    )
