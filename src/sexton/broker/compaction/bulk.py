"""Bytes for compactors that cannot access this broker's disk: they read and stage segments through its port.

Only what a task needs is sent: stretches of old segments out, rewritten batches in. A new segment is assembled here,
because most of it may be here already: long stretches that no compaction changes never leave the broker.

    READ      {plan_id, base_offset, position, size_bytes}     a zero byte and the bytes; or a one, and an error
    WRITE     {plan_id, part, position}, a zero byte, bytes    {}; each piece starts where the one before it ended
    ASSEMBLE  {plan_id, base_offset, extents}                  {}; extents are [file name, start, end], in order

All three may be sent again by a compactor that did not receive the response. Only the plan's segments and parts can be
named, so no other file can be read or written this way. What was staged is validated at the commit.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import Any, Final

from sexton.broker.compaction.service import CompactionService
from sexton.compaction.contract import READ_BYTES_MAX, WRITE_BYTES_MAX, Plan
from sexton.errors import SextonError
from sexton.ports.disk import Disk, File, FileSlice
from sexton.ports.network import Part
from sexton.protocol.errors import KafkaError
from sexton.protocol.private import PrivateApi, decode, encode, refusal
from sexton.records import names

HEAD_BYTES_MAX: Final = 4096
COPY_BYTES: Final = 1 << 20
"""Bytes copied before other tasks get their turn: about a millisecond."""

EXTENTS_MAX: Final = 1_000_000
_PART: Final = re.compile(r"[0-9]{20}\.log\.part-[0-9a-f]{32}\.cleaned")

Handler = Callable[[Hashable, memoryview], Awaitable[list[Part]]]


class Bulk:
    def __init__(self, service: CompactionService, disk: Disk) -> None:
        self._service = service
        self._disk = disk

    def handlers(self) -> dict[int, Handler]:
        return {
            PrivateApi.COMPACTION_READ: self._read,
            PrivateApi.COMPACTION_WRITE: self._write,
            PrivateApi.COMPACTION_ASSEMBLE: self._assemble,
        }

    def _plan(self, asked: Mapping[str, Any]) -> Plan:
        plan = self._service.plans.underway(str(asked["plan_id"]))
        if plan is None:
            raise KeyError("no such plan is under way here")
        return plan

    async def _read(self, connection: Hashable, payload: memoryview) -> list[Part]:
        try:
            asked = decode(payload)
            plan, base_offset = self._plan(asked), int(asked["base_offset"])
            position, size_bytes = int(asked["position"]), int(asked["size_bytes"])
            limit = dict(plan.segments).get(base_offset)
            if limit is None or not 0 <= position <= limit or size_bytes < 0:
                raise KeyError(f"the plan has no byte {position} of a segment {base_offset}")
            file = self._disk.open(f"{plan.directory}/{names.log_file_name(base_offset)}")
            try:
                size_bytes = min(size_bytes, READ_BYTES_MAX, limit - position)
                if file.size_bytes < position + size_bytes:
                    raise KeyError(f"segment {base_offset} is another one by now")
                return [b"\0", FileSlice(file, position, size_bytes)] if size_bytes else [b"\0"]
            finally:
                file.close()
        except (OSError, KeyError, ValueError, TypeError) as error:
            return [b"\1", refusal(error)]

    async def _write(self, connection: Hashable, payload: memoryview) -> list[Part]:
        head_bytes = bytes(payload[:HEAD_BYTES_MAX]).find(b"\0")
        data = payload[head_bytes + 1 :] if head_bytes >= 0 else payload[len(payload) :]

        async def write(asked: Mapping[str, Any]) -> Any:
            plan, name, position = self._plan(asked), str(asked["part"]), int(asked["position"])
            if _PART.fullmatch(name) is None or position < 0:
                raise ValueError(f"{name!r} is no part of a new segment")
            if len(data) > WRITE_BYTES_MAX:
                raise ValueError(f"{len(data)} bytes at once, where {WRITE_BYTES_MAX} are allowed")
            file = self._disk.open(f"{plan.staging}/{name}", create=True)
            try:
                file.truncate(position)  # a piece that is sent again replaces itself
                if file.size_bytes != position:
                    raise ValueError(f"bytes for position {position} came where {file.size_bytes} was due")
                file.append([data])
            finally:
                file.close()
            return {}

        return [await answered(write, payload[: max(0, head_bytes)])]

    async def _assemble(self, connection: Hashable, payload: memoryview) -> list[Part]:
        async def assemble(asked: Mapping[str, Any]) -> Any:
            plan, base_offset = self._plan(asked), int(asked["base_offset"])
            if base_offset not in dict(plan.segments) or base_offset >= plan.bound:
                raise KeyError(f"{base_offset} is no segment of that plan")
            extents = [(self._source(plan, str(name)), int(start), int(end)) for name, start, end in asked["extents"]]
            if not 0 < len(extents) <= EXTENTS_MAX or any(not 0 <= start <= end for _, start, end in extents):
                raise ValueError("these are no extents")
            await self._put_together(
                f"{plan.staging}/{names.log_file_name(base_offset, names.CLEANED_SUFFIX)}", extents
            )
            return {}

        return [await answered(assemble, payload)]

    def _source(self, plan: Plan, name: str) -> str:
        if _PART.fullmatch(name) is not None:
            return f"{plan.staging}/{name}"
        file = names.parse_segment_file(name)
        if file is None or file.name != names.log_file_name(file.base_offset) or not _is_input(plan, file.base_offset):
            raise ValueError(f"{name!r} is no part of a new segment, nor a segment of that plan")
        return f"{plan.directory}/{name}"

    async def _put_together(self, target: str, extents: list[tuple[str, int, int]]) -> None:
        """A single part is renamed to the segment instead of being copied."""
        size_bytes = sum(end - start for _, start, end in extents)
        if len(extents) == 1 and _PART.fullmatch(extents[0][0].rpartition("/")[2]) and extents[0][1] == 0:
            part = extents[0][0]
            if self._disk.exists(target) and not self._disk.exists(part):
                part = target  # done by an earlier request
            if self._size_bytes(part) == size_bytes:
                self._disk.rename(part, target)
                return
        out = self._disk.open(target, create=True)
        try:
            out.truncate(0)
            for path, start, end in extents:
                await self._copy(path, start, end, out)
        finally:
            out.close()

    async def _copy(self, path: str, start: int, end: int, out: File) -> None:
        source = self._disk.open(path)
        try:
            while start < end:
                data = source.read(start, min(COPY_BYTES, end - start))
                if not data:
                    raise ValueError(f"{path} ends at {source.size_bytes}, and {end} was asked for")
                out.append([data])
                start += len(data)
                await asyncio.sleep(0)
        finally:
            source.close()

    def _size_bytes(self, path: str) -> int:
        file = self._disk.open(path)
        try:
            return file.size_bytes
        finally:
            file.close()


def _is_input(plan: Plan, base_offset: int) -> bool:
    return base_offset < plan.bound and any(base == base_offset for base, _ in plan.segments)


async def answered(answer: Callable[[Mapping[str, Any]], Awaitable[Any]], payload: memoryview) -> bytes:
    try:
        return encode(await answer(decode(payload)))
    except (SextonError, KafkaError, OSError, KeyError, ValueError, TypeError) as error:
        return refusal(error)
