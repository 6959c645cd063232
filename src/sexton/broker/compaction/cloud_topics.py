"""What a broker tells operators of the compaction of cloud topics that it leads, and how it passes their requests on.

It takes no part in it: all that it says is in the metastore's rows. A cloud partition has one copy, in the store, so
nothing waits for replicas: MTRO and MXRO are where its log ends.
"""

from __future__ import annotations

from typing import Any

from sexton.cloud.replica import CloudReplica
from sexton.cloud.replicas import CloudReplicas
from sexton.compaction.cloud_due import STORE, key_of, why_compact, why_level
from sexton.ports.clock import Clock
from sexton.ports.cloud import CloudPartitionRow
from sexton.ports.metastore import Metastore
from sexton.ports.work_queue import CloudWork, WorkRow
from sexton.settings.topic import TopicConfig


class CloudTopics:
    def __init__(self, cloud: CloudReplicas | None, metastore: Metastore, clock: Clock) -> None:
        self._cloud = cloud
        self._metastore = metastore
        self._clock = clock

    def _led(self) -> list[CloudReplica]:
        replicas = [] if self._cloud is None else self._cloud.all()
        led = [one for one in replicas if one.is_leader and one.config.compacts]
        return sorted(led, key=lambda one: (one.topic, one.partition))

    async def status(self) -> list[dict[str, Any]]:
        """Of each compacted partition that is led here."""
        led = self._led()
        if not led:
            return []
        rows = {(row.topic_id, row.partition): row for row in await self._metastore.read_cloud_partitions()}
        now_ms = self._clock.now_ms()
        return [
            _status_of(one.topic, row, one.config, now_ms)
            for one in led
            if one.is_leader and (row := rows.get((one.topic_id, one.partition))) is not None
        ]

    async def request(self, topic: str, partition: int | None) -> list[int]:
        """Asks for a compaction of all that is stable. Returns the partitions."""
        asked = [one for one in self._led() if one.topic == topic and partition in (None, one.partition)]
        if not asked:
            return []
        wanted = {(one.topic_id, one.partition) for one in asked}
        found = [
            row for row in await self._metastore.read_cloud_partitions() if (row.topic_id, row.partition) in wanted
        ]
        now_ms = self._clock.now_ms()
        await self._metastore.request_cloud_work([_requested(topic, row, now_ms) for row in found])
        return sorted(row.partition for row in found)


def _requested(topic: str, row: CloudPartitionRow, now_ms: int) -> WorkRow:
    return WorkRow(
        key=key_of(CloudWork.COMPACT, row),
        topic=topic,
        why="somebody asked for it",
        dirty_ratio_ppm=0,
        dirty_bytes=row.dirty_bytes,
        total_bytes=row.l0_bytes + row.l1_bytes,
        overdue_ms=0,
        is_requested=True,
        since_ms=now_ms,
    )


def _status_of(topic: str, row: CloudPartitionRow, config: TopicConfig, now_ms: int) -> dict[str, Any]:
    why = why_compact(row, config, now_ms) or why_level(row, config, now_ms)
    waits = bool(row.horizon_ms)
    return {
        "broker": STORE,
        "topic": topic,
        "partition": row.partition,
        "role": "leader",
        "is_in_sync": True,
        "coordination": STORE,
        "log_start_offset": row.start_offset,
        "log_end_offset": row.end_offset,
        "high_watermark": row.end_offset,
        "last_stable_offset": max(row.stable_offset, row.start_offset),
        "size_bytes": row.l0_bytes + row.l1_bytes,
        "mcco": row.cleaned_offset,
        "mxfo": row.leveled_offset,
        "mtro": row.end_offset,
        "mxro": row.end_offset,
        "generation": row.compaction_epoch,
        "is_due": bool(why),
        "uncleanable": None,
        "compacted_ms": None,
        "why": why,
        "bound": row.leveled_offset,
        "bound_because": "it is leveled up to there",
        "dirty_ratio": row.dirty_bytes / row.l1_bytes if row.l1_bytes else 0.0,
        "dirty_bytes": row.dirty_bytes,
        "clean_bytes": row.l1_bytes - row.dirty_bytes,
        "last_pass": "",
        "waits_for_leader": False,
        "waiting_for_replicas_count": 0,
        "waiting_for_horizon_count": int(waits),
        "tombstones_count": int(waits),
        "markers_count": 0,
        "held_back_bytes": 0,
        "holding_back": None,
        "held_back_since_ms": None,
        "last_run": None,
    }
