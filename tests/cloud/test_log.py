"""The pure log of a cloud partition: what its leader knows, and what the metastore gives the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from sexton.cloud.log import DELTAS_MAX, CloudLog, Piece
from sexton.ports.cloud import Gather, Outcome
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.records.batch import ControlType
from sexton.types import ProducerEpoch, ProducerId
from tests.adapters.metastore.cloud.world import A, World
from tests.cloud.worlds import NOW_MS, claim_log, make_world
from tests.log.helpers import marker, plain, sequenced


def in_world(work: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def go() -> None:
        await work(await make_world())

    asyncio.run(go())


async def commit(world: World, log: CloudLog, piece: Piece | None = None) -> None:
    """As the uploader does, without an upload."""
    piece = piece or log.seal()
    object_id = None if piece.is_inline else await world.pending()
    size_bytes = 0 if piece.is_inline else piece.size_bytes
    told = await world.commit(Gather(object_id=object_id, size_bytes=size_bytes, runs=[piece.run(0)]))
    assert told == [[Outcome.ACCEPTED]]
    log.note_committed(piece, object_id, 0)
    log.check_invariants()


def state_of(log: CloudLog) -> dict[int, Any]:
    return {
        one.producer_id: (one.epoch, list(one.batches), one.coordinator_epoch, one.transaction_start)
        for one in log.producers
    }


def end(log: CloudLog, how: ControlType, **who: int) -> Piece:
    _, piece = log.append(marker(how, **who), NOW_MS, from_client=False)
    assert piece is not None
    return piece


def test_what_is_appended_is_committed_only_with_its_piece() -> None:
    async def work(world: World) -> None:
        log = await claim_log(world)
        appended, _ = log.append(plain(b"a", b"b"), NOW_MS)
        log.append(plain(b"c"), NOW_MS)
        assert (appended.first_offset, appended.last_offset) == (0, 1)
        assert (log.committed_offset, log.end_offset, log.last_stable_offset) == (0, 3, 0)
        await commit(world, log)
        assert (log.committed_offset, log.last_stable_offset, log.size_bytes) == (3, 3, log.extents.size_bytes)
        assert (await world.row()).end_offset == 3

    in_world(work)


def test_a_retry_of_a_tentative_batch_is_recognised() -> None:
    async def work(world: World) -> None:
        log = await claim_log(world)
        log.append(sequenced(0, 2), NOW_MS)
        again, piece = log.append(sequenced(0, 2), NOW_MS)
        assert again.is_duplicate
        assert piece is None
        assert (again.first_offset, again.last_offset) == (0, 1)
        with pytest.raises(KafkaError) as refused:
            log.append(sequenced(5), NOW_MS)
        assert refused.value.code is ErrorCode.out_of_order_sequence_number

    in_world(work)


def test_the_next_leader_knows_exactly_what_the_last_one_knew_of_what_is_committed() -> None:
    async def work(world: World) -> None:
        log = await claim_log(world)
        log.append(sequenced(0, 3, pid=1), NOW_MS)
        log.append(sequenced(0, 1, pid=2, is_open=True), NOW_MS)
        await commit(world, log)
        log.append(sequenced(3, 1, pid=1), NOW_MS)
        await commit(world, log)
        await commit(world, log, end(log, ControlType.ABORT, pid=2))
        known = state_of(log)
        log.append(sequenced(4, 1, pid=1), NOW_MS)  # never committed
        following = await claim_log(world, epoch=2, broker_id=2)
        assert state_of(following) == known
        assert following.end_offset == following.committed_offset == 6
        assert following.aborted_transactions(0, 6) == [(2, 3)]
        again, _ = following.append(sequenced(0, 3, pid=1), NOW_MS)
        assert again.is_duplicate
        assert again.first_offset == 0
        assert following.epochs.end_offset_of(log.leader_epoch, following.end_offset) == (1, 6)

    in_world(work)


def test_a_snapshot_keeps_all_five_batches_that_a_client_may_send_again() -> None:
    async def work(world: World) -> None:
        log = await claim_log(world)
        for number in range(DELTAS_MAX + 1):
            log.append(sequenced(number), NOW_MS)
            await commit(world, log)
        assert (await world.row()).producers_offset == DELTAS_MAX
        following = await claim_log(world, epoch=2)
        assert state_of(following) == state_of(log)
        for number in range(DELTAS_MAX - 4, DELTAS_MAX + 1):
            again, _ = following.append(sequenced(number), NOW_MS)
            assert again.is_duplicate
            assert again.first_offset == number

    in_world(work)


def test_what_comes_with_a_snapshot_does_not_ask_for_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many producers as have more than DELTA_BYTES_MAX in their last five batches: 1,700 with the real one."""
    monkeypatch.setattr("sexton.cloud.log.DELTA_BYTES_MAX", 4_000)

    async def work(world: World) -> None:
        log = await claim_log(world)
        for pid in range(40):
            for number in range(5):
                log.append(sequenced(number, pid=pid), NOW_MS)
        await commit(world, log)
        snapshots = []
        for _ in range(5):
            log.append(plain(b"a"), NOW_MS)
            snapshots.append(log.piece is not None and log.piece.snapshot is not None)
            await commit(world, log)
        assert snapshots == [True, False, False, False, False]
        after = await claim_log(world, epoch=2, broker_id=2)
        assert state_of(after) == state_of(log)

    in_world(work)


def test_an_open_transaction_outlives_a_snapshot_and_a_change_of_leader() -> None:
    async def work(world: World) -> None:
        log = await claim_log(world)
        log.append(sequenced(0, is_open=True, pid=9), NOW_MS)
        await commit(world, log)
        for number in range(DELTAS_MAX + 1):
            log.append(sequenced(number), NOW_MS)
            await commit(world, log)
        following = await claim_log(world, epoch=2)
        assert following.last_stable_offset == 0
        assert following.producers.is_open(ProducerId(9), ProducerEpoch(0))
        await commit(world, following, end(following, ControlType.COMMIT, pid=9))
        assert following.last_stable_offset == following.end_offset
        assert (await world.row()).stable_offset == following.end_offset

    in_world(work)


def test_a_marker_is_stable_only_when_it_is_committed() -> None:
    async def work(world: World) -> None:
        log = await claim_log(world)
        log.append(sequenced(0, is_open=True), NOW_MS)
        await commit(world, log)
        assert log.last_stable_offset == 0
        piece = end(log, ControlType.COMMIT)
        assert piece.is_inline
        assert piece.is_sealed
        assert log.piece is None
        assert log.last_stable_offset == 0
        await commit(world, log, piece)
        assert log.last_stable_offset == 2

    in_world(work)


def test_a_marker_behind_batches_of_the_same_gather_goes_with_them() -> None:
    async def work(world: World) -> None:
        log = await claim_log(world)
        log.append(sequenced(0, is_open=True), NOW_MS)
        piece = end(log, ControlType.ABORT)
        assert piece is log.piece
        assert not piece.is_inline
        await commit(world, log)
        assert log.last_stable_offset == 2
        assert log.aborted_transactions(0, 2) == [(7, 0)]

    in_world(work)


def test_the_stable_offset_of_a_run_ignores_what_comes_behind_it() -> None:
    async def work(world: World) -> None:
        log = await claim_log(world)
        log.append(sequenced(0, is_open=True), NOW_MS)
        first = log.seal()
        second = end(log, ControlType.COMMIT)
        assert (first.stable_offset, second.stable_offset) == (0, 2)
        await commit(world, log, first)
        assert (await world.row()).stable_offset == 0
        await commit(world, log, second)
        assert (await world.row()).stable_offset == 2

    in_world(work)


def test_retention_by_size_and_time_takes_whole_extents() -> None:
    async def work(world: World) -> None:
        log = await claim_log(world, retention_ms=1000, retention_bytes=-1)
        for time_ms in (NOW_MS, NOW_MS + 600, NOW_MS + 1200):
            log.append(plain(b"a", time_ms=time_ms), NOW_MS)
            await commit(world, log)
        assert log.retention_start([], NOW_MS + 1000) == 0
        assert log.retention_start([], NOW_MS + 1001) == 1
        assert log.retention_start([], NOW_MS + 9999) == 3
        assert (await world.do("advance_start", A, log.leader_epoch, 1)).outcome is Outcome.ACCEPTED
        assert [one.base_offset for one in log.note_start(1)] == [0]
        log.check_invariants()
        assert log.start_offset == 1
        assert log.extents.base_offset == 1

    in_world(work)


def test_retention_takes_nothing_where_extents_are_missing() -> None:
    """The metastore does not know what was leveled, and what was leveled is not read from L0 any more: it is an older
    one than this log was claimed from."""

    async def work(world: World) -> None:
        log = await claim_log(world, retention_ms=1000, retention_bytes=-1)
        for value in (b"a", b"b", b"c"):
            log.append(plain(value), NOW_MS)
            await commit(world, log)
        l0 = list(log.extents)
        log.note_leveled(replace(await world.row(), leveled_offset=2))
        assert log.retention_start([], NOW_MS + 9999) == 0
        assert log.retention_start(l0[:1], NOW_MS + 9999) == 0
        assert log.retention_start(l0[:2], NOW_MS + 9999) == 3

    in_world(work)


def test_log_append_time_is_the_brokers() -> None:
    async def work(world: World) -> None:
        log = await claim_log(world, message_timestamp_type="LogAppendTime")
        appended, piece = log.append(plain(b"a", time_ms=5), NOW_MS)
        assert appended.log_append_time_ms == NOW_MS
        assert piece is not None
        assert (piece.first_timestamp_ms, piece.max_timestamp_ms) == (NOW_MS, NOW_MS)

    in_world(work)
