"""Scenarios on a system: all at once, each with a topic of its own, in one outage that they share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from sexton.errors import SextonError
from sexton.reproduce import verdict
from sexton.reproduce.rendezvous import Rendezvous
from sexton.reproduce.scenarios import Scenario
from sexton.reproduce.script import Event, Script
from sexton.reproduce.verdict import Judgement, Verdict
from sexton.reproduce.world import AWAY, World

Tell = Callable[[Scenario, Event], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    system: str
    scenario: Scenario
    judgement: Judgement
    expected: Verdict
    events: tuple[Event, ...] = ()
    failure: str = field(default="")

    @property
    def is_as_expected(self) -> bool:
        return self.judgement.verdict is self.expected


async def run(system: str, expected: Verdict, scenarios: Sequence[Scenario], world: World, tell: Tell) -> list[Outcome]:
    """A script that fails is told as such, and does not hold the others up."""
    start_s = asyncio.get_running_loop().time()
    names = [scenario.name for scenario in scenarios]
    kill = Rendezvous(names, partial(world.kill, AWAY))
    bring_back = Rendezvous(names, partial(world.bring_back, AWAY))

    def now_s() -> float:
        return asyncio.get_running_loop().time() - start_s

    async def one(scenario: Scenario) -> Outcome:
        script = Script(scenario.name, world, kill, bring_back, now_s, partial(tell, scenario))
        try:
            await scenario.script(script)
        except (SextonError, TimeoutError) as error:
            kill.leave(scenario.name)
            bring_back.leave(scenario.name)
            failure = str(error) or "a step took too long"
            unknown = Judgement(Verdict.UNKNOWN, "", "", verdict.truth_told(script.truth))
            return Outcome(system, scenario, unknown, expected, tuple(script.events), failure)
        return Outcome(system, scenario, verdict.judge(script.sights, script.truth), expected, tuple(script.events))

    return await asyncio.gather(*(one(each) for each in scenarios))
