"""Lies: a proxy between clients and honest brokers that changes what brokers were told, or what they answer.

Each is what some real system did, made often enough that a short run meets it. `verify selftest` runs one after the
other, and the judge, who knows nothing of it, must find it out.
"""

from __future__ import annotations

import struct
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from crc32c import crc32c

from sexton.harness.proxy import (
    ADD_PARTITIONS,
    END_TXN,
    FETCH,
    PRODUCE,
    TXN_OFFSET_COMMIT,
    Liar,
    Request,
    answer_of,
    with_answer,
)
from sexton.verify.faults.clients import PauseClients
from sexton.verify.workloads.known import EOS, GROUPS, QUEUE

LIST_OFFSETS: Final = 2
OFFSET_COMMIT: Final = 8
OFFSET_OUT_OF_RANGE: Final = 1
LATEST: Final = -1

_BASE_OFFSET: Final = struct.Struct(">q")
_LENGTH: Final = struct.Struct(">i")
_BEFORE_LENGTH: Final = 8
_BEFORE_BATCH: Final = 12
_LAST_OFFSET_DELTA_AT: Final = 23
_ATTRIBUTES_AT: Final = 21
_CRC_AT: Final = 17
_PRODUCER_AT: Final = struct.Struct(">qhi")
_PRODUCER_POSITION: Final = 43
_CONTROL: Final = 0x20

STALE_S: Final = 5.0

OLDER_EVERY: Final = 20
"""Of the fetches that find something. Whoever is told so begins anew, and would never get anywhere."""

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
    def records_count(self) -> int:
        return int(_LENGTH.unpack_from(self.data, _LAST_OFFSET_DELTA_AT)[0]) + 1

    @property
    def is_victim(self) -> bool:
        return self.is_single and self.base_offset % EVERY == EVERY - 2

    def moved_to(self, base_offset: int) -> Batch:
        """The checksum does not cover the offset: a broker writes it after the producer has summed."""
        return Batch(_BASE_OFFSET.pack(base_offset) + self.data[_BASE_OFFSET.size :])

    @property
    def producer(self) -> tuple[int, int, int]:
        """Its id, its epoch, and the number of the first record."""
        producer_id, epoch, sequence = _PRODUCER_AT.unpack_from(self.data, _PRODUCER_POSITION)
        return producer_id, epoch, sequence

    def numbered(self, sequence: int) -> Batch:
        producer_id, epoch, _ = self.producer
        end = _PRODUCER_POSITION + _PRODUCER_AT.size
        summed = (
            self.data[_ATTRIBUTES_AT:_PRODUCER_POSITION]
            + _PRODUCER_AT.pack(producer_id, epoch, sequence)
            + self.data[end:]
        )
        return Batch(self.data[:_CRC_AT] + struct.pack(">I", crc32c(summed)) + summed)


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


class _FetchLiar(Liar):
    """Changes what a fetch returns of each partition."""

    def answer(self, request: Request, frame: bytes) -> bytes:
        if request.api_key != FETCH:
            return frame
        answer = answer_of(request, frame)
        topics = tuple(
            replace(topic, partitions=tuple(map(self._partition, topic.partitions))) for topic in answer.responses
        )
        return with_answer(frame, replace(answer, responses=topics))

    def _partition(self, partition: Any) -> Any:
        return self.partition(partition, list(batches(bytes(partition.records or b""))))

    def partition(self, partition: Any, found: list[Batch]) -> Any:
        """The response for one partition. `found`: the whole batches in it."""
        raise NotImplementedError


class _Fetches(_FetchLiar):
    """Changes the whole batches that a fetch returns. Those that stay alone stay as they are: a consumer that gets
    nothing would only ask again."""

    def partition(self, partition: Any, found: list[Batch]) -> Any:
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


class LateCommits(Liar):
    """A commit comes once more, in the middle of its producer's next transaction, and is carried out (KAFKA-17754)."""

    def __init__(self) -> None:
        self._commits: dict[str, Request] = {}
        """The last commit request of each producer."""
        self._partitions: Counter[str] = Counter()
        """How often a producer's transaction has been given partitions."""

    def before(self, request: Request) -> Sequence[Request]:
        if request.api_key == END_TXN:
            body = request.body()
            self._partitions[body.transactional_id] = 0
            if body.committed:
                self._commits[body.transactional_id] = request
        elif request.api_key == ADD_PARTITIONS:
            producer = request.body().v3_and_below_transactional_id
            self._partitions[producer] += 1
            if self._partitions[producer] == 2 and producer in self._commits:
                return [self._commits.pop(producer)]
        return ()


class Doubles(Liar):
    """Every fifth record is written twice: its producer seems to have sent it again, as another one."""

    def __init__(self) -> None:
        self._sent = 0
        self._shifts: Counter[tuple[int, int, str, int]] = Counter()
        """By producer and place: how many records were written that it does not know of."""
        self._doubled: Request | None = None

    def before(self, request: Request) -> Sequence[Request]:
        """Decides for `request`, too, which is asked next."""
        self._doubled = None
        if request.api_key != PRODUCE:
            return ()
        self._sent += 1
        body = request.body()
        first = request.with_body(self._shifted(body))
        if self._sent % EVERY == 0:
            self._count(body)
            self._doubled = request.with_body(self._shifted(body))
            return [first]
        self._doubled = first
        return ()

    def request(self, request: Request) -> Request:
        return self._doubled or request

    def _shifted(self, body: Any) -> Any:
        def moved(topic: Any, partition: Any) -> Any:
            (batch,) = batches(bytes(partition.records))
            producer_id, epoch, sequence = batch.producer
            shift = self._shifts[producer_id, epoch, topic.name, partition.index]
            return replace(partition, records=batch.numbered(sequence + shift).data if shift else batch.data)

        topics = tuple(
            replace(topic, partition_data=tuple(moved(topic, each) for each in topic.partition_data))
            for topic in body.topic_data
        )
        return replace(body, topic_data=topics)

    def _count(self, body: Any) -> None:
        for topic in body.topic_data:
            for partition in topic.partition_data:
                (batch,) = batches(bytes(partition.records))
                producer_id, epoch, _ = batch.producer
                self._shifts[producer_id, epoch, topic.name, partition.index] += batch.records_count


class DropsCommits(Liar):
    """Every third commit of a group's offsets is acknowledged, and changes nothing."""

    def __init__(self) -> None:
        self._commits = 0
        self._committed: dict[tuple[str, str, int], int] = {}

    def request(self, request: Request) -> Request:
        if request.api_key != OFFSET_COMMIT:
            return request
        self._commits += 1
        is_dropped = self._commits % 3 == 0
        body = request.body()

        def kept(topic: Any, partition: Any) -> Any:
            place = (body.group_id, topic.name, partition.partition_index)
            if not is_dropped:
                self._committed[place] = partition.committed_offset
            return replace(partition, committed_offset=self._committed.get(place, 0))

        topics = tuple(
            replace(topic, partitions=tuple(kept(topic, each) for each in topic.partitions)) for topic in body.topics
        )
        return request.with_body(replace(body, topics=topics))


class UnfencedCopiers(Liar):
    """Offsets in transactions do not name the member that they are of, so that one who is no member is not refused."""

    def request(self, request: Request) -> Request:
        if request.api_key != TXN_OFFSET_COMMIT:
            return request
        body = request.body()
        anybody = replace(body, generation_id=type(body.generation_id)(-1), member_id="", group_instance_id=None)
        return request.with_body(anybody)


class OlderLogs(_FetchLiar):
    """Some fetches are answered by a replica whose log ends earlier: it knows nothing of the offset asked for."""

    def __init__(self) -> None:
        self._fetches = 0

    def partition(self, partition: Any, found: list[Batch]) -> Any:
        if not found or found[0].base_offset < EVERY:
            return partition
        self._fetches += 1
        if self._fetches % OLDER_EVERY:
            return partition
        code = type(partition.error_code)(OFFSET_OUT_OF_RANGE)
        unknown = type(partition.high_watermark)(-1)
        return replace(partition, error_code=code, records=b"", high_watermark=unknown, last_stable_offset=unknown)


class NamesZero(Liar):
    """Acknowledgements of every fifth offset name 0, as Bufstream's did where something had failed."""

    def answer(self, request: Request, frame: bytes) -> bytes:
        return acknowledged(request, frame, lambda offset: offset if offset % EVERY else 0)


class NamesWrongOffsets(Liar):
    """Acknowledgements of every fifth offset name the one before."""

    def answer(self, request: Request, frame: bytes) -> bytes:
        return acknowledged(request, frame, lambda offset: offset if offset % EVERY else offset - 1)


def acknowledged(request: Request, frame: bytes, named: Callable[[int], int]) -> bytes:
    """An answer to a producer, with these offsets in the place of its own. The first of a log stays as it is."""
    if request.api_key != PRODUCE:
        return frame
    answer = answer_of(request, frame)

    def changed(partition: Any) -> Any:
        offset = partition.base_offset
        return partition if offset <= 0 else replace(partition, base_offset=type(offset)(named(offset)))

    topics = tuple(
        replace(topic, partition_responses=tuple(map(changed, topic.partition_responses))) for topic in answer.responses
    )
    return with_answer(frame, replace(answer, responses=topics))


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


class StaleWatermarks(Liar):
    """Every third look at the ends of logs finds them as they were five seconds before, as after a broker's restart."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._looks: Counter[int] = Counter()
        """By isolation level: the two ends of a log are looked at in turn."""
        self._seen: dict[tuple[int, str, int], deque[tuple[float, int]]] = {}

    def answer(self, request: Request, frame: bytes) -> bytes:
        if request.api_key != LIST_OFFSETS or not _asks_for_ends(request):
            return frame
        isolation = int(getattr(request.body(), "isolation_level", 0))
        self._looks[isolation] += 1
        is_stale = self._looks[isolation] % 3 == 0
        answer = answer_of(request, frame)

        def told(topic: Any, partition: Any) -> Any:
            place = (isolation, topic.name, partition.partition_index)
            offset = self.then(place, int(partition.offset))
            return replace(partition, offset=type(partition.offset)(offset)) if is_stale else partition

        topics = tuple(
            replace(topic, partitions=tuple(told(topic, each) for each in topic.partitions)) for topic in answer.topics
        )
        return with_answer(frame, replace(answer, topics=topics))

    def then(self, place: tuple[int, str, int], offset: int) -> int:
        """What it was five seconds before; the first that is known, if nobody has looked so long ago."""
        now_s = self._now_s()
        seen = self._seen.setdefault(place, deque())
        seen.append((now_s, offset))
        while len(seen) > 1 and seen[1][0] <= now_s - STALE_S:
            seen.popleft()
        return seen[0][1]


def _asks_for_ends(request: Request) -> bool:
    return all(each.timestamp == LATEST for topic in request.body().topics for each in topic.partitions)


@dataclass(frozen=True, slots=True)
class Lie:
    make: Callable[[], Liar]
    shows: frozenset[str]
    """Each of these proves it; at least one must be found."""
    workload: str = QUEUE
    """That is for it."""
    is_transactional: bool = False
    """Whether only transactions can show it."""
    seconds_min: float = 0.0
    """A run that is shorter may not meet it."""
    faults: tuple[str, ...] = ()
    """Without which nobody would meet it."""
    seed: int = 1
    """By which such faults come when they are wanted."""
    transaction_timeout_ms: int = 1_000

    @property
    def is_long(self) -> bool:
        return bool(self.faults)

    @property
    def meaning(self) -> str:
        return (self.make.__doc__ or "").partition("\n")[0]


def _shows(*names: str) -> frozenset[str]:
    return frozenset(names)


LIES: Final[Mapping[str, Lie]] = {
    "drops": Lie(Drops, _shows("lost-write", "poll-skip", "int-poll-skip")),
    "repeats": Lie(Repeats, _shows("duplicate", "inconsistent-offsets")),
    "reorders": Lie(Reorders, _shows("inconsistent-offsets", "duplicate")),
    "wrong-offsets": Lie(NamesWrongOffsets, _shows("inconsistent-offsets", "duplicate")),
    "zero-offsets": Lie(NamesZero, _shows("inconsistent-offsets", "duplicate")),
    "doubled-records": Lie(Doubles, _shows("duplicate")),
    "older-logs": Lie(OlderLogs, _shows("nonmonotonic-poll", "int-nonmonotonic-poll")),
    "forgotten-watermarks": Lie(ForgetsWatermarks, _shows("watermark-went-back")),
    "stale-watermarks": Lie(StaleWatermarks, _shows("watermark-went-back"), seconds_min=10),
    "shown-aborts": Lie(ShowsAborted, _shows("G1a"), is_transactional=True),
    "aborted-commits": Lie(AbortsCommits, _shows("lost-write", "torn-transaction", "poll-skip"), is_transactional=True),
    "late-commits": Lie(LateCommits, _shows("G1a", "torn-transaction"), is_transactional=True),
    "dropped-commits": Lie(DropsCommits, _shows("offset-went-back"), GROUPS, seconds_min=8),
    "unfenced-copiers": Lie(
        UnfencedCopiers,
        _shows("eos-duplicate"),
        EOS,
        is_transactional=True,
        seconds_min=60,
        faults=(PauseClients.name,),
        seed=18,  # half of the clients are paused twice, longer than their sessions last
        transaction_timeout_ms=30_000,  # a copier that was paused must find out by its group that it is none any more
    ),
}
