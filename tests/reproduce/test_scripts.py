"""Scenarios, words and judgement, on a world in memory: under virtual time, so that waiting costs nothing."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from sexton.reproduce.rendezvous import Rendezvous
from sexton.reproduce.run import Outcome, run
from sexton.reproduce.scenarios import SCENARIOS, Scenario
from sexton.reproduce.script import Kind
from sexton.reproduce.verdict import Verdict
from sexton.simulate.loop import new_loop
from tests.reproduce.fake import FakeWorld


def outcomes_of(
    world: FakeWorld, expected: Verdict = Verdict.CLEAN, scenarios: Sequence[Scenario] = tuple(SCENARIOS.values())
) -> dict[str, Outcome]:
    loop = new_loop(random.Random(1))
    try:
        found = loop.run_until_complete(run({"fake": world}, {"fake": expected}, scenarios, lambda *told: None))
    finally:
        loop.close()
    return {each.scenario.name: each for each in found}


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_is_corrupt_where_compaction_does_not_wait_for_the_broker_that_is_away(name: str) -> None:
    outcome = outcomes_of(FakeWorld(forgets=True), Verdict.CORRUPT)[name]
    assert outcome.judgement.verdict is Verdict.CORRUPT
    assert outcome.is_as_expected
    assert Kind.COMPACTED in [event.kind for event in outcome.events]


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_same_scenario_is_clean_where_compaction_waits(name: str) -> None:
    outcome = outcomes_of(FakeWorld(forgets=False))[name]
    assert (outcome.judgement.verdict, outcome.judgement.wrong) == (Verdict.CLEAN, ())
    assert outcome.judgement.read == outcome.judgement.others_read
    assert Kind.KEPT in [event.kind for event in outcome.events]


def test_what_is_wrong_is_said_in_words() -> None:
    found = outcomes_of(FakeWorld(forgets=True), Verdict.CORRUPT)
    wrong = {name: outcome.judgement.wrong for name, outcome in found.items()}
    assert wrong["tombstone"] == ("user=alice was read, but user was deleted",)
    assert wrong["aborted-to-committed"] == (
        "poison=bad was read, but poison was only written in an aborted transaction",
    )
    read, claim = wrong["committed-to-aborted"]
    assert read == "user=alice was read, but user was deleted"
    assert claim.startswith("the committed transaction at offset")
    assert claim.endswith("is listed as aborted")
    assert wrong["stuck-partition"][0] == "price=11, which is committed, was not read"
    assert wrong["stuck-partition"][1] == "the record written just before was not read"
    assert wrong["stuck-partition"][2].endswith("is held to be open")


def test_scripts_share_one_outage() -> None:
    world = FakeWorld(forgets=False)
    outcomes_of(world)
    assert world.kills_count == 1
    assert not world.is_away


def test_a_script_that_fails_is_no_result_and_does_not_hold_the_others_up() -> None:
    found = outcomes_of(FakeWorld(forgets=False, fails_at="fake.tombstone"))
    assert found["tombstone"].judgement.verdict is Verdict.UNKNOWN
    assert not found["tombstone"].is_as_expected
    assert found["tombstone"].failure
    others = [outcome for name, outcome in found.items() if name != "tombstone"]
    assert [outcome.judgement.verdict for outcome in others] == [Verdict.CLEAN] * 3


def test_a_clean_result_is_not_as_expected_where_corruption_was_expected() -> None:
    found = outcomes_of(FakeWorld(forgets=False), Verdict.CORRUPT)
    assert not any(outcome.is_as_expected for outcome in found.values())


def test_a_deed_waits_for_all_who_come_and_for_nobody_who_leaves() -> None:
    done: list[str] = []

    async def deed() -> None:
        done.append("deed")

    async def main() -> None:
        meeting = Rendezvous(["a", "b", "c"], deed)
        meeting.leave("b")
        arrival = loop.create_task(meeting.arrive("a"))
        assert not arrival.done()
        assert done == []
        meeting.leave("c")
        meeting.leave("c")
        await arrival
        meeting.leave("a")

    loop = new_loop(random.Random(1))
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()
    assert done == ["deed"]
