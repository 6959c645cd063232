"""Every workload against real brokers, for a few seconds each, without faults: nothing wrong is found, and what it is
for was tested."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from sexton.checker import reference
from sexton.checker.verdict import Judgement, Verdict
from sexton.harness.brokers import SextonCluster
from sexton.history.op import F, Op, Run, Type
from sexton.verify.clients import golang
from sexton.verify.clients.known import CLIENTS
from sexton.verify.generator import NS, Workload
from sexton.verify.runner import Plan, Runner
from sexton.verify.systems import System
from sexton.verify.workloads.known import SUBSCRIBE, WORKLOADS, Asked
from tests.interop.golang import franz_go_client
from tests.interop.suites import FRANZ_GO

pytestmark = pytest.mark.cluster

REPLICATION = 3
PYTHONS = ("confluent-kafka", "aiokafka", "kafka-python")


class Silent:
    def phase(self, name: str) -> None: ...

    def progress(self, now_ns: int, counts: Mapping[Type, int]) -> None: ...

    def fault(self, what: str) -> None: ...


@pytest.fixture(scope="module")
def system() -> Iterator[System]:
    with SextonCluster(nodes=REPLICATION) as cluster:
        yield System("sexton", cluster.bootstrap, REPLICATION)


def judged(
    name: str, system: System, directory: Path, asked: Asked, clients: Sequence[str] = (), seconds: int = 5
) -> tuple[Judgement, list[Op], Workload]:
    kind = WORKLOADS[name]
    workload = kind.make(asked, random.Random(7))
    # Nothing is compacted here, so all of them can read what there is.
    clients = clients or [client for client in PYTHONS if CLIENTS[client].copies or not kind.copies]
    plan = Plan(
        seed=7,
        concurrency=5,
        rate=300,
        calm_ns=0,
        main_ns=seconds * NS,
        final_ns=20 * NS,
        clients=tuple(clients),
        topic_prefix=f"{directory.name}-",
    )
    ops = list(Runner(workload, system, plan, directory, Silent()).run())
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
    "register": ("register", Asked(is_transactional=True), {F.TXN, F.TABLE, F.POLL}),
    "append": ("append", Asked(), {F.SEND, F.TABLE}),
    "append --txn": ("append", Asked(is_transactional=True), {F.TXN, F.TABLE}),
    "abort": ("abort", Asked(is_transactional=True), {F.SEND, F.TXN, F.TABLE}),
    "early-read": ("early-read", Asked(is_transactional=True), {F.ASSIGN, F.TXN, F.POLL}),
    "auto-commit": ("auto-commit", Asked(), {F.SUBSCRIBE, F.SEND, F.POLL, F.COMMITTED}),
    "groups": ("groups", Asked(), {F.SUBSCRIBE, F.SEND, F.POLL, F.COMMIT}),
    "eos": ("eos", Asked(is_transactional=True), {F.SUBSCRIBE, F.SEND, F.POLL, F.EOS}),
    "mixed": ("mixed", Asked(is_transactional=True), {F.TABLE}),
}


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_wrong_and_what_it_is_for_was_tested(case: str, system: System, tmp_path: Path) -> None:
    name, asked, wanted = CASES[case]
    judgement, ops, _ = judged(name, system, tmp_path, asked)
    assert judgement.verdict is Verdict.TRUE, explained(judgement)
    assert wanted <= done(ops)


@pytest.mark.parametrize("name", ["queue", "append"])
def test_franz_go_sends_polls_and_reads_whole_logs(name: str, system: System, tmp_path: Path) -> None:
    """Its position is known from the markers of transactions, too: else it would never be at the end of a log."""
    assert franz_go_client(FRANZ_GO) == golang.program(), "built by what tests build it with, and found"
    judgement, ops, _ = judged(name, system, tmp_path, Asked(is_transactional=True), ["franz-go"])
    assert judgement.verdict is Verdict.TRUE, explained(judgement)
    assert F.TXN in done(ops)
