"""What is queued behind the deletion of a log, and the next log of the same name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from sexton.compaction.acceptance import SwapTerms
from sexton.log.log import Log
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.types import LeaderEpoch
from tests.epochs import history
from tests.log.helpers import EPOCH, NOW_MS, lead, offsets, open_log, plain, read_all

SMALL: dict[str, Any] = {"segment_bytes": 600}

QUEUED: dict[str, Callable[[Log], Coroutine[Any, Any, Any]]] = {
    "flush": lambda log: log.flush(),
    "truncate": lambda log: log.truncate_to(1),
    "restart": lambda log: log.restart_at(50),
    "advance start": lambda log: log.advance_start(5),
    "begin epoch": lambda log: log.begin_epoch(LeaderEpoch(77)),
    "replace epochs": lambda log: log.replace_epochs(history((78, 0))),
    "close": lambda log: log.close(),
    "swap": lambda log: log.swap(log.segments.closed(4), "nowhere", [], SwapTerms(4, 0, None)),
}


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in (path / "orders-0").iterdir()}


@pytest.mark.parametrize("queued", QUEUED)
async def test_what_is_queued_behind_the_deletion_of_a_log_leaves_the_next_one_alone(
    tmp_path: Path, queued: str
) -> None:
    log = await open_log(tmp_path, **SMALL)
    lead(log, *[plain(b"a" * 200)] * 6)  # two a segment, and no flush
    async with log.locks.flushing:  # somebody else flushes
        deleting = asyncio.ensure_future(log.delete())
        await asyncio.sleep(0)
        late = asyncio.ensure_future(QUEUED[queued](log))
        for _ in range(5):
            await asyncio.sleep(0)
    await deleting
    following = await open_log(tmp_path, **SMALL)
    lead(following, *[plain(b"b" * 200)] * 3)
    await following.flush()
    before = contents(tmp_path)
    with pytest.raises(KafkaError) as caught:
        await late
    assert caught.value.code is ErrorCode.not_leader_or_follower
    assert contents(tmp_path) == before
    again = await open_log(tmp_path, **SMALL)
    assert offsets(read_all(again)) == [0, 1, 2]


async def test_a_deleted_log_is_neither_appended_to_nor_read_by_the_names_it_had(tmp_path: Path) -> None:
    log = await open_log(tmp_path, **SMALL)
    lead(log, *[plain(b"a" * 200)] * 6)
    await log.flush()
    closed = log.segments.closed(6).segments
    await log.delete()
    following = await open_log(tmp_path, **SMALL)
    lead(following, *[plain(b"b" * 200)] * 6)
    await following.flush()
    before = contents(tmp_path)
    with pytest.raises(KafkaError):
        log.append_as_leader(plain(b"a" * 500), EPOCH, NOW_MS)
    with pytest.raises(KafkaError):
        log.append_as_follower(plain(b"a" * 500))
    assert not log.close_active(NOW_MS)
    with pytest.raises(KafkaError, match="deleted"):
        log.read(0, 1000, 6, min_one=True)
    with pytest.raises(OSError, match="gone"):
        await log.segments.checksum(closed[0])
    assert contents(tmp_path) == before
