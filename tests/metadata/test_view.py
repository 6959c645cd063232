"""The cluster in memory: what it answers, and which rows it takes."""

from __future__ import annotations

import random
import uuid
from dataclasses import replace

import pytest

from sexton.metadata.view import ClusterView, ViewDelta
from sexton.ports.metastore import (
    BrokerStatus,
    Changes,
    ConfigRow,
    ConfigScope,
    ControllerRow,
    PartitionRow,
    TopicRow,
)
from tests.metadata.rows import TOPIC, broker, partition

OTHER = TopicRow(uuid.UUID(int=0x71), "payments", False)
SETTINGS = ConfigRow(ConfigScope.TOPIC, TOPIC.name, {"retention.ms": "1"})


def snapshot(revision: int = 10) -> Changes:
    return Changes(
        revision,
        True,
        brokers=[broker(2), broker(1), broker(3, BrokerStatus.FENCED)],
        topics=[TOPIC],
        partitions=[partition(index=1, replicas=(2, 1)), partition(index=0, replicas=(1, 3))],
        configs=[SETTINGS],
        controller=ControllerRow(1, 101, 4),
    )


def viewed(revision: int = 10) -> ClusterView:
    view = ClusterView()
    view.apply(snapshot(revision))
    return view


def indexes(rows: tuple[PartitionRow, ...]) -> list[int]:
    return [row.partition for row in rows]


def test_a_snapshot_can_be_looked_up_in_every_way() -> None:
    view = viewed()
    assert view.topic("orders") == view.topic_by_id(TOPIC.topic_id) == TOPIC
    assert view.partition("orders", 1) == view.partition_by_id(TOPIC.topic_id, 1) == partition(index=1, replicas=(2, 1))
    assert indexes(view.partitions_of(TOPIC.topic_id)) == [0, 1]
    assert [row.broker_id for row in view.live_brokers()] == [1, 2]
    assert view.broker(3) == broker(3, BrokerStatus.FENCED)
    assert view.settings_of(ConfigScope.TOPIC, "orders") == {"retention.ms": "1"}
    assert sorted(indexes(view.replicas_on(1))) == [0, 1]
    assert indexes(view.replicas_on(3)) == [0]
    assert view.controller == ControllerRow(1, 101, 4)
    assert view.revision == 10
    assert len(list(view.partitions())) == 2


def test_what_does_not_exist_is_none_or_empty() -> None:
    view = viewed()
    nowhere = uuid.UUID(int=404)
    assert view.topic("nowhere") is None
    assert view.topic_by_id(nowhere) is None
    assert view.partition("nowhere", 0) is None
    assert view.partition("orders", 2) is None
    assert view.partition_by_id(nowhere, 0) is None
    assert view.partitions_of(nowhere) == ()
    assert view.broker(9) is None
    assert view.replicas_on(9) == ()
    assert view.settings_of(ConfigScope.GROUP, "orders") == {}


def test_the_delta_names_what_changed() -> None:
    view = viewed()
    fenced = broker(2, BrokerStatus.FENCED)
    moved = replace(partition(index=1, replicas=(2, 1)), leader=1, partition_epoch=11)
    delta = view.apply(
        Changes(
            12,
            False,
            brokers=[fenced, broker(1)],
            topics=[OTHER],
            partitions=[moved, partition(topic=OTHER)],
            configs=[ConfigRow(ConfigScope.TOPIC, "orders", {}), ConfigRow(ConfigScope.BROKER, "", {"a": "1"})],
            controller=ControllerRow(2, 102, 5),
        )
    )
    assert delta == ViewDelta(
        brokers=(fenced,),
        topics=(OTHER,),
        partitions=(moved, partition(topic=OTHER)),
        configs=((ConfigScope.TOPIC, "orders"), (ConfigScope.BROKER, "")),
        controller=ControllerRow(2, 102, 5),
    )
    assert view.settings_of(ConfigScope.TOPIC, "orders") == {}
    assert view.settings_of(ConfigScope.BROKER, "") == {"a": "1"}
    assert view.partitions_of(TOPIC.topic_id)[1] == moved


def test_an_answer_with_nothing_new_changes_nothing() -> None:
    view = viewed()
    version = view.version
    assert not view.apply(Changes(10, False))
    assert not view.apply(snapshot(11))
    assert (view.version, view.revision) == (version, 11)


def test_an_answer_that_was_overtaken_changes_nothing() -> None:
    view = viewed()
    assert not view.apply(Changes(9, False, deleted_topics=[TOPIC.topic_id]))
    assert view.topic("orders") == TOPIC


def test_a_deleted_topic_is_gone_with_its_partitions_and_settings() -> None:
    view = viewed()
    delta = view.apply(Changes(11, False, deleted_topics=[TOPIC.topic_id, uuid.UUID(int=404)]))
    assert delta.deleted == (TOPIC,)
    assert delta.deleted_topics == (TOPIC.topic_id,)
    assert view.topic("orders") is None
    assert view.partition("orders", 0) is None
    assert view.partitions_of(TOPIC.topic_id) == ()
    assert view.replicas_on(1) == ()
    assert view.settings_of(ConfigScope.TOPIC, "orders") == {}


def test_a_topic_that_was_deleted_and_created_again_under_its_name_is_another_one() -> None:
    view = viewed()
    again = replace(TOPIC, topic_id=uuid.UUID(int=0x72))
    delta = view.apply(
        Changes(
            12,
            False,
            topics=[again],
            partitions=[partition(topic=again)],
            configs=[ConfigRow(ConfigScope.TOPIC, "orders", {"new": "1"})],
            deleted_topics=[TOPIC.topic_id],
        )
    )
    assert (delta.deleted, delta.topics) == ((TOPIC,), (again,))
    assert view.topic("orders") == again
    assert len(view.partitions_of(again.topic_id)) == 1
    assert view.settings_of(ConfigScope.TOPIC, "orders") == {"new": "1"}


def test_a_new_topic_takes_the_name_even_before_the_deletion_of_the_old_one_is_heard_of() -> None:
    view = viewed()
    again = replace(TOPIC, topic_id=uuid.UUID(int=0x72))
    delta = view.apply_rows([partition(topic=again)], topics=[again])
    assert delta.deleted == (TOPIC,)
    assert view.settings_of(ConfigScope.TOPIC, "orders") == {}
    view.apply(Changes(12, False, topics=[again], partitions=[partition(topic=again)], deleted_topics=[TOPIC.topic_id]))
    assert view.topic("orders") == again
    assert view.partition("orders", 0) == partition(topic=again)


def test_an_older_partition_row_changes_nothing() -> None:
    view = viewed()
    own = replace(partition(index=0, replicas=(1, 3)), isr=(1,), partition_epoch=12)
    assert view.apply_rows([own]).partitions == (own,)
    late = Changes(11, False, partitions=[replace(own, isr=(3,), partition_epoch=11), replace(own, isr=(1, 3))])
    assert view.apply(late).partitions == ()
    assert view.partition("orders", 0) == own


def test_own_rows_do_not_move_the_revision_so_that_the_poll_misses_nothing() -> None:
    view = viewed()
    view.apply_rows([], brokers=[broker(4)], configs=[ConfigRow(ConfigScope.GROUP, "g", {"a": "1"})])
    assert view.revision == 10
    assert view.broker(4) == broker(4)
    assert view.settings_of(ConfigScope.GROUP, "g") == {"a": "1"}


def test_an_older_broker_row_changes_nothing() -> None:
    view = viewed()
    view.apply_rows(brokers=[broker(1, BrokerStatus.DRAINING)])
    assert not view.apply(Changes(11, False, brokers=[broker(1, BrokerStatus.ACTIVE)]))
    assert not view.apply(Changes(12, False, brokers=[broker(1, BrokerStatus.FENCED, epoch=50)]))
    assert view.apply(Changes(13, False, brokers=[broker(1, BrokerStatus.STARTING, epoch=500)]))
    assert view.broker(1) == broker(1, BrokerStatus.STARTING, epoch=500)


def test_an_older_controller_changes_nothing() -> None:
    view = viewed()
    view.apply_rows(controller=ControllerRow(3, 103, 6))
    assert not view.apply(Changes(11, False, controller=ControllerRow(2, 102, 5)))
    assert view.controller == ControllerRow(3, 103, 6)


def test_partitions_and_settings_of_a_topic_that_is_gone_are_ignored() -> None:
    view = viewed()
    view.apply(Changes(11, False, deleted_topics=[TOPIC.topic_id]))
    assert not view.apply_rows([partition(partition_epoch=99)], configs=[SETTINGS])
    assert view.replicas_on(1) == ()


def test_replicas_follow_a_reassignment() -> None:
    view = viewed()
    row = replace(partition(index=0, replicas=(1, 3)), replicas=(2, 1), partition_epoch=11)
    view.apply_rows([row])
    assert sorted(indexes(view.replicas_on(2))) == [0, 1]
    assert view.replicas_on(3) == ()


def test_a_snapshot_drops_what_is_not_in_it_and_says_so() -> None:
    view = viewed()
    view.apply(
        Changes(
            12,
            False,
            topics=[OTHER],
            partitions=[partition(topic=OTHER)],
            configs=[
                ConfigRow(ConfigScope.GROUP, "g", {"a": "1"}),
                ConfigRow(ConfigScope.TOPIC, "payments", {"b": "1"}),
            ],
        )
    )
    delta = view.apply(snapshot(20))
    assert delta.deleted == (OTHER,)
    assert delta.configs == ((ConfigScope.GROUP, "g"),)
    assert delta.partitions == ()
    assert view.settings_of(ConfigScope.GROUP, "g") == {}
    assert view.partition("payments", 0) is None
    assert view.settings_of(ConfigScope.TOPIC, "orders") == {"retention.ms": "1"}


def test_a_snapshot_drops_brokers_that_were_unregistered_but_not_those_that_came_after_it() -> None:
    view = viewed(revision=1000)
    version = view.version
    view.apply_rows(brokers=[broker(4, epoch=1200)])
    view.apply(Changes(1100, True, brokers=[broker(1), broker(2)], topics=[TOPIC]))
    assert sorted(view.brokers) == [1, 2, 4]
    assert view.version > version


def test_a_snapshot_does_not_undo_what_this_broker_has_written_since() -> None:
    view = viewed()
    own = replace(partition(index=0, replicas=(1, 3)), isr=(1,), partition_epoch=12)
    view.apply_rows([own])
    view.apply(snapshot(11))
    assert view.partition("orders", 0) == own


def test_a_snapshot_from_the_past_means_that_the_metastore_was_restored_and_is_right() -> None:
    view = viewed()
    view.apply(Changes(30, False, brokers=[broker(2, epoch=900)], partitions=[partition(index=0, partition_epoch=40)]))
    view.apply_rows([partition(topic=OTHER)], topics=[OTHER])
    delta = view.apply(snapshot(15))
    assert delta.starts_over
    assert delta.deleted == (OTHER,)
    assert view.revision == 15
    assert view.broker(2) == broker(2)
    assert view.partition("orders", 0) == partition(index=0, replicas=(1, 3))


@pytest.mark.parametrize("revision", [5, 15], ids=["an older snapshot", "a newer snapshot"])
def test_settings_that_a_snapshot_lacks_are_among_what_changed(revision: int) -> None:
    """Or the logs that are open would keep them."""
    view = ClusterView()
    view.apply(snapshot(10))
    view.apply_rows(configs=[ConfigRow(ConfigScope.BROKER, "1", {"log.retention.ms": "1"})])
    delta = view.apply(snapshot(revision))
    assert (ConfigScope.BROKER, "1") in delta.configs


def test_settings_that_are_as_they_were_are_not_among_what_changed_for_who_starts_over() -> None:
    """A broker that was fenced would go through all its logs once for each."""
    view = ClusterView()
    view.apply(replace(snapshot(10), configs=[SETTINGS]))
    assert view.start_over(replace(snapshot(11), configs=[SETTINGS])).configs == ()
    other = replace(SETTINGS, settings={"retention.ms": "2"})
    assert view.start_over(replace(snapshot(12), configs=[other])).configs == ((ConfigScope.TOPIC, TOPIC.name),)
    assert view.start_over(replace(snapshot(13), configs=[])).configs == ((ConfigScope.TOPIC, TOPIC.name),)


def test_who_starts_over_compares_no_topic_with_every_other() -> None:
    """A broker that was fenced does, with all topics at once: if that outlasts its lease, it is fenced again."""

    class Compared(uuid.UUID):
        count = 0

        def __eq__(self, other: object) -> bool:
            Compared.count += 1
            return super().__eq__(other)

        __hash__ = uuid.UUID.__hash__

    def topics() -> list[TopicRow]:
        return [TopicRow(Compared(int=number), f"t{number}", False) for number in range(1, 301)]

    view = ClusterView()
    view.apply(Changes(10, True, topics=topics()))
    delta = view.start_over(Changes(11, True, topics=topics()[1:]))
    assert [topic.name for topic in delta.deleted] == ["t1"]
    assert Compared.count < 3_000


def test_the_version_grows_with_every_change_own_ones_included() -> None:
    view = viewed()
    versions = [view.version]
    view.apply_rows([partition(index=0, partition_epoch=50)])
    versions.append(view.version)
    view.apply(Changes(11, False, deleted_topics=[TOPIC.topic_id]))
    versions.append(view.version)
    view.apply(snapshot(2))
    versions.append(view.version)
    assert versions == sorted(set(versions))


def test_indexes_stay_in_step_with_the_rows_over_many_changes() -> None:
    rng = random.Random(7)
    view = ClusterView()
    names = [f"t{number}" for number in range(4)]
    for revision in range(1, 400):
        topic = TopicRow(uuid.UUID(int=rng.randrange(1, 12)), rng.choice(names), False)
        known = view.topic(topic.name)
        if known is not None and rng.random() < 0.3:
            view.apply(Changes(revision, False, deleted_topics=[known.topic_id]))
        elif known is not None:
            row = partition(
                rng.sample(range(5), 3), index=rng.randrange(3), topic=known, partition_epoch=rng.randrange(50)
            )
            view.apply(Changes(revision, False, partitions=[row]))
        elif view.topic_by_id(topic.topic_id) is None:
            view.apply(Changes(revision, False, topics=[topic]))
        for broker_id in range(5):
            expected = {(r.topic_id, r.partition) for r in view.partitions() if broker_id in r.replicas}
            found = view.replicas_on(broker_id)
            assert {(r.topic_id, r.partition) for r in found} == expected
            assert len(found) == len(expected)
        for known_topic in view.topics():
            rows = view.partitions_of(known_topic.topic_id)
            assert indexes(rows) == sorted(indexes(rows))
