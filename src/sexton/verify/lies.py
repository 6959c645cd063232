"""Lies: a proxy between clients and honest brokers that changes what brokers were told, or what they answer.

Each is what some real system did, made often enough that a short run meets it. `verify selftest` runs one after the
other, and the judge, who knows nothing of it, must find it out.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from sexton.harness.proxy import END_TXN, PRODUCE, Liar, Request, answer_of, with_answer

FETCH: Final = 1
LIST_OFFSETS: Final = 2
LATEST: Final = -1

_BASE_OFFSET: Final = struct.Struct(">q")
_LENGTH: Final = struct.Struct(">i")
_BEFORE_LENGTH: Final = 8
_BEFORE_BATCH: Final = 12
_LAST_OFFSET_DELTA_AT: Final = 23
_ATTRIBUTES_AT: Final = 21
_CONTROL: Final = 0x20

EVERY: Final = 5
"""Which offsets are lied about: every fifth. The same for every reader, so that nobody else can tell the truth."""


@dataclass(frozen=True, slots=True)
class Batch:
    data: bytes

    @property
    def base_offset(self) -> int:
        return int(_BASE_OFFSET.unpack_from(self.data)[0])

    @property
    def is_single(self) -> bool:
        """One record, and no marker."""
        (delta,) = _LENGTH.unpack_from(self.data, _LAST_OFFSET_DELTA_AT)
        return delta == 0 and not self.data[_ATTRIBUTES_AT + 1] & _CONTROL

    @property
    def is_victim(self) -> bool:
        return self.is_single and self.base_offset % EVERY == EVERY - 2

    def moved_to(self, base_offset: int) -> Batch:
        """The checksum does not cover the offset: a broker writes it after the producer has summed."""
        return Batch(_BASE_OFFSET.pack(base_offset) + self.data[_BASE_OFFSET.size :])


def batches(records: bytes) -> Iterator[Batch]:
    """Whole ones. Where a fetch was cut off, the rest is left out: clients ask for it again."""
    position = 0
    while position + _BEFORE_BATCH <= len(records):
        (length,) = _LENGTH.unpack_from(records, position + _BEFORE_LENGTH)
        end = position + _BEFORE_BATCH + length
        if end > len(records):
            return
        yield Batch(records[position:end])
        position = end


class _Fetches(Liar):
    """Changes the whole batches that a fetch returns. Those that stay alone stay as they are: a consumer that gets
    nothing would only ask again."""

    def answer(self, request: Request, frame: bytes) -> bytes:
        if request.api_key != FETCH:
            return frame
        answer = answer_of(request, frame)
        topics = tuple(
            replace(topic, partitions=tuple(map(self._partition, topic.partitions))) for topic in answer.responses
        )
        return with_answer(frame, replace(answer, responses=topics))

    def _partition(self, partition: Any) -> Any:
        found = list(batches(bytes(partition.records or b"")))
        changed = self.change(found)
        if changed == found:
            return partition
        return replace(partition, records=b"".join(batch.data for batch in changed))

    def change(self, found: list[Batch]) -> list[Batch]:
        raise NotImplementedError


class Drops(_Fetches):
    """Records that were acknowledged are given to nobody who reads on."""

    def change(self, found: list[Batch]) -> list[Batch]:
        return [batch for place, batch in enumerate(found) if not batch.is_victim or place == len(found) - 1]


class Repeats(_Fetches):
    """A record is given once more, in the place of the next."""

    def change(self, found: list[Batch]) -> list[Batch]:
        changed = list(found)
        for place in range(len(found) - 1):
            batch, following = found[place], found[place + 1]
            if batch.is_victim and following.is_single:
                changed[place + 1] = batch.moved_to(following.base_offset)
        return changed


class Reorders(_Fetches):
    """Two neighbours change places."""

    def change(self, found: list[Batch]) -> list[Batch]:
        changed = list(found)
        for place in range(len(found) - 1):
            batch, following = found[place], found[place + 1]
            if batch.is_victim and following.is_single:
                changed[place] = following.moved_to(batch.base_offset)
                changed[place + 1] = batch.moved_to(following.base_offset)
        return changed


class ShowsAborted(Liar):
    """Fetches do not tell which transactions were aborted."""

    def answer(self, request: Request, frame: bytes) -> bytes:
        if request.api_key != FETCH:
            return frame
        answer = answer_of(request, frame)
        topics = tuple(
            replace(topic, partitions=tuple(replace(each, aborted_transactions=()) for each in topic.partitions))
            for topic in answer.responses
        )
        return with_answer(frame, replace(answer, responses=topics))


class AbortsCommits(Liar):
    """Every fifth commit is carried out as an abort, and acknowledged as a commit."""

    def __init__(self) -> None:
        self._commits = 0

    def request(self, request: Request) -> Request:
        if request.api_key != END_TXN:
            return request
        body = request.body()
        if not body.committed:
            return request
        self._commits += 1
        return request.with_body(replace(body, committed=False)) if self._commits % EVERY == 0 else request


class NamesWrongOffsets(Liar):
    """Acknowledgements of every fifth offset name the one before (Bufstream's named 0)."""

    def answer(self, request: Request, frame: bytes) -> bytes:
        if request.api_key != PRODUCE:
            return frame
        answer = answer_of(request, frame)
        topics = tuple(
            replace(topic, partition_responses=tuple(map(self._partition, topic.partition_responses)))
            for topic in answer.responses
        )
        return with_answer(frame, replace(answer, responses=topics))

    def _partition(self, partition: Any) -> Any:
        offset = partition.base_offset
        if offset <= 0 or offset % EVERY:
            return partition
        return replace(partition, base_offset=type(offset)(offset - 1))


class ForgetsWatermarks(Liar):
    """Every third look at the ends of logs finds them empty."""

    def __init__(self) -> None:
        self._looks = 0

    def answer(self, request: Request, frame: bytes) -> bytes:
        if request.api_key != LIST_OFFSETS or not _asks_for_ends(request):
            return frame
        self._looks += 1
        if self._looks % 3:
            return frame
        answer = answer_of(request, frame)
        topics = tuple(
            replace(topic, partitions=tuple(replace(each, offset=type(each.offset)(0)) for each in topic.partitions))
            for topic in answer.topics
        )
        return with_answer(frame, replace(answer, topics=topics))


def _asks_for_ends(request: Request) -> bool:
    return all(each.timestamp == LATEST for topic in request.body().topics for each in topic.partitions)


@dataclass(frozen=True, slots=True)
class Lie:
    make: Callable[[], Liar]
    is_transactional: bool
    """Whether only transactions can show it."""
    shows: frozenset[str]
    """Each of these proves it; at least one must be found."""

    @property
    def meaning(self) -> str:
        return (self.make.__doc__ or "").partition("\n")[0]


LIES: Final[Mapping[str, Lie]] = {
    "drops": Lie(Drops, False, frozenset({"lost-write", "poll-skip", "int-poll-skip"})),
    "repeats": Lie(Repeats, False, frozenset({"duplicate", "inconsistent-offsets"})),
    "reorders": Lie(Reorders, False, frozenset({"inconsistent-offsets", "duplicate"})),
    "wrong-offsets": Lie(NamesWrongOffsets, False, frozenset({"inconsistent-offsets", "duplicate"})),
    "forgotten-watermarks": Lie(ForgetsWatermarks, False, frozenset({"watermark-went-back"})),
    "shown-aborts": Lie(ShowsAborted, True, frozenset({"G1a"})),
    "aborted-commits": Lie(AbortsCommits, True, frozenset({"lost-write", "torn-transaction", "poll-skip"})),
}
