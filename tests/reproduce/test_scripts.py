"""Scenarios, words and judgement, on a world in memory: under virtual time, so that waiting costs nothing."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from sexton.reproduce.pace import HURRIED, BadPaceError, Pace
from sexton.reproduce.rendezvous import Rendezvous
from sexton.reproduce.run import ScenarioRun, run
from sexton.reproduce.scenarios import SCENARIOS, Scenario
from sexton.reproduce.script import Before, Kind, at_once
from sexton.reproduce.steps import LOOK_AT, Place, commands
from sexton.reproduce.truth import Truth
from sexton.reproduce.verdict import Verdict, judge
from sexton.reproduce.world import Sight
from sexton.simulate.loop import new_loop
from tests.reproduce.fake import FakeWorld


def outcomes_of(
    world: FakeWorld,
    *,
    is_safe: bool = True,
    scenarios: Sequence[Scenario] = tuple(SCENARIOS.values()),
    pace: Pace = HURRIED,
    before: Before = at_once,
) -> dict[str, ScenarioRun]:
    loop = new_loop(random.Random(1))
    try:
        running = run({"fake": world}, lambda system: is_safe, scenarios, lambda *told: None, pace, before)
        found = loop.run_until_complete(running)
    finally:
        loop.close()
    return {each.scenario.name: each for each in found}


CORRUPTED = [name for name, scenario in SCENARIOS.items() if scenario.without_coordination is Verdict.CORRUPT]


@pytest.mark.parametrize("name", CORRUPTED)
def test_a_scenario_is_corrupt_where_compaction_does_not_wait_for_the_broker_that_is_away(name: str) -> None:
    outcome = outcomes_of(FakeWorld(forgets=True), is_safe=False)[name]
    assert outcome.judgement.verdict is Verdict.CORRUPT
    assert outcome.is_as_expected
    assert Kind.COMPACTED in [event.kind for event in outcome.events]


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_same_scenario_is_clean_where_compaction_waits(name: str) -> None:
    outcome = outcomes_of(FakeWorld(forgets=False))[name]
    assert (outcome.judgement.verdict, outcome.judgement.wrong) == (Verdict.CLEAN, ())
    assert outcome.judgement.read == outcome.judgement.others_read
    assert Kind.KEPT in [event.kind for event in outcome.events]


def test_a_committed_value_is_not_hidden_for_its_marker_stays_with_it() -> None:
    outcome = outcomes_of(FakeWorld(forgets=True), is_safe=False)["committed-value"]
    assert (outcome.judgement.verdict, outcome.judgement.read) == (Verdict.CLEAN, "user=alice")
    assert outcome.is_as_expected
    assert any("COMMIT marker" in event.text for event in outcome.events if event.kind is Kind.KEPT)
    forgetful = outcomes_of(FakeWorld(forgets=True, forgets_markers_of_what_is_left=True), is_safe=False)
    assert forgetful["committed-value"].judgement.wrong[0] == "user=alice, which is committed, was not read"


def test_whoever_goes_step_by_step_is_told_of_every_act_before_it_happens() -> None:
    world, told = FakeWorld(forgets=True), []

    async def before(kind: Kind, what: str) -> None:
        told.append((kind, what, world.kills_count))

    scenario = SCENARIOS["aborted-to-committed"]
    outcome = outcomes_of(world, is_safe=False, scenarios=[scenario], before=before)[scenario.name]
    assert [kind for kind, _, _ in told] == [event.kind for event in outcome.events]
    assert [kills for kind, _, kills in told if kind is Kind.KILL] == [0]
    place = Place("h:1", {1: "/data/1", 3: "/data/3"})
    for kind, what, _ in told:
        assert what
        assert kind is Kind.START or LOOK_AT[kind]
        assert all(command.startswith("sexton ") for command in commands(kind, "t", place))
    assert "sexton log dump /data/3" in commands(Kind.KILL, "t", place)


def test_a_slow_pace_waits_for_as_long_as_things_are_remembered() -> None:
    """Where they are kept though they could go: for longer than it takes until they could."""
    took_s = []
    for pace in (HURRIED, Pace.of("2m")):
        scenario = SCENARIOS["tombstone"]
        outcome = outcomes_of(FakeWorld(forgets=False), scenarios=[scenario], pace=pace)[scenario.name]
        (kept,) = (event.at_s for event in outcome.events if event.kind is Kind.KEPT)
        took_s.append(kept)
    assert took_s[0] < 60
    assert took_s[1] > 2 * 80


@pytest.mark.parametrize(
    ("text", "retention_ms"), [("90s", 30_000), ("10m", 200_000), ("3h", 3_600_000), ("2d", 57_600_000)]
)
def test_a_pace_is_a_time_in_thirds(text: str, retention_ms: int) -> None:
    assert Pace.of(text) == Pace(retention_ms, retention_ms)


@pytest.mark.parametrize("text", ["", "10", "0m", "-1m", "1w", "1.5h"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(BadPaceError):
        Pace.of(text)


def test_a_second_reader_that_reads_otherwise_is_told() -> None:
    truth = Truth()
    truth.write("k", "v", 0)
    agreeing = Sight(3, {"k": "v"}, 1, 1, second_fold={"k": "v"})
    assert judge([agreeing], truth).verdict is Verdict.CLEAN
    judgement = judge([replace(agreeing, second_fold={})], truth)
    assert judgement.verdict is Verdict.CORRUPT
    assert judgement.wrong == ("librdkafka read nothing, and nothing newer instead",)


def test_what_is_wrong_is_said_in_words() -> None:
    found = outcomes_of(FakeWorld(forgets=True), is_safe=False)
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
    assert [outcome.judgement.verdict for outcome in others] == [Verdict.CLEAN] * 4


def test_a_clean_result_is_not_as_expected_where_corruption_was_expected() -> None:
    found = outcomes_of(FakeWorld(forgets=False), is_safe=False)
    assert [name for name, outcome in found.items() if outcome.is_as_expected] == ["committed-value"]


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
