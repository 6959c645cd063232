"""One step of the model: which actions there are, what each leads to, and whether that may be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations

from tests.model.errors import Violation
from tests.model.insync.arenas import Arena
from tests.model.insync.cluster import Cluster
from tests.model.insync.rest import bring_to_rest
from tests.model.insync.rules import SEXTON, Rules
from tests.model.insync.state import (
    ACTIVE,
    BROKERS,
    LOST_LOG,
    Action,
    Broker,
    Lead,
    State,
    Store,
    World,
    canonical,
    show,
)


class Machine(Cluster):
    def __init__(self, arena: Arena, rules: Rules = SEXTON) -> None:
        super().__init__(arena, rules)
        self._methods: dict[str, Callable[..., bool]] = {}

    def start(self) -> State:
        """Three empty replicas in sync, the first of which leads."""
        store = Store()
        follower = Broker()
        state: State = (store, follower._replace(lead=Lead(store.row, store.processes, 0)), follower, follower)
        for action in self.arena.prefix:
            after = self.apply(state, action)
            assert after is not None, f"{action} of the prefix is not possible"
            state = after
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
        self._check(world)
        return after

    canonical = staticmethod(canonical)
    show = staticmethod(show)

    def bring_to_rest(self, state: State) -> State:
        return bring_to_rest(self, state)

    def _check(self, world: World) -> None:
        """Rule 1: whoever could be elected has everything that was acknowledged."""
        store = world.store
        truth = store.truth
        for index in store.row.isr:
            broker, process = world.brokers[index], store.processes[index]
            if broker.incarnation == LOST_LOG or broker.is_old or store.row.logs[index] < 0:
                continue  # when it starts it finds out, and leaves
            if self.arena.lazy_flush:
                if process.epoch != broker.process or process.status != ACTIVE:
                    continue
                held = broker.log
            else:
                held = broker.log[: broker.flushed]
            if held[: len(truth)] != truth:
                raise Violation("rule 1", f"broker {index}, in sync, lacks acknowledged records")

    # What there is to do

    def actions(self, state: State) -> Iterator[Action]:
        """All that might be possible; `apply` knows whether it is."""
        for action in self._all_actions(state):
            if action[0] not in self.arena.without:
                yield action

    def _all_actions(self, state: State) -> Iterator[Action]:
        arena, store = self.arena, state[0]
        for index, broker in enumerate(state[1:]):
            if broker.lead:
                yield from self._of_leader(index)
            yield from self._of_broker(index)
        for number, request in enumerate(store.requests):
            yield ("carry_out", number)
            yield ("fail", number)
            if request.waiting >= 0:
                yield ("carry_out_unheard", number)
                yield ("give_up", number)
                if arena.poisoned:
                    yield ("refuse", number)
        yield ("elect",)
        yield ("elect_preferred",)
        if arena.late_controller:
            yield ("elect_late",)
        for target in arena.targets:
            yield ("reassign", target)
        if store.row.adding or store.row.removing:
            yield ("progress",)
            yield ("cancel",)

    def _of_leader(self, index: int) -> Iterator[Action]:
        yield ("append", index)
        yield ("ask_again", index)
        others = [one for one in BROKERS if one != index]
        for count in (1, 2):
            for followers in combinations(others, count):
                yield ("join", index, *followers)
        for follower in others:
            yield ("leave", index, follower)
            yield ("fetch", follower, index, 0)
            if self.arena.partial_fetches:
                yield ("fetch", follower, index, 1)
            if self.arena.late_fetches:
                yield ("deliver_fetch", follower, index)
            if self.arena.wipes:
                yield ("order_wipe", index, follower)

    def _of_broker(self, index: int) -> Iterator[Action]:
        arena = self.arena
        yield ("poll", index)
        if arena.processes_max > 1:
            yield ("crash", index)
            yield ("register", index)
            yield ("reconcile", index)
            if arena.late_starts:
                yield ("ask_to_reconcile", index)
        yield ("fence", index)
        if arena.lazy_flush:
            yield ("flush", index)
        if arena.late_fetches:
            yield ("send_fetch", index)
        if arena.stops:
            yield ("stop", index, True)
            yield ("stop", index, False)
        if arena.lost_disks:
            yield ("lose_disk", index)
        if arena.images:
            yield ("take_image", index)
            yield ("restore_image", index)
