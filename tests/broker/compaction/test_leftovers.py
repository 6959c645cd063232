"""A partition that nobody writes to any more: what waits in it goes in the end, however often its broker restarts."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from sexton.broker.compaction.leftovers import LEFTOVERS_FILE
from sexton.broker.compaction.plans import NotDueError
from sexton.compaction.watermarks.checkpoint import Kept
from sexton.compaction.watermarks.replica import Pair
from sexton.compactor.engines.reference import carry_out
from tests.broker.compaction.harness import CONFIG, LOG, TOPIC, Broker
from tests.log.helpers import read_all

RETENTION_MS = 1000


class Hands:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.ms = 10_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic_ms(self) -> int:
        return self.ms


class Quiet:
    """A broker with one log, which can be started again and again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.clock = Hands()
        self.broker: Broker

    async def start(self) -> None:
        self.broker = Broker(self._path, config=replace(CONFIG, delete_retention_ms=RETENTION_MS))
        self.broker.clock = cast(Any, self.clock)
        await self.broker.start()
        await asyncio.sleep(0.02)  # MTRO follows MCCO

    async def compact(self) -> None:
        plan = await self.broker.service.plans.plan(TOPIC, 0)
        await self.broker.service.plans.commit(carry_out(self.broker.disk, plan))
        await asyncio.sleep(0.02)

    async def is_due(self) -> bool:
        try:
            await self.broker.service.plans.plan(TOPIC, 0)
        except NotDueError:
            return False
        return True

    @property
    def tombstones(self) -> int:
        bound = min(self.broker.replica.coordination.watermarks.compacted)
        below = [one for one in read_all(self.broker.replica.log) if one.base_offset < bound]
        return sum(record.is_tombstone for one in below for record in one.records)

    @property
    def note(self) -> Path:
        return self.broker.directory / LEFTOVERS_FILE


@pytest.fixture
async def quiet(tmp_path: Path) -> Quiet:
    made = Quiet(tmp_path)
    await made.start()
    await made.broker.write(30)
    return made


async def test_tombstones_leave_though_the_broker_restarts_after_each_pass(quiet: Quiet) -> None:
    await quiet.compact()
    assert quiet.tombstones > 0, "MTRO was 0"
    await quiet.start()
    await quiet.compact()
    assert quiet.tombstones > 0, "their horizon has just begun"
    await quiet.start()
    assert not await quiet.is_due()
    quiet.clock.ms += RETENTION_MS
    await quiet.compact()
    assert quiet.tombstones == 0
    await quiet.start()
    quiet.clock.ms += 100 * RETENTION_MS
    assert not await quiet.is_due(), "there is nothing left to wait for"


async def test_a_crash_between_the_swap_and_the_note_costs_a_pass_and_forgets_nothing(quiet: Quiet) -> None:
    """Of a pass over what was clean already: no MCCO tells that it happened."""
    await quiet.compact()
    before = quiet.note.read_bytes()
    await quiet.compact()
    quiet.note.write_bytes(before)
    await quiet.start()
    await quiet.compact()
    quiet.clock.ms += RETENTION_MS
    await quiet.compact()
    assert quiet.tombstones == 0


@pytest.mark.parametrize("damage", [b"", b"{", b"{}", b'{"incarnation":1,"leftovers":2}', None, "removable", "other"])
async def test_without_a_true_note_one_pass_finds_out(quiet: Quiet, damage: bytes | str | None) -> None:
    await quiet.compact()
    await quiet.compact()
    note = quiet.note.read_bytes()
    if damage is None:
        quiet.note.unlink()
    elif damage == "other":
        quiet.note.write_bytes(note.replace(str(LOG).encode(), str(uuid.UUID(int=5)).encode()))
    elif damage == "removable":
        quiet.note.write_bytes(note.replace(b'"removable":[', b'"removable":["x",'))
    else:
        assert isinstance(damage, bytes)
        quiet.note.write_bytes(damage)
    await quiet.start()
    await quiet.compact()
    assert not await quiet.is_due()
    quiet.clock.ms += RETENTION_MS
    await quiet.compact()
    assert quiet.tombstones == 0


async def test_a_log_that_was_copied_gives_up_what_waited_where_it_came_from(quiet: Quiet) -> None:
    """A new replica counts as compacted up to MTRO and has never made a pass."""
    await quiet.compact()
    await quiet.compact()
    quiet.note.unlink()
    kept = await Kept.open(quiet.broker.disk, str(quiet.broker.directory), LOG, 0, 30)
    assert kept.value.compacted == kept.value.removable != Pair(0, 0)
    await quiet.start()
    assert quiet.tombstones > 0
    await quiet.compact()
    quiet.clock.ms += RETENTION_MS
    await quiet.compact()
    assert quiet.tombstones == 0
