"""What a leader offers its followers: all that it holds below the offset up to which it has compacted (docs/rules.md,
compact once). No files are made for it: closed segments do not change, and if they do, their checksums show that the
offer is void.

Followers first ask what is new since their last request, as a count of this process's compactions; then for the offer
of one partition; then for the bytes of its segments.
"""

from __future__ import annotations

import uuid
from collections.abc import Hashable, Mapping
from typing import Any, Final

from sexton.broker.compaction.bulk import Handler, answered
from sexton.broker.compaction.service import CompactionService
from sexton.compaction.contract import Offer, OfferedSegment
from sexton.errors import SextonError
from sexton.ports.disk import FileSlice
from sexton.ports.network import Part
from sexton.protocol.errors import KafkaError
from sexton.protocol.private import PrivateApi, decode, refusal
from sexton.replication.local_replica import LocalReplica
from sexton.replication.replicas import Replicas

ANNOUNCED_MAX: Final = 1000
"""The most partitions announced in one response. The rest comes with the next."""

PIECE_BYTES_MAX: Final = 1 << 20
"""The most bytes of a segment in one response. They are sent by sendfile."""


class NoOfferError(SextonError):
    """Raised if there is nothing to adopt here now."""


def offered_bound(replica: LocalReplica) -> int:
    """The offset up to which it has compacted, if one of its segments ends there; else 0. A leader that has itself
    adopted a compaction may have no segment that ends there; its next compaction makes one."""
    bound = min(replica.coordination.watermarks.compacted)
    is_offered = (
        replica.is_leader
        and replica.config.compacts
        and not replica.coordination.is_independent
        and replica.log.start_offset < bound <= replica.last_stable_offset
        and replica.log.segments.begin_at(bound)
    )
    return bound if is_offered else 0


class Offers:
    def __init__(self, service: CompactionService, replicas: Replicas) -> None:
        self._service = service
        self._replicas = replicas

    def handlers(self) -> dict[int, Handler]:
        return {
            PrivateApi.COMPACTION_ANNOUNCED: self._announced,
            PrivateApi.COMPACTION_OFFER: self._offer,
            PrivateApi.COMPACTION_PIECE: self._piece,
        }

    async def _announced(self, connection: Hashable, payload: memoryview) -> list[Part]:
        return [await answered(self.announced, payload)]

    async def _offer(self, connection: Hashable, payload: memoryview) -> list[Part]:
        return [await answered(self.offer, payload)]

    async def _piece(self, connection: Hashable, payload: memoryview) -> list[Part]:
        """The response begins with a byte: 0 if data follows, 1 if an error does."""
        try:
            return [b"\0", self.piece(decode(payload))]
        except (KafkaError, OSError, KeyError, ValueError, TypeError) as error:
            return [b"\1", refusal(error)]

    async def announced(self, asked: Mapping[str, Any]) -> Any:
        """State of each partition led here that was compacted since `since`, or that the request is about."""
        since = int(asked["since"])
        about = {(str(topic_id), int(partition)) for topic_id, partition in asked["about"]}
        if not about and self._service.memory.count <= since:
            return {"process": self._service.broker_epoch, "number": since, "news": []}
        led = [one for one in self._replicas.all() if one.is_leader and one.config.compacts]
        numbers = {(str(one.topic_id), one.partition): self._service.memory.last_of_log(one).number for one in led}
        newest = max([since, *numbers.values()])
        new = sorted((number, place) for place, number in numbers.items() if number > since)
        if len(new) > ANNOUNCED_MAX:
            newest = new[ANNOUNCED_MAX - 1][0]
        wanted = about | {place for _, place in new[:ANNOUNCED_MAX]}
        return {
            "process": self._service.broker_epoch,
            "number": newest,
            "news": [self._headline(one) for one in led if (str(one.topic_id), one.partition) in wanted],
        }

    def _headline(self, replica: LocalReplica) -> dict[str, Any]:
        return {
            "topic_id": str(replica.topic_id),
            "partition": replica.partition,
            "bound": offered_bound(replica),
            "made_ms": self._service.memory.last_of_log(replica).made_ms,
            "is_coming": self._service.plans.is_coming(replica),
        }

    async def offer(self, asked: Mapping[str, Any]) -> Any:
        replica = self._replicas.by_id(uuid.UUID(str(asked["topic_id"])), int(asked["partition"]))
        replica.check_serving_as_leader()
        bound = offered_bound(replica)
        if bound == 0:
            raise NoOfferError("there is no finished compaction here", f"{replica.topic}-{replica.partition}")
        closed = replica.log.segments.closed(bound)
        checksums = [await replica.log.segments.checksum(one) for one in closed.segments]
        watermarks = replica.coordination.watermarks
        if offered_bound(replica) != bound or not replica.log.segments.are_current(closed):
            raise NoOfferError("it was compacted further meanwhile", f"{replica.topic}-{replica.partition}")
        segments = zip(closed.base_offsets, closed.sizes_bytes, checksums, strict=True)
        offer = Offer(
            generation=watermarks.generation,
            bound=bound,
            log_start_offset=replica.log.start_offset,
            planned_high_watermark=watermarks.planned_high_watermark,
            mtro=watermarks.removable.keys,
            mxro=watermarks.removable.transactions,
            fence_below=watermarks.fence_below,
            made_ms=self._service.memory.last_of_log(replica).made_ms,
            segments=tuple(OfferedSegment(*one) for one in segments),
            leftovers=self._service.memory.leftovers.of(replica),
        )
        return {"offer": offer}

    def piece(self, asked: Mapping[str, Any]) -> FileSlice:
        """Raises KeyError if the segment no longer exists."""
        replica = self._replicas.by_id(uuid.UUID(str(asked["topic_id"])), int(asked["partition"]))
        base_offset, size_bytes = int(asked["base_offset"]), int(asked["size_bytes"])
        return replica.log.segments.closed_slice(base_offset, size_bytes, int(asked["position"]), PIECE_BYTES_MAX)
