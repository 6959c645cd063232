"""The log of one partition: two leaders with uploads under way, claims, commits that arrive late or are answered to
nobody, objects that expire, deletion of records, leveling, and one idempotent producer that repeats what was not
acknowledged.

A leader is what `cloud/` makes of one: it gives out offsets before they are committed, never takes one back, and throws
its whole tail away when it is told that it leads no more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.model.errors import Violation

PENDING, LIVE, GARBAGE = "pending", "live", "garbage"
ACCEPTED, FENCED, MISPLACED, LOST = "accepted", "fenced", "misplaced", "lost"


class Rules(NamedTuple):
    end_is_compared: bool = True
    """C5: a commit names the end that it builds on."""
    epoch_is_compared: bool = True
    """For a leader to learn that it was replaced. Nothing is lost without it."""
    commit_needs_pending: bool = True
    """C2."""
    unknown_is_asked_again: bool = True
    """C10. Without it: no answer is taken for a good one. (Who takes it for a refusal is the collector's trap.)"""
    old_epochs_end_where_the_next_began: bool = True
    """C10. Without it: asked again after another has claimed, an end that is high enough counts."""
    nobody_skips: bool = True
    """T6. Without it: a gather that is lost is left out, and what is behind it moves up."""
    start_within_end: bool = True
    """C6. Without it: records are deleted up to what is uploaded."""


class Arena(NamedTuple):
    records: int = 2
    epochs: int = 2
    objects: int = 3
    """Uploads in all."""
    requests: int = 2
    """Commits on their way at once."""
    one_producer: bool = True
    """All records are of one producer, with sequences; else each is of another one."""


class Leader(NamedTuple):
    epoch: int = 0
    """0: it leads nothing."""
    end: int = 0
    """Of what it knows to be committed."""
    noted: tuple[int, ...] = ()
    """Records that it has, committed or not: if they come again, they are duplicates."""
    tail: tuple[tuple[int, int, int], ...] = ()
    """Record, base offset, object; the oldest first."""
    asked: bool = False
    """The first of its tail was sent to be committed, and it has no answer."""


class Request(NamedTuple):
    leader: int
    epoch: int
    record: int
    base: int
    object_id: int


class Store(NamedTuple):
    log: tuple[tuple[int, int], ...] = ()
    """Record and object of each offset."""
    start: int = 0
    leveled: int = 0
    writer: int = 0
    epochs: tuple[tuple[int, int], ...] = ()
    objects: tuple[tuple[str, int], ...] = ()
    """State, and the epoch of the leader that registered it."""
    acknowledged: tuple[tuple[int, int], ...] = ()
    """Record and offset."""
    requests: tuple[Request, ...] = ()


State = tuple[Store, Leader, Leader]


class Commits:
    def __init__(self, rules: Rules, arena: Arena = Arena()) -> None:  # noqa: B008 - it is a constant
        self.rules = rules
        self.arena = arena

    def start(self) -> State:
        return (Store(), Leader(), Leader())

    def canonical(self, state: Any) -> Any:
        store, *leaders = state
        return (store._replace(requests=tuple(sorted(set(store.requests)))), *leaders)

    def show(self, state: Any) -> str:
        return "\n   ".join(str(part) for part in state)

    def actions(self, state: State) -> Iterator[tuple[Any, ...]]:
        store = state[0]
        for index in (0, 1):
            for name in ("claim", "give_up", "delete_records"):
                yield (name, index)
            for number in (0, 1):
                yield ("ask", index, number)
            for record in range(self.arena.records):
                yield ("upload", index, record)
        for number in range(len(store.requests)):
            yield ("arrive", number, True)
            yield ("arrive", number, False)
            yield ("vanish", number)
        yield ("level",)
        for number in range(len(store.objects)):
            yield ("expire", number)

    def apply(self, state: State, action: tuple[Any, ...]) -> State | None:
        after: State | None = getattr(self, action[0])(state, *action[1:])
        if after is None or after == state:
            return None
        self._check(state[0], after[0])
        return after

    def bring_to_rest(self, state: State) -> State:
        """Nothing fails any more: every leader gets its answers, and the last one to claim takes what is missing."""
        for _ in range(40):
            for _request in range(len(state[0].requests)):
                state = self.apply(state, ("arrive", 0, True)) or state
            for index in (0, 1):
                state = self.apply(state, ("ask", index, 0)) or state
                for record in range(self.arena.records):
                    state = self.apply(state, ("upload", index, record)) or state
        store = state[0]
        leads = [one for one in (state[1], state[2]) if one.epoch and one.epoch == store.writer]
        can_go_on = leads and len(store.objects) < self.arena.objects
        if can_go_on and len(store.log) < self.arena.records:
            raise Violation("stuck", str(state))
        return state

    # Leaders

    def claim(self, state: State, index: int) -> State | None:
        store = state[0]
        if store.writer == self.arena.epochs:
            return None
        epoch = store.writer + 1
        store = store._replace(writer=epoch, epochs=(*store.epochs, (epoch, len(store.log))))
        noted = tuple(sorted(record for record, _ in store.log))
        return _with(state, store, index, Leader(epoch, len(store.log), noted))

    def upload(self, state: State, index: int, record: int) -> State | None:
        """A record comes (producers send again what was not acknowledged, to whoever leads), and is stored under an id
        of its own. What the leader has noted already is a duplicate, and a gap in sequences is refused."""
        store, leader = state[0], _leader(state, index)
        if not leader.epoch or len(store.objects) == self.arena.objects:
            return None
        if record in leader.noted or (self.arena.one_producer and record != len(leader.noted)):
            return None
        end = leader.end + len(leader.tail)
        object_id = len(store.objects)
        store = store._replace(objects=(*store.objects, (PENDING, leader.epoch)))
        tail = (*leader.tail, (record, end, object_id))
        noted = tuple(sorted((*leader.noted, record)))
        return _with(state, store, index, leader._replace(tail=tail, noted=noted))

    def ask(self, state: State, index: int, number: int) -> State | None:
        """Commits one of its tail, or asks again. Requests overtake each other."""
        store, leader = state[0], _leader(state, index)
        if number >= len(leader.tail) or len(store.requests) == self.arena.requests:
            return None
        record, base, object_id = leader.tail[number]
        request = Request(index, leader.epoch, record, base, object_id)
        store = store._replace(requests=(*store.requests, request))
        return _with(state, store, index, leader._replace(asked=leader.asked or number == 0))

    def give_up(self, state: State, index: int) -> State | None:
        """No answer came, and it is taken for granted."""
        store, leader = state[0], _leader(state, index)
        if self.rules.unknown_is_asked_again or not leader.asked:
            return None
        record, base, _ = leader.tail[0]
        return self._acknowledge(state, store, index, record, base)

    def _acknowledge(self, state: State, store: Store, index: int, record: int, base: int) -> State:
        leader = _leader(state, index)
        store = store._replace(acknowledged=tuple(sorted({*store.acknowledged, (record, base)})))
        return _with(state, store, index, leader._replace(tail=leader.tail[1:], end=base + 1, asked=False))

    def delete_records(self, state: State, index: int) -> State | None:
        store, leader = state[0], _leader(state, index)
        if not leader.epoch or leader.epoch != store.writer:
            return None
        end = len(store.log)
        if not self.rules.start_within_end and leader.tail:
            end = leader.end + len(leader.tail)
        return (_swept(store._replace(start=end)), state[1], state[2])

    # The metastore

    def arrive(self, state: State, number: int, is_answered: bool) -> State | None:
        store = state[0]
        if number >= len(store.requests):
            return None
        request = store.requests[number]
        store = store._replace(requests=(*store.requests[:number], *store.requests[number + 1 :]))
        store, outcome = self._carry_out(store, request)
        state = (store, state[1], state[2])
        return self._told(state, request, outcome) if is_answered else state

    def vanish(self, state: State, number: int) -> State | None:
        store = state[0]
        rest = (*store.requests[:number], *store.requests[number + 1 :])
        return (store._replace(requests=rest), state[1], state[2])

    def _carry_out(self, store: Store, request: Request) -> tuple[Store, str]:
        its_state = store.objects[request.object_id][0]
        end = len(store.log)
        is_mine = store.writer == request.epoch
        if its_state == PENDING or (not self.rules.commit_needs_pending and its_state == GARBAGE):
            if self.rules.epoch_is_compared and not is_mine:
                return _discarded(store, request.object_id), FENCED
            if self.rules.end_is_compared and request.base != end:
                return _discarded(store, request.object_id), MISPLACED if is_mine else FENCED
            log = (*store.log, (request.record, request.object_id))
            objects = _changed(store.objects, request.object_id, LIVE if its_state == PENDING else its_state)
            return store._replace(log=log, objects=objects), ACCEPTED
        if is_mine:
            if end > request.base:
                return store, ACCEPTED
            return store, LOST if end == request.base else MISPLACED
        limit = min((start for epoch, start in store.epochs if epoch > request.epoch), default=end)
        if not self.rules.old_epochs_end_where_the_next_began:
            limit = end
        return store, ACCEPTED if request.base < limit else FENCED

    def _told(self, state: State, request: Request, outcome: str) -> State:
        """The answer reaches its leader, if that still waits for it."""
        store, leader = state[0], _leader(state, request.leader)
        is_waited_for = leader.epoch == request.epoch and leader.tail and leader.tail[0][2] == request.object_id
        if not is_waited_for:
            return state
        rest = leader.tail[1:]
        if outcome == ACCEPTED:
            return self._acknowledge(state, store, request.leader, request.record, request.base)
        if outcome != LOST:
            return _with(state, store, request.leader, Leader())
        if not self.rules.nobody_skips:
            moved = tuple((record, base - 1, object_id) for record, base, object_id in rest)
            return _with(state, store, request.leader, leader._replace(tail=moved, asked=False))
        if len(store.objects) == self.arena.objects:
            return state
        again = len(store.objects)
        store = store._replace(objects=(*store.objects, (PENDING, leader.epoch)))
        first = (request.record, request.base, again)
        return _with(state, store, request.leader, leader._replace(tail=(first, *rest), asked=False))

    def expire(self, state: State, number: int) -> State | None:
        """Its owner was fenced, or seemed to be."""
        return (_discarded(state[0], number), state[1], state[2])

    def level(self, state: State) -> State | None:
        store = state[0]
        return (_swept(store._replace(leveled=len(store.log))), state[1], state[2])

    def _check(self, before: Store, after: Store) -> None:
        if after.log[: len(before.log)] != before.log or after.start < before.start:
            raise Violation("went back", str(after))
        if after.start > len(after.log):
            raise Violation("start beyond the end", str(after))
        records = [record for record, _ in after.log]
        if len(set(records)) != len(records):
            raise Violation("doubled", str(records))
        if self.arena.one_producer and records != list(range(len(records))):
            raise Violation("reordered", str(records))
        for record, offset in after.acknowledged:
            if record not in records:
                raise Violation("acknowledged and lost", f"record {record} at {offset}: {after}")
            if records[offset : offset + 1] != [record]:
                raise Violation("wrong offset", f"record {record} was told {offset}: {after}")
        for offset in range(max(after.start, after.leveled), len(after.log)):
            if after.objects[after.log[offset][1]][0] != LIVE:
                raise Violation("object not live", f"at {offset}: {after}")


def _leader(state: State, index: int) -> Leader:
    return state[1] if index == 0 else state[2]


def _with(state: State, store: Store, index: int, leader: Leader) -> State:
    return (store, leader, state[2]) if index == 0 else (store, state[1], leader)


def _changed(objects: tuple[tuple[str, int], ...], number: int, to: str) -> tuple[tuple[str, int], ...]:
    return (*objects[:number], (to, objects[number][1]), *objects[number + 1 :])


def _discarded(store: Store, number: int) -> Store:
    if store.objects[number][0] != PENDING:
        return store
    return store._replace(objects=_changed(store.objects, number, GARBAGE))


def _swept(store: Store) -> Store:
    """Objects of extents that are gone are garbage."""
    for offset, (_, object_id) in enumerate(store.log):
        if offset < max(store.start, store.leveled):
            store = store._replace(objects=_changed(store.objects, object_id, GARBAGE))
    return store


TRAPS = {
    "end_is_compared": {"wrong offset", "reordered"},
    "commit_needs_pending": {"object not live"},
    "unknown_is_asked_again": {"acknowledged and lost"},
    "old_epochs_end_where_the_next_began": {"acknowledged and lost"},
    "nobody_skips": {"reordered"},
    "start_within_end": {"start beyond the end"},
}
"""By rule: what is found without it."""

HARMLESS = ("epoch_is_compared",)
"""Nothing is lost without it: it tells a leader to stop, and to tell its clients."""
