"""Both levels of one partition: two leaders that claim and commit, two compactors that level, compact and merge,
deletion of records, two keys, a tombstone, a transaction that commits or aborts, and a consumer that reads along.

A job is planned on what is there, and committed at any later time, or never. A commit is one step: what late requests
and lost answers do to commits is the other model's (`commits`). Each commit of a leader has one record, which becomes
one extent of L0.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from tests.model.errors import Violation

VALUE, OTHER, TOMBSTONE, DATA, COMMIT, ABORT = "a", "b", "x", "t", "C", "A"
"""A value of the first key; of the second key; the tombstone of the first; a value of the first in the transaction; its
markers."""
KEYS = {VALUE: 0, TOMBSTONE: 0, DATA: 0, OTHER: 1}
MARKERS = (COMMIT, ABORT)
NONE = -1

VIEW_TICKS = 1
"""A map of L1 that is older is not used."""
HORIZON_TICKS_MIN = 3
"""A map that is one tick old may have been made two ticks ago, all but a moment."""
SLACK_TICKS = 1
"""That a job may take."""


class Rules(NamedTuple):
    claim_brings_transactions: bool = True
    """A leader knows what is open from the metastore. Without it, what it commits next counts as stable."""
    level_below_stable: bool = True
    """Leveling ends at the stable offset."""
    level_names_its_base: bool = True
    """C5: a leveling names the leveled offset."""
    table_tells_what_was_aborted: bool = True
    """Without it: the markers do that lie among what is leveled."""
    rows_of_aborted_stay_for_their_marker: bool = True
    """Without it: they go with the first of their data."""
    epoch_is_compared: bool = True
    """C5: a replacement of L1 names the compaction epoch."""
    inputs_are_compared: bool = True
    """C5: and its inputs."""
    nothing_is_made_below_the_start: bool = True
    """Without it: outputs replace inputs that deletion of records has taken."""
    clean_is_what_was_read: bool = True
    """Without it: a compaction that has read a part of L1 calls all of it clean."""
    horizons_outlast_views: bool = True
    """C8: a tombstone stays for longer than a map is used."""
    late_commits_are_refused: bool = True
    """C8: and so long after the commit that tells of it, not after its plan."""


class Arena(NamedTuple):
    logs: tuple[str, ...]
    """What the log becomes, or a part of it."""
    epochs: int = 2
    jobs: int = 2
    """Under way at once."""
    replacements: int = 2
    """Of L1, in all."""
    has_deletions: bool = True
    has_reader: bool = False
    """And time. Without them any time may pass between two steps."""


class L1(NamedTuple):
    base: int
    end: int
    offsets: tuple[int, ...]
    """Of the records that are left."""


class Job(NamedTuple):
    kind: str
    epoch: int
    """The partition's compaction epoch when it was planned."""
    inputs: tuple[L1, ...]
    """None for a leveling, which names its base instead."""
    outputs: tuple[L1, ...]
    bound: int
    """What is leveled, or clean, once it is committed."""
    base: int
    horizons: tuple[tuple[int, int], ...]
    """That it starts: of which tombstone, and in how many ticks it passes."""


class Store(NamedTuple):
    log: str = ""
    start: int = 0
    stable: int = 0
    leveled: int = 0
    cleaned: int = 0
    writer: int = 0
    epoch: int = 0
    """Of compaction."""
    l0: tuple[int, ...] = ()
    l1: tuple[L1, ...] = ()
    aborted: tuple[tuple[int, int], ...] = ()
    """First offset and marker of the transaction."""
    horizons: tuple[tuple[int, int], ...] = ()
    """By tombstone: ticks until it may go."""


class Leader(NamedTuple):
    epoch: int = 0
    first_open: int = NONE


class Reader(NamedTuple):
    seen: Store | None = None
    """The moment that its broker's map is of."""
    age: int = 0
    at: int = 0
    newest: tuple[int, int] = (NONE, NONE)
    """By key: offset of the value that it has."""
    has_moved: bool = False
    """Since the last tick."""


State = tuple[Store, Leader, Leader, tuple[Job, ...], Reader]


class Levels:
    def __init__(self, rules: Rules, arena: Arena) -> None:
        self.rules = rules
        self.arena = arena

    def start(self) -> State:
        return (Store(), Leader(), Leader(), (), Reader())

    def canonical(self, state: Any) -> Any:
        store, one, other, jobs, reader = state
        first, second = sorted((one, other))
        return (store, first, second, tuple(sorted(jobs)), reader)

    def show(self, state: Any) -> str:
        return "\n   ".join(str(part) for part in state)

    def actions(self, state: State) -> Iterator[tuple[Any, ...]]:
        store, jobs = state[0], state[3]
        for index in (1, 2):
            yield ("claim", index)
            for entry in (*KEYS, *MARKERS):
                yield ("commit", index, entry)
        for end in range(store.leveled + 1, len(store.log) + 1):
            yield ("plan_level", end)
        for count in range(1, len(store.l1) + 1):
            yield ("plan_compaction", count)
        yield ("plan_merge",)
        for number in range(len(jobs)):
            yield ("commit_job", number)
            yield ("give_up", number)
        if self.arena.has_deletions:
            for offset in range(store.start + 1, len(store.log) + 1):
                yield ("delete_records", offset)
        for name in ("look", "read", "tick"):
            yield (name,)

    def apply(self, state: State, action: tuple[Any, ...]) -> State | None:
        after: State | None = getattr(self, action[0])(state, *action[1:])
        if after is None or after == state:
            return None
        check(after[0])
        return after

    def bring_to_rest(self, state: State) -> State:
        """Whatever was planned or given up: all that is stable can be leveled and compacted."""
        store, one, other, _, reader = state
        state = (store._replace(epoch=0), one, other, (), reader)
        while state[0].leveled < state[0].stable:
            planned = self.plan_level(state, state[0].stable)
            state = (planned and self.commit_job(planned, 0)) or _stuck(state)
            check(state[0])
        if state[0].l1:
            planned = self.plan_compaction(state, len(state[0].l1))
            state = (planned and self.commit_job(planned, 0)) or _stuck(state)
            check(state[0])
            if state[0].cleaned < state[0].leveled:
                _stuck(state)
        return state

    # Leaders

    def claim(self, state: State, index: int) -> State | None:
        store = state[0]
        if store.writer == self.arena.epochs:
            return None
        epoch = store.writer + 1
        first_open = _first_open(store.log) if self.rules.claim_brings_transactions else NONE
        return _with(state, store._replace(writer=epoch), index, Leader(epoch, first_open))

    def commit(self, state: State, index: int, entry: str) -> State | None:
        store, leader = state[0], _leader(state, index)
        offset = len(store.log)
        if not leader.epoch or leader.epoch != store.writer:
            return None
        if not any(log.startswith(store.log + entry) for log in self.arena.logs):
            return None
        first_open, aborted = leader.first_open, store.aborted
        if entry == DATA and first_open == NONE:
            first_open = offset
        elif entry in MARKERS:
            first_open = NONE
            if entry == ABORT:
                aborted = (*aborted, (store.log.index(DATA), offset))
        stable = offset + 1 if first_open == NONE else first_open
        store = store._replace(
            log=store.log + entry, l0=(*store.l0, offset), stable=max(store.stable, stable), aborted=aborted
        )
        return _with(state, store, index, leader._replace(first_open=first_open))

    def delete_records(self, state: State, offset: int) -> State | None:
        """By whoever leads. The stable offset is lifted with the start, as the metastore does."""
        store = state[0]
        l0 = tuple(one for one in store.l0 if one >= offset)
        l1 = tuple(one for one in store.l1 if one.end > offset)
        first = l1[0].base if l1 else (l0[0] if l0 else len(store.log))
        boundary = min(first, offset)
        leveled = max(store.leveled, boundary)
        aborted = tuple(one for one in store.aborted if one[1] >= leveled)
        stable, cleaned = max(store.stable, boundary), max(store.cleaned, boundary)
        store = store._replace(start=offset, l0=l0, l1=l1, aborted=aborted, leveled=leveled)
        return (store._replace(stable=stable, cleaned=cleaned), *state[1:])

    # Compactors

    def plan_level(self, state: State, end: int) -> State | None:
        store, jobs = state[0], state[3]
        base = store.leveled
        limit = store.stable if self.rules.level_below_stable else len(store.log)
        if len(jobs) == self.arena.jobs or not base < end <= limit:
            return None
        offsets = range(base, end)
        if self.rules.table_tells_what_was_aborted:
            gone = {one for first, marker in store.aborted for one in offsets if first <= one < marker}
        else:
            gone = set(offsets) if ABORT in store.log[base:end] else set()
        kept = [
            one for one in offsets if store.log[one] not in MARKERS and not (store.log[one] == DATA and one in gone)
        ]
        output = L1(base, end, tuple(kept))
        return _planned(state, Job("level", 0, (), (output,), end, base, ()))

    def plan_compaction(self, state: State, count: int) -> State | None:
        """Of so many extents from the start on. What is called clean is not looked through again for duplicates."""
        store, jobs = state[0], state[3]
        if len(jobs) == self.arena.jobs or store.epoch == self.arena.replacements:
            return None
        read = store.l1[:count]
        end = read[-1].end
        dirty = {one for extent in read for one in extent.offsets if one >= store.cleaned}
        newest: dict[int, int] = {}
        for offset in sorted(dirty):
            newest[KEYS[store.log[offset]]] = offset
        horizons = dict(store.horizons)
        outputs, inputs, starts = [], [], []
        for extent in read:
            kept = []
            for offset in extent.offsets:
                if newest.get(KEYS[store.log[offset]], offset) != offset:
                    continue
                if store.log[offset] == TOMBSTONE:
                    if horizons.get(offset) == 0:
                        continue
                    if offset not in horizons:
                        starts.append((offset, self._retention()))
                kept.append(offset)
            has_started = any(offset in extent.offsets for offset, _ in starts)
            if tuple(kept) != extent.offsets or has_started:
                inputs.append(extent)
                outputs.append(extent._replace(offsets=tuple(kept)))
        bound = end if self.rules.clean_is_what_was_read else store.leveled
        job = Job("compact", store.epoch, tuple(inputs), tuple(outputs), bound, 0, tuple(starts))
        return _planned(state, job)

    def _retention(self) -> int:
        is_long = self.arena.has_reader and self.rules.horizons_outlast_views
        return HORIZON_TICKS_MIN + SLACK_TICKS if is_long else 0

    def plan_merge(self, state: State) -> State | None:
        store, jobs = state[0], state[3]
        if len(jobs) == self.arena.jobs or store.epoch == self.arena.replacements or len(store.l1) < 2:
            return None
        if store.l1[0].end <= store.cleaned < store.l1[-1].end:
            return None  # what is clean and what is not stay apart
        merged = L1(store.l1[0].base, store.l1[-1].end, tuple(one for each in store.l1 for one in each.offsets))
        return _planned(state, Job("merge", store.epoch, store.l1, (merged,), 0, 0, ()))

    def give_up(self, state: State, number: int) -> State | None:
        jobs = state[3]
        return (*state[:3], jobs[:number] + jobs[number + 1 :], state[4]) if number < len(jobs) else None

    def commit_job(self, state: State, number: int) -> State | None:
        """Carried out, or refused whole. A refused job is given up."""
        store, jobs = state[0], state[3]
        if number >= len(jobs):
            return None
        job = jobs[number]
        store = self._leveled(store, job) if job.kind == "level" else self._replaced(store, job)
        return (store, state[1], state[2], jobs[:number] + jobs[number + 1 :], state[4])

    def _leveled(self, store: Store, job: Job) -> Store:
        (output,) = job.outputs
        if self.rules.level_names_its_base and store.leveled != job.base:
            return store
        if self.rules.rows_of_aborted_stay_for_their_marker:
            aborted = tuple(one for one in store.aborted if one[1] >= job.bound)
        else:
            aborted = tuple(one for one in store.aborted if one[0] >= job.bound)
        return store._replace(
            leveled=max(store.leveled, job.bound),
            l0=tuple(one for one in store.l0 if not output.base <= one < output.end),
            l1=tuple(sorted((*store.l1, output))),
            aborted=aborted,
        )

    def _replaced(self, store: Store, job: Job) -> Store:
        if self.rules.epoch_is_compared and store.epoch != job.epoch:
            return store
        if store.epoch > self.arena.replacements:
            return store  # an arena has an end also without that rule
        present = tuple(one for one in job.inputs if one in store.l1)
        missing = [one for one in job.inputs if one not in store.l1]
        if self.rules.inputs_are_compared and any(one.end > store.start for one in missing):
            return store
        is_late = any(ticks < self._retention() - SLACK_TICKS for _, ticks in job.horizons)
        if is_late and self.rules.late_commits_are_refused:
            return store
        made = [one for one in job.outputs if one.end > store.start or not self.rules.nothing_is_made_below_the_start]
        kept = [one for one in store.l1 if one not in present]
        horizons = {**dict(job.horizons), **dict(store.horizons)}
        return store._replace(
            l1=tuple(sorted((*kept, *made))),
            cleaned=max(store.cleaned, job.bound),
            epoch=store.epoch + 1,
            horizons=tuple(sorted(horizons.items())),
        )

    # A consumer, and time

    def look(self, state: State) -> State | None:
        """Its broker hears of what the compactors have done."""
        store, reader = state[0], state[4]
        if not self.arena.has_reader:
            return None
        return (*state[:4], reader._replace(seen=store._replace(writer=0, epoch=0, horizons=()), age=0))

    def read(self, state: State) -> State | None:
        """One record with each request."""
        store, reader = state[0], state[4]
        seen = reader.seen
        if seen is None or reader.age > VIEW_TICKS:
            return None
        found = visible_in(seen, max(reader.at, seen.start))
        newest = list(reader.newest)
        if found:
            key = KEYS[seen.log[found[0]]]
            newest[key] = NONE if seen.log[found[0]] == TOMBSTONE else found[0]
        at = found[0] + 1 if found else max(reader.at, seen.stable)
        for key, last in last_of(store.log[:at]).items():
            is_deleted = store.log[last] == TOMBSTONE
            if newest[key] != (NONE if is_deleted else last):
                raise Violation("a deleted key stays" if is_deleted else "a value is missed", f"{state}")
        return (*state[:4], reader._replace(at=at, newest=(newest[0], newest[1]), has_moved=True))

    def tick(self, state: State) -> State | None:
        """Whoever has begun to read goes on with each of them."""
        store, jobs, reader = state[0], state[3], state[4]
        is_slow = 0 < reader.at < store.stable and not reader.has_moved
        if not self.arena.has_reader or is_slow:
            return None
        later = tuple(one._replace(horizons=_ticked(one.horizons)) for one in jobs)
        age = min(reader.age + 1, VIEW_TICKS + 1)
        store = store._replace(horizons=_ticked(store.horizons))
        return (store, state[1], state[2], later, reader._replace(age=age, has_moved=False))


def _ticked(horizons: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    return tuple((offset, max(0, ticks - 1)) for offset, ticks in horizons)


def _planned(state: State, job: Job) -> State:
    return (*state[:3], (*state[3], job), state[4])


def _stuck(state: State) -> State:
    raise Violation("stuck", str(state))


def _leader(state: State, index: int) -> Leader:
    return state[1] if index == 1 else state[2]


def _with(state: State, store: Store, index: int, leader: Leader) -> State:
    return (store, leader, *state[2:]) if index == 1 else (store, state[1], leader, *state[3:])


def _first_open(log: str) -> int:
    return log.index(DATA) if DATA in log and not any(marker in log for marker in MARKERS) else NONE


def visible(log: str) -> list[int]:
    """Offsets of records that are not of an aborted transaction, nor of one that is open."""
    return [offset for offset, entry in enumerate(log) if entry not in MARKERS and (entry != DATA or COMMIT in log)]


def visible_in(store: Store, since: int) -> list[int]:
    """As a read_committed consumer is served them: L1 as it is, L0 with its list of aborted transactions."""
    leveled = [one for extent in store.l1 for one in extent.offsets if one < store.leveled]
    aborted = {one for first, marker in store.aborted for one in store.l0 if first <= one < marker}
    l0 = [
        one
        for one in store.l0
        if store.leveled <= one < store.stable
        and store.log[one] not in MARKERS
        and not (store.log[one] == DATA and one in aborted)
    ]
    return sorted(one for one in (*leveled, *l0) if one >= since)


def last_of(log: str) -> dict[int, int]:
    """By key: offset of its newest record."""
    return {KEYS[log[offset]]: offset for offset in visible(log)}


def check(store: Store) -> None:
    if not store.cleaned <= store.leveled <= store.stable <= len(store.log):
        raise Violation("offsets out of order", str(store))
    spans = sorted([(one.base, one.end) for one in store.l1] + [(one, one + 1) for one in store.l0])
    if any(one[1] != other[0] for one, other in pairwise(spans)):
        raise Violation("extents overlap or leave a gap", str(store))
    ends = (spans[0][0] <= store.start, spans[-1][1] == len(store.log)) if spans else (store.start == len(store.log),)
    if not all(ends):
        raise Violation("extents do not reach the log's ends", str(store))
    found = [one for extent in store.l1 for one in extent.offsets if one >= store.start]
    committed = set(visible(store.log))
    if any(offset not in committed for offset in found):
        raise Violation("an aborted record in L1", str(store))
    expected = [offset for offset in sorted(committed) if store.start <= offset < store.leveled]
    newest = {KEYS[store.log[offset]]: offset for offset in expected}
    may_go = {offset for offset, ticks in store.horizons if ticks == 0}
    for key, offset in newest.items():
        if offset not in found and (store.log[offset] != TOMBSTONE or offset not in may_go):
            raise Violation("the newest record is gone", str(store))
        if offset not in found and any(KEYS[store.log[one]] == key for one in found):
            raise Violation("a deleted key comes back", str(store))
    clean = [KEYS[store.log[offset]] for offset in found if offset < store.cleaned]
    if len(clean) != len(set(clean)):
        raise Violation("two of a key in what is clean", str(store))


TRAPS = {
    "claim_brings_transactions": {"an aborted record in L1"},
    "level_below_stable": {"offsets out of order"},
    "level_names_its_base": {"extents do not reach the log's ends"},
    "table_tells_what_was_aborted": {"an aborted record in L1"},
    "rows_of_aborted_stay_for_their_marker": {"an aborted record in L1"},
    "nothing_is_made_below_the_start": {"extents do not reach the log's ends"},
    "clean_is_what_was_read": {"two of a key in what is clean"},
    "horizons_outlast_views": {"a deleted key stays"},
    "late_commits_are_refused": {"a deleted key stays"},
}
"""By rule: what is found without it."""

EITHER = ("epoch_is_compared", "inputs_are_compared")
"""Nothing is lost without one of them."""
