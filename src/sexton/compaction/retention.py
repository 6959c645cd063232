"""Retention by time and by size: which whole segments may be removed from the start of a log.

Only a leader moves a log start, so this only decides, and the leader's log acts.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from sexton.compaction.eligibility import SegmentSummary
from sexton.settings.topic import TopicConfig


def retained_from(segments: Sequence[SegmentSummary], config: TopicConfig, high_watermark: int, now_ms: int) -> int:
    """The log start offset that retention allows: a segment's base offset. The active segment always stays.

    A segment may be removed when its newest record is older than ``retention.ms``, or when the log without it still has
    ``retention.bytes``; but only with all segments before it, and never past the high watermark.
    """
    start = segments[0].base_offset
    if not config.deletes:
        return start
    excess_bytes = sum(s.size_bytes for s in segments) - config.retention_bytes
    for segment, following in pairwise(segments):
        too_old = config.retention_ms >= 0 and now_ms - segment.max_timestamp_ms > config.retention_ms
        too_much = config.retention_bytes >= 0 and excess_bytes - segment.size_bytes >= 0
        if not (too_old or too_much) or following.base_offset > high_watermark:
            break
        excess_bytes -= segment.size_bytes
        start = following.base_offset
    return start
