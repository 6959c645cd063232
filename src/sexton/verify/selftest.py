"""The judge's own test: what was planted must be found, and nothing where nothing was planted.

Three parts. Histories from a model of logs, broken in one known place; beside each stands the same history unbroken,
which differs from it nowhere else. A real broker behind a proxy that lies. Systems that are known to be bad.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sexton.checker.allowed import Model
from sexton.checker.anomalies import ANOMALIES, Weight
from sexton.checker.planted import correct
from sexton.checker.reference import judge
from sexton.checker.sabotage import PLANS, Sabotage, sabotage
from sexton.checker.verdict import Judgement, Verdict
from sexton.harness.brokers import SextonCluster
from sexton.harness.proxy import Proxy
from sexton.history.op import UNKNOWN, Type
from sexton.verify import run as verifying
from sexton.verify.generator import NS
from sexton.verify.lies import LIES, Lie
from sexton.verify.runner import Plan
from sexton.verify.systems import TOPIC_PREFIX
from sexton.verify.workloads.known import Asked

CLIENT: Final = "confluent-kafka"


@dataclass(frozen=True, slots=True)
class Result:
    name: str
    tried: int
    found: int
    wrong: str = ""
    """What was missed, or found where nothing was."""

    @property
    def is_good(self) -> bool:
        return self.found == self.tried and not self.wrong


def histories(seeds: int) -> Iterator[Result]:
    """One result for each anomaly, and the last for correct histories."""
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
                unbroken[of] = found_in_correct(int(of.removeprefix("planted-")))
        yield Result(name, seeds, found, wrong)
    bad = [told for told in unbroken.values() if told]
    yield Result("nothing, in the same histories unbroken", len(unbroken), len(unbroken) - len(bad), "; ".join(bad[:3]))


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
    """Nobody is told how far a run is."""

    def phase(self, name: str) -> None:
        pass

    def progress(self, now_ns: int, counts: Mapping[Type, int]) -> None:
        pass

    def fault(self, what: str) -> None:
        pass


def lies(directory: Path, seconds: float, names: tuple[str, ...] = tuple(LIES)) -> Iterator[Result]:
    """One result for each lie, and first one without any: what an honest proxy shows is true."""
    with ExitStack() as stack:
        cluster = stack.enter_context(SextonCluster(1, directory / "cluster"))
        told = told_by(cluster.bootstrap, directory / "honest", None, seconds)
        yield Result("honest", 1, int(not told), f"found {', '.join(sorted(told))}" if told else "")
        for name in names:
            told = told_by(cluster.bootstrap, directory / name, LIES[name], seconds)
            is_found = bool(told & LIES[name].shows)
            wrong = "" if is_found else f"found only {', '.join(sorted(told)) or 'nothing'}"
            yield Result(name, 1, int(is_found), wrong)


def told_by(bootstrap: str, directory: Path, lie: Lie | None, seconds: float) -> set[str]:
    """What the judge does not allow of a run in which clients were told that lie."""
    seed = 1
    plan = Plan(
        seed=seed,
        concurrency=4,
        calm_ns=0,
        main_ns=round(seconds * NS),
        final_ns=10 * NS,
        clients=(CLIENT,),
        topic_prefix=f"{TOPIC_PREFIX}{directory.name}-",
    )
    with Proxy(bootstrap, lie.make()) if lie else Proxy(bootstrap) as proxy:
        wanted = verifying.Wanted(
            system=proxy.bootstrap,
            is_existing=True,
            asked=Asked(lie is not None and lie.is_transactional),
            directory=directory,
            model=Model.KAFKA,
        )
        return set(verifying.run(wanted, plan, Silent()).wrong())
