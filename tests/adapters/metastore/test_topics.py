"""Topics, partitions and settings: the same on every metastore."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from sexton.ports.metastore import (
    AlreadyExistsError,
    BrokerStatus,
    ConfigRow,
    ConfigScope,
    Metastore,
    PartitionRow,
    StaleError,
)
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.types import NO_LEADER, LeaderEpoch
from tests.adapters.metastore.rows import broker, partitions, register, topic

ODD_SETTINGS = {
    "plain": "x",
    "empty": "",
    "umlaut": "äöü 漢字 🦀",
    "nul": "a\0b",
    "half": "\ud800",
    "quote": "\"'\\%s:x",
}


async def test_a_topic_is_stored_whole(store: Metastore) -> None:
    orders = topic("orders", is_internal=True)
    rows = [
        PartitionRow(
            orders.topic_id,
            index,
            replicas=(3, 1, 2),
            isr=(1, 3),
            leader=NO_LEADER if index else 3,
            leader_epoch=LeaderEpoch(7),
            partition_epoch=9,
            adding=(2,),
            removing=(3, 1),
            incarnations={3: uuid.UUID(int=3), 1: uuid.UUID(int=2**128 - 1)},
        )
        for index in range(3)
    ]
    await store.create_topic(orders, rows, ODD_SETTINGS)
    changes = await store.read_changes(0)
    assert list(changes.topics) == [orders]
    assert sorted(changes.partitions, key=lambda row: row.partition) == rows
    assert list(changes.configs) == [ConfigRow(ConfigScope.TOPIC, "orders", ODD_SETTINGS)]


async def test_rows_that_are_read_have_the_types_of_the_rows_that_were_written(store: Metastore) -> None:
    orders = topic("orders")
    await store.create_topic(orders, partitions(orders, 1), {})
    changes = await store.read_changes(0)
    (row,) = changes.partitions
    assert isinstance(row.topic_id, uuid.UUID)
    assert (type(row.replicas), type(row.isr), type(row.adding)) == (tuple, tuple, tuple)
    assert type(changes.topics[0].is_internal) is bool
    assert hash(row.topic_id) == hash(orders.topic_id)


async def test_a_name_that_is_taken_cannot_be_created_again(store: Metastore) -> None:
    first, second = topic("orders", 1), topic("orders", 2)
    await store.create_topic(first, partitions(first, 1), {"a": "1"})
    before = await store.read_changes(0)
    with pytest.raises(AlreadyExistsError, match="orders"):
        await store.create_topic(second, partitions(second, 1), {"a": "2"})
    assert await store.read_changes(0) == before


async def test_names_differ_by_case(store: Metastore) -> None:
    for number, name in enumerate(["orders", "Orders", "ORDERS"]):
        row = topic(name, number)
        await store.create_topic(row, partitions(row, 1), {})
    assert {row.name for row in (await store.read_changes(0)).topics} == {"orders", "Orders", "ORDERS"}


async def test_a_deleted_topic_takes_its_partitions_and_settings_with_it(store: Metastore) -> None:
    gone, kept = topic("gone", 1), topic("kept", 2)
    for row in (gone, kept):
        await store.create_topic(row, partitions(row, 2), {"of": row.name})
    before = await store.read_changes(0)
    await store.delete_topic(gone.topic_id)
    now = await store.read_changes(0)
    assert [row.name for row in now.topics] == ["kept"]
    assert {row.topic_id for row in now.partitions} == {kept.topic_id}
    assert [row.name for row in now.configs] == ["kept"]
    assert list(now.deleted_topics) == []
    after = await store.read_changes(before.revision)
    assert list(after.deleted_topics) == [gone.topic_id]
    assert (list(after.topics), list(after.partitions), list(after.configs)) == ([], [], [])


async def test_a_topic_is_deleted_once(store: Metastore) -> None:
    gone = topic("gone")
    await store.create_topic(gone, partitions(gone, 1), {})
    await store.delete_topic(gone.topic_id)
    for topic_id in (gone.topic_id, uuid.UUID(int=404)):
        with pytest.raises(StaleError):
            await store.delete_topic(topic_id)


async def test_a_name_can_be_used_again_after_deletion_and_starts_without_settings(store: Metastore) -> None:
    first, second = topic("orders", 1), topic("orders", 2)
    await store.create_topic(first, partitions(first, 3), {"retention.ms": "1"})
    before = await store.read_changes(0)
    await store.delete_topic(first.topic_id)
    await store.create_topic(second, partitions(second, 1), {})
    changes = await store.read_changes(before.revision)
    assert (list(changes.deleted_topics), list(changes.topics)) == ([first.topic_id], [second])
    assert {row.topic_id for row in changes.partitions} == {second.topic_id}
    assert list((await store.read_changes(0)).configs) == []


async def test_partitions_are_added_behind_those_there_are(store: Metastore) -> None:
    orders = topic("orders")
    await store.create_topic(orders, partitions(orders, 2), {})
    before = await store.read_changes(0)
    await store.add_partitions(orders.topic_id, 2, partitions(orders, 3, first=2))
    added = await store.read_changes(before.revision)
    assert sorted(row.partition for row in added.partitions) == [2, 3, 4]
    assert list(added.topics) == []


async def test_partitions_are_not_added_to_a_topic_that_changed_or_is_gone(store: Metastore) -> None:
    orders = topic("orders")
    await store.create_topic(orders, partitions(orders, 2), {})
    for expected in (1, 3):
        with pytest.raises(StaleError):
            await store.add_partitions(orders.topic_id, expected, partitions(orders, 1, first=expected))
    await store.delete_topic(orders.topic_id)
    for expected in (0, 2):
        with pytest.raises(StaleError):
            await store.add_partitions(orders.topic_id, expected, partitions(orders, 1, first=expected))


async def test_a_row_is_written_if_its_epoch_is_the_stored_one_and_takes_the_next(store: Metastore) -> None:
    orders = topic("orders")
    (row,) = partitions(orders, 1)
    await store.create_topic(orders, [row], {})
    before = await store.read_changes(0)
    wanted = replace(
        row, isr=(1,), leader=1, leader_epoch=LeaderEpoch(4), removing=(2,), incarnations={1: uuid.UUID(int=5)}
    )
    (stored,) = await store.update_partitions([wanted])
    assert stored == replace(wanted, partition_epoch=1)
    assert list((await store.read_changes(before.revision)).partitions) == [stored]


async def test_of_many_rows_those_that_changed_meanwhile_are_left_alone(store: Metastore) -> None:
    orders = topic("orders")
    rows = partitions(orders, 4)
    await store.create_topic(orders, rows, {})
    await store.update_partitions([replace(rows[1], isr=(2,))])
    missing = replace(rows[0], partition=99)
    foreign = replace(rows[0], topic_id=uuid.UUID(int=404))
    before = await store.read_changes(0)
    ahead = replace(rows[2], partition_epoch=1)
    results = await store.update_partitions([rows[0], rows[1], missing, foreign, ahead, rows[3]])
    assert [row is not None for row in results] == [True, False, False, False, False, True]
    written = (await store.read_changes(before.revision)).partitions
    assert sorted(row.partition for row in written) == [0, 3]


async def test_an_update_that_writes_nothing_is_no_change(store: Metastore) -> None:
    orders = topic("orders")
    (row,) = partitions(orders, 1)
    await store.create_topic(orders, [row], {})
    before = await store.read_changes(0)
    assert list(await store.update_partitions([replace(row, partition_epoch=5)])) == [None]
    assert list(await store.update_partitions([])) == []
    assert (await store.read_changes(0)).revision == before.revision


async def test_the_same_row_twice_in_one_call_is_judged_as_one_after_the_other(store: Metastore) -> None:
    orders = topic("orders")
    (row,) = partitions(orders, 1)
    await store.create_topic(orders, [row], {})
    first, same, next_ = replace(row, isr=(1,)), replace(row, isr=(2,)), replace(row, isr=(3,), partition_epoch=1)
    results = await store.update_partitions([first, same, next_])
    assert results == [replace(first, partition_epoch=1), None, replace(next_, partition_epoch=2)]
    assert (await store.read_changes(0)).partitions[0].isr == (3,)


async def test_an_update_larger_than_one_query_is_written_whole(store: Metastore) -> None:
    orders = topic("orders")
    rows = partitions(orders, 2500)
    await store.create_topic(orders, rows, {})
    results = await store.update_partitions([replace(row, leader_epoch=LeaderEpoch(1)) for row in rows])
    assert [row.partition for row in results if row is not None] == list(range(2500))
    changes = await store.read_changes(0)
    assert len(changes.partitions) == 2500
    assert {row.leader_epoch for row in changes.partitions} == {1}


async def test_an_update_names_processes_that_must_be_alive(store: Metastore) -> None:
    orders = topic("orders")
    (row,) = partitions(orders, 1)
    await store.create_topic(orders, [row], {})
    leader = await register(store, 1)
    follower = await register(store, 2, BrokerStatus.STARTING)
    live = {1: leader.epoch, 2: follower.epoch}
    (stored,) = await store.update_partitions([row], live)
    assert stored is not None
    again = await store.register_broker(broker(2), follower)
    with pytest.raises(StaleError, match="broker 2"):
        await store.update_partitions([stored], live)
    (stored,) = await store.update_partitions([stored], {1: leader.epoch, 2: again.epoch})
    assert stored is not None
    await store.fence_broker(2, again.epoch, 0)
    before = await store.read_changes(0)
    for missing in ({2: again.epoch}, {3: 1}):
        with pytest.raises(StaleError):
            await store.update_partitions([stored], missing)
    assert await store.read_changes(0) == before


@pytest.mark.parametrize(
    ("scope", "name"),
    [(ConfigScope.BROKER, "1"), (ConfigScope.BROKER, ""), (ConfigScope.GROUP, "g 漢"), (ConfigScope.TOPIC, "orders")],
)
async def test_settings_are_made_changed_and_removed(store: Metastore, scope: ConfigScope, name: str) -> None:
    orders = topic("orders")
    await store.create_topic(orders, partitions(orders, 1), {})
    assert await store.change_settings(scope, name, {"a": "1", "b": "2"}) == ConfigRow(
        scope, name, {"a": "1", "b": "2"}
    )
    assert (await store.change_settings(scope, name, {"a": None, "c": "3"})).settings == {"b": "2", "c": "3"}
    before = await store.read_changes(0)
    assert list(before.configs) == [ConfigRow(scope, name, {"b": "2", "c": "3"})]
    await store.change_settings(scope, name, {"b": None, "c": None})
    assert list((await store.read_changes(before.revision)).configs) == [ConfigRow(scope, name, {})]


async def test_any_text_is_a_value_and_comes_back_as_it_went_in(store: Metastore) -> None:
    await store.change_settings(ConfigScope.GROUP, "g", dict(ODD_SETTINGS))
    assert list((await store.read_changes(0)).configs) == [ConfigRow(ConfigScope.GROUP, "g", ODD_SETTINGS)]


async def test_settings_that_stay_the_same_are_no_change(store: Metastore) -> None:
    await store.change_settings(ConfigScope.GROUP, "g", {"a": "1"})
    before = await store.read_changes(0)
    assert (await store.change_settings(ConfigScope.GROUP, "g", {"a": "1", "b": None})).settings == {"a": "1"}
    assert (await store.change_settings(ConfigScope.GROUP, "never", {"b": None})).settings == {}
    assert (await store.read_changes(0)).revision == before.revision


async def test_settings_change_only_from_the_expected_ones(store: Metastore) -> None:
    await store.change_settings(ConfigScope.BROKER, "", {"list": "a"}, expected={})
    for wrong in ({}, {"list": "b"}, {"list": "a", "x": "y"}):
        with pytest.raises(StaleError):
            await store.change_settings(ConfigScope.BROKER, "", {"list": "a,b"}, expected=wrong)
    row = await store.change_settings(ConfigScope.BROKER, "", {"list": "a,b"}, expected={"list": "a"})
    assert row.settings == {"list": "a,b"}


async def test_a_topic_that_does_not_exist_has_no_settings_to_change(store: Metastore) -> None:
    with pytest.raises(StaleError, match="nowhere"):
        await store.change_settings(ConfigScope.TOPIC, "nowhere", {"a": "1"})


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "x\udfff"])
async def test_a_name_that_one_database_could_not_store_is_refused_by_all(store: Metastore, name: str) -> None:
    with pytest.raises(KafkaError) as refused:
        await store.change_settings(ConfigScope.GROUP, name, {"a": "1"})
    assert refused.value.code is ErrorCode.invalid_request
