"""The metastore is suddenly an older one: a backup was restored, or a standby took over that lagged behind."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from sexton.adapters.clock import SystemClock
from sexton.adapters.files import FileDisk
from sexton.adapters.metastore.inprocess import InProcessMetastore
from sexton.client.admin import Admin
from sexton.errors import NotALogError
from sexton.ports.metastore import BrokerStatus, ConfigScope
from sexton.records.names import TOPIC_LENGTH_MAX, DirState, PartitionDir, parse_partition_dir
from sexton.replication.log_folder import LogFolder
from sexton.simulate.cluster import DATA
from sexton.simulate.metastore import HOST
from tests.simulated import TOPIC, Ledger, Story

RECORDS = [(b"key", b"value")] * 5


def test_logs_that_an_older_metastore_does_not_know_are_set_aside_and_not_deleted() -> None:
    story = Story(2)
    metastore = story.cluster.metastore.inner
    assert isinstance(metastore, InProcessMetastore)

    async def script() -> None:
        await story.start()
        await story.create_topic([1, 2], topic="before")
        await story.write(*RECORDS, topic="before")
        backup = metastore.backup()
        await story.create_topic([1, 2])
        await story.write(*RECORDS)
        await story.in_sync(1, 2)
        for times in (1, 2):
            metastore.restore(backup)
            for broker_id in (1, 2):
                await story.until(partial(is_set_aside, story, broker_id, times))
            assert story.replica(1, "before").log.end_offset == len(RECORDS)
            await story.create_topic([1, 2])
            await story.write(*RECORDS)

    story.run(script())


def test_a_broker_that_starts_sets_aside_the_log_of_a_topic_that_was_made_again_since() -> None:
    """The older metastore knows its name, for the topic before."""
    story = Story(1)
    metastore = story.cluster.metastore.inner
    assert isinstance(metastore, InProcessMetastore)

    async def script() -> None:
        await story.start()
        await story.create_topic([1])
        backup = metastore.backup()
        await story.client_does(story.admin.delete_topic(TOPIC))
        await story.until(lambda: story.broker(1).view.topic(TOPIC) is None)
        await story.create_topic([1])
        await story.write(*RECORDS)
        story.cluster.kill(story.node(1), power_lost=False)
        metastore.restore(backup)
        await story.start(1)
        states = {each.state for each in directories(story, 1) if each.topic == TOPIC}
        assert states == {DirState.LIVE, DirState.STRAY}

    story.run(script())


def is_set_aside(story: Story, broker_id: int, times: int) -> bool:
    found = directories(story, broker_id)
    assert all(each.state is not DirState.DELETE for each in found)
    asides = [each.topic for each in found if each.state is DirState.STRAY]
    return asides == [TOPIC] * times and PartitionDir(TOPIC, 0) not in found


def directories(story: Story, broker_id: int) -> list[PartitionDir]:
    node = story.node(broker_id)
    assert node.process is not None
    found = []
    for name in node.volume.of(node.process, story.loop).list(DATA):
        try:
            found.append(parse_partition_dir(name))
        except NotALogError:
            continue
    return found


@pytest.mark.parametrize("topic", ["orders", "o" * TOPIC_LENGTH_MAX])
def test_what_was_set_aside_is_never_replaced(tmp_path: Path, topic: str) -> None:
    folder = LogFolder(FileDisk(), str(tmp_path), SystemClock(), 0)
    for _ in range(3):
        Path(folder.directory(topic, 0)).mkdir()
        folder.set_strays_aside(lambda *_: False, lambda *_: False)
    found = [parse_partition_dir(path.name) for path in tmp_path.iterdir()]
    assert [each.state for each in found] == [DirState.STRAY] * 3
    assert all(topic.startswith(each.topic) for each in found)


def test_a_broker_that_was_fenced_while_an_older_metastore_took_over_sets_logs_aside() -> None:
    """By the time it registers again others have raised the revision beyond what it knew: to it the metastore does not
    look like an older one."""
    story = Story(3)
    metastore = story.cluster.metastore.inner
    assert isinstance(metastore, InProcessMetastore)

    async def script() -> None:
        await story.start()
        await story.create_topic([1, 2, 3], topic="before")
        await story.write(*RECORDS, topic="before")
        backup = metastore.backup()
        await story.create_topic([3])
        await story.write(*RECORDS)
        former = story.broker(3).registration.row.epoch
        name = story.node(3).name
        story.fabric.cut(name, HOST)
        metastore.restore(backup)
        await story.in_sync(1, 2, topic="before")
        story.fabric.heal(name, HOST)
        await story.until(lambda: story.broker(3).registration.row.epoch > former)
        await story.in_sync(1, 2, 3, topic="before")
        assert is_set_aside(story, 3, 1)

    story.run(script())


def test_leader_epochs_that_an_older_metastore_does_not_know_stay_in_the_history() -> None:
    """An earlier epoch behind them would take them out of it: then the batches that name them would seem damaged."""
    story = Story(1)
    metastore = story.cluster.metastore.inner
    assert isinstance(metastore, InProcessMetastore)

    async def script() -> None:
        await story.start()
        await story.create_topic([1])
        await story.write(*RECORDS)
        backup = metastore.backup()
        for _ in range(3):
            await restart(story, 1)
        await story.write(*RECORDS)
        known = story.replica(1).log.epochs.entries
        story.cluster.kill(story.node(1), power_lost=False)
        metastore.restore(backup)
        await story.start(1)
        await story.led_by(1)
        log = story.replica(1).log
        log.verify(0, log.end_offset)
        assert log.epochs.entries[:-1] == known

    story.run(script())


@pytest.mark.parametrize("is_raised", [False, True], ids=["by its revision", "by its renewals"])
def test_replicas_take_their_roles_from_an_older_metastore(is_raised: bool) -> None:
    """By the newer one the leader was alone in sync. A leader that still counts so acknowledges alone what is lost when
    another one, in sync by the older metastore, takes over. Others may have raised the revision between two looks of
    the leader; its renewals are fewer than they were all the same."""
    story = Story(2)
    metastore = story.cluster.metastore.inner
    assert isinstance(metastore, InProcessMetastore)
    ledger = Ledger(story)

    async def script() -> None:
        await story.start()
        await story.create_topic([1, 2])
        await story.in_sync(1, 2)
        backup = metastore.backup()
        for _ in range(2):
            await leave_alone(story, 1)
            await story.start(2)
            await story.in_sync(1, 2)
        await leave_alone(story, 1)
        known = story.broker(1).view.revision
        metastore.restore(backup)
        if is_raised:
            while (revision := (await metastore.read_changes(0)).revision) <= known:
                await metastore.change_settings(ConfigScope.TOPIC, TOPIC, {"retention.bytes": str(10**9 + revision)})
        else:
            await story.until(lambda: story.broker(1).view.revision < known)
        await story.start(2)
        await ledger.write(5)
        assert len(ledger.acknowledged) == 5 or is_raised
        story.isolate(2)
        await ledger.write(5)
        story.cluster.kill(story.node(1), power_lost=False)
        story.reconnect(2)
        await story.start(1)
        await story.led_by(1)
        assert len(ledger.acknowledged) > 5, "it leads on, with what is in sync by this metastore"
        assert not ledger.lost(1)

    story.run(script())


def test_a_broker_that_was_fenced_meanwhile_knows_no_row_of_the_newer_metastore() -> None:
    """Rows that it knew have higher partition epochs: it would lead on, and could not write any of them, for ever."""
    story = Story(3)
    metastore = story.cluster.metastore.inner
    assert isinstance(metastore, InProcessMetastore)

    async def script() -> None:
        await story.start()
        await story.create_topic([1, 2, 3])
        await story.write(*RECORDS)
        await story.in_sync(1, 2, 3)
        backup = metastore.backup()
        await leave_alone(story, 1)
        await story.start(2, 3)
        await story.in_sync(1, 2, 3)
        await leave_alone(story, 1)
        known = story.broker(1).view.revision
        name = story.node(1).name
        story.fabric.cut(name, HOST)
        story.isolate(1)
        metastore.restore(backup)
        await story.start(2, 3)
        await story.led_by(2)
        story.admin = Admin(story.new_client())
        while story.broker(2).view.revision <= known:
            await story.create_topic([2], topic=f"other-{story.broker(2).view.revision}")
        story.fabric.heal(name, HOST)
        story.reconnect(1)
        await story.until(lambda: story.broker(1).registration.row.status is BrokerStatus.ACTIVE)
        await story.in_sync(1, 2, 3)
        await story.led_by(1)
        assert not story.replica(2).is_leader

    story.run(script())


async def leave_alone(story: Story, leader: int) -> None:
    for node in story.cluster.nodes.values():
        if node.broker_id != leader:
            story.cluster.kill(node, power_lost=False)
    await story.in_sync(leader)


async def restart(story: Story, broker_id: int) -> None:
    story.cluster.kill(story.node(broker_id), power_lost=False)
    await story.start(broker_id)
    await story.led_by(broker_id)
