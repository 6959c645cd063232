"""Every workload against real brokers, without faults and as long as it takes to see everything that it does: nothing
wrong is found, and what it is for was tested."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from sexton.checker import reference
from sexton.checker.verdict import Judgement, Verdict
from sexton.harness.brokers import SextonCluster
from sexton.history.op import Ext, F, Op, Run, Type
from sexton.verify.clients import golang
from sexton.verify.clients.known import CLIENTS
from sexton.verify.generator import NS, Workload
from sexton.verify.plan import Plan
from sexton.verify.runner import Runner
from sexton.verify.systems import System
from sexton.verify.workloads.abort import Abort
from sexton.verify.workloads.known import SUBSCRIBE, WORKLOADS, Asked
from tests.interop.golang import franz_go_client
from tests.interop.suites import FRANZ_GO

pytestmark = pytest.mark.cluster

REPLICATION = 3
ENOUGH = 3
"""Operations of each kind."""

PYTHONS = ("confluent-kafka", "aiokafka", "kafka-python")


class Until:
    """Ends the main part of a run as Ctrl-C does, once all was done that it is for, however slow the machine is."""

    def __init__(self, workload: Workload, wanted: set[F], is_transactional: bool) -> None:
        self._workload = workload
        self._wanted = {(f, Type.OK): ENOUGH for f in wanted}
        if is_transactional:
            self._wanted |= {(f, Type.FAIL): 1 for f in wanted & {F.TXN, F.EOS}}
        self._done: Counter[tuple[str, Type]] = Counter()
        self._is_over = False
        self._completed = workload.completed
        workload.completed = self.completed  # type: ignore[method-assign]

    def completed(self, op: Op) -> None:
        self._completed(op)
        self._done[op.f, op.type] += 1

    def phase(self, name: str) -> None: ...

    def progress(self, now_ns: int, counts: Mapping[Type, int]) -> None:
        has_counted = bool(self._workload.seen) or not isinstance(self._workload, Abort)
        if not self._is_over and has_counted and all(self._done[each] >= count for each, count in self._wanted.items()):
            self._is_over = True
            raise KeyboardInterrupt

    def fault(self, what: str) -> None: ...


@pytest.fixture(scope="module")
def system() -> Iterator[System]:
    with SextonCluster(nodes=REPLICATION) as cluster:
        yield System("sexton", cluster.bootstrap, REPLICATION)


def judged(
    name: str,
    system: System,
    directory: Path,
    asked: Asked,
    wanted: set[F],
    clients: Sequence[str] = (),
    isolation: str = "read_committed",
) -> tuple[Judgement, list[Op], Workload]:
    kind = WORKLOADS[name]
    workload = kind.make(asked, random.Random(7))
    # Nothing is compacted here, so all of them can read what there is.
    clients = clients or [client for client in PYTHONS if CLIENTS[client].copies or not kind.copies]
    plan = Plan(
        seed=7,
        concurrency=6,
        rate=300,
        calm_ns=0,
        main_ns=90 * NS,
        final_ns=60 * NS,
        clients=tuple(clients),
        topic_prefix=f"{directory.name}-",
        isolation=isolation,
        transaction_timeout_ms=20_000,  # a busy machine must not abort what no fault has touched
    )
    ops = list(Runner(workload, system, plan, directory, Until(workload, wanted, asked.is_transactional)).run())
    run = Run(workload=name, logs=workload.logs, uses_subscribe=workload.uses_subscribe)
    return reference.judge(ops, run), ops, workload


def done(ops: list[Op]) -> set[str]:
    return {op.f for op in ops if op.type is Type.OK}


def explained(judgement: Judgement) -> str:
    return judgement.canonical()[:4_000]


CASES = {
    "queue": ("queue", Asked(ways=("assign", SUBSCRIBE)), {F.ASSIGN, F.SUBSCRIBE, F.SEND, F.POLL}),
    "queue --txn": (
        "queue",
        Asked(is_transactional=True, ways=("assign", SUBSCRIBE)),
        {F.ASSIGN, F.SUBSCRIBE, F.SEND, F.POLL, F.TXN},
    ),
    "register": ("register", Asked(is_transactional=True), {F.TXN, F.TABLE, F.SCAN, F.POLL}),
    "append": ("append", Asked(), {F.SEND, F.TABLE}),
    "append --txn": ("append", Asked(is_transactional=True), {F.TXN, F.TABLE}),
    "abort": ("abort", Asked(is_transactional=True), {F.SEND, F.TXN}),
    "early-read": ("early-read", Asked(is_transactional=True), {F.ASSIGN, F.TXN}),
    "auto-commit": ("auto-commit", Asked(), {F.SEND, F.POLL, F.COMMITTED}),
    "groups": ("groups", Asked(), {F.SEND, F.POLL, F.COMMIT}),
    "eos": ("eos", Asked(is_transactional=True), {F.SEND, F.POLL, F.EOS}),
    "mixed": ("mixed", Asked(is_transactional=True), {F.TXN, F.EOS, F.POLL}),
}


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_wrong_and_what_it_is_for_was_tested(case: str, system: System, tmp_path: Path) -> None:
    name, asked, wanted = CASES[case]
    judgement, ops, workload = judged(name, system, tmp_path, asked, wanted)
    assert judgement.verdict is Verdict.TRUE, explained(judgement)
    assert wanted <= done(ops)
    assert bool(workload.seen) == (name == "abort"), "it counts where consumers stand"
    compacted = [log for log in workload.logs if workload.log(log).is_compacted]
    read = {op.ext[Ext.REPLICA] for op in ops if op.f == F.SCAN and op.type is Type.OK and op.ext.get("final")}
    assert len(read) == (REPLICATION if compacted else 0), "every replica was read at the end"


def test_who_reads_before_others_have_committed_is_found_out(system: System, tmp_path: Path) -> None:
    asked = Asked(is_transactional=True)
    judgement, _, _ = judged("early-read", system, tmp_path, asked, {F.TXN}, isolation="read_uncommitted")
    assert {"precommitted-read", "G1c-wr", "G1a"} <= set(judgement.wrong())


@pytest.mark.soak
@pytest.mark.parametrize("name", ["queue", "append"])
def test_franz_go_sends_polls_and_reads_whole_logs(name: str, system: System, tmp_path: Path) -> None:
    """Its position is known from the markers of transactions, too: else it would never be at the end of a log."""
    assert franz_go_client(FRANZ_GO) == golang.program(), "built by what tests build it with, and found"
    judgement, ops, _ = judged(name, system, tmp_path, Asked(is_transactional=True), {F.TXN}, ["franz-go"])
    assert judgement.verdict is Verdict.TRUE, explained(judgement)
    assert F.TXN in done(ops)
