"""What must hold in every state, and after every step."""

from __future__ import annotations

from functools import cache

from tests.model.consumers import check_consumer
from tests.model.errors import Violation
from tests.model.logs import (
    DATA,
    KEYS,
    Log,
    Records,
    View,
    below,
    from_on,
    is_clean,
    is_clean_but_for_values,
    is_transaction_free,
    kind_of,
    offset_of,
    transactions,
    value_of,
    view,
)
from tests.model.state import Broker, State
from tests.model.switches import Rules


def check_state(state: State, rules: Rules) -> None:
    """What a consumer can see: rules 3 and 4."""
    shared = state[0]
    settled_ends = not rules.settled_changes_nothing
    for index, broker in enumerate(state[1:]):
        if broker.in_sync and not agrees(broker.log, broker.high_watermark, broker.phantom, shared.truth, settled_ends):
            raise _disagreement(index, broker, shared.truth, settled_ends)
    if shared.consumer:
        check_consumer(shared.consumer, shared.truth)


def check_crash(before: Broker, after: Broker) -> None:
    """Rule 11: what a replica knew of the producer's batches, it knows again after a crash."""
    forgotten = {offset for offset in before.batches if offset < after.log.end} - set(after.batches)
    if forgotten and before.incarnation == after.incarnation:
        raise Violation("sequence forgotten", f"of the batches at {sorted(forgotten)}")


def check_definitions(state: State, defers: bool) -> None:
    """What the words of docs/rules.md mean."""
    for index, broker in enumerate(state[1:]):
        if broker.member and broker.incarnation == broker.registered and not state[0].independent:
            check_progress(index, broker, state[0].truth if defers else None)


@cache
def agrees(log: Log, high_watermark: int, phantom: int, truth: Records, settled_ends: bool) -> bool:
    """What a replica serves up to its own high watermark is the truth up to there; and it hides, of what it holds,
    exactly what was aborted."""
    served = _served(log, high_watermark, phantom, settled_ends)
    return served == view(truth, log.start, high_watermark) and not _wrongly(log, served.stable, truth, settled_ends)


def _wrongly(log: Log, stable: int, truth: Records, settled_ends: bool) -> frozenset[int]:
    """Offsets of records that this replica holds and takes for aborted though they are not, or the other way round."""
    held = frozenset(offset_of(one) for one in below(log.records, stable) if kind_of(one) in DATA)
    return held & (transactions(log.records, settled_ends).aborted ^ transactions(from_on(truth, log.start)).aborted)


def _served(log: Log, high_watermark: int, phantom: int, settled_ends: bool) -> View:
    served = view(log.records, log.start, high_watermark, settled_ends)
    return View(phantom, served.fold) if 0 <= phantom < served.stable else served


def _disagreement(index: int, broker: Broker, truth: Records, settled_ends: bool) -> Violation:
    log = broker.log
    served = _served(log, broker.high_watermark, broker.phantom, settled_ends)
    expected = view(truth, log.start, broker.high_watermark)
    where = f"on broker {index}"
    if served.stable < expected.stable:
        return Violation("frozen", f"{where} the last stable offset is {served.stable} and should be {expected.stable}")
    if served.stable > expected.stable:
        what = f"{where} the last stable offset is {served.stable} while a transaction is open since {expected.stable}"
        return Violation("open visible", what)
    txn = transactions(from_on(truth, log.start))
    by_value = {value_of(one): offset_of(one) for one in truth if kind_of(one) in DATA}
    for offset in sorted(_wrongly(log, served.stable, truth, settled_ends)):
        if offset in txn.aborted:
            return Violation("aborted visible", f"{where} the record at {offset} counts as committed")
        return Violation("committed hidden", f"{where} the record at {offset} counts as aborted")
    for key, (got, wanted) in enumerate(zip(served.fold, expected.fold, strict=True)):
        if got == wanted:
            continue
        name = KEYS[key]
        if got and got not in by_value:
            return Violation("never committed", f"{where} {name} has a value that was never committed")
        if got and not wanted:
            return Violation("deleted is back", f"{where} {name} was deleted and has the value at {by_value[got]}")
        if wanted and not got:
            return Violation("value lost", f"{where} {name} lacks its value at {by_value[wanted]}")
        return Violation("older value", f"{where} {name} has {by_value[got]} and not {by_value[wanted]}")
    raise AssertionError


def check_progress(index: int, broker: Broker, truth: Records | None) -> None:
    """What MCCO and MXFO say is so. (A log may lack what lies above its end: then it will be copied clean.) `truth`
    where superseded values may be left, None where a key is there once."""
    log, marks = broker.log, broker.durable
    if truth is None and not is_clean(log.records, marks.mcco):
        raise Violation("MCCO", f"broker {index} holds a key twice below its MCCO {marks.mcco}")
    if truth is not None and not is_clean_but_for_values(log.records, marks.mcco, truth, marks.planned):
        raise Violation("MCCO", f"broker {index} holds what was deleted below its MCCO {marks.mcco}")
    if truth is not None and marks.planned < marks.mcco and marks.mcco > log.start:
        raise Violation("MCCO", f"broker {index} has compacted up to {marks.mcco}, and planned it at {marks.planned}")
    if not is_transaction_free(log.records, marks.mxfo):
        raise Violation("MXFO", f"broker {index} holds a transactional batch below its MXFO {marks.mxfo}")
    if broker.high_watermark > log.end or broker.flushed > log.end:
        raise Violation("rule 1", f"broker {index} has committed what it does not hold")


CRASHES = frozenset({"crash", "compact_and_crash", "adopt_and_crash", "remove", "lose_disk"})
"""After these, what was in memory alone may be gone."""


def check_step(before: State, after: State, action: str) -> None:
    """Rule 7: within an incarnation and a generation nothing goes back."""
    if action == "restore_image":
        return
    for index, (old, new) in enumerate(zip(before[1:], after[1:], strict=True)):
        if old is new or old.incarnation != new.incarnation or old.marks.generation != new.marks.generation:
            continue
        if any(low < high for low, high in zip(new.durable[2:], old.durable[2:], strict=True)):
            raise Violation("rule 7", f"broker {index} went back from {old.durable} to {new.durable}")
        if new.high_watermark < old.high_watermark and action not in CRASHES:
            what = f"the high watermark of broker {index} went back from {old.high_watermark} to {new.high_watermark}"
            raise Violation("rule 7", what)
        if new.log.start < old.log.start:
            raise Violation("rule 2", f"the log start of broker {index} went back to {new.log.start}")
    if after[0].truth[: len(before[0].truth)] != before[0].truth and after[0].generation == before[0].generation:
        raise Violation("rule 1", "what was committed changed")
