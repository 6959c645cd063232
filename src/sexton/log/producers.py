"""What a log knows about its idempotent and transactional producers.

For each producer: its epoch, its last five batches (a client has at most five in flight, so a retry is one of them),
and the first offset of its open transaction. A leader uses this to refuse batches that are out of sequence and to
answer a retry with the offset of the first attempt. A follower only records it, because its leader has checked.

A transaction ends with a marker. From then on it is *decided*, but the outcome is safe only once the marker is
committed too, so the last stable offset waits until the high watermark has passed the marker.

A transactional batch that would open a transaction is appended only if the transaction coordinator confirms that the
transaction is ongoing and includes this partition (KIP-890). Asking takes time, in which a marker may end that very
transaction and make the confirmation worthless. So the caller obtains a `Verification` before it asks, a marker voids
it, and an append with a void one is refused. Otherwise a late batch would open a transaction that is never ended.

Where a follower differs from a leader (docs/rules.md, traps): compaction settles committed batches, that is, makes them
non-transactional, and drops whole transactions. A follower that was behind may thus receive a plain batch of a producer
whose transaction it holds open, or a marker with no open transaction. Neither is an error, and neither changes an open
transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from sexton.compaction.rules import LastOfProducer
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.records.header import TRANSACTIONAL, Head
from sexton.records.producer_snapshot import ProducerEntry, encode_producer_snapshot
from sexton.types import INT32_MAX, NO_OFFSET, NO_PRODUCER_EPOCH, NO_SEQUENCE, ProducerEpoch, ProducerId

BATCHES_MAX: Final = 5
"""The most batches that Kafka's idempotent clients have in flight."""

SEQUENCE_MAX: Final = INT32_MAX


class PastBatch(NamedTuple):
    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp_ms: int


class Producer:
    __slots__ = ("batches", "coordinator_epoch", "epoch", "last_timestamp_ms", "producer_id", "transaction_start")

    def __init__(self, producer_id: ProducerId) -> None:
        self.producer_id = producer_id
        self.epoch = NO_PRODUCER_EPOCH
        self.batches: list[PastBatch] = []
        self.last_timestamp_ms = -1
        """That of its last batch, or a time before which that was not appended, if that is later."""
        self.coordinator_epoch = -1
        """Epoch of the coordinator that wrote the last marker."""
        self.transaction_start = NO_OFFSET
        """First offset of the open transaction, or NO_OFFSET."""

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last(self) -> LastOfProducer:
        return LastOfProducer(self.producer_id, self.epoch, self.batches[-1].last_offset if self.batches else NO_OFFSET)

    def entry(self) -> ProducerEntry:
        last = self.batches[-1] if self.batches else None
        return ProducerEntry(
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            last_sequence=last.last_sequence if last else NO_SEQUENCE,
            last_offset=last.last_offset if last else NO_OFFSET,
            offset_delta=last.last_offset - last.first_offset if last else 0,
            last_timestamp=self.last_timestamp_ms,
            coordinator_epoch=self.coordinator_epoch,
            current_txn_first_offset=self.transaction_start,
        )


class Marker(NamedTuple):
    """The end of a transaction, as its control record gives it."""

    is_abort: bool
    coordinator_epoch: int


class Verification:
    """Held while the coordinator is asked whether a producer may open a transaction here. Compared by identity."""

    __slots__ = ("epoch",)

    def __init__(self, epoch: ProducerEpoch) -> None:
        self.epoch = epoch


class EndedTransaction(NamedTuple):
    """A transaction of this partition that a marker has just ended. `last_offset` is the marker's offset."""

    producer_id: ProducerId
    first_offset: int
    last_offset: int
    is_abort: bool
    last_stable_offset: int
    """The last stable offset once the marker is committed: the first offset of the oldest transaction still open, or
    the offset after the marker."""


def last_sequence_of(first_sequence: int, count: int) -> int:
    """Last sequence number of a batch. Sequence numbers wrap around to 0 after 2^31 - 1."""
    if first_sequence < 0:
        return NO_SEQUENCE
    return (first_sequence + count - 1) & SEQUENCE_MAX


def first_sequence_of(last_sequence: int, count: int) -> int:
    if last_sequence < 0:
        return NO_SEQUENCE
    return (last_sequence - count + 1) & SEQUENCE_MAX


class ProducerStates:
    def __init__(self, place: str, expiry_ms: int) -> None:
        self._place = place
        self._expiry_ms = expiry_ms
        self._looked_ms = -1
        """When it was last looked who has expired: what is noted was appended later."""
        self._producers: dict[ProducerId, Producer] = {}
        self._open: dict[ProducerId, int] = {}
        """First offset of the open transaction by producer id. Transactions open in offset order, so the first is the
        lowest."""
        self._decided: list[tuple[int, int]] = []
        """First offset and marker offset of ended transactions whose marker may lie above the high watermark."""
        self._verifications: dict[ProducerId, dict[ProducerEpoch, Verification]] = {}
        """Verifications that this leader is waiting for, by producer id and epoch: a batch of a zombie voids nothing of
        the instance that replaced it."""

    def __len__(self) -> int:
        return len(self._producers)

    def __iter__(self) -> Iterator[Producer]:
        return iter(self._producers.values())

    def last_batches(self) -> dict[int, LastOfProducer]:
        """What compaction must keep of each producer."""
        return {producer.producer_id: producer.last for producer in self}

    def get(self, producer_id: ProducerId) -> Producer | None:
        return self._producers.get(producer_id)

    # Checks by a leader before an append

    def duplicate_of(
        self, producer_id: ProducerId, epoch: ProducerEpoch, first_sequence: int, count: int
    ) -> PastBatch | None:
        """The batch that this one repeats, if it is one of the producer's last five. Compared by sequence numbers
        alone, as in Kafka, not by records (docs/decisions, 23)."""
        producer = self._producers.get(producer_id)
        if producer is None or producer.epoch != epoch:
            return None
        last_sequence = last_sequence_of(first_sequence, count)
        for batch in producer.batches:
            if batch[0] == first_sequence and batch[1] == last_sequence:
                return batch
        return None

    def check_data(
        self,
        producer_id: ProducerId,
        epoch: ProducerEpoch,
        first_sequence: int,
        is_transactional: bool,
        from_client: bool,
    ) -> None:
        """Raises the error that Kafka's leader returns for a batch out of sequence, of an old epoch, or plain
        inside an open transaction."""
        producer = self._producers.get(producer_id)
        if producer is None:
            return  # expired or new: any sequence may start
        if epoch < producer.epoch:
            raise self._stale_epoch(producer, epoch)
        if from_client:
            if epoch != producer.epoch:
                if first_sequence != 0:
                    raise self._out_of_order(producer, f"epoch {epoch} begins with sequence {first_sequence}, not 0")
            else:
                last = producer.batches[-1].last_sequence if producer.batches else NO_SEQUENCE
                if first_sequence != last + 1 and not (first_sequence == 0 and last == SEQUENCE_MAX):
                    raise self._out_of_order(producer, f"sequence {first_sequence} came after {last}")
        if producer.transaction_start != NO_OFFSET and not is_transactional:
            raise KafkaError(
                ErrorCode.invalid_txn_state,
                f"{self._place}: producer {producer_id} sent a plain batch inside its transaction",
            )

    def is_open(self, producer_id: ProducerId, epoch: ProducerEpoch) -> bool:
        """Whether the producer has an open transaction here, in this epoch."""
        producer = self._producers.get(producer_id)
        return producer is not None and producer.transaction_start != NO_OFFSET and producer.epoch == epoch

    def begin_verification(self, producer_id: ProducerId, epoch: ProducerEpoch) -> Verification:
        """Called before the coordinator is asked. Concurrent callers for the same producer and epoch share one
        verification."""
        by_epoch = self._verifications.setdefault(producer_id, {})
        return by_epoch.setdefault(epoch, Verification(epoch))

    def end_verification(self, producer_id: ProducerId, verification: Verification) -> None:
        """Called when the coordinator has refused."""
        if self._verification(producer_id, verification.epoch) is verification:
            self._drop_verifications(producer_id, lambda epoch: epoch == verification.epoch)

    def void_verifications(self, producer_id: ProducerId, last_epoch: ProducerEpoch) -> None:
        """Called when a marker was appended that ends the producer's transactions up to and including `last_epoch`."""
        self._drop_verifications(producer_id, lambda epoch: epoch <= last_epoch)

    def _verification(self, producer_id: ProducerId, epoch: ProducerEpoch) -> Verification | None:
        return self._verifications.get(producer_id, {}).get(epoch)

    def _drop_verifications(self, producer_id: ProducerId, is_over: Callable[[ProducerEpoch], bool]) -> None:
        by_epoch = self._verifications.pop(producer_id, {})
        kept = {epoch: one for epoch, one in by_epoch.items() if not is_over(epoch)}
        if kept:
            self._verifications[producer_id] = kept

    def check_verified(self, producer_id: ProducerId, epoch: ProducerEpoch, verification: Verification) -> None:
        if not self.is_open(producer_id, epoch) and self._verification(producer_id, epoch) is not verification:
            raise KafkaError(
                ErrorCode.invalid_txn_state,
                f"{self._place}: the transaction of producer {producer_id} ended while its batch was on its way",
            )

    def is_marked(self, producer_id: ProducerId, epoch: ProducerEpoch) -> bool:
        """Whether a marker that raises the epoch (transaction version 2) was already written. Raises if the marker is
        stale: the next transaction has begun in its epoch, which it must not end."""
        producer = self._producers.get(producer_id)
        if producer is None or producer.epoch != epoch:
            return False
        if producer.transaction_start != NO_OFFSET:
            raise KafkaError(
                ErrorCode.invalid_producer_epoch,
                f"{self._place}: a marker for producer {producer_id} comes late: epoch {epoch} has begun to write",
            )
        return True

    def check_marker(self, producer_id: ProducerId, epoch: ProducerEpoch, marker: Marker) -> None:
        producer = self._producers.get(producer_id)
        if producer is None:
            return
        if epoch < producer.epoch:
            raise self._stale_epoch(producer, epoch)
        if marker.coordinator_epoch < producer.coordinator_epoch:
            raise KafkaError(
                ErrorCode.transaction_coordinator_fenced,
                f"{self._place}: a marker for producer {producer_id} comes from coordinator epoch "
                f"{marker.coordinator_epoch}, and one of epoch {producer.coordinator_epoch} has written since",
            )

    def _stale_epoch(self, producer: Producer, epoch: ProducerEpoch) -> KafkaError:
        return KafkaError(
            ErrorCode.invalid_producer_epoch,
            f"{self._place}: producer {producer.producer_id} has epoch {producer.epoch} by now; epoch {epoch} is over",
        )

    def _out_of_order(self, producer: Producer, what: str) -> KafkaError:
        return KafkaError(
            ErrorCode.out_of_order_sequence_number, f"{self._place}: producer {producer.producer_id}: {what}"
        )

    # Recording what was appended

    def note_data(self, head: Head, first_offset: int, last_offset: int, timestamp_ms: int) -> None:
        """Records a batch with this header, which was appended at these offsets."""
        producer_id, epoch, first_sequence = head.producer_id, head.producer_epoch, head.base_sequence
        is_transactional = head.attributes & TRANSACTIONAL
        producer = self._producers.get(producer_id)
        if producer is None:
            producer = self._producers[producer_id] = Producer(producer_id)
        if producer.epoch != epoch:
            producer.epoch = epoch
            producer.batches.clear()
        batches = producer.batches
        if len(batches) == BATCHES_MAX:
            del batches[0]
        last_sequence = last_sequence_of(first_sequence, last_offset - first_offset + 1)
        batch = first_sequence, last_sequence, first_offset, last_offset, timestamp_ms
        batches.append(tuple.__new__(PastBatch, batch))  # PastBatch() would parse arguments, for every append
        producer.last_timestamp_ms = timestamp_ms if timestamp_ms > self._looked_ms else self._looked_ms
        if is_transactional and self._verifications:
            self.void_verifications(producer_id, epoch)
        if is_transactional and producer.transaction_start == NO_OFFSET:
            producer.transaction_start = first_offset
            self._open[producer_id] = first_offset

    def recall(self, head: Head) -> None:
        """Adds, in log order, an earlier batch than the one in the snapshot."""
        producer, first_sequence = self._producers.get(head.producer_id), head.base_sequence
        if producer is None or producer.epoch != head.producer_epoch or not producer.batches or first_sequence < 0:
            return
        batches = producer.batches
        if head.last_offset >= batches[-1].first_offset:
            return
        last_sequence = last_sequence_of(first_sequence, head.last_offset - head.base_offset + 1)
        past = PastBatch(first_sequence, last_sequence, head.base_offset, head.last_offset, head.max_timestamp_ms)
        batches.insert(-1, past)
        if len(batches) > BATCHES_MAX:
            del batches[0]

    @property
    def have_ended_transactions(self) -> bool:
        return any(producer.coordinator_epoch >= 0 for producer in self._producers.values())

    def recall_end(self, first_offset: int, marker_offset: int) -> None:
        """Adds a transaction that had ended before the snapshot was taken."""
        self._decided.append((first_offset, marker_offset))

    def note_marker(
        self, producer_id: ProducerId, epoch: ProducerEpoch, offset: int, timestamp_ms: int, marker: Marker
    ) -> EndedTransaction | None:
        """Returns None if no transaction was open; then only the producer's epochs and timestamp change."""
        producer = self._producers.get(producer_id)
        if producer is None:
            producer = self._producers[producer_id] = Producer(producer_id)
        first_offset = producer.transaction_start
        if producer.epoch != epoch:
            producer.epoch = epoch
            producer.batches.clear()
        producer.coordinator_epoch = marker.coordinator_epoch
        producer.last_timestamp_ms = max(timestamp_ms, self._looked_ms)
        if first_offset == NO_OFFSET:
            return None
        producer.transaction_start = NO_OFFSET
        del self._open[producer_id]
        self._decided.append((first_offset, offset))
        stable = next(iter(self._open.values()), offset + 1)
        return EndedTransaction(producer_id, first_offset, offset, marker.is_abort, stable)

    # Transactions

    @property
    def first_open_offset(self) -> int | None:
        """Where the oldest open transaction begins: what would be unstable if all that was noted were committed."""
        return next(iter(self._open.values()), None)

    def last_stable_offset(self, high_watermark: int, start_offset: int) -> int:
        """Below it every transaction has ended, and its marker is committed."""
        unstable = self.first_unstable_offset(high_watermark)
        if unstable is None:
            return high_watermark
        return min(high_watermark, max(unstable, start_offset))

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """The first offset whose transaction is open or whose marker is not committed. The high watermark never goes
        back, so transactions whose marker it has passed are dropped."""
        decided = self._decided
        if decided and decided[0][1] < high_watermark:
            decided = self._decided = [one for one in decided if one[1] >= high_watermark]
        first = self.first_open_offset
        if decided:
            lowest = min(decided)[0]
            first = lowest if first is None else min(first, lowest)
        return first

    # Expiry and truncation

    def expire(self, now_ms: int) -> None:
        """Drops producers that have been idle for too long and have no open transaction. Kafka goes by the timestamps
        of their records alone: it forgets a producer that mirrors what is older than that while it writes, and a retry
        is written twice."""
        self._looked_ms = now_ms
        expired = [p.producer_id for p in self._producers.values() if self._has_expired(p, now_ms)]
        for producer_id in expired:
            del self._producers[producer_id]

    def _has_expired(self, producer: Producer, now_ms: int) -> bool:
        return producer.transaction_start == NO_OFFSET and now_ms - producer.last_timestamp_ms >= self._expiry_ms

    def clear(self) -> None:
        self._producers.clear()
        self._open.clear()
        self._decided.clear()
        self._verifications.clear()

    # Snapshots

    def encode(self) -> bytes:
        return encode_producer_snapshot(producer.entry() for producer in self._producers.values())

    def load(self, entries: Iterable[ProducerEntry], now_ms: int) -> None:
        self.clear()
        self._looked_ms = max(self._looked_ms, now_ms)
        for entry in sorted(entries, key=lambda entry: entry.current_txn_first_offset):
            producer = Producer(entry.producer_id)
            producer.epoch = entry.producer_epoch
            producer.last_timestamp_ms = entry.last_timestamp
            producer.coordinator_epoch = entry.coordinator_epoch
            producer.transaction_start = max(entry.current_txn_first_offset, NO_OFFSET)
            if entry.last_offset >= 0:
                first_offset = entry.last_offset - entry.offset_delta
                first_sequence = first_sequence_of(entry.last_sequence, entry.offset_delta + 1)
                producer.batches.append(
                    PastBatch(
                        first_sequence, entry.last_sequence, first_offset, entry.last_offset, entry.last_timestamp
                    )
                )
            if self._has_expired(producer, now_ms):
                continue
            self._producers[entry.producer_id] = producer
            if producer.transaction_start != NO_OFFSET:
                self._open[entry.producer_id] = producer.transaction_start
