"""One broker is asked how its replicas stand, and what they hold. Each function is one or two requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from sexton.audit.live import requests
from sexton.audit.live.errors import no_permission
from sexton.audit.live.ranges import Answer, Asked
from sexton.audit.live.requests import FetchAs
from sexton.client import apis
from sexton.client.client import Peer
from sexton.client.consumer import EARLIEST, LATEST
from sexton.client.errors import check, refusal
from sexton.client.fetching import READ_UNCOMMITTED
from sexton.client.transaction_admin import ONGOING, PREPARE, ProducerAt, producer_at
from sexton.errors import SextonError
from sexton.protocol.errors import ErrorCode
from sexton.types import TopicPartition

PARTITIONS_MAX: Final = 200
"""Largest number of partitions in one request."""

ONE_BATCH_BYTES: Final = 1
"""A broker sends at least one batch, however large."""

FACTS_TIMEOUT_MS: Final = 10_000
"""A broker that says nothing for so long is away: the audit goes on with the others."""


T = TypeVar("T")


async def metadata(peer: Peer, topics: Sequence[str]) -> Any:
    wanted = [{"topic_id": None, "name": name} for name in topics]
    return await peer.call(apis.METADATA, {"topics": wanted, "allow_auto_topic_creation": False}, FACTS_TIMEOUT_MS)


def fetch_of_any_replica(peer: Peer) -> FetchAs:
    is_new = any(peer.has(api) for api in requests.SINCE_2_4)
    return requests.fetch_as(is_new and peer.speaks(requests.FETCH_OF_ANY_REPLICA))


async def fetch(peer: Peer, place: TopicPartition, asked: Asked, *, from_leader: bool = False) -> Answer:
    """Raises RefusedError, or NoPermissionError."""
    how = requests.fetch_from_leader() if from_leader else fetch_of_any_replica(peer)
    offsets = {place: asked.offset}
    found = (await _fetch(peer, offsets, asked.isolation, asked.max_bytes, how=how, wait_ms=asked.wait_ms))[place]
    if isinstance(found, SextonError):
        raise found
    return found


async def _fetch(
    peer: Peer,
    offsets: Mapping[TopicPartition, int],
    isolation: int,
    max_bytes: int,
    timeout_ms: int | None = None,
    wait_ms: int = 0,
    how: FetchAs | None = None,
) -> dict[TopicPartition, Answer | SextonError]:
    api, replica_id = how or fetch_of_any_replica(peer)
    answer = await peer.call(api, requests.fetch_body(offsets, replica_id, isolation, max_bytes, wait_ms), timeout_ms)
    check(getattr(answer, "error_code", ErrorCode.none), peer.rpc.peer)
    return {
        (topic.topic, part.partition_index): answer_of(peer, topic.topic, part)
        for topic in answer.responses
        for part in topic.partitions
    }


def answer_of(peer: Peer, topic: str, part: Any) -> Answer | SextonError:
    error = error_of(part.error_code, "Read", topic, f"{topic}-{part.partition_index} at {peer.rpc.peer}")
    if error is not None:
        return error
    elsewhere = getattr(part, "preferred_read_replica", -1)
    if elsewhere >= 0 and not part.records:
        what = f"it sends readers to broker {elsewhere}: what it holds itself it does not show"
        return SextonError(what, f"{topic}-{part.partition_index} at {peer.rpc.peer}")
    return Answer(
        data=part.records or b"",
        high_watermark=part.high_watermark,
        last_stable_offset=part.last_stable_offset,
        log_start_offset=getattr(part, "log_start_offset", -1),
        aborted=tuple((each.producer_id, each.first_offset) for each in part.aborted_transactions or ()),
    )


def error_of(code: int, operation: str, topic: str, place: str) -> SextonError | None:
    if code == ErrorCode.none:
        return None
    if code == ErrorCode.topic_authorization_failed:
        return no_permission(operation, topic, place)
    return refusal(code, place)


async def log_bounds(peer: Peer, places: Sequence[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
    """(log start, log end) of the broker's own replicas; without those that it does not tell of."""
    starts, ends = await _offsets(peer, places, EARLIEST), await _offsets(peer, places, LATEST)
    return {place: (starts[place], ends[place]) for place in places if place in starts and place in ends}


async def _offsets(peer: Peer, places: Sequence[TopicPartition], timestamp: int) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    for some in _chunks(places):
        answer = await peer.call(apis.LIST_OFFSETS, requests.list_offsets_body(some, timestamp), FACTS_TIMEOUT_MS)
        found |= {
            (topic.name, part.partition_index): part.offset
            for topic in answer.topics
            for part in topic.partitions
            if part.error_code == ErrorCode.none
        }
    return found


async def standings(
    peer: Peer, places: Sequence[TopicPartition]
) -> dict[TopicPartition, tuple[Answer, int] | SextonError]:
    """(what a Fetch at the end of the log says, log end) of each. Next to nothing is transferred: there is nothing at
    the end."""
    bounds = await log_bounds(peer, places)
    found: dict[TopicPartition, tuple[Answer, int] | SextonError] = {}
    for some in _chunks(places):
        ends = {place: bounds[place][1] if place in bounds else 0 for place in some}
        answers = await _fetch(peer, ends, READ_UNCOMMITTED, ONE_BATCH_BYTES, FACTS_TIMEOUT_MS)
        for place in some:
            answer: Answer | SextonError = answers.get(place) or refusal(-1, f"{place[0]}-{place[1]}")
            if place in bounds and getattr(answer, "code", None) == ErrorCode.offset_out_of_range:
                answer = (
                    await _fetch(peer, {place: bounds[place][0]}, READ_UNCOMMITTED, ONE_BATCH_BYTES, FACTS_TIMEOUT_MS)
                )[place]
            found[place] = answer if isinstance(answer, SextonError) else _told(answer, bounds.get(place))
    return found


def _told(answer: Answer, bounds: tuple[int, int] | None) -> tuple[Answer, int]:
    start, end = bounds or (0, answer.high_watermark)
    known_start = answer.log_start_offset if answer.log_start_offset >= 0 else start
    return answer._replace(log_start_offset=known_start, data=b""), max(end, answer.high_watermark)


async def open_producers(peer: Peer, places: Sequence[TopicPartition]) -> dict[TopicPartition, list[ProducerAt]]:
    """Producers with an open transaction in the broker's own replicas; without those that it does not tell of."""
    found: dict[TopicPartition, list[ProducerAt]] = {}
    if not peer.speaks(apis.DESCRIBE_PRODUCERS):
        return found
    for some in _chunks(places):
        body = requests.partitions_body(some, "name", "partition_indexes")
        answer = await peer.call(apis.DESCRIBE_PRODUCERS, body, FACTS_TIMEOUT_MS)
        for topic in answer.topics:
            for part in topic.partitions:
                place = (topic.name, part.partition_index)
                if part.error_code == ErrorCode.none:
                    all_of_it = (producer_at(place, each) for each in part.active_producers)
                    found[place] = [each for each in all_of_it if each.start_offset is not None]
    return found


async def sizes_bytes(peer: Peer, places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """Of the broker's own replicas. Empty without the permission (Describe on the cluster): it only helps to divide
    the work."""
    if not peer.speaks(requests.DESCRIBE_LOG_DIRS):
        return {}
    found: dict[TopicPartition, int] = {}
    for some in _chunks(places):
        body = requests.partitions_body(some, "topic", "partitions")
        answer = await peer.call(requests.DESCRIBE_LOG_DIRS, body, FACTS_TIMEOUT_MS)
        for directory in answer.results:
            for topic in directory.topics:
                for part in topic.partitions:
                    if not part.is_future_key:
                        found[topic.name, part.partition_index] = part.partition_size
    return found


async def known_transactions(peer: Peer, producer_ids: Iterable[int]) -> set[int]:
    """Which of these producers the broker, as a coordinator, has a transaction of that has not ended everywhere."""
    body = {"producer_id_filters": sorted(producer_ids)}
    answer = await peer.call(requests.LIST_TRANSACTIONS, body, FACTS_TIMEOUT_MS)
    check(answer.error_code, peer.rpc.peer)
    return {
        each.producer_id
        for each in answer.transaction_states
        if each.transaction_state == ONGOING or each.transaction_state.startswith(PREPARE)
    }


def _chunks(places: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(places), PARTITIONS_MAX):
        yield places[start : start + PARTITIONS_MAX]
