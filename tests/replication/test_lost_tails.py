"""Compacted topics that acknowledge before the flush, and other logs that lose their end: what watermarks speak of is
there, or they are about another log (docs/decisions, 16)."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

from sexton.broker.compaction.plans import NotDueError
from sexton.client.admin import Resource
from sexton.client.errors import ProduceUnknownError
from sexton.log.log import Log
from sexton.simulate.cluster import DATA
from sexton.simulate.copies import Copy
from sexton.simulate.inode import Inode
from sexton.simulate.truth import fold
from tests.simulated import TOPIC, Ledger, Story

UNFLUSHED = {"cleanup.policy": "compact", "flush.before.ack": "false", "min.insync.replicas": "1"}
OLD, NEW = (b"precious", b"old"), (b"precious", b"new")


class _LosesAll(random.Random):
    """Of what was not flushed, nothing is left."""

    def random(self) -> float:
        return 1.0

    def randrange(self, *arguments: int) -> int:  # type: ignore[override]
        return 0


def lose_power(story: Story, broker_id: int) -> None:
    node = story.node(broker_id)
    rng, node.volume.rng = node.volume.rng, _LosesAll()
    story.cluster.kill(node, power_lost=True)
    node.volume.rng = rng


def values(story: Story, broker_id: int) -> dict[bytes, bytes | None]:
    """What a consumer of that replica ends up with."""
    copy = Copy(story.node(broker_id).volume, f"{DATA}/{TOPIC}-0")
    copy.refresh()
    folded = fold(list(copy.batches_from(0)), story.replica(broker_id).high_watermark)
    return {key: newest.value for key, newest in folded.values.items()}


def fillers(count: int) -> list[tuple[bytes, bytes]]:
    return [(b"filler-%d" % number, b"") for number in range(count)]


async def flush(story: Story, broker_id: int) -> None:
    process = story.node(broker_id).process
    assert process is not None
    await story.loop.spawn(process, _flush(story.replica(broker_id).log))


async def _flush(log: Log) -> None:
    await log.flush()


async def equal(story: Story, *broker_ids: int) -> None:
    """Both in sync, at the same high watermark."""
    await story.in_sync(*broker_ids)
    leader = story.row().leader
    end = story.replica(leader).log.end_offset
    await story.until(lambda: all(story.replica(each).high_watermark == end for each in broker_ids))


async def write_to_restarted(story: Story, *records: tuple[bytes, bytes | None]) -> None:
    """The client's first attempt may go to a process that is gone."""
    for record in records:
        for _ in range(3):
            with suppress(ProduceUnknownError):
                await story.write(record)
                break


def test_a_replica_that_compacted_by_what_its_leader_has_lost_starts_anew() -> None:
    """Broker 1 removes a value because of a newer one that broker 2, which leads next, has lost."""
    story = Story(2, adopts=False)

    async def told() -> None:
        await story.start()
        await story.create_topic([1, 2], UNFLUSHED)
        await story.write(OLD, *fillers(3))
        await equal(story, 1, 2)
        await flush(story, 2)
        await story.write(NEW, *fillers(2))
        before = story.row().incarnations[1]
        lose_power(story, 2)
        await story.compact(1)
        lose_power(story, 1)
        await story.start(1)
        await story.in_sync(2)
        await story.start(2)
        assert story.replica(2).log.end_offset == 4, "it has lost what was not flushed"
        await write_to_restarted(story, *fillers(4))
        await equal(story, 1, 2)
        assert values(story, 1) == values(story, 2)
        assert values(story, 2)[b"precious"] == b"old"
        assert story.row().incarnations[1] != before

    story.run(told())


def test_a_new_replica_has_flushed_what_its_watermarks_speak_of_when_it_joins() -> None:
    """Else it would lead, after a loss of power, with records that it takes for compacted before they are written."""
    story = Story(2, adopts=False)

    async def told() -> None:
        await story.start()
        await story.create_topic([1], UNFLUSHED | {"delete.retention.ms": "0"})
        await story.write(*fillers(20), *fillers(20), OLD)
        bound = await story.compact(1)
        await story.until(lambda: story.replica(1).coordination.watermarks.removable.keys == bound)
        await story.client_does(story.admin.reassign({(TOPIC, 0): [1, 2]}))
        await story.in_sync(1, 2)
        lose_power(story, 1)
        await story.in_sync(2)
        lose_power(story, 2)
        await story.start(2)
        await story.led_by(2)
        await write_to_restarted(story, (b"zombie", b"value"), (b"zombie", None))
        story.replica(2).log.close_active(story.broker(2).clock.now_ms())
        await write_to_restarted(story, *fillers(50))
        for number in range(3):
            await write_to_restarted(story, (b"later", b"%d" % number))
            await story.compact(2)
        assert b"zombie" not in values(story, 2), "it is deleted"
        assert values(story, 2)[b"precious"] == b"old"
        assert story.replica(2).coordination.watermarks.compacted.keys > bound

    story.run(told())


def test_a_follower_has_flushed_what_it_is_told_of_before_it_counts() -> None:
    """A pass elsewhere is planned at a high watermark; whoever was told of it has all of that after a loss of power."""
    story = Story(2, adopts=False)

    async def told() -> None:
        await story.start()
        await story.create_topic([1, 2], UNFLUSHED)
        await story.write(OLD, *fillers(5), NEW)
        await equal(story, 1, 2)
        await story.compact(1)
        planned = story.replica(1).coordination.kept.value.planned_high_watermark
        assert planned == 7
        await story.until(lambda: story.replica(2).coordination.kept.value.planned_high_watermark == planned)
        lose_power(story, 1)
        lose_power(story, 2)
        await story.start(1)
        await story.start(2)
        await write_to_restarted(story, *fillers(8))
        await equal(story, 1, 2)
        assert values(story, 1) == values(story, 2)
        assert values(story, 2)[b"precious"] == b"new"
        assert story.row().generation == 0

    story.run(told())


def _cut_active(story: Story, broker_id: int) -> None:
    """As if the device had forgotten what it was told to keep: the segment that was written to is empty."""
    volume = story.node(broker_id).volume
    name, inode = max((name, inode) for name, inode in volume.files(f"{DATA}/{TOPIC}-0") if name.endswith(".log"))
    assert isinstance(inode, Inode)
    assert inode.content, name
    inode.truncate(0, volume.next_number())
    inode.flushed(volume.last_number)


async def plan_at_end(story: Story, broker_id: int) -> None:
    """Nothing is due, but the high watermark is kept as one that something may be compacted at."""
    replica, process = story.replica(broker_id), story.node(broker_id).process
    assert process is not None

    async def ask() -> None:
        try:
            await story.broker(broker_id).compaction.plans.plan(replica.topic_id, 0)
        except NotDueError:
            return

    await story.loop.spawn(process, ask())
    assert replica.coordination.kept.value.planned_high_watermark == replica.log.end_offset


def test_a_leader_that_ends_below_its_own_watermarks_begins_a_new_generation() -> None:
    story = Story(2, adopts=False)

    async def told() -> None:
        await story.start()
        await story.create_topic([1, 2], UNFLUSHED)
        await story.write(OLD, *fillers(3))
        await story.compact(1)
        await story.write(NEW, *fillers(2))
        await plan_at_end(story, 1)
        await flush(story, 1)
        story.cluster.kill(story.node(2), power_lost=False)
        await story.in_sync(1)
        before = story.row()
        lose_power(story, 1)
        _cut_active(story, 1)
        await story.start(1)
        await story.led_by(1)
        kept = story.replica(1).coordination.kept.value
        assert story.row().generation == kept.generation == 1
        assert kept.highest <= story.replica(1).log.epochs.entries[-1].start_offset == 4
        await story.start(2)
        assert story.row().incarnations[2] != before.incarnations[2]
        await equal(story, 1, 2)
        assert values(story, 1) == values(story, 2)

    story.run(told())


def test_one_that_ends_below_its_own_watermarks_leaves_the_lead_to_others_in_sync() -> None:
    """Here the topic flushes, so that it counts as in sync after a loss of power."""
    story = Story(2, adopts=False)

    async def told() -> None:
        await story.start()
        await story.create_topic([1, 2], UNFLUSHED | {"flush.before.ack": "true"})
        await story.write(OLD, *fillers(3))
        await story.compact(1)
        await story.write(NEW, *fillers(2))
        await plan_at_end(story, 1)
        await equal(story, 1, 2)
        before = story.row()
        lose_power(story, 1)
        lose_power(story, 2)
        _cut_active(story, 1)
        await story.start(1)
        await story.in_sync(2)
        await story.start(2)
        await equal(story, 1, 2)
        assert story.row().generation == 0
        assert story.row().incarnations[1] != before.incarnations[1]
        assert values(story, 1) == values(story, 2)
        assert values(story, 1)[b"precious"] == b"new", "broker 2 has all that was acknowledged"

    story.run(told())


def test_watermarks_do_not_outlive_an_unclean_election_while_the_topic_was_not_compacted() -> None:
    """Compacted, then not, and broker 2 leads with less than broker 1 was compacted by; then compacted again."""
    story = Story(2, adopts=False)

    async def change(**settings: str) -> None:
        changes = {name.replace("_", "."): value for name, value in settings.items()}
        await story.client_does(story.admin.change_settings(Resource.TOPIC, TOPIC, changes))

    async def told() -> None:
        await story.start()
        await story.create_topic([1, 2], UNFLUSHED | {"flush.before.ack": "true"})
        await story.write(OLD, *fillers(3))
        await equal(story, 1, 2)
        story.cluster.kill(story.node(2), power_lost=False)
        await story.in_sync(1)
        await story.write(NEW, *fillers(2))
        await story.compact(1)
        await change(cleanup_policy="delete", unclean_leader_election_enable="true")
        story.cluster.kill(story.node(1), power_lost=False)
        await story.start(2)
        await story.led_by(2)
        await change(cleanup_policy="compact")
        await story.write(*fillers(6))
        await story.start(1)
        await equal(story, 1, 2)
        assert values(story, 1) == values(story, 2)
        assert values(story, 1)[b"precious"] == b"old"

    story.run(told())


def test_what_is_cut_below_the_high_watermark_lowers_its_checkpoint_at_once() -> None:
    """Else records that nobody commits would lie below the one that the next process takes. Seed 455."""
    story = Story(2)
    ledger = Ledger(story)

    async def told() -> None:
        await story.start()
        await story.create_topic([1, 2], {"unclean.leader.election.enable": "true"})
        await story.in_sync(1, 2)
        await ledger.write(10)
        story.cluster.kill(story.node(2), power_lost=True)
        await ledger.write(10)
        await asyncio.sleep(6)  # longer than a checkpoint takes
        assert story.broker(1).replicas.folder.high_watermarks[TOPIC, 0] == 20
        story.cluster.kill(story.node(1), power_lost=True)
        await story.start(2)
        await story.led_by(2)
        story.cluster.start(story.node(1))
        await story.in_sync(1, 2)
        assert story.replica(1).high_watermark == 10
        assert story.broker(1).replicas.folder.high_watermarks[TOPIC, 0] == 10

    story.run(told())
