"""One step of the model: which actions there are, what each leads to, and whether that may be."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.model.arenas import Arena
from tests.model.checks import check_crash, check_definitions, check_state, check_step
from tests.model.consumers import Consumers
from tests.model.deferral import NONE
from tests.model.rest import bring_to_rest
from tests.model.state import Action, Broker, Shared, State, World, canonical, show
from tests.model.switches import SEXTON, Rules

OPTIONAL = frozenset({"sync_all", "compact_all", "resolve"})
"""What may change nothing in a prefix."""


class Machine(Consumers):
    def __init__(self, arena: Arena, rules: Rules = SEXTON, definitions: bool | None = None) -> None:
        """`definitions`: whether a false MCCO, or a value that goes back, counts; by default, with all rules on.
        Without, only what a consumer can see counts."""
        super().__init__(arena, rules)
        self._definitions = rules == SEXTON if definitions is None else definitions
        self._methods: dict[str, Callable[..., bool]] = {}

    def start(self) -> State:
        """Three empty replicas, the first of which leads."""
        follower = Broker()
        leader = follower._replace(leads=True, history=((0, 0),))
        state: State = Shared(independent=self.arena.starts_independent), leader, follower, follower
        for action in self.arena.prefix:
            after = self.apply(state, action)
            assert after is not None or action[0] in OPTIONAL, f"{action} of the prefix is not possible"
            state = after or state
        return state

    def apply(self, state: State, action: Action) -> State | None:
        """None if the action is not possible or changes nothing. Raises a Violation if it must not have been."""
        world = World(state)
        method = self._methods.get(action[0])
        if method is None:
            method = self._methods[action[0]] = getattr(self, action[0])
        if not method(world, *action[1:]):
            return None
        after = world.frozen()
        if after == state:
            return None
        check_state(after, self.rules)
        if self.arena.snapshots and action[0] == "crash":
            check_crash(state[action[1] + 1], after[action[1] + 1])  # type: ignore[arg-type]
        if self._definitions:
            check_definitions(after, self.arena.defers)
            check_step(state, after, action[0])
        return after

    canonical = staticmethod(canonical)
    show = staticmethod(show)

    def bring_to_rest(self, state: State) -> State:
        return bring_to_rest(self, state)

    # Many steps in one

    def sync(self, world: World, index: int) -> bool:
        """A follower and its leader say everything there is to say: copies, acknowledgements, reports, tellings."""
        before = world.frozen()
        for step in (("fetch", index, 0), ("fetch", index, 0), ("fetch", index, 0), ("join", index), ("report", index)):
            self._sub_step(world, step)
        self._sub_step(world, ("tell", index))
        return world.frozen() != before

    def sync_all(self, world: World) -> bool:
        for index in (0, 1, 2, 0, 1, 2):
            self.sync(world, index)
        return True

    def compact_all(self, world: World, deferred: int = NONE) -> bool:
        for index, broker in enumerate(world.brokers):
            for bound in self.bounds(broker)[-1:]:
                self._sub_step(world, ("compact", index, bound, deferred))
        return True

    def _sub_step(self, world: World, action: Action) -> None:
        after = self.apply(world.frozen(), action)
        if after is not None:
            world.shared, world.brokers = after[0], list(after[1:])

    def actions(self, state: State) -> Iterator[Action]:
        """All that might be possible; `apply` knows whether it is."""
        for action in self._all_actions(state):
            if action[0] not in self.arena.without:
                yield action

    def _all_actions(self, state: State) -> Iterator[Action]:
        arena, shared = self.arena, state[0]
        if shared.written < len(arena.script):
            for write in arena.script[shared.written]:
                yield ("append", *write)
        for index, broker in enumerate(state[1:]):
            if not broker.member:
                yield ("add", index)
            else:
                yield from self._of_replica(index, broker, shared)
        yield ("coordinate",)
        yield ("wait",)
        if arena.late_messages:
            yield ("delay_telling",)
        if shared.independent:
            yield ("leave_independent",)

    def _of_replica(self, index: int, broker: Broker, shared: Shared) -> Iterator[Action]:
        arena = self.arena
        if broker.leads:
            if arena.lazy_flush:
                yield ("flush", index)
            if arena.retention:
                for offset in range(broker.log.start + 1, broker.high_watermark + 1):
                    yield ("move_start", offset)
        else:
            if arena.coarse:
                yield ("sync", index)
            else:
                yield ("fetch", index, 0)
                yield ("report", index)
                yield ("tell", index)
            if arena.partial_fetches:
                yield ("fetch", index, 1)
            if broker.in_sync:
                yield ("shrink", index)
            elif not arena.coarse:
                yield ("join", index)
            if broker.in_sync:
                yield ("elect", index)
            elif arena.generations_max:
                yield ("force", index)
        if arena.membership and not broker.leads:
            yield ("remove", index)
        if arena.crashes:
            yield ("crash", index)
        if arena.lost_disks:
            yield ("lose_disk", index)
        if arena.images:
            yield ("take_image", index)
            yield ("restore_image", index)
        if arena.late_messages:
            yield ("delay_report", index)
            yield ("deliver_report", index)
            yield ("deliver_telling", index)
        yield from self._of_compaction(index, broker, shared)
        yield from self._of_consumers(index)

    def _of_compaction(self, index: int, broker: Broker, shared: Shared) -> Iterator[Action]:
        arena = self.arena
        bounds = self.bounds(broker)
        for bound in bounds if arena.every_bound else bounds[-1:]:
            for deferred in self.choices(broker, bound):
                yield ("compact", index, bound, deferred)
                if arena.plans:
                    yield ("plan", index, bound, deferred)
                if arena.swap_crashes:
                    yield ("compact_and_crash", index, bound, deferred)
        if arena.plans:
            yield ("commit", index)
        if arena.snapshots:
            yield ("snapshot", index)
        if not self.rules.strong_mxfo:
            yield ("resolve", index)
        if arena.adopts:
            yield ("offer", index)
        for number, offer in enumerate(shared.offers):
            yield ("adopt", index, number, 0)
            if arena.swap_crashes:
                for cut in range(1, offer.bound + 1):
                    yield ("adopt_and_crash", index, number, cut)
            yield ("rebuild", index, number)
            if not self.rules.adopt_whole:
                for bound in range(1, offer.bound):
                    yield ("adopt", index, number, bound)

    def _of_consumers(self, index: int) -> Iterator[Action]:
        if self.arena.consumer:
            yield ("consume", index, 0)
            yield ("consume", index, 1)
        if not self.rules.one_snapshot_per_fetch:
            yield ("begin_fetch", index)
            yield ("end_fetch", index)
