"""The judge's own test: what was planted must be found, and nothing where nothing was planted.

Three parts. Histories from a model of logs, broken in one known place; beside each stands the same history unbroken,
which differs from it nowhere else. A real broker behind a proxy that lies. Systems that are known to be bad.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final

from sexton.checker.allowed import Model
from sexton.checker.anomalies import ANOMALIES, Weight
from sexton.checker.planted import correct, correct_name
from sexton.checker.reference import judge
from sexton.checker.sabotage import PLANS, Sabotage, sabotage
from sexton.checker.verdict import Judgement, Verdict
from sexton.harness.brokers import SextonCluster
from sexton.harness.proxy import Proxy
from sexton.history.op import UNKNOWN, Type
from sexton.verify import run as verifying
from sexton.verify.faults.grave import Grave
from sexton.verify.faults.late import Late
from sexton.verify.faults.partition import Partition
from sexton.verify.faults.processes import Kill
from sexton.verify.generator import NS
from sexton.verify.lies import LIES, Lie
from sexton.verify.plan import ACKS_ALL, Plan
from sexton.verify.run_history import Listener
from sexton.verify.runner import INTERRUPTED
from sexton.verify.systems import INDEPENDENT, SEXTON, TOPIC_PREFIX
from sexton.verify.workloads.known import EOS, QUEUE, TABLE, Asked

CLIENT: Final = "confluent-kafka"
RESULTS: Final = "selftest.json"
CORRECT_PER_SEED: Final = 10
"""A judge that sees what is not there is worse than one that misses something: nobody would look any more."""


@dataclass(frozen=True, slots=True)
class Result:
    name: str
    tried: int
    found: int
    wrong: str = ""
    """What was missed, or found where nothing was."""
    told: str = ""
    """What was found, where that is worth telling."""

    @property
    def is_good(self) -> bool:
        return self.found == self.tried and not self.wrong


def write(results: Sequence[Result], directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / RESULTS).write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")


def histories(seeds: int) -> Iterator[Result]:
    """One result for each anomaly, and the last for correct histories: those that were broken, as they were before, and
    more."""
    unbroken: dict[str, str] = {}
    for name in PLANS:
        found, wrong = 0, ""
        for seed in range(seeds):
            planted = sabotage(name, seed)
            missed = missed_in(planted)
            found += not missed
            wrong = wrong or missed
            of = planted.history.run.name
            if of not in unbroken:
                unbroken[of] = found_in_correct(int(of.removeprefix(correct_name(""))))
        yield Result(name, seeds, found, wrong)
    for seed in range(CORRECT_PER_SEED * seeds):
        of = correct_name(seed)
        if of not in unbroken:
            unbroken[of] = found_in_correct(seed)
    bad = [told for told in unbroken.values() if told]
    yield Result("nothing, in correct histories", len(unbroken), len(unbroken) - len(bad), "; ".join(bad[:3]))


def missed_in(planted: Sabotage) -> str:
    """What the judge got wrong, or nothing."""
    judgement = judge(planted.history.ops, planted.history.run, options=planted.options)
    where = f"{planted.history.run.name}, {planted.place}"
    cases = {finding.name: finding.cases for finding in judgement.findings}.get(planted.name, ())
    log, value = planted.place.log, planted.place.value
    if not any(log in (case.log, UNKNOWN) and value in (*case.values, UNKNOWN) for case in cases):
        return f"not found in {where}"
    more = counted(judgement) - {planted.name, *planted.implied}
    return f"also {', '.join(sorted(more))} in {where}" if more else ""


def found_in_correct(seed: int) -> str:
    history = correct(seed)
    judgement = judge(history.ops, history.run)
    found = counted(judgement)
    if found or judgement.verdict is not Verdict.TRUE:
        return f"{', '.join(sorted(found)) or judgement.verdict} in {history.run.name}"
    return ""


def counted(judgement: Judgement) -> set[str]:
    """What was found and is neither allowed nor mere information."""
    found = {finding.name for finding in judgement.findings} - judgement.allowed.keys()
    return {name for name in found if ANOMALIES[name].weight is not Weight.INFORMATION}


class Silent:
    """A listener that shows nothing."""

    def phase(self, name: str) -> None:
        pass

    def progress(self, now_ns: int, counts: Mapping[Type, int]) -> None:
        pass

    def fault(self, what: str) -> None:
        pass


@dataclass(frozen=True, slots=True)
class AtOnce:
    """After Ctrl-C nobody wants to know what became of a run that is one of many: it is mended, and neither read nor
    judged."""

    inner: Listener

    def phase(self, name: str) -> None:
        self.inner.phase(name)
        if name == INTERRUPTED:
            raise KeyboardInterrupt

    def progress(self, now_ns: int, counts: Mapping[Type, int]) -> None:
        self.inner.progress(now_ns, counts)

    def fault(self, what: str) -> None:
        self.inner.fault(what)


def lies(directory: Path, seconds: float, *, has_long: bool = False) -> Iterator[Result]:
    """One result for each lie, and first one without any: what an honest proxy shows is true."""
    names = [name for name, lie in LIES.items() if has_long or not lie.is_long]
    with ExitStack() as stack:
        cluster = stack.enter_context(SextonCluster(1, directory / "cluster"))
        for name, lie in {"honest": None, **{name: LIES[name] for name in names}}.items():
            try:
                told = told_by(cluster.bootstrap, directory / name, lie, seconds)
            except verifying.NOT_RUN as error:
                yield Result(name, 1, 0, str(error).partition("\n")[0])
                continue
            is_good = bool(told & lie.shows) if lie else not told
            wrong = f"found {'only ' if lie else ''}{', '.join(sorted(told)) or 'nothing'}"
            yield Result(name, 1, int(is_good), "" if is_good else wrong)


def told_by(bootstrap: str, directory: Path, lie: Lie | None, seconds: float) -> set[str]:
    """What the judge does not allow of a run in which clients were told that lie."""
    plan = Plan(
        seed=lie.seed if lie else 1,
        concurrency=6 if lie and lie.workload == EOS else 4,
        calm_ns=0,
        main_ns=round(max(seconds, lie.seconds_min if lie else 0) * NS),
        final_ns=10 * NS,
        clients=(CLIENT,),
        faults=lie.faults if lie else (),
        period_ns=60 * NS,
        interval_ns=15 * NS,
        transaction_timeout_ms=lie.transaction_timeout_ms if lie else 1_000,
        topic_prefix=f"{TOPIC_PREFIX}{directory.name}-",
    )
    with Proxy(bootstrap, lie.make()) if lie else Proxy(bootstrap) as proxy:
        wanted = verifying.Wanted(
            system=proxy.bootstrap,
            is_existing=True,
            workload=lie.workload if lie else QUEUE,
            asked=Asked(lie is not None and lie.is_transactional),
            directory=directory,
            has_page=False,
            model=Model.KAFKA,
        )
        return set(verifying.run(wanted, plan, AtOnce(Silent())).wrong())


@dataclass(frozen=True, slots=True)
class Known:
    """A system of which it is known what a run must find, or that it must find nothing."""

    system: str
    plan: Plan
    workload: str = QUEUE
    is_transactional: bool = True
    shows: frozenset[str] = field(default_factory=frozenset)
    """At least one of these; nothing: the verdict must be true."""

    @property
    def name(self) -> str:
        told = [*self.plan.faults]
        if self.plan.acks != ACKS_ALL:
            told.append(f"acks {self.plan.acks}")
        if Late.name in self.plan.faults:
            told += [*self.plan.late, *self.plan.clients]
        return f"{self.system}: {', '.join(told)}"


TRIES_MAX: Final = 3
"""Of a system that is known to be bad, until it shows it. What is good is run once."""

_GRAVE: Final = Plan(seed=1, main_ns=60 * NS, faults=(Grave.name,), clients=(CLIENT,))
_GRAVE_SHOWS: Final = frozenset(
    {"resurrected-key", "aborted-in-table", "torn-transaction", "table-drift", "stuck", "lost-key", "stale-value"}
)
_LATE: Final = Plan(seed=1, main_ns=60 * NS, faults=(Late.name,), late=("end-txn",), clients=("java-3.9.2",))
_LATE_SHOWS: Final = frozenset({"G1a", "torn-transaction", "lost-write"})
# A leader that is cut off from all others takes records for as long as clients reach it: those are lost.
_ACKS: Final = Plan(
    seed=1,
    main_ns=60 * NS,
    rate=200.0,
    faults=(Kill.name, Partition.name),
    clients=(CLIENT,),
    acks="1",
    is_idempotent=False,
)

SYSTEMS: Final = (
    Known("kafka-4.3.0", _GRAVE, TABLE, shows=_GRAVE_SHOWS),
    Known("kafka-3.9.2", _GRAVE, TABLE, shows=_GRAVE_SHOWS),
    Known(INDEPENDENT, _GRAVE, TABLE, shows=_GRAVE_SHOWS),
    Known(SEXTON, _GRAVE, TABLE),
    Known("kafka-4.3.0", _ACKS, is_transactional=False, shows=frozenset({"lost-write"})),
    Known(SEXTON, replace(_ACKS, acks=ACKS_ALL, is_idempotent=True), is_transactional=False),
    Known("kafka-3.9.2", _LATE, shows=_LATE_SHOWS),
    Known(SEXTON, _LATE),
)


def systems(directory: Path, listener: Listener, known: Sequence[Known] = SYSTEMS) -> Iterator[Result]:
    """One result for each: what is bad must show it, and what is good must be true, with all that it should test."""
    for place, each in enumerate(known):
        yield _shown(each, directory / f"system-{place}", listener)


def _shown(known: Known, directory: Path, listener: Listener) -> Result:
    tries = TRIES_MAX if known.shows else 1
    for seed in range(1, tries + 1):
        try:
            judgement = _judgement(known, seed, directory / str(seed), listener)
        except verifying.NOT_RUN as error:
            return Result(known.name, 1, 0, str(error).partition("\n")[0])
        found = {finding.name for finding in judgement.findings}
        told = f"{judgement.verdict}: {', '.join(sorted(found)) or 'nothing'}"
        if found & known.shows if known.shows else judgement.verdict is Verdict.TRUE:
            return Result(known.name, 1, 1, told=told)
    return Result(known.name, 1, 0, told)


def _judgement(known: Known, seed: int, directory: Path, listener: Listener) -> Judgement:
    wanted = verifying.Wanted(
        system=known.system, workload=known.workload, asked=Asked(known.is_transactional), directory=directory
    )
    plan = replace(known.plan, seed=seed, topic_prefix=f"{TOPIC_PREFIX}{seed}-")
    return verifying.run(wanted, plan, AtOnce(listener))
