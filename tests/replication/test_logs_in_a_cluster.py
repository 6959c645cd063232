"""What a crash or a full disk does to one replica's log, and what the cluster makes of it."""

from __future__ import annotations

import errno

import pytest

from sexton.client.admin import Resource
from sexton.ports.metastore import NO_LEADER
from sexton.simulate.broken import breaking
from sexton.simulate.cluster import DATA
from sexton.simulate.disk import Trouble
from sexton.simulate.inode import Inode
from tests.log.helpers import NOW_MS, offsets, plain, read_all
from tests.simulated import TOPIC, Story

DIRECTORY = f"{DATA}/{TOPIC}-0"
UNFLUSHED = "flush.before.ack"


def isr_changes(story: Story) -> list[tuple[str, tuple[int, ...]]]:
    """Filled as the metastore carries them out: by which process, and who is in sync then."""
    changes: list[tuple[str, tuple[int, ...]]] = []
    story.agreement.on_change = lambda who, _, row: changes.append((who, row.isr))
    return changes


def active_segment(story: Story, broker_id: int) -> Inode:
    return [inode for name, inode in story.node(broker_id).volume.files(DIRECTORY) if name.endswith(".log")][-1]


async def lose_a_page_of_the_tail(story: Story, broker_id: int) -> None:
    """The broker has three batches that its device has not; the first of them is lost, and the process."""
    node, leader = story.node(broker_id), story.node(story.row().leader)
    assert leader.process is not None
    before = len(active_segment(story, broker_id).content)
    end_offset = story.replica(broker_id).log.end_offset
    node.volume.weather.slowness = 100_000

    async def append() -> None:
        for _ in range(3):
            story.replica(leader.broker_id).append(plain(b"v" * 5000), 1, NOW_MS)

    await story.loop.spawn(leader.process, append())
    await story.until(lambda: story.replica(broker_id).log.end_offset == end_offset + 3)
    assert story.replica(broker_id).log.flushed_offset == end_offset
    active_segment(story, broker_id).content[before + 100 : before + 4196] = bytes(4096)
    story.cluster.kill(node, power_lost=False)
    node.volume.weather.slowness = 1


async def a_follower_with_a_hole_comes_back(story: Story) -> None:
    await story.start()
    await story.create_topic([1, 2])
    await story.in_sync(1, 2)
    await story.write((b"k", b"one"), (b"k", b"two"))
    await lose_a_page_of_the_tail(story, 2)
    changes = isr_changes(story)
    await story.start(2)
    await story.in_sync(1, 2)
    assert any(who.startswith("broker-2") and isr == (1,) for who, isr in changes), "it left what to keep to the leader"
    assert offsets(read_all(story.replica(2).log)) == offsets(read_all(story.replica(1).log)) == [0, 1, 2, 3, 4]


def test_a_follower_whose_unflushed_tail_has_a_hole_is_cut_and_catches_up() -> None:
    story = Story(2)
    story.run(a_follower_with_a_hole_comes_back(story))


def test_with_the_defect_a_hole_in_the_unflushed_tail_keeps_a_replica_away() -> None:
    story = Story(2)
    with breaking("torn-tail-is-damage"), pytest.raises(TimeoutError):
        story.run(a_follower_with_a_hole_comes_back(story))


def test_the_only_replica_goes_on_after_a_power_cut_that_left_a_hole_in_what_was_never_acknowledged() -> None:
    story = Story(1)

    async def script() -> None:
        await story.start()
        await story.create_topic([1])
        await story.write((b"k", b"one"), (b"k", b"two"))
        await lose_a_page_of_the_tail(story, 1)
        await story.start(1)
        await story.led_by(1)
        assert offsets(read_all(story.replica(1).log)) == [0, 1]
        await story.write((b"k", b"three"))
        assert story.replica(1).high_watermark == 3

    story.run(script())


def test_a_replica_that_acknowledged_before_the_flush_leaves_the_isr_even_if_its_topic_has_changed_since() -> None:
    """Nobody may take it for complete because today's settings would have made it so."""
    story = Story(2)

    async def script() -> None:
        await story.start()
        await story.create_topic([1, 2], {UNFLUSHED: "false"})
        await story.in_sync(1, 2)
        await story.write((b"k", b"one"), (b"k", b"two"))
        story.cluster.kill(story.node(2), power_lost=True)
        await story.client_does(story.admin.change_settings(Resource.TOPIC, TOPIC, {UNFLUSHED: "true"}))
        changes = isr_changes(story)
        await story.start(2)
        assert any(who.startswith("broker-2") and isr == (1,) for who, isr in changes)
        await story.in_sync(1, 2)
        volumes = [story.node(broker_id).volume for broker_id in (1, 2)]
        await story.until(lambda: not any(volume.find(f"{DIRECTORY}/acknowledges-unflushed") for volume in volumes))

    story.run(script())


def test_a_topic_that_stops_flushing_first_counts_so_only_when_its_logs_say_it() -> None:
    story = Story(1)

    async def script() -> None:
        await story.start()
        await story.create_topic([1])
        await story.write((b"k", b"one"))
        volume, replica = story.node(1).volume, story.replica(1)
        volume.troubles = [Trouble(errno.ENOSPC, DIRECTORY, "acknowledges-unflushed")]
        await story.client_does(story.admin.change_settings(Resource.TOPIC, TOPIC, {UNFLUSHED: "false"}))
        await story.until(lambda: not replica.config.flush_before_ack)
        await story.write((b"k", b"two"))
        assert replica.durable_end == replica.log.flushed_offset == 2
        volume.troubles = []
        await story.write((b"k", b"three"))
        await story.until(lambda: volume.find(f"{DIRECTORY}/acknowledges-unflushed") is not None)

    story.run(script())


async def a_leader_is_forced_while_its_disk_is_full(story: Story) -> None:
    await story.start()
    await story.create_topic([1, 2], {"cleanup.policy": "compact"})
    await story.in_sync(1, 2)
    await story.write((b"k", b"one"))
    story.cluster.kill(story.node(2), power_lost=True)
    await story.in_sync(1)
    await story.write((b"k", b"two"))
    story.cluster.kill(story.node(1), power_lost=True)
    await story.start(2)
    await story.until(lambda: story.row().leader == NO_LEADER)
    volume = story.node(2).volume
    volume.troubles = [Trouble(errno.ENOSPC, DIRECTORY, "compaction-watermarks")]
    await story.client_does(story.admin.elect_leaders([(TOPIC, 0)], unclean=True))
    await story.until(lambda: story.replica(2).row.leader == 2)
    assert not story.replica(2).is_leader
    volume.troubles = []
    await story.led_by(2)
    await story.write((b"k", b"three"))
    assert story.replica(2).coordination.kept.value.generation == 1


def test_a_forced_leader_that_met_a_full_disk_leads_when_there_is_room_again() -> None:
    story = Story(2)
    story.run(a_leader_is_forced_while_its_disk_is_full(story))


def test_with_the_defect_a_forced_leader_that_met_a_full_disk_never_leads() -> None:
    story = Story(2)
    with breaking("epoch-before-generation"), pytest.raises(TimeoutError):
        story.run(a_leader_is_forced_while_its_disk_is_full(story))
