"""What brokers say of themselves, asked from outside by Sexton's own client: watermarks, leaders, in-sync replicas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sexton.client import apis
from sexton.client.admin import Admin
from sexton.client.client import Client
from sexton.client.consumer import EARLIEST, LATEST, list_offsets
from sexton.client.errors import BadAnswerError
from sexton.client.fetching import READ_COMMITTED, READ_UNCOMMITTED
from sexton.client.metadata import PartitionInfo
from sexton.errors import SextonError
from sexton.harness import asking
from sexton.harness.asking import Door
from sexton.history.op import Ext
from sexton.verify.clients.base import Place

TIMEOUT_MS: Final = 3_000
"""Of a question while brokers may be away: the next one comes in a second."""


class Seen(NamedTuple):
    """What brokers report about one log."""

    high_watermark: int
    last_stable_offset: int
    log_start: int
    leader_epoch: int
    leader: int
    isr: tuple[int, ...]


def watermarks(where: str | Door, places: Mapping[int, Place]) -> Mapping[int, Seen]:
    """By log. A log whose leader changed meanwhile is left out: nobody knows which of the two answered."""
    wanted = dict(places)
    topics = sorted({topic for topic, _ in places.values()})

    async def question(client: Client) -> Mapping[int, Seen]:
        before = await _partitions(client, topics)
        ends = await list_offsets(client, dict.fromkeys(wanted.values(), LATEST))
        stable = await list_offsets(client, dict.fromkeys(wanted.values(), LATEST), isolation=READ_COMMITTED)
        starts = await list_offsets(client, dict.fromkeys(wanted.values(), EARLIEST), isolation=READ_UNCOMMITTED)
        after = await _partitions(client, topics)
        same = led_by_one(wanted, _epochs(before), _epochs(after))
        return {
            log: Seen(
                high_watermark=ends[place],
                last_stable_offset=stable[place],
                log_start=starts[place],
                leader_epoch=after[place].leader_epoch,
                leader=after[place].leader,
                isr=after[place].isr,
            )
            for log, place in same.items()
        }

    return asking.ask(where, question, TIMEOUT_MS)


def ext_of(seen: Mapping[int, Seen]) -> Mapping[str, Any]:
    """What of it goes into a history."""
    return {
        str(name): {str(log): getattr(each, column) for log, each in seen.items()}
        for name, column in (
            (Ext.HIGH_WATERMARKS, "high_watermark"),
            (Ext.LAST_STABLE_OFFSETS, "last_stable_offset"),
            (Ext.LOG_STARTS, "log_start"),
            (Ext.LEADER_EPOCHS, "leader_epoch"),
            (Ext.LEADERS, "leader"),
        )
    }


def led_by_one(
    places: Mapping[int, Place], before: Mapping[Place, int], after: Mapping[Place, int]
) -> Mapping[int, Place]:
    """Those that had the same leader epoch before and after. A new topic may be known to one broker and not to another:
    then there is none."""
    return {log: place for log, place in places.items() if place in after and before.get(place) == after[place]}


async def _partitions(client: Client, topics: Iterable[str]) -> dict[Place, PartitionInfo]:
    """All of those topics that there are."""
    known = (await client.refresh(topics)).topics
    return {
        (topic, number): each for topic in topics if topic in known for number, each in known[topic].partitions.items()
    }


def _epochs(partitions: Mapping[Place, PartitionInfo]) -> dict[Place, int]:
    return {place: each.leader_epoch for place, each in partitions.items()}


def leader_of(where: str | Door, place: Place) -> int:
    """Negative: there is none, or nobody says."""
    try:
        return asking.leaders_of(where, place[0]).get(place[1], -1)
    except SextonError:
        return -1


def partitions(where: str | Door, topics: Sequence[str]) -> Mapping[Place, PartitionInfo]:
    """All of those topics that there are."""

    async def question(client: Client) -> dict[Place, PartitionInfo]:
        return await _partitions(client, topics)

    return asking.ask(where, question, TIMEOUT_MS)


def topics(where: str | Door) -> list[str]:
    """All, those of the brokers' own included."""

    async def question(client: Client) -> list[str]:
        return sorted((await client.refresh(None)).topics)

    return asking.ask(where, question, TIMEOUT_MS)


def is_whole(where: str | Door, topics: Sequence[str]) -> bool:
    """Whether each partition has a leader, and all its replicas are in sync."""
    try:
        found = partitions(where, topics)
    except SextonError:
        return False
    return {topic for topic, _ in found} == set(topics) and all(
        each.leader >= 0 and set(each.isr) == set(each.replicas) for each in found.values()
    )


def broker_ids(where: str | Door) -> list[int]:
    async def question(client: Client) -> list[int]:
        return sorted(client.metadata.brokers)

    return asking.ask(where, question)


def has_kip848(where: str | Door) -> bool:
    """Kafka 3.7 to 3.9 tell a version of their own, and have it switched off by default."""

    async def question(client: Client) -> bool:
        try:
            (await client.any_peer()).version(apis.CONSUMER_GROUP_HEARTBEAT)
        except BadAnswerError:
            return False
        return True

    return asking.ask(where, question)


def delete_topics(where: str | Door, prefix: str) -> None:
    """Deletes all topics whose names begin with the prefix."""
    assert prefix

    async def question(client: Client) -> None:
        for topic in (await client.refresh(None)).topics:
            if topic.startswith(prefix):
                await Admin(client).delete_topic(topic)

    asking.ask(where, question)
