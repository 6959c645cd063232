"""One view of a cluster out of those of its brokers. Pure.

Each broker answers by its own copy of the cluster's metadata, and one that was paused or cut off answers by an old one:
that it is still in sync, or leads. So all are asked, and of each partition the newest leader epoch counts. A change of
the in-sync replicas raises no epoch that clients see; a replica is taken to be in sync only if nobody denies it, for
who is not is not waited for, and what it lacks is lag.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from sexton.client.metadata import BrokerInfo, Metadata, PartitionInfo, TopicInfo


def agreed(views: Sequence[Metadata]) -> Metadata:
    """Merges the views of at least one broker. Any broker that one of them knows may be asked."""
    brokers: dict[int, BrokerInfo] = {}
    by_name: dict[str, list[TopicInfo]] = {}
    for view in views:
        brokers |= view.brokers
        for name, topic in view.topics.items():
            by_name.setdefault(name, []).append(topic)
    topics = {name: _topic(some) for name, some in by_name.items()}
    errors = {name: error for view in views for name, error in view.errors.items() if name not in topics}
    return dataclasses.replace(views[0], brokers=brokers, topics=topics, errors=errors)


def _topic(views: Sequence[TopicInfo]) -> TopicInfo:
    """Of a topic that was deleted and made again, the one that most know."""
    ids = [view.topic_id for view in views]
    known = max(ids, key=ids.count)
    same = [view for view in views if view.topic_id == known]
    numbers = sorted({number for view in same for number in view.partitions})
    return dataclasses.replace(same[0], partitions={number: _partition(number, same) for number in numbers})


def _partition(number: int, views: Sequence[TopicInfo]) -> PartitionInfo:
    known = [view.partitions[number] for view in views if number in view.partitions]
    newest = max(each.leader_epoch for each in known)
    latest = [each for each in known if each.leader_epoch == newest]
    in_sync = tuple(each for each in latest[0].isr if all(each in other.isr for other in latest))
    return dataclasses.replace(latest[0], isr=in_sync)
