"""Executes a broker's plan without Spark, on the broker's disk: for the simulator and for tests."""

from __future__ import annotations

from sexton.compaction.contract import NewSegment, PassResult, Plan
from sexton.compaction.reference import LastOfProducer
from sexton.compactor import plain
from sexton.ports.disk import Disk


def carry_out(disk: Disk, plan: Plan) -> PassResult:
    producers = [LastOfProducer(one.producer_id, one.producer_epoch, one.last_data_offset) for one in plan.producers]
    replacements, fates, held_back_bytes = plain.compact_and_count(
        disk,
        plan.directory,
        plan.segments,
        plan.terms,
        producers,
        plan.staging,
        plan.segment_bytes,
        plan.first_dirty_offset,
    )
    return PassResult(plan.plan_id, tuple(NewSegment(*one) for one in replacements), fates, held_back_bytes)
