"""What a crash or a full disk does to one replica's log, and what the cluster makes of it."""

from __future__ import annotations

import asyncio
import errno
from contextlib import suppress

import pytest

from sexton.broker.topics import NewTopic, create_topic
from sexton.client.admin import Resource
from sexton.compaction.watermarks.checkpoint import WATERMARKS_FILE, decode
from sexton.protocol.errors import KafkaError
from sexton.simulate.broken import breaking
from sexton.simulate.cluster import DATA
from sexton.simulate.disk import Trouble
from sexton.simulate.inode import Inode
from sexton.simulate.metastore import HOST as METASTORE
from sexton.types import NO_LEADER
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


async def with_closed_segments(story: Story, value: bytes) -> None:
    await story.start()
    await story.create_topic([1, 2], {"segment.bytes": "2000000"})
    await story.in_sync(1, 2)
    for _ in range(3):
        await story.write(*[(b"k", value)] * 3)
        for broker_id in (1, 2):
            story.replica(broker_id).log.close_active(NOW_MS)
    await story.write((b"k", value))


async def a_third_replica_is_added(story: Story) -> None:
    await story.client_does(story.admin.reassign({(TOPIC, 0): [1, 2, 3]}))
    await story.in_sync(1, 2, 3, seconds=120)


@pytest.mark.parametrize("value", [b"v" * 300, b"v" * 40_000])
@pytest.mark.parametrize("at_byte", [10, 200])
def test_a_leader_whose_log_has_rotted_is_rebuilt_from_another_and_nobody_copies_the_damage(
    value: bytes, at_byte: int
) -> None:
    """In a header or in a record; read through Python and checked here, or sent unseen and refused there."""
    story = Story(3)

    async def script() -> None:
        await with_closed_segments(story, value)
        whole = story.replica(2).log
        damaged = story.row().incarnations[1]
        (_, inode), *_ = [file for file in story.node(1).volume.files(DIRECTORY) if file[0].endswith(".log")]
        second = whole.segments.all[0].position_of(1)
        inode.content[second + at_byte] ^= 4
        await a_third_replica_is_added(story)
        assert story.row().incarnations[1] != damaged
        logs = [read_all(story.replica(broker_id).log) for broker_id in (1, 2, 3)]
        assert [offsets(log) for log in logs] == [list(range(10))] * 3
        assert logs[0] == logs[1] == logs[2]

    story.run(script())


def test_a_log_that_has_rotted_and_is_the_only_one_goes_on_with_what_is_whole() -> None:
    story = Story(1)

    async def script() -> None:
        await story.start()
        await story.create_topic([1])
        await story.write((b"k", b"one"), (b"k", b"two"))
        log = story.replica(1).log
        log.close_active(NOW_MS)
        await story.write((b"k", b"three"))
        (_, inode), *_ = [file for file in story.node(1).volume.files(DIRECTORY) if file[0].endswith(".log")]
        inode.content[log.segments.all[0].position_of(1) + 70] ^= 4
        with pytest.raises(KafkaError, match="CRC"):
            log.read(1, 100, 3, min_one=True)
        await story.write((b"k", b"four"))
        assert story.replica(1).log is log
        assert offsets(read_all(log, from_offset=2)) == [2, 3]

    story.run(script())


@pytest.mark.parametrize("value_bytes", [300, 40_000], ids=["read", "sent as a slice of its file"])
def test_a_leader_that_cannot_read_its_log_leaves_it_to_another(value_bytes: int) -> None:
    story = Story(3)

    async def script() -> None:
        await with_closed_segments(story, b"v" * value_bytes)
        story.replica(1).log.segments.keep_open(story.replica(1).log.segments.all[0])
        story.node(1).volume.troubles = [Trouble(errno.EIO, DIRECTORY, "00000000.log")]
        await story.client_does(story.admin.reassign({(TOPIC, 0): [1, 2, 3]}))
        await story.led_by(2)
        await story.until(lambda: 3 in story.row().isr)
        assert offsets(read_all(story.replica(3).log)) == list(range(10))

    story.run(script())


def test_a_broker_starts_although_one_directory_cannot_be_read_and_takes_it_up_when_it_can() -> None:
    story = Story(2)

    async def script() -> None:
        await story.start()
        await story.create_topic([2, 1])
        await story.in_sync(1, 2)
        await story.write((b"k", b"one"))
        incarnation = story.row().incarnations[2]
        story.cluster.kill(story.node(2), power_lost=True)
        story.node(2).volume.troubles = [Trouble(errno.EIO, DIRECTORY)]
        await story.start(2)
        await story.in_sync(1)
        await story.led_by(1)
        story.node(2).volume.troubles = []
        await story.in_sync(1, 2)
        assert story.row().incarnations[2] == incarnation, "what could not be read was not taken for lost"
        assert offsets(read_all(story.replica(2).log)) == [0]

    story.run(script())


async def a_topic_is_made_again_while_the_old_one_is_flushed(story: Story) -> None:
    """Its broker hears of both at once, when a flush of the old log waits behind its deletion."""
    settings = {"segment.bytes": "2000000"}
    await story.start()
    await story.create_topic([2], settings)
    await story.write((b"k", b"one"))
    node, replica, old_id = story.node(2), story.replica(2), story.row().topic_id
    assert node.process is not None
    log, process = replica.log, node.process

    async def flush_behind_the_deletion() -> None:
        async with log.locks.flushing:
            for _ in range(2):
                log.append_as_leader(plain(b"v" * 500), replica.leader_epoch, NOW_MS)
                log.close_active(NOW_MS)
            await story.until(log.locks.shape.locked)  # the deletion has come, and waits for us
            story.loop.spawn(process, take_long())
            await asyncio.sleep(0)
            story.loop.spawn(process, flush())
            await asyncio.sleep(0.01)

    async def take_long() -> None:
        async with log.locks.flushing:
            await asyncio.sleep(2)

    async def flush() -> None:
        with suppress(KafkaError):
            await log.flush()

    async def make_it_again() -> None:
        await other.metastore.delete_topic(old_id)
        await other.catch_up()
        await create_topic(other, NewTopic(TOPIC, assignments={0: [2]}, settings=settings))

    def leads_the_new_one() -> bool:
        return any(replica.is_leader and replica.topic_id != old_id for replica in story.broker(2).replicas.all())

    other, others_process = story.broker(1), story.node(1).process
    assert others_process is not None
    flushing = story.loop.spawn(process, flush_behind_the_deletion())
    story.fabric.cut("broker-2", METASTORE)
    await story.loop.spawn(others_process, make_it_again())
    story.fabric.heal("broker-2", METASTORE)
    await flushing
    assert story.row().topic_id != old_id
    await story.until(leads_the_new_one)
    await asyncio.sleep(3)
    await story.write((b"k", b"two"))
    story.cluster.kill(node, power_lost=True)
    await story.start(2)
    await story.until(leads_the_new_one)
    assert offsets(read_all(story.replica(2).log)) == [0]


def test_a_topic_that_was_made_again_is_whole_whatever_waited_for_the_old_one() -> None:
    story = Story(2)
    story.run(a_topic_is_made_again_while_the_old_one_is_flushed(story))


def test_with_the_defect_what_waited_for_the_old_topic_breaks_the_new_one() -> None:
    story = Story(2)
    with breaking("deleted-log-goes-on"), pytest.raises(TimeoutError):
        story.run(a_topic_is_made_again_while_the_old_one_is_flushed(story))


async def a_replica_is_made_again_while_its_watermarks_are_kept(story: Story) -> None:
    """What was to be kept of the old log waits, until the new one is there or the deletion has waited long enough."""
    await story.start()
    await story.create_topic([1, 2])
    await story.in_sync(1, 2)
    node, old_id, coordination = story.node(2), story.row().incarnations[2], story.replica(2).coordination
    assert node.process is not None

    def is_made_again() -> bool:
        replicas = story.broker(2).replicas.all()
        return any(one.topic == TOPIC and one.coordination.kept.value.incarnation != old_id for one in replicas)

    async def keep_slowly() -> None:
        async with coordination.kept._one_at_a_time:
            keeping = asyncio.ensure_future(coordination.plan(1))
            with suppress(TimeoutError):
                await story.until(is_made_again, seconds=3)
        await keeping

    await story.write((b"k", b"one"))
    keeping = story.loop.spawn(node.process, keep_slowly())
    for replicas in ([1], [1, 2]):
        await story.client_does(story.admin.reassign({(TOPIC, 0): replicas}))
    await keeping
    await story.in_sync(1, 2)
    assert story.row().incarnations[2] != old_id


def test_what_was_to_be_kept_of_a_deleted_log_is_not_kept_beside_the_next_one() -> None:
    story = Story(2)
    story.run(a_replica_is_made_again_while_its_watermarks_are_kept(story))
    (content,) = [
        bytes(inode.content) for name, inode in story.node(2).volume.files(DIRECTORY) if name == WATERMARKS_FILE
    ]
    assert decode(content, WATERMARKS_FILE).incarnation == story.row().incarnations[2]
