"""Executes a broker's plan without Spark, on the broker's disk: for the simulator and for tests."""

from __future__ import annotations

from sexton.compaction.contract import PassResult, Plan
from sexton.compactor import plain
from sexton.ports.disk import Disk


def carry_out(disk: Disk, plan: Plan) -> PassResult:
    segments, fates, held_back_bytes = plain.compact_and_count(
        disk,
        plan.directory,
        plan.segments,
        plan.terms,
        plan.producers,
        plan.staging,
        plan.segment_bytes,
        plan.first_dirty_offset,
    )
    return PassResult(plan.plan_id, tuple(segments), fates, held_back_bytes)
