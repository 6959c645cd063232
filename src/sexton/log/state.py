"""State that all parts of a log share: its segments, and how one is closed and the next created."""

from __future__ import annotations

import asyncio
import errno
import logging
import uuid
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from sexton.errors import CorruptLogError
from sexton.log.checks import Rules
from sexton.log.epochs import EpochHistory
from sexton.log.producers import ProducerStates
from sexton.log.recovery import Recovered
from sexton.log.segment import Segment
from sexton.ports.disk import Disk
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.settings.schema import DAY_MS
from sexton.settings.topic import TopicConfig
from sexton.types import INT32_MAX

logger = logging.getLogger(__name__)

PASSING_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errors that an operator can fix while the log goes on: it is known that nothing was written."""

OPEN_SEGMENTS_MAX: Final = 4
"""Closed segments of one log that stay open, for readers that are behind."""

UNKNOWN_TIME_MS: Final = 2**62
"""Creation time of a segment that a follower rolled, which does not know it. Far in the future, so that no segment is
too old because of it."""


class Sealed(NamedTuple):
    """A closed segment that is not flushed yet, and the producer state at the base offset of the next one."""

    segment: Segment
    next_base_offset: int
    snapshot: bytes


class LogState:
    def __init__(
        self, disk: Disk, directory: str, topic: str, partition: int, topic_id: uuid.UUID, config: TopicConfig
    ) -> None:
        """For `Log.open` and `Log.create`, which fill in the rest."""
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.directory = directory
        self.failure: OSError | None = None
        """The I/O error after which the log gave up."""
        self.damage: CorruptLogError | None = None
        """Corruption found in records that were once flushed: the broker has the log rebuilt from other replicas."""
        self.is_deleted = False
        """The directory may belong to another log by now: an operation that waited for a lock, or comes late, must not
        touch it."""
        self.is_doubtful = False
        """Recovery cut off valid batches that followed a fault; the broker decides when the log can be trusted
        again."""
        self.start_offset = 0
        self.end_offset = 0
        self.flushed_offset = 0
        """The durable log end: everything below survives a crash."""
        self._disk = disk
        self._place = f"{topic}-{partition}"
        self.epochs = EpochHistory()
        self.producers = ProducerStates(self._place, DAY_MS)
        self._segments: list[Segment] = []
        self._sealed: list[Sealed] = []
        self._read_lately: dict[int, Segment] = {}
        self._one_at_a_time = asyncio.Lock()
        """Held by each flush, and by whatever changes more than the end of the log."""
        self._shape = asyncio.Lock()
        """Held, and taken before `_one_at_a_time`, by whatever removes segments from the log. A swap takes only this
        one, so that flushes go on meanwhile."""
        self.reopened_count = 0
        """How often a closed segment became active again or the log was emptied: compactions planned before are
        void."""
        self._waiting: list[asyncio.Future[None]] = []
        self._flusher: asyncio.Task[None] | None = None
        self.reconfigure(config)

    def _take(self, recovered: Recovered) -> None:
        self._segments = recovered.segments
        self._active = self._segments[-1]
        self.producers = recovered.producers
        self.epochs = recovered.epochs
        self.start_offset = recovered.start_offset
        self.is_doubtful = recovered.is_doubtful
        self.end_offset = self.flushed_offset = recovered.end_offset

    def reconfigure(self, config: TopicConfig) -> None:
        self.config = config
        self.rules = Rules.of(self._place, config)
        self.looks_inside = self.rules.look_inside
        self._stamps_time = self.rules.stamps_time
        if self._segments:
            self._segments[-1].reconfigure(config)

    def __repr__(self) -> str:
        return f"<Log {self._place} {self.start_offset} to {self.end_offset}, flushed to {self.flushed_offset}>"

    @property
    def disk(self) -> Disk:
        return self._disk

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._segments)

    @property
    def needs_flush(self) -> bool:
        return self.flushed_offset < self.end_offset or bool(self._sealed)

    @property
    def has_unflushed_segments(self) -> bool:
        """Whether a segment was closed since the last flush. Callers that do not flush before each acknowledgement
        should flush then, or recovery has more to scan."""
        return bool(self._sealed)

    # Invariants

    def check_invariants(self) -> None:
        """Rules 2 and 11. They hold between any two steps of an operation on the log."""
        segments = self._segments
        assert self._active is segments[-1], f"rule 11: {self!r} appends to a segment that is not its last"
        assert segments[0].base_offset <= self.start_offset <= self.end_offset, f"rule 11: {self!r}"
        assert 0 <= self.flushed_offset <= self.end_offset, f"rule 11: {self!r}"
        below = -1
        for segment in segments:
            assert below < segment.base_offset, f"rule 2: {self!r} has a segment out of order"
            below = segment.base_offset
        assert below <= self.end_offset, f"rule 2: {self!r} has a segment past its end"

    # Rolling

    def _must_roll(self, segment: Segment, size: int, last_offset: int, max_timestamp_ms: int, now_ms: int) -> bool:
        if last_offset - segment.base_offset > INT32_MAX:
            return True
        filled = segment.size_bytes
        if filled == 0:
            return False
        if filled + size > self.config.segment_bytes or segment.is_index_full:
            return True
        first_ms = segment.first_timestamp_ms
        waited_ms = max_timestamp_ms - first_ms if first_ms >= 0 else now_ms - segment.created_ms
        if waited_ms <= 0:
            return False
        return waited_ms > self.config.segment_ms - self._jitter_ms(segment)

    def _jitter_ms(self, segment: Segment) -> int:
        """Deterministic, and different for each segment."""
        jitter_max_ms = min(self.config.segment_jitter_ms, self.config.segment_ms)
        if jitter_max_ms == 0:
            return 0
        return zlib.crc32(f"{self._place} {segment.base_offset}".encode()) % jitter_max_ms

    def _roll(self, base_offset: int, now_ms: int) -> Segment:
        segment = Segment(self._disk, self.directory, base_offset, self.config, now_ms)
        segment.create()
        self._active.seal()
        self._sealed.append(Sealed(self._active, base_offset, self.producers.encode()))
        self._segments.append(segment)
        self._active = segment
        return segment

    def _roll_or_fail(self, base_offset: int) -> Segment:
        try:
            return self._roll(base_offset, UNKNOWN_TIME_MS)
        except OSError as error:
            raise self._storage_error(error) from error

    def _keep_open(self, segment: Segment) -> None:
        """The most recently used closed segments keep a file descriptor and an index in memory."""
        if segment is self._active:
            return
        lately = self._read_lately
        lately.pop(segment.base_offset, None)
        lately[segment.base_offset] = segment
        if len(lately) > OPEN_SEGMENTS_MAX:
            oldest = lately.pop(next(iter(lately)))
            if all(sealed.segment is not oldest for sealed in self._sealed):
                oldest.release()

    # Failures

    def check_not_deleted(self) -> None:
        """Called after every wait for a lock: what is then done by path must be done to this log."""
        if self.is_deleted:
            raise KafkaError(ErrorCode.not_leader_or_follower, f"{self._place}: this log was deleted")

    def _storage_error(self, error: OSError) -> KafkaError:
        if error.errno not in PASSING_ERRORS:
            self.failure = error
        return KafkaError(ErrorCode.kafka_storage_error, f"{self._place}: {error}. {_remedy(error)}")

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Wraps all code that reads segments."""
        try:
            yield
        except (CorruptLogError, OSError) as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: CorruptLogError | OSError) -> KafkaError:
        """Remembers an I/O error, or corruption in what was read: the broker then hands the partition to other
        replicas."""
        if isinstance(error, OSError):
            self.check_not_deleted()
            return self._storage_error(error)
        if self.damage is None:
            logger.error("%s: %s", self._place, error)
        self.damage = error
        return KafkaError(ErrorCode.kafka_storage_error, f"{self._place}: {error}")

    def _check_usable(self) -> None:
        self.check_not_deleted()
        if self.failure is None:
            return
        raise KafkaError(
            ErrorCode.kafka_storage_error,
            f"{self._place}: the disk failed ({self.failure}); repair it and start the broker again",
        )


def _remedy(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "Make room on the disk: appends then succeed again by themselves"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "Raise the limit of open files (ulimit -n)"
    return "Repair the disk and start the broker again"
