"""Checks of requests that do not depend on the group: strings too long, too many entries, timeouts too short
(`coordinators/bounds.py`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from sexton.coordinators.bounds import BATCH_BYTES_MAX, RECORD_BYTES_MAX, is_too_long
from sexton.coordinators.groups.messages import (
    LEAVE_EPOCH,
    ConsumerHeartbeatRequest,
    JoinRequest,
    LeavingMember,
    OffsetCommitRequest,
    SyncRequest,
)
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.settings.broker import GroupSettings

SUBSCRIPTION_BYTES_MAX = RECORD_BYTES_MAX // 4
"""Maximum bytes of one member's subscription: a record has room for its metadata and for the topics parsed out of
it."""

PROTOCOLS_COUNT_MAX = 100
"""Maximum number of protocols of one member. Clients have three or four."""

LEAVING_COUNT_MAX = 10_000
OFFSET_BYTES = 60
"""Bytes of an offset in a batch, besides its strings."""

REBALANCE_TIMEOUT_MS_MIN = 1
"""A timer with a timeout of 0 would expire again and again."""


def checked_join(request: JoinRequest, settings: GroupSettings) -> JoinRequest:
    """Returns the request with its rebalance timeout raised to the minimum."""
    if not request.group:
        raise KafkaError(ErrorCode.invalid_group_id)
    if not settings.group_min_session_timeout_ms <= request.session_timeout_ms <= settings.group_max_session_timeout_ms:
        raise KafkaError(ErrorCode.invalid_session_timeout)
    _check_strings(
        request.member_id, request.instance_id, request.protocol_type, *(name for name, _ in request.protocols)
    )
    if len(request.protocols) > PROTOCOLS_COUNT_MAX:
        raise KafkaError(ErrorCode.inconsistent_group_protocol, f"There are more than {PROTOCOLS_COUNT_MAX} protocols.")
    if sum(len(name.encode()) + len(metadata) for name, metadata in request.protocols) > 2 * SUBSCRIPTION_BYTES_MAX:
        raise KafkaError(ErrorCode.invalid_request, "What the member brings along does not fit into a record.")
    return replace(request, rebalance_timeout_ms=max(request.rebalance_timeout_ms, REBALANCE_TIMEOUT_MS_MIN))


def check_sync(request: SyncRequest) -> None:
    """A SyncGroup may wait, with its whole body, whether or not it is the leader's, so the size is always checked."""
    if sum(len(member_id) + len(one) for member_id, one in request.assignments.items()) > BATCH_BYTES_MAX:
        raise KafkaError(ErrorCode.unknown_server_error, "The assignment does not fit into a record.")


def check_leave(members: Iterable[LeavingMember]) -> None:
    if sum(1 for _ in members) > LEAVING_COUNT_MAX:
        raise KafkaError(ErrorCode.invalid_request, f"More than {LEAVING_COUNT_MAX} members leave in one request.")


def check_heartbeat(request: ConsumerHeartbeatRequest) -> None:
    _check_strings(request.member_id, request.instance_id, request.rack_id, request.regex)
    if request.topics is not None:
        _check_strings(*request.topics)
        if sum(len(topic.encode()) for topic in request.topics) > SUBSCRIPTION_BYTES_MAX:
            raise KafkaError(ErrorCode.invalid_request, "The subscribed topics do not fit into a record.")
    has_timeout = request.rebalance_timeout_ms != -1 and request.member_epoch > LEAVE_EPOCH  # who leaves needs none
    if has_timeout and request.rebalance_timeout_ms < REBALANCE_TIMEOUT_MS_MIN:
        raise KafkaError(ErrorCode.invalid_request, "RebalanceTimeoutMs must be positive.")


def check_commit(request: OffsetCommitRequest) -> None:
    """As in Kafka, a commit that does not fit into one batch is refused as a whole."""
    size_bytes = 0
    group_bytes = len(request.group.encode())
    for topic, partitions in request.topics:
        each_bytes = group_bytes + len(topic.encode()) + OFFSET_BYTES
        size_bytes += each_bytes * len(partitions)
        size_bytes += sum(len(one.metadata.encode()) for one in partitions if one.metadata)
    if size_bytes > BATCH_BYTES_MAX:
        what = "The offsets do not fit into one batch: commit those of fewer partitions at a time."
        raise KafkaError(ErrorCode.invalid_commit_offset_size, what)


def _check_strings(*texts: str | None) -> None:
    if any(is_too_long(text) for text in texts):
        raise KafkaError(ErrorCode.invalid_request, "A string is longer than Kafka's protocol allows.")
