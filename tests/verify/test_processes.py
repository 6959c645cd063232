"""Faults of brokers' processes, over a cluster that only remembers what was done to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from sexton.harness.cluster import Cluster
from sexton.harness.errors import HarnessError
from sexton.verify.faults.base import NodeFault, Scene, Told, heal
from sexton.verify.faults.processes import Kill, Pause, RollingRestart, Stop
from sexton.verify.faults.schedule import Act, Target

FAULTS = {each.name: each for each in (Kill, Stop, Pause)}


Who = int | str


class Brokers:
    node_ids = (1, 2, 3)

    def __init__(self) -> None:
        self.running: set[Who] = {1, 2, 3}
        self.paused: set[Who] = set()
        self.can_stop = True

    def is_running(self, node_id: Who) -> bool:
        return node_id in self.running

    def is_serving(self, node_id: Who) -> bool:
        return node_id in self.running - self.paused

    def kill_node(self, node_id: Who) -> None:
        self.running.remove(node_id)
        self.paused.discard(node_id)

    def stop_node(self, node_id: Who) -> None:
        if not self.can_stop:
            raise HarnessError("it has not stopped")
        self.kill_node(node_id)

    def start_node(self, node_id: Who, wait: bool) -> None:
        assert node_id not in self.running
        self.running.add(node_id)

    def pause_node(self, node_id: Who) -> None:
        self.paused.add(node_id)

    def resume_node(self, node_id: Who) -> None:
        assert node_id in self.running
        self.paused.remove(node_id)


class LedBy(Scene):
    def __init__(self, brokers: Brokers, leader: int) -> None:
        super().__init__(cast(Cluster[Any], brokers))
        object.__setattr__(self, "_leader", leader)

    def leader_of(self, choice: int) -> int:
        return cast(int, self._leader)  # type: ignore[attr-defined]


def fault(name: str, brokers: Brokers, leader: int = -1) -> NodeFault:
    return FAULTS[name](LedBy(brokers, leader))


def act(name: str, target: Target, choice: int = 0) -> Act:
    return Act(0, name, True, target, choice)


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize(
    ("target", "count"), [(Target.ONE, 1), (Target.MINORITY, 1), (Target.MAJORITY, 2), (Target.ALL, 3)]
)
def test_a_fault_hits_as_many_as_it_says_and_they_come_back(name: str, target: Target, count: int) -> None:
    brokers = Brokers()
    one = fault(name, brokers)
    hit = one.begin(act(name, target)).hit
    assert len(hit) == count
    assert [node_id for node_id in brokers.node_ids if not brokers.is_serving(node_id)] == hit
    assert one.end().hit == hit
    assert all(map(brokers.is_serving, brokers.node_ids))
    assert one.end().hit == []


@pytest.mark.parametrize("choice", range(5))
def test_the_leader_is_hit_if_it_is_there_and_somebody_else_if_not(choice: int) -> None:
    brokers = Brokers()
    assert fault("pause", brokers, leader=2).begin(act("pause", Target.LEADER, choice)).hit == [2]
    (other,) = fault("kill", brokers, leader=2).begin(act("kill", Target.LEADER, choice)).hit
    assert other != 2


def test_who_was_killed_while_it_was_paused_is_brought_back_by_who_killed_it() -> None:
    brokers = Brokers()
    pause, kill = fault("pause", brokers), fault("kill", brokers)
    (paused,) = pause.begin(act("pause", Target.ONE)).hit
    brokers.kill_node(paused)
    assert pause.end().hit == [paused]
    assert not brokers.is_running(paused)
    assert kill.begin(act("kill", Target.ALL)).hit == [node_id for node_id in brokers.node_ids if node_id != paused]


def test_nobody_is_hit_where_nobody_serves() -> None:
    brokers = Brokers()
    fault("kill", brokers).begin(act("kill", Target.ALL))
    assert fault("pause", brokers).begin(act("pause", Target.ALL)).hit == []


def test_who_does_not_stop_is_killed() -> None:
    brokers = Brokers()
    brokers.can_stop = False
    (hit,) = fault("stop", brokers).begin(act("stop", Target.ONE)).hit
    assert not brokers.is_running(hit)


class Synced(LedBy):
    """Where brokers are in sync at once, or never."""

    def __init__(self, brokers: Brokers, never: Who = 0) -> None:
        super().__init__(brokers, -1)
        object.__setattr__(self, "_never", never)
        object.__setattr__(self, "seen", [])

    def wait_until(self, goal: str, reached: Callable[[], bool], timeout_s: float) -> None:
        brokers = cast(Any, self.cluster)
        assert brokers.running == {1, 2, 3}, "no second one is stopped while one is away"
        self.seen.append(goal)  # type: ignore[attr-defined]
        if f"broker {self._never} " in goal:  # type: ignore[attr-defined]
            raise HarnessError("not in time")


def test_a_rolling_restart_goes_on_when_the_one_before_is_back_and_leaves_nobody_away() -> None:
    scene = Synced(Brokers())
    assert RollingRestart(scene).begin(act("rolling-restart", Target.ALL)).hit == [1, 2, 3]
    assert scene.seen == [f"broker {node_id} is in sync" for node_id in (1, 2, 3)]  # type: ignore[attr-defined]


def test_a_rolling_restart_stops_at_who_does_not_come_back() -> None:
    told = RollingRestart(Synced(Brokers(), never=2)).begin(act("rolling-restart", Target.ALL))
    assert told == Told([1, 2], {"stopped-at": 2})


def test_a_rolling_restart_ends_when_all_is_to_be_healed() -> None:
    scene = Synced(Brokers())
    scene.is_over.set()
    assert RollingRestart(scene).begin(act("rolling-restart", Target.ALL)) == Told([])


class Unhealable(Kill):
    """Breaks in the process that heals, for whatever reason."""

    def heal(self) -> None:
        raise OSError("the disk is full")


def test_a_fault_that_cannot_be_healed_keeps_no_other_from_it() -> None:
    brokers = Brokers()
    scene = LedBy(brokers, -1)
    killed = Kill(scene)
    killed.begin(act("kill", Target.ONE))
    with pytest.raises(HarnessError, match="not healed: kill: the disk is full"):
        heal([Unhealable(scene), killed])
    assert brokers.running == {1, 2, 3}
