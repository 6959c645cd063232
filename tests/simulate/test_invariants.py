"""Invariants are checked while a simulation runs: a broken one ends it, and says whose it is."""

from __future__ import annotations

import uuid
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sexton.compaction.watermarks.leader import LeaderWatermarks, Report
from sexton.compaction.watermarks.replica import Pair, ReplicaWatermarks
from sexton.ports.metastore import PartitionRow
from sexton.replication.leadership import Leadership
from sexton.simulate.errors import SimulationFailure
from sexton.simulate.invariants import TURNS_PER_BROKER, TURNS_PER_COORDINATOR, TURNS_PER_REPLICA, Invariants
from sexton.simulate.loop import Process
from sexton.types import LeaderEpoch
from tests.simulated import Story


class Breakable:
    def __init__(self) -> None:
        self.checks_count = 0
        self.is_broken = False

    def check_invariants(self) -> None:
        self.checks_count += 1
        assert not self.is_broken, "rule 1: broken"


def a_broker(
    invariants: Invariants, replicas_count: int = 3, number: int = 1
) -> tuple[Process, list[Breakable], Breakable]:
    process = Process(f"broker-{number}.1")
    replicas, coordinator = [Breakable() for _ in range(replicas_count)], Breakable()
    broker = SimpleNamespace(
        replicas=SimpleNamespace(all=lambda: replicas, cloud=None),
        groups=coordinator,
        transactions=SimpleNamespace(service=Breakable()),
    )
    invariants.started(cast(Any, SimpleNamespace(process=process)), cast(Any, broker))
    return process, replicas, coordinator


def run_turns(invariants: Invariants, process: Process, count: int) -> None:
    for _ in range(count):
        invariants.after_turn(process)


@pytest.mark.parametrize("replicas_count", [1, 2, 3, 4, 6])
def test_every_replica_of_a_broker_that_runs_is_checked_within_a_few_turns(replicas_count: int) -> None:
    for broken in range(replicas_count):
        invariants = Invariants()
        process, replicas, _ = a_broker(invariants, replicas_count)
        replicas[broken].is_broken = True
        with pytest.raises(SimulationFailure, match=r"broker-1\.1: rule 1"):
            run_turns(invariants, process, TURNS_PER_REPLICA * replicas_count)


def test_brokers_that_run_by_turns_are_checked_in_all_their_replicas() -> None:
    invariants = Invariants()
    brokers = [a_broker(invariants, replicas_count=2, number=number) for number in (1, 2)]
    for _ in range(2 * TURNS_PER_REPLICA):
        for process, _, _ in brokers:
            run_turns(invariants, process, 1)
    assert all(replica.checks_count for _, replicas, _ in brokers for replica in replicas)


def test_coordinators_are_checked_too() -> None:
    invariants = Invariants()
    process, _, coordinator = a_broker(invariants)
    coordinator.is_broken = True
    with pytest.raises(SimulationFailure, match="invariant"):
        run_turns(invariants, process, TURNS_PER_COORDINATOR)


def test_one_that_is_dead_or_is_no_broker_is_left_alone() -> None:
    invariants = Invariants()
    process, replicas, _ = a_broker(invariants)
    process.alive = False
    run_turns(invariants, process, TURNS_PER_BROKER)
    run_turns(invariants, Process("client"), TURNS_PER_BROKER)
    assert not any(replica.checks_count for replica in replicas)


ROW = PartitionRow(uuid.UUID(int=1), 0, (1, 2), (1, 2), 1, LeaderEpoch(0), 0)


def test_a_leader_knows_the_progress_of_replicas_and_of_nobody_else() -> None:
    leadership = Leadership(ROW, 1, 0, 0)
    leadership.check_invariants()
    leadership._progress[3] = leadership._progress[2]
    with pytest.raises(AssertionError, match="rule 1"):
        leadership.check_invariants()


def test_a_leader_is_in_sync() -> None:
    with pytest.raises(AssertionError, match="not in sync"):
        Leadership(PartitionRow(uuid.UUID(int=1), 0, (1, 2), (2,), 1, LeaderEpoch(0), 0), 1, 0, 0).check_invariants()


def test_reports_of_replicas_that_are_gone_do_not_count() -> None:
    own, other = uuid.UUID(int=1), uuid.UUID(int=2)
    known = LeaderWatermarks(1, ReplicaWatermarks(own), {1: own, 2: other})
    known.take_report(2, Report(other, 0, Pair(5, 5)))
    known.check_invariants()
    del known._incarnations[2]
    with pytest.raises(AssertionError, match="rule 7"):
        known.check_invariants()


def test_a_leader_holds_what_its_watermarks_speak_of() -> None:
    story = Story(1)

    async def tell() -> None:
        await story.start()
        await story.create_topic([1], {"cleanup.policy": "compact"})
        await story.write((b"k", b"v"))
        replica = story.replica(1)
        replica.check_invariants()
        kept = replica.coordination.kept
        kept.value = replace(kept.value, planned_high_watermark=1)
        replica.check_invariants()
        kept.value = replace(kept.value, planned_high_watermark=2)
        with pytest.raises(AssertionError, match="rule 7"):
            replica.check_invariants()

    story.run(tell())


def test_a_log_whose_segments_are_out_of_order_is_noticed() -> None:
    story = Story(1)

    async def tell() -> None:
        await story.start()
        await story.create_topic([1], {"segment.bytes": "100"})
        await story.write(*[(b"k", bytes(20))] * 4)
        log = story.replica(1).log
        log.check_invariants()
        assert len(log.segments.all) > 2
        log.segments.all[0], log.segments.all[1] = log.segments.all[1], log.segments.all[0]
        with pytest.raises(AssertionError, match="rule"):
            log.check_invariants()

    story.run(tell())
