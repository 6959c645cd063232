"""Whether a cluster is healthy, by its metadata."""

from __future__ import annotations

from typing import Any

from sexton.client.metadata import Metadata


def figures(metadata: Metadata) -> dict[str, Any]:
    """`metadata` must have been requested for all topics."""
    parts = [(info, part) for info in metadata.topics.values() for part in info.partitions.values()]
    named = {f"{info.name}-{part.partition}": part for info, part in parts}
    offline = [name for name, part in named.items() if part.leader < 0]
    lagging = [name for name, part in named.items() if part.leader >= 0 and len(part.isr) < len(part.replicas)]
    expected = sorted({each for part in named.values() for each in part.replicas})
    return {
        "cluster_id": metadata.cluster_id,
        "controller": metadata.controller_id,
        "brokers": sorted(metadata.brokers),
        "missing_brokers": [each for each in expected if each not in metadata.brokers],
        "topics": sum(not info.is_internal for info in metadata.topics.values()),
        "partitions": len(parts),
        "offline": offline,
        "not_in_sync": lagging,
        "healthy": not offline and not lagging,
    }
