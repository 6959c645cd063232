"""A flat history, judged as `checker.reference` judges it: in one piece here, and by the same steps where its logs are
spread (`spark.check`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Final, Protocol, TypeVar

import numpy as np

from sexton.checker import reference
from sexton.checker.allowed import Model, allowed
from sexton.checker.cycles import cycles_of
from sexton.checker.evidence import Finding
from sexton.checker.kernels import groups, writes
from sexton.checker.kernels.arrays import Rows
from sexton.checker.kernels.bundle import Bundle, Census, Outcome, Question
from sexton.checker.kernels.columns import unique
from sexton.checker.kernels.copies import found_in_copies
from sexton.checker.kernels.cycles import ArrayGraph, Dependencies, Ends
from sexton.checker.kernels.exts import sent_of
from sexton.checker.kernels.found import Found, merged
from sexton.checker.kernels.verdict import obligations
from sexton.checker.kernels.whole import Told, Whole, told_of, whole_of
from sexton.checker.verdict import Judgement, judgement
from sexton.checker.view import Options, View
from sexton.history.flat import FlatHistory
from sexton.history.op import Run

BY_REFERENCE: Final = ("watermark-went-back", "watermark-went-back-at-failover")
"""What brokers say of themselves: they are asked every so often, however many operations there are."""


BUNDLE_ROWS: Final = 500_000
"""About as many rows are judged at once: what is held beside the history is ten times as large as they are. Most of the
time goes into columns that are read in another order than they lie in memory, so what no cache has room for takes twice
as long."""

T = TypeVar("T")


class Each(Protocol):
    """Does the same with every bundle."""

    def __call__(self, do: Callable[[Bundle], T], /) -> list[T]: ...


def judge(
    flat: FlatHistory,
    run: Run,
    model: Model = Model.KAFKA,
    ignore: frozenset[str] = frozenset(),
    options: Options | None = None,
    bundle_count: int = 0,
) -> Judgement:
    """The history must have pairs."""
    whole = whole_of(flat, run, options or Options())
    tables = flat.mops, flat.spans, sent_of(flat)
    count = bundle_count or 1 + len(flat.mops) // BUNDLE_ROWS
    places = [(it["log"] % count).astype(np.uint16) for it in tables]

    def rows(bundle: int) -> list[Rows]:
        if count == 1:
            return list(tables)
        return [it[place == bundle] for it, place in zip(tables, places, strict=True)]

    def bundles() -> Iterator[Bundle]:
        return (Bundle(counted_whole, *rows(bundle)) for bundle in range(count))

    censuses = [Bundle(whole, *rows(bundle)[:2], is_counted=False).census() for bundle in range(count)]
    counted_whole = counted(whole, censuses)
    kept = list(bundles()) if count == 1 else None

    def each(do: Callable[[Bundle], T]) -> list[T]:
        return [do(bundle) for bundle in kept or bundles()]

    return conclude(counted_whole, told_of(flat, whole), each, model, ignore)


def counted(whole: Whole, censuses: Sequence[Census]) -> Whole:
    """Of all logs."""
    send_count, is_read = whole.send_count.copy(), whole.is_read.copy()
    for census in censuses:
        send_count[census.sending] += 1
        send_count[census.sending_several] += (census.several_count - 1).astype(np.int32)
        is_read[census.read] = True
    return replace(whole, send_count=send_count, is_read=is_read)


def conclude(
    whole: Whole, told: Told, each: Each, model: Model = Model.KAFKA, ignore: frozenset[str] = frozenset()
) -> Judgement:
    """`whole` is counted."""
    outcomes = each(Bundle.judge)
    found: dict[str, list[Found]] = defaultdict(list)
    for outcome in outcomes:
        for name, a_part in outcome.found:
            found[name].append(a_part)
    more = _by_reference(told.probes), _of_several_logs(whole, outcomes, each), _cycles(whole, outcomes, each)
    for name, a_part in chain(*more):
        found[name].append(a_part)
    found["realtime-lag"] = [_worst_lag(found["realtime-lag"])]
    evidence_max = whole.options.evidence_max
    all_found = [merged(name, parts, evidence_max) for name, parts in sorted(found.items())]
    findings: list[Finding] = [finding for finding in all_found if finding.count]
    return judgement(findings, model, allowed(whole.view, model, ignore), obligations(whole, told, outcomes))


def _question_of(outcomes: Sequence[Outcome]) -> Question | None:
    """None if there is nothing to ask."""
    torn, missing = _all(outcomes, "torn"), _all(outcomes, "missing")
    if not len(torn) and not len(missing):
        return None
    return Question(unique(torn[:, 0]), np.unique(missing[:, :2], axis=0))


def _all(outcomes: Sequence[Outcome], name: str) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    return np.concatenate([getattr(outcome, name) for outcome in outcomes])


def _by_reference(probes: View) -> Iterator[tuple[str, Found]]:
    for name in BY_REFERENCE:
        cases = list(reference.CHECKS[name](probes))
        yield name, Found(len(cases), cases)


def _of_several_logs(whole: Whole, outcomes: Sequence[Outcome], each: Each) -> Iterator[tuple[str, Found]]:
    index, evidence_max = whole.calls["index"], whole.options.evidence_max
    yield "zombie-commit", groups.zombie_commit(whole.calls, whole.exts, evidence_max)
    made, taken = ([it for outcome in outcomes for it in getattr(outcome, name)] for name in ("made", "taken"))
    yield from found_in_copies(whole.run, index, made, taken, evidence_max)
    yield "precommitted-read", writes.precommitted_read(index, _all(outcomes, "own"))
    question = _question_of(outcomes)
    if question is not None:
        answers = each(partial(Bundle.answer, question=question))
        seen = np.concatenate([answer.seen for answer in answers])
        yield "torn-transaction", writes.torn_transaction(index, _all(outcomes, "torn"), seen)
        given = np.concatenate([answer.given for answer in answers])
        yield "fractured-read", writes.fractured_read(index, _all(outcomes, "missing"), given)


def _cycles(whole: Whole, outcomes: Sequence[Outcome], each: Each) -> Iterator[tuple[str, Found]]:
    ww, wr = (Ends.of([getattr(outcome, name) for outcome in outcomes]) for name in ("ww", "wr"))
    graph = ArrayGraph(whole.calls, ww, wr, any(outcome.has_dependencies for outcome in outcomes))
    core = graph.core()
    parts = each(partial(Bundle.explain, core=core)) if len(core.call) else [(Dependencies.none(),) * 2]
    graph.explain(*(Dependencies.of(some).first() for some in zip(*parts, strict=True)))
    for name, cases in cycles_of(graph, whole.options.cycle_steps_max).items():
        yield name, Found(len(cases), cases)


def _worst_lag(parts: Sequence[Found]) -> Found:
    cases = [case for part in parts for case in part.cases]
    return Found(1, [min(cases, key=lambda case: (-case.severity, case.ops, case.log))]) if cases else Found()
