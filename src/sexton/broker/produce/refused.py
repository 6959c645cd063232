"""Batches refused with a retriable error, which their clients send again.

A client has several batches in flight. If the first is refused with a retriable error and the second finds the reason
gone, the second is a gap in the sequence: this happens when a leader has only just learned that it leads, when there
are too few in-sync replicas, or when a transaction's coordinator is not ready yet. A partition that does not know the
producer, because it is new or was silent for long, would append it, as in Kafka, and the first one is out of order for
ever. One that knows the producer would answer OUT_OF_ORDER_SEQUENCE_NUMBER, as Kafka does. librdkafka takes that for
lost records: it raises its epoch and sends again in the new one all that is not acknowledged, also to other partitions.
What a dead leader had appended without an answer is doubled by that, because a new epoch is not compared with the one
before. So a refused batch is remembered for a while, and batches after it are refused with the same error until it has
come: clients then send all of them again, in order.

Only a refusal for another reason begins that while anew. A gap whose missing batches nobody refused here (their leader
acknowledged them, and was lost) is none of this: it is told as in Kafka, for no client will ever fill it.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final, NamedTuple

from sexton.log.producers import SEQUENCE_MAX, Producer
from sexton.ports.clock import Clock
from sexton.ports.disk import Buffer
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.records import header
from sexton.records.header import HEADER_BYTES

if TYPE_CHECKING:
    from sexton.replication.replica import Replica

KEPT_MS: Final = 10_000
"""How long a refused batch is remembered. Clients retry within a second or so. One that has given the batch up and goes
on in the same epoch, as some do, is held back no longer than this."""

KEPT_MAX: Final = 10_000
"""Maximum number of entries. Beyond it the oldest is dropped: that producer then has only the order that Kafka
gives."""

TopicKey = str | uuid.UUID | None
"""Topic as the client names it: a leader may have to refuse a topic that it does not know yet. What is kept of one that
is deleted needs no care: it goes with its time, like all, and holds nothing back that is sent again to the next one."""

Place = tuple[TopicKey, int, int]
"""(topic, partition, producer id)"""


class BehindRefusedError(KafkaError):
    """The batch is refused for nothing but one before it."""


class _Refused(NamedTuple):
    epoch: int
    first: int
    """The lowest sequence that was refused."""
    last: int
    """The highest. The log may have the first from a former leader, and lack this one."""
    code: ErrorCode
    until_ms: int


class RefusedBatches:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._refused: dict[Place, _Refused] = {}

    def __bool__(self) -> bool:
        return bool(self._refused)

    def note(self, topic: TopicKey, partition: int, records: Buffer, code: ErrorCode) -> None:
        """Remembers a refused batch. Only a retriable error counts: only then does the client send the batch again and
        fill the gap."""
        if not code.retriable or len(records) < HEADER_BYTES:
            return
        head = header.unpack(records)
        producer_id, epoch, sequence = head.producer_id, head.producer_epoch, head.base_sequence
        if producer_id < 0 or sequence < 0:
            return
        place = topic, partition, producer_id
        now_ms = self._clock.monotonic_ms()
        self._forget(now_ms)
        first = last = sequence
        known = self._refused.get(place)
        if known is not None:
            if epoch < known.epoch:
                return
            if epoch == known.epoch:
                first = known.first if _is_after(sequence, known.first) else sequence
                last = sequence if _is_after(sequence, known.last) else known.last
            del self._refused[place]  # so that the newest entry is the last
        if len(self._refused) >= KEPT_MAX:
            del self._refused[next(iter(self._refused))]
        self._refused[place] = _Refused(epoch, first, last, code, now_ms + KEPT_MS)

    def check(self, topic: TopicKey, replica: Replica, records: Buffer) -> None:
        """Raises if the batch comes after one that was refused and has not been sent again."""
        if len(records) < HEADER_BYTES:
            return
        head = header.unpack(records)
        producer_id, epoch, sequence = head.producer_id, head.producer_epoch, head.base_sequence
        place = topic, replica.partition, producer_id
        self._forget(self._clock.monotonic_ms())
        refused = self._refused.get(place)
        if refused is None or epoch < refused.epoch:
            return
        producer = replica.log.producers.get(producer_id)
        if epoch > refused.epoch or _is_over(producer, refused):
            del self._refused[place]
        elif _leaves_gap(sequence, producer, refused):
            if _is_after(sequence, refused.last):
                self._refused[place] = refused._replace(last=sequence)
            raise BehindRefusedError(
                refused.code,
                f"{replica.topic}-{replica.partition}: producer {producer_id}: sequence {sequence} comes after some of "
                f"{refused.first} to {refused.last}, which were refused and have not come again",
            )

    def _forget(self, now_ms: int) -> None:
        """Drops expired entries; the dict is ordered by expiry."""
        while self._refused:
            place, oldest = next(iter(self._refused.items()))
            if now_ms < oldest.until_ms:
                return
            del self._refused[place]


def _is_over(producer: Producer | None, refused: _Refused) -> bool:
    """Whether the log has all that was refused, or the producer has given it up."""
    if producer is None or producer.epoch < refused.epoch:
        return False
    return producer.epoch > refused.epoch or not _is_after(refused.last, producer.last_sequence)


def _leaves_gap(sequence: int, producer: Producer | None, refused: _Refused) -> bool:
    if not _is_after(sequence, refused.first):
        return False
    if producer is None or producer.epoch < refused.epoch:
        return True
    return _is_after(sequence, (producer.last_sequence + 1) & SEQUENCE_MAX)


def _is_after(one: int, two: int) -> bool:
    """Whether sequence `one` comes after `two`. Sequences wrap around."""
    return 0 < (one - two) & SEQUENCE_MAX <= SEQUENCE_MAX // 2
