"""One view out of those of several brokers, some of which are behind."""

from __future__ import annotations

import uuid

from sexton.audit.live.views import agreed
from sexton.client.metadata import BrokerInfo, Metadata, PartitionInfo, TopicInfo

ID, OLD_ID = uuid.UUID(int=2), uuid.UUID(int=1)


def view(
    *, epoch: int = 5, isr: tuple[int, ...] = (1, 2, 3), topic_id: uuid.UUID = ID, leader: int = 1, broker: int = 1
) -> Metadata:
    partition = PartitionInfo(0, leader, epoch, (1, 2, 3), isr, ())
    topic = TopicInfo("t", topic_id, False, {0: partition})
    return Metadata("c", 1, {broker: BrokerInfo(broker, "h", broker, None)}, {"t": topic})


def partition(*views: Metadata) -> PartitionInfo:
    return agreed(views).topics["t"].partitions[0]


def test_a_replica_is_in_sync_only_if_nobody_denies_it() -> None:
    assert partition(view(), view(isr=(1, 2)), view()).isr == (1, 2)


def test_who_is_an_epoch_behind_has_no_say() -> None:
    found = partition(view(epoch=4, isr=(3,), leader=3), view(epoch=5))
    assert (found.leader, found.leader_epoch, found.isr) == (1, 5, (1, 2, 3))


def test_brokers_that_anybody_knows_may_be_asked() -> None:
    assert set(agreed([view(broker=1), view(broker=2)]).brokers) == {1, 2}


def test_a_topic_of_that_name_that_is_gone_does_not_count() -> None:
    old = view(topic_id=OLD_ID, epoch=90, leader=2)
    assert partition(old, view(), view()).leader == 1
