"""Who waits for the disk may be cancelled; what the disk says is heard all the same. A kernel says it once."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from sexton.log.log import Log
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.types import LeaderEpoch
from tests.log.helpers import lead, open_log, plain


class OneFailure:
    """The first call waits until it may fail; those that follow succeed, as after a real one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, call: str, number: int) -> None:
        self._call, self._number = getattr(os, call), number
        self.is_under_way = threading.Event()
        self._may_end = threading.Event()
        self._has_failed = False
        monkeypatch.setattr(os, call, self)

    def __call__(self, fd: int) -> None:
        if self._has_failed:
            self._call(fd)
            return
        self._has_failed = True
        self.is_under_way.set()
        assert self._may_end.wait(30)
        raise OSError(self._number, os.strerror(self._number))

    async def while_it_is_under_way(self, operation: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Whoever waits for the operation is cancelled meanwhile."""
        task = asyncio.ensure_future(operation)
        await asyncio.to_thread(self.is_under_way.wait, 30)
        task.cancel()
        await asyncio.sleep(0)
        self._may_end.set()
        await asyncio.gather(task, return_exceptions=True)
        return task


def cutting(log: Log) -> Coroutine[Any, Any, None]:
    return log.truncate_to(1)


def moving_the_start(log: Log) -> Coroutine[Any, Any, None]:
    return log.advance_start(1)


@pytest.mark.parametrize("operation", [cutting, moving_the_start])
async def test_a_failed_flush_is_remembered_though_nobody_waits_for_it_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: Callable[[Log], Coroutine[Any, Any, None]]
) -> None:
    log = await open_log(tmp_path)
    lead(log, *[plain(b"a")] * 3)
    failure = OneFailure(monkeypatch, "fdatasync", errno.EIO)
    await failure.while_it_is_under_way(operation(log))
    assert log.failure is not None
    with pytest.raises(KafkaError) as caught:
        await log.flush()
    assert caught.value.code is ErrorCode.kafka_storage_error
    assert log.flushed_offset < 3


async def test_a_history_that_could_not_be_written_is_not_believed_though_its_writer_was_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await open_log(tmp_path)
    await log.begin_epoch(LeaderEpoch(1))
    before = log.epochs.entries
    failure = OneFailure(monkeypatch, "fsync", errno.ENOSPC)
    await failure.while_it_is_under_way(log.begin_epoch(LeaderEpoch(2)))
    assert log.epochs.entries == before
    await log.begin_epoch(LeaderEpoch(2))
    written = (tmp_path / "orders-0" / "leader-epoch-checkpoint").read_text()
    assert "2" in written.splitlines()[-1].split()


async def test_who_is_cancelled_stays_cancelled_whatever_the_disk_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop that goes on after an error of the disk must still come to its end."""

    async def loop(log: Log) -> None:
        while True:
            try:
                await log.begin_epoch(LeaderEpoch(2))
            except KafkaError:
                await asyncio.sleep(0)

    log = await open_log(tmp_path)
    await log.begin_epoch(LeaderEpoch(1))
    failure = OneFailure(monkeypatch, "fsync", errno.ENOSPC)
    assert (await asyncio.wait_for(failure.while_it_is_under_way(loop(log)), 30)).cancelled()
