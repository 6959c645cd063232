"""Runs whose clients decide for themselves."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from sexton.checker.verdict import Verdict
from sexton.harness.brokers import SextonCluster
from sexton.history.op import F
from sexton.verify import run as verifying
from sexton.verify.clients import confluent
from sexton.verify.generator import NS
from sexton.verify.plan import Plan
from sexton.verify.runner import BY_SHARDS
from sexton.verify.selftest import Silent
from sexton.verify.shard import SENDING, Shard, ShardOptions
from sexton.verify.sharding import ShardedWorkload
from sexton.verify.systems import System
from sexton.verify.workloads.known import WORKLOADS, Asked

SHARDS = 2


def sharded(name: str = "queue") -> ShardedWorkload:
    return ShardedWorkload(name, Asked(), WORKLOADS[name].make(Asked(), random.Random(1)))


def told(logs: list[int], ends: dict[str, int], **seen: int) -> dict[str, Any]:
    return {"f": "poll", "logs": logs, "ends": ends, "seen": seen}


def test_at_the_end_all_is_read_that_any_shard_knows_of() -> None:
    workload = sharded()
    workload.told(told([0, 1], {"0": 7, "1": 3}, advance=1))
    workload.told(told([1, 2], {"1": 9, "2": 0}, advance=2))
    final = workload.final()
    assert (final.f, final.logs, final.offsets) == (F.POLL, (0, 1, 2), {0: 7, 1: 9, 2: 0})
    assert sorted(workload.logs) == [0, 1, 2]
    assert workload.seen == {"advance": 3}


def test_logs_of_a_shard_that_was_killed_are_read_as_well() -> None:
    workload = sharded()
    workload.used([5])
    assert workload.final().logs == (5,)


def test_lanes_send_by_the_settings_that_the_run_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(confluent, "Sending", lambda bootstrap, settings, _: made.append(settings))
    plan = Plan(seed=1, shards=1, concurrency=4, acks="1", is_idempotent=False, client_settings={"linger.ms": "7"})
    options = ShardOptions(
        number=0,
        count=1,
        lanes=4,
        plan=plan,
        system=System("some", "localhost:1", 1),
        workload="queue",
        asked=Asked(),
        path=tmp_path / "piece",
    )
    Shard(options, BytesIO(), BytesIO())
    [settings] = made
    assert (settings["acks"], settings["enable.idempotence"], settings["linger.ms"]) == (1, False, 7)
    assert settings["delivery.timeout.ms"] == SENDING["delivery.timeout.ms"]


def ran(bootstrap: str, directory: Path, lanes: int, asked: Asked) -> tuple[Verdict, list[dict[str, Any]]]:
    plan = Plan(
        seed=4,
        rate=300.0,
        concurrency=SHARDS * lanes,
        shards=SHARDS,
        calm_ns=0,
        main_ns=2 * NS,
        final_ns=60 * NS,
        clients=("confluent-kafka",),
        topic_prefix=f"sexton-verify-{lanes}-",
        transaction_timeout_ms=20_000,
    )
    wanted = verifying.Wanted(system=bootstrap, is_existing=True, asked=asked, directory=directory)
    judgement = verifying.run(wanted, plan, Silent())
    return judgement.verdict, list(map(json.loads, (directory / "history.jsonl").read_text().splitlines()))


@pytest.mark.cluster
def test_shards_write_one_history_that_is_judged_as_any_other(tmp_path: Path) -> None:
    with SextonCluster(nodes=1) as cluster:
        for lanes, asked in ((4, Asked()), (1, Asked(is_transactional=True))):
            verdict, ops = ran(cluster.bootstrap, tmp_path / str(lanes), lanes, asked)
            assert verdict is Verdict.TRUE
            assert [op["index"] for op in ops] == list(range(len(ops)))
            assert not list((tmp_path / str(lanes)).glob("piece-*"))
            sent = defaultdict(set)
            for op in ops:
                for micro_op in op.get("value", ()) if op["type"] == "invoke" and op["f"] in ("send", "txn") else ():
                    if micro_op[0] == "send":
                        sent[op["process"] % (SHARDS * lanes + 1) // lanes].add(micro_op[2] % SHARDS)
            assert sent == {0: {0}, 1: {1}}, "no two shards send the same value"
            final = {op["process"] for op in ops if op.get("ext", {}).get("final")}
            assert len(final) >= SHARDS
            assert min(final) >= BY_SHARDS, "new clients read everything"
