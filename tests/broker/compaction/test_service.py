"""Plans and commits of a broker, on a real log: what is refused, what is durable when, and what is left behind."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sexton.broker.compaction import bulk
from sexton.broker.compaction.plans import NotDueError
from sexton.compaction.contract import PassResult, decode_plan
from sexton.compaction.swap import SwapRefusedError
from sexton.compaction.watermarks.checkpoint import Kept
from sexton.compaction.watermarks.replica import Pair
from sexton.compactor.engines.reference import carry_out
from sexton.protocol import private
from sexton.protocol.private import PrivateApi
from sexton.records.batch import decode_all
from sexton.replication.local_replica import LocalReplica
from tests.broker.compaction.harness import CONFIG, LOG, TOPIC, Broker
from tests.log.helpers import read_all


async def test_a_pass_is_planned_carried_out_and_committed(broker: Broker) -> None:
    await broker.write(30)
    before, size_bytes = broker.fold(), broker.replica.log.size_bytes
    plan = await broker.service.plans.plan(TOPIC, 0)
    assert plan.bound == broker.replica.log.segments.active.base_offset
    assert plan.input_bytes > 0
    committed = await broker.service.plans.commit(carry_out(broker.disk, plan))
    assert committed.bytes_after == broker.replica.log.size_bytes < size_bytes == committed.bytes_before
    assert broker.fold() == before
    assert broker.replica.coordination.watermarks.compacted == Pair(plan.bound, plan.bound)
    assert broker.staged() == []
    assert broker.service.publisher.due(broker.replica).eligibility.dirty_bytes == 0


async def test_tombstones_leave_with_the_passes_after_mtro_has_risen(broker: Broker) -> None:
    await broker.write(30)
    tombstones = []
    for _ in range(3):
        plan = await broker.service.plans.plan(TOPIC, 0)
        await broker.service.plans.commit(carry_out(broker.disk, plan))
        await asyncio.sleep(0.02)
        below = [one for one in read_all(broker.replica.log) if one.base_offset < plan.bound]
        tombstones.append(sum(record.is_tombstone for one in below for record in one.records))
    assert tombstones[0] > 0
    assert tombstones[-1] == 0
    with pytest.raises(NotDueError):
        await broker.service.plans.plan(TOPIC, 0)


async def test_the_high_watermark_of_the_plan_is_durable_before_the_plan_is_told(broker: Broker) -> None:
    await broker.write(30)
    plan = await broker.service.plans.plan(TOPIC, 0)
    kept = await Kept.open(broker.disk, str(broker.directory), LOG, 0, 30)
    assert kept.value.planned_high_watermark == plan.high_watermark == 30


async def test_of_two_results_for_one_replica_the_first_wins(broker: Broker) -> None:
    await broker.write(30)
    first, second = await broker.service.plans.plan(TOPIC, 0), await broker.service.plans.plan(TOPIC, 0)
    results = [carry_out(broker.disk, first), carry_out(broker.disk, second)]
    await broker.service.plans.commit(results[0])
    before = broker.fold()
    with pytest.raises(SwapRefusedError, match="changed since"):
        await broker.service.plans.commit(results[1])
    with pytest.raises(SwapRefusedError, match="no such plan"):
        await broker.service.plans.commit(results[0])
    assert broker.fold() == before
    assert broker.staged() == []


async def test_a_third_plan_takes_the_place_of_the_first(broker: Broker) -> None:
    await broker.write(30)
    first, *_ = [await broker.service.plans.plan(TOPIC, 0) for _ in range(3)]
    assert len(broker.staged()) == 2
    with pytest.raises(SwapRefusedError, match="no such plan"):
        await broker.service.plans.commit(PassResult(first.plan_id))


@pytest.mark.parametrize("change", ["log", "generation", "progress", "policy", "coordination", "truncation"])
async def test_a_plan_is_refused_when_what_it_was_made_for_has_changed(broker: Broker, change: str) -> None:
    await broker.write(30)
    plan = await broker.service.plans.plan(TOPIC, 0)
    result = carry_out(broker.disk, plan)
    coordination = broker.replica.coordination
    if change == "log":
        coordination.kept.value = replace(coordination.kept.value, incarnation=uuid.UUID(int=99, version=4))
    elif change == "generation":
        coordination.kept.value = replace(coordination.kept.value, generation=1)
    elif change == "progress":
        further = Pair(plan.bound + 1, plan.bound + 1)
        coordination.kept.value = replace(coordination.kept.value, compacted=further)
    elif change == "policy":
        broker.replica.log.reconfigure(replace(CONFIG, cleanup_policy=frozenset({"delete"})))
    elif change == "coordination":
        broker.replica.log.reconfigure(replace(CONFIG, compaction_coordination="independent"))
    else:
        await broker.replica.cut_to(5)
        await broker.write(30)
    before, compacted = broker.fold(), coordination.kept.value.compacted
    with pytest.raises(SwapRefusedError):
        await broker.service.plans.commit(result)
    assert broker.fold() == before
    assert coordination.kept.value.compacted == compacted
    assert broker.staged() == []


async def test_what_is_stale_or_given_up_is_collected(broker: Broker) -> None:
    await broker.write(30)
    given_up = await broker.service.plans.plan(TOPIC, 0)
    broker.service.plans.abandon(given_up.plan_id)
    assert broker.staged() == []
    stale = await broker.service.plans.plan(TOPIC, 0)
    await broker.service.plans.commit(carry_out(broker.disk, await broker.service.plans.plan(TOPIC, 0)))
    assert len(broker.staged()) == 1
    await broker.service.look()
    assert broker.staged() == []
    assert broker.service.plans.underway(stale.plan_id) is None


async def test_what_is_due_is_published_and_no_longer_when_it_is_done(broker: Broker) -> None:
    await broker.service.look()
    assert await broker.metastore.read_work() == []
    await broker.write(30)
    await broker.service.look()
    (row,) = await broker.metastore.read_work()
    assert (row.topic, row.key.partition, row.dirty_ratio_ppm) == ("t", 0, 1_000_000)
    await broker.service.look()
    assert (await broker.metastore.read_work())[0].since_ms == row.since_ms
    for _ in range(3):
        await broker.service.plans.commit(carry_out(broker.disk, await broker.service.plans.plan(TOPIC, 0)))
        await asyncio.sleep(0.02)
    await broker.service.look()
    assert await broker.metastore.read_work() == []


async def test_max_compaction_lag_closes_the_active_segment(broker: Broker) -> None:
    broker.replica.log.reconfigure(replace(CONFIG, segment_bytes=1 << 20, max_compaction_lag_ms=1000))
    await broker.write(10)
    await broker.service.look()
    (row,) = await broker.metastore.read_work()
    assert row.overdue_ms > 0
    assert (await broker.service.plans.plan(TOPIC, 0)).bound == 10


# --- over the wire ---


async def test_plan_and_commit_travel_as_json(broker: Broker) -> None:
    await broker.write(30)
    asked = private.encode({"topic_id": TOPIC, "partition": 0})
    plan = decode_plan(private.decode(await broker.ask(PrivateApi.COMPACTION_PLAN, asked))["plan"])
    before = broker.fold()
    result = carry_out(broker.disk, plan)
    answer = private.decode(await broker.ask(PrivateApi.COMPACTION_COMMIT, private.encode(result)))
    assert answer["committed"]["bytes_after"] < answer["committed"]["bytes_before"]
    assert broker.fold() == before
    status = private.decode(await broker.ask(PrivateApi.COMPACTION_STATUS, b"{}"))
    (replica,) = status["replicas"]
    assert replica["mcco"] == replica["mxfo"] == plan.bound


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"{}", b'{"topic_id":1}', b'{"topic_id":"x","partition":0}'])
@pytest.mark.parametrize(
    "api_key",
    [
        PrivateApi.COMPACTION_PLAN,
        PrivateApi.COMPACTION_COMMIT,
        PrivateApi.COMPACTION_REQUEST,
        PrivateApi.COMPACTION_WRITE,
        PrivateApi.COMPACTION_ASSEMBLE,
    ],
)
async def test_nonsense_is_answered_with_an_error(broker: Broker, api_key: int, body: bytes) -> None:
    assert "error" in private.decode(await broker.ask(api_key, body))


async def test_offsets_that_are_none_are_refused(broker: Broker) -> None:
    await broker.write(30)
    plan = await broker.service.plans.plan(TOPIC, 0)
    for absurd in (-1, 1 << 63, "5", 1.5, True, None):
        segment = {"base_offset": absurd, "end_offset": 5, "old_base_offsets": [0]}
        body = {"plan_id": plan.plan_id, "segments": [segment], "fates": {}}
        assert (
            private.decode(await broker.ask(PrivateApi.COMPACTION_COMMIT, private.encode(body)))["error"]["kind"]
            == "ValueError"
        )
    assert broker.service.plans.underway(plan.plan_id) is not None, "the compactor may still come with the true one"


PART = f"{0:020d}.log.part-{'a' * 32}.cleaned"


async def test_a_compactor_without_the_disk_reads_and_writes_through_the_broker(broker: Broker) -> None:
    await broker.write(30)
    plan = await broker.service.plans.plan(TOPIC, 0)
    before, result = broker.fold(), carry_out(broker.disk, plan)
    for segment in result.segments:
        path = Path(plan.staging) / f"{segment.base_offset:020d}.log.cleaned"
        data = path.read_bytes()
        path.unlink()
        for position in range(0, len(data), 100):
            head = {"plan_id": plan.plan_id, "part": PART, "position": position}
            assert await broker.ask_for(PrivateApi.COMPACTION_WRITE, head, data[position : position + 100]) == {}
            assert await broker.ask_for(PrivateApi.COMPACTION_WRITE, head, data[position : position + 100]) == {}, (
                "a piece that comes again"
            )
        asked = {"plan_id": plan.plan_id, "base_offset": segment.base_offset, "extents": [[PART, 0, len(data)]]}
        assert await broker.ask_for(PrivateApi.COMPACTION_ASSEMBLE, asked) == {}
        assert await broker.ask_for(PrivateApi.COMPACTION_ASSEMBLE, asked) == {}, "its answer was lost"
        assert path.read_bytes() == data
    answer = await broker.ask(
        PrivateApi.COMPACTION_READ,
        private.encode({"plan_id": plan.plan_id, "base_offset": 0, "position": 10, "size_bytes": 50}),
    )
    assert answer == b"\0" + (broker.directory / f"{0:020d}.log").read_bytes()[10:60]
    await broker.service.plans.commit(result)
    assert broker.fold() == before


async def test_a_new_segment_is_put_together_from_parts_and_old_segments(broker: Broker) -> None:
    await broker.write(30)
    plan = await broker.service.plans.plan(TOPIC, 0)
    old = (broker.directory / f"{0:020d}.log").read_bytes()
    await broker.ask_for(
        PrivateApi.COMPACTION_WRITE, {"plan_id": plan.plan_id, "part": PART, "position": 0}, b"0123456789"
    )
    extents = [[PART, 2, 5], [f"{0:020d}.log", 7, 90], [PART, 0, 10]]
    asked = {"plan_id": plan.plan_id, "base_offset": 0, "extents": extents}
    assert await broker.ask_for(PrivateApi.COMPACTION_ASSEMBLE, asked) == {}
    staged = Path(plan.staging) / f"{0:020d}.log.cleaned"
    assert staged.read_bytes() == b"234" + old[7:90] + b"0123456789"
    asked["extents"] = [[PART, 0, 11]]
    assert "ends at 10" in (await broker.ask_for(PrivateApi.COMPACTION_ASSEMBLE, asked))["error"]["what"]


async def test_a_segment_that_is_asked_for_twice_at_a_time_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first connection broke, and the broker is still copying: both write the same bytes to the same places."""
    monkeypatch.setattr(bulk, "COPY_BYTES", 20)

    broker = Broker(tmp_path)
    await broker.start()
    await broker.write(30)
    plan = await broker.service.plans.plan(TOPIC, 0)
    old = (broker.directory / f"{0:020d}.log").read_bytes()
    extents = [[f"{0:020d}.log", 0, 200], [f"{0:020d}.log", 100, 300]]
    asked = {"plan_id": plan.plan_id, "base_offset": 0, "extents": extents}
    answers = await asyncio.gather(
        broker.ask_for(PrivateApi.COMPACTION_ASSEMBLE, asked), broker.ask_for(PrivateApi.COMPACTION_ASSEMBLE, asked)
    )
    assert answers[0] == answers[1] == {}
    staged = [path for path in Path(plan.staging).iterdir() if path.is_file()]
    assert [path.name for path in staged] == [f"{0:020d}.log.cleaned"]
    assert staged[0].read_bytes() == old[:200] + old[100:300]


async def test_a_plan_reaches_no_further_than_the_high_watermark(broker: Broker) -> None:
    """What lies above it may be truncated while a compactor has it mapped, which ends its process."""
    await broker.write(30)
    log = broker.replica.log
    for high_watermark in range(log.end_offset + 1):
        read = [
            batch
            for base, size in log.segments.sizes_below(high_watermark)
            for batch in decode_all((broker.directory / f"{base:020d}.log").read_bytes()[:size])
        ]
        assert [batch.base_offset for batch in read] == list(range(high_watermark))
    plan = await broker.service.plans.plan(TOPIC, 0)
    assert plan.segments == log.segments.sizes_below(broker.replica.high_watermark)


async def test_what_cannot_be_staged_is_refused(broker: Broker) -> None:
    await broker.write(30)
    plan = await broker.service.plans.plan(TOPIC, 0)
    head = {"plan_id": plan.plan_id, "part": PART, "position": 0}
    for wrong in ({"position": 1 << 30}, {"position": -1}, {"part": "../t-0/x"}, {"part": "x"}, {"plan_id": "other"}):
        assert "error" in await broker.ask_for(PrivateApi.COMPACTION_WRITE, {**head, **wrong}, b"x"), wrong
    assert "error" in await broker.ask_for(PrivateApi.COMPACTION_WRITE, head), "without bytes"
    asked = {"plan_id": plan.plan_id, "base_offset": 0, "extents": [[PART, 0, 1]]}
    beyond = [[f"{plan.bound:020d}.log", 0, 1]]
    for base_offset in (1, plan.bound):
        assert "error" in await broker.ask_for(PrivateApi.COMPACTION_ASSEMBLE, {**asked, "base_offset": base_offset})
    for name in ("/etc/passwd", "../t-0/x", f"{1:020d}.log"):
        assert "error" in await broker.ask_for(PrivateApi.COMPACTION_ASSEMBLE, {**asked, "extents": [[name, 0, 1]]})
    assert "error" in await broker.ask_for(PrivateApi.COMPACTION_ASSEMBLE, {**asked, "extents": []})
    assert "error" in await broker.ask_for(PrivateApi.COMPACTION_ASSEMBLE, {**asked, "extents": beyond}), (
        "the active segment"
    )
    assert "error" in await broker.ask_for(PrivateApi.COMPACTION_ASSEMBLE, {**asked, "extents": [[PART, 5, 1]]}), (
        "backwards"
    )


@pytest.mark.parametrize(
    "change",
    [
        {"base_offset": 1},
        {"position": -1},
        {"position": 1 << 40},
        {"size_bytes": -1},
        {"plan_id": "x"},
        {"position": "x"},
    ],
)
async def test_only_segments_of_a_plan_can_be_read(broker: Broker, change: dict[str, Any]) -> None:
    await broker.write(30)
    plan = await broker.service.plans.plan(TOPIC, 0)
    asked = {"plan_id": plan.plan_id, "base_offset": 0, "position": 0, "size_bytes": 50}
    assert (await broker.ask(PrivateApi.COMPACTION_READ, private.encode(asked)))[:1] == b"\0"
    assert (await broker.ask(PrivateApi.COMPACTION_READ, private.encode({**asked, **change})))[:1] == b"\1"


async def test_who_asks_for_a_topic_gets_its_active_segment_compacted(broker: Broker) -> None:
    await broker.write(3)
    answer = private.decode(
        await broker.ask(PrivateApi.COMPACTION_REQUEST, private.encode({"topic": "t", "partition": None}))
    )
    assert answer == {"partitions": [0], "in_store": []}
    (row,) = await broker.metastore.read_work()
    assert row.is_requested
    assert (await broker.service.plans.plan(TOPIC, 0)).bound == 3


async def test_a_plan_for_a_replica_that_was_wiped_meanwhile_is_not_committed(broker: Broker) -> None:
    """The old replica and its log know nothing of that, and fit the plan as before."""
    await broker.write(30)
    plan = await broker.service.plans.plan(TOPIC, 0)
    result = carry_out(broker.disk, plan)
    wiped, broker.replica = broker.replica, await another(broker)
    before = read_all(wiped.log)
    with pytest.raises(SwapRefusedError, match="another log"):
        await broker.service.plans.commit(result)
    assert (broker.staged(), broker.service.plans.underway_count) == ([], 0)
    assert read_all(wiped.log) == before


async def test_plans_for_a_replica_that_is_not_here_any_more_are_given_up(broker: Broker) -> None:
    await broker.write(30)
    await broker.service.plans.plan(TOPIC, 0)
    await broker.service.look()
    assert broker.service.plans.underway_count == 1
    broker.replica = await another(broker)
    await broker.service.look()
    assert (broker.staged(), broker.service.plans.underway_count) == ([], 0)


async def test_a_replica_that_is_wiped_while_a_plan_is_made_gets_none(broker: Broker) -> None:
    await broker.write(30)
    anew = await another(broker)
    planning = asyncio.ensure_future(broker.service.plans.plan(TOPIC, 0))
    await asyncio.sleep(0)
    broker.replica = anew
    with pytest.raises(NotDueError, match="removed meanwhile"):
        await planning
    assert broker.staged() == []


async def another(broker: Broker) -> LocalReplica:
    """To take the place of the one that is there."""
    other = Broker(broker.directory.parent / "anew")
    await other.start()
    return other.replica
