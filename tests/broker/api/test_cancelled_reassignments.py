"""A reassignment that is cancelled goes back to the replicas from before, unless that would lose records unasked."""

from __future__ import annotations

import pytest

from sexton.client.errors import RefusedError
from sexton.ports.metastore import PartitionRow
from sexton.protocol.errors import ErrorCode
from sexton.simulate.broken import breaking
from tests.simulated import TOPIC, Story

OLD, NEW, AWAY = 1, 2, 3


def cancelled(cleanup_policy: str, *, is_old_one_back: bool) -> tuple[ErrorCode | None, PartitionRow, PartitionRow]:
    """A partition moves from one broker to two others, one of which is away; the first new replica is in sync when the
    old one goes down, and more is written. Returns what cancelling the move says, and the row before and after."""
    story = Story(3)
    outcome: list[tuple[ErrorCode | None, PartitionRow, PartitionRow]] = []

    async def told() -> None:
        await story.start()
        await story.create_topic([OLD], {"cleanup.policy": cleanup_policy, "unclean.leader.election.enable": "true"})
        await story.write((b"k", b"1"))
        story.cluster.kill(story.node(AWAY), power_lost=False)
        await story.client_does(story.admin.reassign({(TOPIC, 0): [NEW, AWAY]}))
        await story.in_sync(OLD, NEW)
        story.cluster.kill(story.node(OLD), power_lost=False)
        await story.led_by(NEW)
        await story.in_sync(NEW)
        await story.write((b"k", b"2"))
        if is_old_one_back:
            story.fabric.cut("broker-2", "broker-1")  # it runs, and cannot catch up
            story.fabric.cut("broker-1", "broker-2")
            await story.start(OLD)
        before = story.row()
        try:
            await story.client_does(story.admin.reassign({(TOPIC, 0): None}))
            outcome.append((None, before, story.row()))
        except RefusedError as error:
            outcome.append((error.code, before, story.row()))

    story.run(told())
    return outcome[0]


@pytest.mark.parametrize("is_old_one_back", [False, True])
def test_a_compacted_topic_is_never_led_by_a_replica_that_lacks_records_because_a_move_is_cancelled(
    is_old_one_back: bool,
) -> None:
    """What was removed by its watermarks was removed because of those records (docs/rules.md, traps)."""
    code, before, after = cancelled("compact", is_old_one_back=is_old_one_back)
    assert code is ErrorCode.invalid_replica_assignment
    assert after == before


@pytest.mark.parametrize("is_old_one_back", [False, True])
def test_another_topic_goes_back_as_little_while_its_leader_runs_though_it_allows_unclean_elections(
    is_old_one_back: bool,
) -> None:
    """That setting is for partitions without a leader. One that runs acknowledges until it hears of another."""
    code, before, after = cancelled("delete", is_old_one_back=is_old_one_back)
    assert code is ErrorCode.invalid_replica_assignment
    assert after == before


def test_with_the_defect_put_back_a_compacted_topic_is_led_by_one_that_lacks_records_in_the_same_generation() -> None:
    with breaking("cancel-elects-uncleanly"):
        code, before, after = cancelled("compact", is_old_one_back=True)
    assert (code, after.isr, after.generation) == (None, (OLD,), before.generation)
