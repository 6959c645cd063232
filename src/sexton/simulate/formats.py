"""What a seed decides about how records travel and lie: codecs, timestamps, sizes, how many copies.

Drawn from random numbers of their own, on top of what a plan has already decided.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

from sexton.simulate.writers import Limits, WriterPlan

CODECS = (0, 0, 1, 2, 3, 4)
"""none, gzip, snappy, lz4, zstd, as attributes of a batch."""

ONE_REPLICA_PROBABILITY = 0.08
"""Rare: a machine that alone holds something is spared the loss of its disk."""

LOG_APPEND_TIME_PROBABILITY = 0.2
UNFLUSHED_PROBABILITY = 0.2
MESSAGE_LIMIT_PROBABILITY = 0.25
MESSAGE_LIMITS_BYTES = (12_000, 15_000, 20_000)
"""More than ordinary batches have."""

MESSAGE_LIMIT_DEFAULT_BYTES = 1_048_588
SMALLEST_CHANGED_BYTES = 20_000
"""The administrator sets no limit below it."""

LARGE_BYTES_MAX = 110_000
"""Batches larger than this take longer than they show anything."""


def topic_format(rng: random.Random, replicas_count: int, settings: Mapping[str, str]) -> tuple[int, dict[str, str]]:
    """A topic's replicas and settings, with what else it may have."""
    count, changed = replicas_count, dict(settings)
    if rng.random() < ONE_REPLICA_PROBABILITY:
        count = 1
    changed["min.insync.replicas"] = str(min(count, rng.choice((int(settings["min.insync.replicas"]), count))))
    if rng.random() < LOG_APPEND_TIME_PROBABILITY:
        changed["message.timestamp.type"] = "LogAppendTime"
    if rng.random() < MESSAGE_LIMIT_PROBABILITY:
        changed["max.message.bytes"] = str(rng.choice(MESSAGE_LIMITS_BYTES))
    if rng.random() < UNFLUSHED_PROBABILITY:
        changed["flush.before.ack"] = "false"
    return count, changed


def writer_format(rng: random.Random, writer: WriterPlan) -> WriterPlan:
    return replace(
        writer,
        codec=rng.choice(CODECS),
        large_probability=rng.choice((0.0, 0.0, 0.02, 0.2)),
        refused_probability=rng.choice((0.0, 0.0, 0.05)),
    )


def batch_limits(settings: Mapping[str, str], *, may_change: bool) -> Limits | None:
    """Of a topic; None if there is none that is worth coming close to."""
    message_bytes = int(settings.get("max.message.bytes", MESSAGE_LIMIT_DEFAULT_BYTES))
    limit = min(int(settings.get("segment.bytes", message_bytes)), message_bytes)
    taken = min(limit, SMALLEST_CHANGED_BYTES) if may_change else limit
    if taken > LARGE_BYTES_MAX:
        return None
    return taken, None if may_change else limit + 1
