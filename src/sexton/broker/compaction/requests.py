"""The messages of compactors and operators (`protocol.private`). All but the bulk messages are JSON.

| COMPACTION_ | request                                      | response                                                |
|-------------|----------------------------------------------|---------------------------------------------------------|
| STATUS      | nothing                                      | every compacted replica here: watermarks, what is due   |
| PLAN        | topic id and partition                       | a plan                                                  |
| COMMIT      | a plan's result                              | bytes and segments before and after                     |
| ABANDON     | id of a plan that is given up, and perhaps   | nothing                                                 |
|             | what in the log no compaction can read       |                                                         |
| REQUEST     | a topic, perhaps a partition: compact it now | which partitions of it are here                         |
| HISTORY     | how many, perhaps of which topic             | the cluster's last compactions, and who works on what   |
| ANNOUNCED   | a count of compactions, partitions (by       | what was compacted here since, and the state of those   |
|             | followers)                                   | partitions                                              |
| OFFER       | topic id and partition (by a follower)       | what it may adopt                                       |
| PIECE       | topic id, partition, segment, position       | bytes of an offered segment                             |

READ, WRITE and ASSEMBLE carry the bulk (`bulk`), for compactors that cannot access this broker's disk.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import Any, Final

from sexton.broker.compaction.bulk import Bulk, Handler, answered
from sexton.broker.compaction.cloud_topics import CloudTopics
from sexton.broker.compaction.host import Host
from sexton.broker.compaction.memory import LastCompaction
from sexton.broker.compaction.offers import Offers
from sexton.broker.compaction.service import CompactionService
from sexton.compaction.contract import decode_result
from sexton.ports.network import Part
from sexton.protocol.private import PrivateApi
from sexton.replication.local_replica import LocalReplica

logger = logging.getLogger(__name__)


RUNS_MAX: Final = 1000
"""The most history entries in one response."""

STATUS_STEP: Final = 50
"""Replicas handled before other tasks get their turn: about two milliseconds."""


class Requests:
    def __init__(self, service: CompactionService, host: Host, cloud_topics: CloudTopics) -> None:
        self._service = service
        self._host = host
        self._cloud_topics = cloud_topics

    def handlers(self) -> dict[int, Handler]:
        return {
            PrivateApi.COMPACTION_STATUS: self._answering(self._status),
            PrivateApi.COMPACTION_PLAN: self._answering(self._plan),
            PrivateApi.COMPACTION_COMMIT: self._answering(self._commit),
            PrivateApi.COMPACTION_ABANDON: self._answering(self._abandon),
            PrivateApi.COMPACTION_REQUEST: self._answering(self._request),
            PrivateApi.COMPACTION_HISTORY: self._answering(self._history),
            **Bulk(self._service, self._host.disk).handlers(),
            **Offers(self._service, self._host.replicas).handlers(),
        }

    def _answering(self, answer: Callable[[Mapping[str, Any]], Awaitable[Any]]) -> Handler:
        async def handle(connection: Hashable, payload: memoryview) -> list[Part]:
            return [await answered(answer, payload)]

        return handle

    async def _status(self, asked: Mapping[str, Any]) -> Any:
        return {
            "broker_id": self._service.broker_id,
            "replicas": [*await self.status(), *await self._cloud_topics.status()],
            "compactors_count": self._service.compactors.count,
        }

    async def status(self) -> list[dict[str, Any]]:
        """Status of every compacted replica here, ordered by topic and partition."""
        wanted = [one for one in self._host.replicas.all() if one.config.compacts]
        wanted.sort(key=lambda one: (one.topic, one.partition))
        found = []
        for count, replica in enumerate(wanted, 1):
            found.append(self._status_of(replica))
            if count % STATUS_STEP == 0:
                await asyncio.sleep(0)  # let client requests run
        return found

    def _status_of(self, replica: LocalReplica) -> dict[str, Any]:
        watermarks = replica.coordination.watermarks
        due = self._service.publisher.due(replica)
        leftovers = self._service.memory.leftovers.of(replica)
        leader = replica.coordination.leader
        found = due.eligibility
        return {
            "topic": replica.topic,
            "partition": replica.partition,
            "role": replica.role.value,
            "is_in_sync": self._service.broker_id in replica.row.isr,
            "coordination": replica.config.compaction_coordination,
            "log_start_offset": replica.log.start_offset,
            "log_end_offset": replica.log.end_offset,
            "high_watermark": replica.high_watermark,
            "last_stable_offset": replica.last_stable_offset,
            "size_bytes": replica.log.size_bytes,
            "mcco": watermarks.compacted.keys,
            "mxfo": watermarks.compacted.transactions,
            "mtro": watermarks.removable.keys,
            "mxro": watermarks.removable.transactions,
            "generation": watermarks.generation,
            "is_due": due.is_due,
            "uncleanable": self._service.memory.uncleanable.of(watermarks.incarnation),
            "compacted_ms": self._service.memory.leftovers.compacted_ms(replica),
            "why": due.why,
            "bound": due.bound,
            "bound_because": found.bound.because,
            "dirty_ratio": found.dirty_ratio,
            "dirty_bytes": found.dirty_bytes,
            "clean_bytes": found.clean_bytes,
            "last_pass": self._service.memory.last_of_log(replica).how,
            "waits_for_leader": due.is_due and self._service.publisher.takes_offers(replica),
            "waiting_for_replicas_count": 0 if leftovers is None else leftovers.waiting_for_replicas_count,
            "waiting_for_horizon_count": 0 if leftovers is None else leftovers.waiting_for_horizon_count,
            "tombstones_count": 0 if leftovers is None else leftovers.tombstones_count,
            "markers_count": 0 if leftovers is None else leftovers.markers_count,
            "held_back_bytes": 0 if leftovers is None else leftovers.held_back_bytes,
            "holding_back": None
            if leader is None
            else {str(broker): None if pair is None else list(pair) for broker, pair in leader.holding_back().items()},
            "held_back_since_ms": self._service.memory.held_back_since_ms.get((replica.topic_id, replica.partition)),
            "last_run": _figures(self._service.memory.last(replica)),
        }

    async def _plan(self, asked: Mapping[str, Any]) -> Any:
        plan = await self._service.plans.plan(uuid.UUID(str(asked["topic_id"])), int(asked["partition"]))
        return {"plan": plan}

    async def _commit(self, asked: Mapping[str, Any]) -> Any:
        return {"committed": await self._service.plans.commit(decode_result(asked))}

    async def _abandon(self, asked: Mapping[str, Any]) -> Any:
        self._service.plans.abandon(str(asked["plan_id"]), str(asked.get("uncleanable", "")))
        return {}

    async def _request(self, asked: Mapping[str, Any]) -> Any:
        topic = str(asked["topic"])
        partition = None if asked.get("partition") is None else int(asked["partition"])
        return {
            "partitions": await self._service.request(topic, partition),
            "in_store": await self._cloud_topics.request(topic, partition),
        }

    async def _history(self, asked: Mapping[str, Any]) -> Any:
        limit = max(0, min(RUNS_MAX, int(asked.get("limit", RUNS_MAX))))
        topic = asked.get("topic")
        work = await self._host.metastore.read_work()
        return {
            "runs": await self._host.metastore.read_runs(limit, None if topic is None else str(topic)),
            "work": [row for row in work if topic in (None, row.topic)],
            "compactors": await self._host.metastore.read_compactors(),
        }


def _figures(last: LastCompaction | None) -> dict[str, int] | None:
    if last is None:
        return None
    return {
        "finished_ms": last.finished_ms,
        "bytes_before": last.bytes_before,
        "bytes_after": last.bytes_after,
        "bytes_saved": last.bytes_saved,
    }
