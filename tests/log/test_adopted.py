"""Another replica's finished compaction in the place of what a log holds: cut differently, interrupted at every step,
and what is refused."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from sexton.broker.compaction.adoption import grouped
from sexton.compaction.acceptance import SwapTerms
from sexton.compaction.contract import NewSegment, OfferedSegment
from sexton.compaction.swap import SwapRefusedError
from sexton.log.swap_disk import staging_path
from sexton.records import names
from sexton.records.batch import ControlType, Record, encode, make_batch, make_marker
from sexton.records.header import TRANSACTIONAL
from sexton.settings.topic import TopicConfig
from sexton.types import NO_OFFSET
from tests.log.helpers import NOW_MS
from tests.log.test_swapping import DIRECTORY, Crash, Machine, filled

STAGING = staging_path(DIRECTORY, "adopted")
OTHER = TopicConfig(cleanup_policy=frozenset({"compact"}), segment_bytes=900, index_interval_bytes=100)


def compacted(seed: int, passes_count: int = 3) -> tuple[Machine, int]:
    """A leader, and up to where it has compacted."""
    leader = filled(seed)
    bound = leader.bound()
    for _ in range(passes_count):
        leader.run(leader.compact(removal=bound))
    return leader, bound


def stage(follower: Machine, leader: Machine, bound: int) -> list[NewSegment]:
    """As a follower does it, but without the network."""
    theirs, own = leader.log.segments.closed(bound), follower.log.segments.closed(bound)
    content = {one.base_offset: one.file.read(0, one.size_bytes) for one in theirs.segments}
    offered = [OfferedSegment(base, len(data), 0) for base, data in content.items()]
    follower.disk.make_directory(STAGING)
    replacements = []
    for group in grouped(offered, own.base_offsets):
        data = b"".join(content[one.base_offset] for one in group.offered)
        last = own.segments[-1]
        if group.own[-1] == last.base_offset and last.end_offset > bound:
            position = last.position_of(bound)
            data += last.file.read(position, last.size_bytes - position)
        write(follower, group.own[0], data)
        replacements.append(NewSegment(group.own[0], -1, group.own))
    return replacements


def write(follower: Machine, base_offset: int, data: bytes) -> None:
    file = follower.disk.open(f"{STAGING}/{names.log_file_name(base_offset, names.CLEANED_SUFFIX)}", create=True)
    file.truncate(0)
    file.append([data])
    file.close()


async def swap(follower: Machine, replacements: list[NewSegment], bound: int, mxro: int | None = None) -> None:
    terms = SwapTerms(bound, bound if mxro is None else mxro, 0, is_adopted=True)
    await follower.log.swap(follower.log.segments.closed(bound), STAGING, replacements, terms)


def following(seed: int, config: TopicConfig | None = None) -> Machine:
    """Holds what the leader held, and all of it is in closed segments."""
    follower = filled(seed, config=config)
    follower.log.close_active(NOW_MS)
    follower.run(follower.log.flush())
    return follower


@pytest.mark.parametrize("segment_bytes", [300, 600, 900, 100_000])
@pytest.mark.parametrize("seed", range(6))
def test_below_the_bound_it_holds_what_the_leader_holds_and_says_what_it_said(seed: int, segment_bytes: int) -> None:
    leader, bound = compacted(seed)
    follower = following(seed, replace(OTHER, segment_bytes=segment_bytes))
    before, end_offset = follower.fold(), follower.log.end_offset
    above = [one for one in follower.batches() if one.base_offset >= bound]
    producers = {one.producer_id: one.last_sequence for one in follower.log.producers}
    follower.run(swap(follower, stage(follower, leader, bound), bound))
    for power_lost in (None, True):
        if power_lost:
            follower.crash(power_lost=True)
            follower.open()
        assert follower.fold() == follower.read_committed() == before
        held = follower.batches()
        assert [one for one in held if one.base_offset < bound] == [
            one for one in leader.batches() if one.base_offset < bound
        ]
        assert [one for one in held if one.base_offset >= bound] == above
        assert follower.log.end_offset == end_offset
        assert {one.producer_id: one.last_sequence for one in follower.log.producers} == producers
        assert all(one.transaction_start == NO_OFFSET for one in follower.log.producers)


@pytest.mark.parametrize("power_lost", [False, True])
def test_a_crash_at_any_step_leaves_a_log_that_says_the_same_and_can_adopt_again(power_lost: bool) -> None:
    seed = 4
    leader, bound = compacted(seed, passes_count=1)
    follower = following(seed)
    replacements = stage(follower, leader, bound)
    assert len(replacements) > 1
    follower.steps.clear()
    follower.run(swap(follower, replacements, bound))
    for stop_at in range(0, len(follower.steps), 3 if power_lost else 2):
        follower = following(seed)
        before = follower.fold()
        replacements = stage(follower, leader, bound)
        follower.steps.clear()
        follower.stop_at, follower.failure = stop_at, Crash
        with pytest.raises(Crash):
            follower.run(swap(follower, replacements, bound))
        follower.crash(power_lost=power_lost)
        follower.open()
        assert follower.fold() == follower.read_committed() == before
        assert all(one.transaction_start == NO_OFFSET for one in follower.log.producers)
        follower.run(swap(follower, stage(follower, leader, bound), bound))
        assert follower.fold() == follower.read_committed() == before


# --- what is refused ---


def of_one_segment() -> tuple[Machine, int]:
    """A log with one closed segment: a transaction that was aborted at 2, a value, another above the bound."""
    follower = Machine(1, replace(OTHER, segment_bytes=100_000))
    follower.open()
    follower.lead(in_transaction(b"a"))
    follower.lead(batch(0, b"b"))
    follower.lead(encode(make_marker(0, ControlType.ABORT, 7, 0, NOW_MS, leader_epoch=-1)), from_client=False)
    follower.lead(batch(0, b"c"))
    follower.lead(batch(0, b"above"))
    follower.log.close_active(NOW_MS)
    follower.run(follower.log.flush())
    follower.disk.make_directory(STAGING)
    return follower, 4


def batch(offset: int, key: bytes, value: bytes = b"v", **fields: int) -> bytes:
    return encode(make_batch([Record(offset, NOW_MS, key, value)], **{"leader_epoch": 3, **fields}))


def in_transaction(key: bytes) -> bytes:
    return batch(0, key, attributes=TRANSACTIONAL, producer_id=7, producer_epoch=0, base_sequence=0)


def _own(follower: Machine) -> list[bytes]:
    """Its batches as they are."""
    return [encode(one) for one in follower.batches()]


Changed = Callable[[list[bytes]], list[bytes]]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda own: [own[0], *own[1:]], "is still transactional"),
        (lambda own: [own[1], own[3], own[4]], "rule 6: the marker at 2"),
        (lambda own: [own[1], own[2], own[3]], "above the bound is missing"),
        (lambda own: [own[1], own[2], own[3], batch(4, b"other", b"longer")], "is not this log's"),
        (lambda own: [own[2], own[1], own[3], own[4]], "comes where"),
        (lambda own: [own[1], own[2], own[3], own[4][:-1]], "cut off"),
        (lambda own: [own[1][:-1] + b"!", own[2], own[3], own[4]], "CRC"),
        (lambda own: [own[1], own[2], _across(), own[4]], "lies across the bound"),
        (lambda own: [], "missing"),
    ],
)
def test_what_could_not_have_become_of_a_log_is_refused(change: Changed, error: str) -> None:
    follower, bound = of_one_segment()
    own = _own(follower)
    write(follower, 0, b"".join(change(own)))
    before = follower.batches()
    with pytest.raises(SwapRefusedError, match=error):
        follower.run(swap(follower, [NewSegment(0, -1, (0,))], bound, mxro=2))
    assert follower.batches() == before


def _across() -> bytes:
    return encode(make_batch([Record(3, NOW_MS, b"c", b"v"), Record(4, NOW_MS, b"d", b"v")], leader_epoch=3))


def test_the_same_log_with_nothing_wrong_is_taken() -> None:
    follower, bound = of_one_segment()
    own = _own(follower)
    write(follower, 0, b"".join(own[1:]))
    follower.run(swap(follower, [NewSegment(0, -1, (0,))], bound, mxro=2))
    assert _own(follower) == own[1:]


def test_markers_below_mxro_may_be_gone() -> None:
    follower, bound = of_one_segment()
    own = _own(follower)
    write(follower, 0, b"".join([own[1], own[3], own[4]]))
    follower.run(swap(follower, [NewSegment(0, -1, (0,))], bound, mxro=3))
    assert follower.read_committed() == {b"b": (1, b"v"), b"c": (3, b"v"), b"above": (4, b"v")}


def test_what_ends_before_the_last_segment_that_it_replaces_is_refused() -> None:
    """A recovery could not tell how far it reaches."""
    follower, _ = of_one_segment()
    own = _own(follower)
    follower.lead(batch(0, b"more"))
    follower.log.close_active(NOW_MS)
    follower.run(follower.log.flush())
    write(follower, 0, b"".join(own[1:4]))
    with pytest.raises(SwapRefusedError, match="not inside"):
        follower.run(swap(follower, [NewSegment(0, -1, (0, 5))], 6))


def test_an_aborted_transaction_that_ends_above_the_bound_stays_in_the_index() -> None:
    follower = Machine(1, replace(OTHER, segment_bytes=100_000))
    follower.open()
    follower.lead(batch(0, b"a"))
    follower.lead(in_transaction(b"b"))
    follower.lead(encode(make_marker(0, ControlType.ABORT, 7, 0, NOW_MS, leader_epoch=-1)), from_client=False)
    follower.log.close_active(NOW_MS)
    follower.run(follower.log.flush())
    follower.disk.make_directory(STAGING)
    write(follower, 0, b"".join(_own(follower)))
    follower.run(swap(follower, [NewSegment(0, -1, (0,))], 1))
    assert follower.read_committed() == {b"a": (0, b"v")}
    assert len(follower.log.aborted_transactions(0, 3)) == 1


def test_random_logs_fold_the_same_after_several_adoptions() -> None:
    leader = filled(9)
    follower = filled(9, config=OTHER)
    for turn in range(4):
        bound = leader.bound()
        leader.run(leader.compact(removal=bound if turn else 0))
        follower.log.close_active(NOW_MS)
        follower.run(follower.log.flush())
        follower.run(swap(follower, stage(follower, leader, bound), bound))
        assert follower.fold() == follower.read_committed() == leader.fold()
        for machine in (leader, follower):
            machine.fill(random.Random(turn), batches_count=15)
            machine.run(machine.log.flush())
        assert _own(follower)[-1] == _own(leader)[-1]


def test_whoever_is_cancelled_while_it_swaps_may_remove_what_it_staged() -> None:
    leader, bound = compacted(4, passes_count=1)
    for pauses_count in range(40):
        follower = following(4)
        before = follower.fold()
        replacements = stage(follower, leader, bound)

        async def swap_and_be_stopped(follower: Machine, replacements: list[NewSegment], pauses_count: int) -> None:
            swapping = asyncio.ensure_future(swap(follower, replacements, bound))
            for _ in range(pauses_count):
                await asyncio.sleep(0)
            swapping.cancel()
            await asyncio.gather(swapping, return_exceptions=True)
            follower.disk.remove_tree(STAGING)
            async with follower.log.locks.shape:
                assert follower.log.failure is None

        follower.run(swap_and_be_stopped(follower, replacements, pauses_count))
        assert follower.fold() == follower.read_committed() == before
        if pauses_count > 3:
            assert [one for one in follower.batches() if one.base_offset < bound] == [
                one for one in leader.batches() if one.base_offset < bound
            ]
