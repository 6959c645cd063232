"""Scenarios on systems that share their brokers: all at once, each with a topic of its own, in one outage for all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from sexton.errors import SextonError
from sexton.reproduce import verdict
from sexton.reproduce.pace import HURRIED, Pace
from sexton.reproduce.rendezvous import Rendezvous
from sexton.reproduce.scenarios import Scenario
from sexton.reproduce.script import Before, Event, Script, at_once
from sexton.reproduce.verdict import Judgement, Verdict
from sexton.reproduce.world import AWAY, World

Tell = Callable[[str, Scenario, Event], None]
"""Called with the system's name."""


@dataclass(frozen=True, slots=True)
class ScenarioRun:
    system: str
    scenario: Scenario
    judgement: Judgement
    expected: Verdict
    events: tuple[Event, ...] = ()
    failure: str = field(default="")

    @property
    def is_as_expected(self) -> bool:
        return self.judgement.verdict is self.expected


async def run(
    worlds: Mapping[str, World],
    is_safe: Callable[[str], bool],
    scenarios: Sequence[Scenario],
    tell: Tell,
    pace: Pace = HURRIED,
    before: Before = at_once,
) -> list[ScenarioRun]:
    """Worlds by their systems' names; they have the same brokers. A script that fails is told as such, and does not
    hold the others up. `is_safe` says of which systems nothing bad is expected."""
    start_s = asyncio.get_running_loop().time()
    topics = {topic_of(system, scenario): (system, scenario) for system in worlds for scenario in scenarios}
    any_world = next(iter(worlds.values()))
    kill = Rendezvous(topics, partial(any_world.kill, AWAY))
    bring_back = Rendezvous(topics, partial(any_world.bring_back, AWAY))

    def now_s() -> float:
        return asyncio.get_running_loop().time() - start_s

    async def one(topic: str, system: str, scenario: Scenario) -> ScenarioRun:
        told = partial(tell, system, scenario)
        script = Script(
            topic=topic,
            world=worlds[system],
            kill=kill,
            bring_back=bring_back,
            now_s=now_s,
            tell=told,
            pace=pace,
            before=before,
        )
        expected = Verdict.CLEAN if is_safe(system) else scenario.without_coordination
        outcome = partial(ScenarioRun, system, scenario, expected=expected)
        try:
            await scenario.script(script)
        except (SextonError, TimeoutError) as error:
            unknown = Judgement(Verdict.UNKNOWN, "", "", verdict.truth_told(script.truth))
            failure = str(error) or "a step took too long"
            return outcome(unknown, events=tuple(script.events), failure=failure)
        finally:
            kill.leave(topic)
            bring_back.leave(topic)
        return outcome(verdict.judge(script.sights, script.truth), events=tuple(script.events))

    return await asyncio.gather(*(one(topic, *place) for topic, place in topics.items()))


def topic_of(system: str, scenario: Scenario) -> str:
    return f"{system}.{scenario.name}"
