"""A follower takes over what its leader has compacted (docs/rules.md): each condition, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sexton.broker.compaction.adoption import NotYetError, grouped
from sexton.broker.compaction.patience import NOTHING_MS
from sexton.compaction.contract import OfferedSegment
from sexton.compaction.swap import SwapRefusedError
from sexton.compaction.watermarks.checkpoint import Kept
from sexton.compaction.watermarks.replica import Pair
from sexton.compactor.engines.reference import carry_out
from sexton.records.batch import ControlType
from sexton.types import LeaderEpoch
from tests.broker.compaction.followed import BOTH, LOGS, Followed, below
from tests.broker.compaction.harness import CONFIG, TOPIC, Broker
from tests.log.helpers import NOW_MS, end_transaction, read_all, sequenced


def tombstones(broker: Broker, bound: int) -> int:
    batches = [one for one in read_all(broker.replica.log) if one.base_offset < bound]
    return sum(record.is_tombstone for one in batches for record in one.records)


async def test_a_follower_takes_over_what_its_leader_has_compacted(pair: Followed) -> None:
    await pair.write(60)
    before = pair.follower.fold()
    size_bytes = pair.follower.replica.log.size_bytes
    bound = await pair.compact()
    await pair.adopter.step()
    pair.check_same(bound)
    assert pair.compacted == Pair(bound, bound)
    assert pair.follower.fold() == before
    assert pair.follower.replica.log.size_bytes < size_bytes
    (run_row,) = await pair.follower.metastore.read_runs(10)
    assert (run_row.outcome, run_row.bound, run_row.broker_id) == ("adopted from broker 1", bound, 2)
    assert pair.follower.service.memory.last_of_log(pair.follower.replica).how == "adopted from broker 1"


async def test_what_is_the_same_already_is_not_copied_again(pair: Followed) -> None:
    await pair.write(60)
    await pair.compact()
    await pair.adopter.step()
    copied = len(pair.asked)
    await pair.adopter.step()
    assert len(pair.asked) == copied + 1, "one question, nothing new"
    await pair.write(6)
    pair.leader.replica.log.close_active(1000)
    bound = await pair.compact()
    await pair.adopter.step()
    pair.check_same(bound)


@pytest.mark.parametrize("segment_bytes", [150, 300, 700, 1100, 1 << 20])
async def test_logs_that_are_cut_differently_are_the_same_below_the_bound(tmp_path: Path, segment_bytes: int) -> None:
    """With the last of them, all the follower has lies in its active segment."""
    pair = Followed(tmp_path, replace(CONFIG, segment_bytes=segment_bytes))
    await pair.start()
    for count in (60, 25, 40):
        await pair.write(count)
        end = pair.follower.replica.log.end_offset
        bound = await pair.compact()
        await pair.adopter.step()
        pair.check_same(bound)
        assert pair.compacted == Pair(bound, bound)
        assert pair.follower.replica.log.end_offset == end, "what lies above the bound is still there"


async def test_a_follower_that_has_adopted_is_read_the_same_after_a_restart(pair: Followed) -> None:
    await pair.write(60)
    bound = await pair.compact()
    await pair.adopter.step()
    await pair.follower.replica.log.close()
    await pair.follower.start()
    pair.follower.replica.take_high_watermark(60)
    pair.check_same(bound)
    assert pair.compacted == Pair(bound, bound)


async def test_tombstones_leave_the_follower_by_adoption_alone(pair: Followed) -> None:
    """The later passes end where the first did: nothing new was written."""
    await pair.write(60)
    bound = await pair.compact()
    await pair.adopter.step()
    pair.check_same(bound)
    assert tombstones(pair.follower, bound) > 0
    turns = 0
    while tombstones(pair.follower, bound) or pair.follower.service.publisher.due(pair.follower.replica).is_due:
        turns += 1
        assert turns < 300, "nothing is left to do, at last"
        await pair.copy()  # MTRO rises when it is durable: not at once
        if pair.leader.service.publisher.due(pair.leader.replica).is_due:
            assert await pair.compact() == bound
        await pair.adopter.step()
        pair.check_same(bound)
    assert pair.follower.service.memory.totals.committed_count == 0


# --- what makes it safe ---


async def test_nothing_is_adopted_between_an_own_swap_and_the_mcco_that_speaks_of_it(pair: Followed) -> None:
    """The leader offers less than the follower has just compacted by itself. Taken then, older values would be back
    below an MCCO that says that there are none."""
    await pair.write(60)
    await pair.compact()
    await pair.write(30)
    pair.follower.replica.log.close_active(1000)
    plan = await pair.follower.service.plans.plan(TOPIC, 0)
    coordination, swapped_in, go_on = pair.follower.replica.coordination, asyncio.Event(), asyncio.Event()
    keep = coordination.committed

    async def slowly(bound: int) -> None:
        if bound == plan.bound:
            swapped_in.set()
            await go_on.wait()
        await keep(bound)

    coordination.committed = slowly  # type: ignore[method-assign]
    commit = asyncio.ensure_future(pair.follower.service.plans.commit(carry_out(pair.follower.disk, plan)))
    await swapped_in.wait()
    compacted = read_all(pair.follower.replica.log)
    adopt = asyncio.ensure_future(pair.adopt())
    for _ in range(1000):
        await asyncio.sleep(0)
    go_on.set()
    await commit
    with pytest.raises(SwapRefusedError, match=f"compacted up to {plan.bound}"):
        await adopt
    assert read_all(pair.follower.replica.log) == compacted
    assert pair.compacted.keys == plan.bound


async def test_it_waits_until_its_own_high_watermark_is_where_the_compaction_was_planned(pair: Followed) -> None:
    await pair.leader.write(60)
    await pair.copy(high_watermark=59)
    bound = await pair.compact()
    assert bound <= pair.follower.replica.high_watermark, "the bound alone would allow it"
    before = read_all(pair.follower.replica.log)
    with pytest.raises(NotYetError, match="at high watermark 60"):
        await pair.adopt()
    assert read_all(pair.follower.replica.log) == before
    await pair.adopter.step()
    assert pair.compacted == Pair(0, 0)
    await pair.copy()
    await pair.adopter.step()
    assert pair.compacted == Pair(bound, bound), "what was offered is not forgotten"


async def test_an_open_transaction_below_the_bound_is_waited_for(pair: Followed) -> None:
    log = pair.leader.replica.log
    for sequence in range(12):
        log.append_as_leader(sequenced(sequence, is_open=True), LeaderEpoch(3), NOW_MS)
    end_transaction(log, ControlType.COMMIT)
    await pair.leader.write(30)
    await pair.copy(high_watermark=12)
    await pair.compact()
    pair.change_offer = lambda offer: offer.update(planned_high_watermark=0, bound=3)
    assert pair.follower.replica.high_watermark > 3
    with pytest.raises(NotYetError, match="stable up to 0"):
        await pair.adopt()


async def test_another_generation_is_refused(pair: Followed) -> None:
    await pair.write(60)
    await pair.compact()
    pair.change_offer = lambda offer: offer.update(generation=1)
    with pytest.raises(NotYetError, match="generation 1"):
        await pair.adopt()


async def test_less_than_it_has_compacted_itself_is_not_taken(pair: Followed) -> None:
    await pair.write(60)
    bound = await pair.compact()
    kept = pair.follower.replica.coordination.kept
    await kept.keep(lambda known: known.with_compaction(bound + 1))
    with pytest.raises(NotYetError, match="compacted up to"):
        await pair.adopt()


@pytest.mark.parametrize("what", ["left the ISR", "leads", "independent", "switched off", "not compacted"])
async def test_only_in_sync_followers_of_coordinated_topics_adopt(pair: Followed, what: str) -> None:
    await pair.write(60)
    await pair.compact()
    replica = pair.follower.replica
    if what == "left the ISR":
        pair.follow(isr=(1,))
    elif what == "leads":
        await replica.become_leader(replace(BOTH, leader=2, leader_epoch=LeaderEpoch(4)))
    elif what == "independent":
        replica.log.reconfigure(replace(CONFIG, compaction_coordination="independent"))
    elif what == "switched off":
        pair.follower.adopts = False
    else:
        replica.log.reconfigure(replace(CONFIG, cleanup_policy=frozenset({"delete"})))
    asked = len(pair.asked)
    await pair.adopter.step()
    assert len(pair.asked) == asked
    with pytest.raises(NotYetError, match="no in-sync follower"):
        await pair.adopt()
    assert pair.compacted.keys == 0


async def test_it_is_judged_at_the_moment_of_the_swap(pair: Followed) -> None:
    await pair.write(60)
    await pair.compact()

    def leave(data: bytes) -> bytes:
        pair.follow(isr=(1,))
        return data

    pair.change_piece = leave
    before = read_all(pair.follower.replica.log)
    with pytest.raises(SwapRefusedError, match="no in-sync follower"):
        await pair.adopt()
    assert read_all(pair.follower.replica.log) == before
    assert pair.compacted == Pair(0, 0)
    assert pair.follower.staged() == []


async def test_what_it_carries_and_the_own_high_watermark_are_durable_before_the_swap(pair: Followed) -> None:
    """And the fence: what the leader removed without coordination."""
    await pair.write(60)
    await pair.compact()
    kept = pair.leader.replica.coordination.kept
    await kept.keep(lambda known: replace(known, removable=Pair(7, 8), fence_below=9))
    await pair.write(5)
    log: Any = pair.follower.replica.log
    swap = log.swap
    seen = []

    async def watched(*arguments: Any) -> Any:
        on_disk = await Kept.open(pair.follower.disk, str(pair.follower.directory), LOGS[2], 0, 60)
        seen.append(on_disk.value)
        assert on_disk.value.compacted == Pair(0, 0)
        return await swap(*arguments)

    log.swap = watched
    await pair.adopt()
    (value,) = seen
    assert value.removable == Pair(7, 8)
    assert value.fence_below == 9
    assert value.planned_high_watermark == pair.follower.replica.high_watermark == 65, "later than it was planned at"
    assert pair.follower.replica.coordination.watermarks.removable == Pair(7, 8)


async def test_the_log_start_comes_along(pair: Followed) -> None:
    await pair.write(60)
    await pair.leader.replica.advance_start(13)
    bound = await pair.compact()
    await pair.adopt()
    assert pair.follower.replica.log.start_offset == 13
    pair.check_same(bound)


@pytest.mark.parametrize("segments_below", [0, 1])
async def test_a_follower_whose_log_begins_above_its_leaders_first_segment_takes_what_it_can_hold(
    pair: Followed, segments_below: int
) -> None:
    """Found by the simulator (seed 96, five minutes): a copy begun anew where its leader's log starts, inside a
    segment. A file that began below its name was refused, for ever."""
    await pair.leader.write(60)
    log = pair.leader.replica.log
    first = log.summaries()[segments_below]
    start = [one.base_offset for one in read_all(log) if one.base_offset > first.base_offset][1]
    assert start < log.summaries()[segments_below + 1].base_offset
    await pair.follower.replica.restart_log(start)
    await pair.copy()
    bound = await pair.compact()
    assert log.summaries()[0].base_offset < start
    await pair.adopt()
    assert pair.follower.replica.log.summaries()[0].base_offset == start
    taken = [one for one in read_all(pair.follower.replica.log) if one.last_offset < bound]
    assert taken == [one for one in read_all(log) if start <= one.base_offset and one.last_offset < bound]
    assert pair.follower.staged() == []


async def test_producer_snapshots_below_the_bound_go_and_one_at_the_end_stays(pair: Followed) -> None:
    await pair.write(60)
    bound = await pair.compact()
    directory = pair.follower.directory
    assert min(int(path.stem) for path in directory.glob("*.snapshot")) < bound
    await pair.adopt()
    left = [int(path.stem) for path in directory.glob("*.snapshot")]
    assert left
    assert min(left) >= bound


# --- what goes wrong on the way ---


def _damage(data: bytes) -> bytes:
    return data[:-3] + bytes([data[-3] ^ 1]) + data[-2:]


@pytest.mark.parametrize(
    ("change", "error"),
    [(_damage, "came damaged"), (lambda data: data + b"more", "came damaged"), (lambda data: b"\1", "no bytes")],
)
async def test_what_comes_damaged_is_refused(pair: Followed, change: Callable[[bytes], bytes], error: str) -> None:
    await pair.write(60)
    await pair.compact()
    pair.change_piece = change
    before = read_all(pair.follower.replica.log)
    with pytest.raises(Exception, match=error):
        await pair.adopt()
    assert read_all(pair.follower.replica.log) == before
    assert pair.follower.staged() == []
    assert pair.compacted == Pair(0, 0)


async def test_a_leader_that_compacts_again_meanwhile_voids_its_offer(pair: Followed) -> None:
    await pair.write(60)
    await pair.compact()
    later: list[int] = []

    async def again() -> None:
        await pair.write(20)
        later.append(await pair.compact())

    ask = pair.ask

    async def interrupted(broker_id: int, api_key: int, body: bytes) -> memoryview:
        answer = await ask(broker_id, api_key, body)
        if not later and b'"segments":' in bytes(answer):
            await again()
        return answer

    pair.ask = interrupted  # type: ignore[method-assign]
    await pair.adopter.step()
    await pair.adopter.step()
    pair.check_same(later[0])
    assert pair.compacted == Pair(later[0], later[0])


async def test_a_follower_truncated_meanwhile_refuses(pair: Followed) -> None:
    await pair.write(60)
    await pair.compact()

    def truncate(data: bytes) -> bytes:
        pair.follower.replica.log.segments.reopened_count += 1
        return data

    pair.change_piece = truncate
    with pytest.raises(SwapRefusedError, match="changed since"):
        await pair.adopt()


async def test_an_own_pass_under_way_is_refused_after_an_adoption(pair: Followed) -> None:
    """Rule 10."""
    from sexton.compactor.engines.reference import carry_out

    await pair.write(60)
    plan = await pair.follower.service.plans.plan(BOTH.topic_id, 0)
    result = carry_out(pair.follower.disk, plan)
    bound = await pair.compact()
    await pair.adopt()
    with pytest.raises(SwapRefusedError):
        await pair.follower.service.plans.commit(result)
    pair.check_same(bound)


# --- who waits for whom ---


async def test_a_follower_does_not_publish_what_its_leader_is_about_to_compact(pair: Followed) -> None:
    await pair.write(60)
    await pair.follower.service.look()
    assert await pair.follower.metastore.read_work() == []
    await pair.leader.service.look()
    assert len(await pair.leader.metastore.read_work()) == 1
    await pair.adopter.step()
    assert pair.follower.service.memory.patience.waiting == [(BOTH.topic_id, 0)]


async def test_it_publishes_when_taking_over_keeps_failing_and_no_longer_when_it_has_succeeded(pair: Followed) -> None:
    await pair.write(60)
    await pair.compact()
    pair.change_piece = _damage
    for _ in range(3):
        await pair.follower.service.look()
        assert await pair.follower.metastore.read_work() == []
        await pair.adopter.step()
    await pair.follower.service.look()
    assert len(await pair.follower.metastore.read_work()) == 1
    pair.change_piece = lambda data: data
    await pair.adopter.step()
    await pair.follower.service.look()
    assert await pair.follower.metastore.read_work() == []


async def test_a_follower_that_has_compacted_further_than_its_leader_goes_its_own_way(pair: Followed) -> None:
    """What it waits for would never come: its leader has nothing to do."""
    await pair.write(60)
    await pair.compact()
    leader: Any = pair.leader.service
    leader.is_coming = lambda replica: False
    kept = pair.follower.replica.coordination.kept
    pair.follower.replica.log.close_active(1000)
    await kept.keep(lambda known: known.with_compaction(60))
    pair.follower.service.memory.requested[BOTH.topic_id, 0] = None
    await pair.follower.service.look()
    await pair.adopter.step()
    assert await pair.follower.metastore.read_work() == []
    patience = pair.follower.service.memory.patience
    now_ms = pair.follower.clock.monotonic_ms()
    assert patience.waits((BOTH.topic_id, 0), now_ms)
    assert not patience.waits((BOTH.topic_id, 0), now_ms + NOTHING_MS)


async def test_another_process_of_the_leader_is_asked_about_everything_again(pair: Followed) -> None:
    await pair.write(60)
    bound = await pair.compact()
    await pair.leader.replica.log.close()
    await pair.leader.start()
    await pair.copy()
    pair.leader.epoch += 1
    for _ in range(2):
        await pair.adopter.step()
    assert pair.compacted == Pair(bound, bound), "it offers what it compacted before it was restarted"
    await asyncio.sleep(0)
    assert below(pair.follower, bound) == below(pair.leader, bound)


async def test_passes_of_a_leader_that_was_restarted_are_announced_from_its_first_on(pair: Followed) -> None:
    """It counts from its own beginning; its follower knew of three."""
    for _ in range(3):
        await pair.write(60)
        await pair.compact()
        await pair.adopter.step()
    await pair.leader.replica.log.close()
    await pair.leader.start()
    await pair.copy()
    pair.leader.epoch += 1
    for _ in range(2):
        await pair.adopter.step()  # what it compacted before is asked about once
    await pair.write(60)
    bound = await pair.compact()
    await pair.adopter.step()
    assert pair.compacted == Pair(bound, bound)


async def test_a_bug_in_one_adoption_is_counted_and_tried_again_after_a_pause(pair: Followed) -> None:
    """A bug for one partition must not be the end of the loop that serves all."""
    await pair.write(60)
    bound = await pair.compact()
    clock = StoppedClock()
    adopter, unchanged, attempts = pair.new_adopter(clock), pair.change_piece, []

    def has_a_bug(_: bytes) -> bytes:
        attempts.append(clock.ms)
        raise IndexError("nobody expected this")

    pair.change_piece = has_a_bug
    for clock.ms in range(0, 10_000, 500):
        await adopter.step()
    assert attempts == [0, 1000, 3000, 7000], "each pause is longer than the one before"
    assert pair.supervisor.bugs == {"adoption": len(attempts)}
    assert pair.follower.staged() == []
    pair.change_piece = unchanged
    clock.ms = 70_000
    await adopter.step()
    pair.check_same(bound)


class StoppedClock:
    ms = 0

    def monotonic_ms(self) -> int:
        return self.ms

    def now_ms(self) -> int:
        return self.ms


# --- how segments go together ---


def _offered(*bases: int) -> list[OfferedSegment]:
    return [OfferedSegment(base, 100, base) for base in bases]


@pytest.mark.parametrize(
    ("offered", "own", "expected"),
    [
        ((0, 10, 20), (0, 10, 20), [((0,), (0,)), ((10,), (10,)), ((20,), (20,))]),
        ((0, 20), (0, 10, 20), [((0,), (0, 10)), ((20,), (20,))]),
        ((0, 10, 20), (0,), [((0, 10, 20), (0,))]),
        ((0, 10, 20), (0, 15), [((0, 10, 20), (0, 15))]),
        ((0, 10, 30), (0, 20, 30), [((0, 10), (0, 20)), ((30,), (30,))]),
        ((5, 20), (0, 20), [((5,), (0,)), ((20,), (20,))]),
    ],
)
def test_neighbours_go_together_until_both_begin_a_segment(
    offered: tuple[int, ...], own: tuple[int, ...], expected: list[tuple[tuple[int, ...], tuple[int, ...]]]
) -> None:
    found = grouped(_offered(*offered), own)
    assert [(tuple(one.base_offset for one in group.offered), group.own) for group in found] == expected
