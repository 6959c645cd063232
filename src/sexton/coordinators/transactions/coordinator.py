"""The transactions of one partition of `__transaction_state`, as a pure state machine.

It is built by replaying the partition's records, then driven by requests, by written markers, and by time. Each
operation takes the current time and returns its `Effects`: records to append, and markers to send once the records are
committed. It assumes that they will be; if they are not, the whole coordinator is discarded and loaded again. A request
that is refused raises KafkaError and changes nothing.

One thing it cannot make itself: a new producer id. An operation that needs one and was not passed one raises
`ProducerIdNeeded`, changes nothing, and is called again with one.

Where this differs from Kafka, always towards more safety or less surprise:

- A producer that was fenced because its transaction timed out may come back (KIP-588): see `ending.py`. It gets the
  epoch that its markers carry.
- A producer that starts over while its own transaction is open (InitProducerId with its id and epoch) is not taken for
  a zombie afterwards.
- InitProducerId with a stale epoch is refused before, not after, it has aborted the transaction of the current
  producer.
"""

from __future__ import annotations

from collections.abc import Iterable

from sexton.coordinators.bounds import DUE_COUNT_MAX, RECORD_BYTES_MAX
from sexton.coordinators.patterns import compile_pattern
from sexton.coordinators.timers import Now, Timers
from sexton.coordinators.transactions.ending import Verdict, judge, too_late
from sexton.coordinators.transactions.messages import (
    AddRequest,
    Effects,
    EndRequest,
    InitRequest,
    ListRequest,
    Markers,
    Verified,
)
from sexton.coordinators.transactions.records import decode_key, decode_value, encode_value
from sexton.coordinators.transactions.states import Event, State, after
from sexton.coordinators.transactions.transaction import LAST_EPOCH_FOR_CLIENTS, Transaction
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.settings.broker import TransactionSettings
from sexton.types import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TRANSACTION_VERSION_2,
    ProducerId,
    ProducerIdAndEpoch,
    TopicPartition,
)

EXPIRED_COUNT_MAX = 1_000
"""Maximum number of tombstones in one append: a few hundred kilobytes at most."""

FEW_PARTITIONS = 1_000
"""This many partitions fit into a record whatever their names are."""

TOLD_LATE_MAX = 3
"""How often a producer of an older version whose transaction timed out is told so when it adds to a transaction: more
than once, because answers are lost. Then it is fenced, for it does not start over. kafka-python (3.0) is so: a
transaction whose first AddPartitionsToTxn was not answered has not begun for it, so it sends no EndTxn, and goes on in
the old epoch."""

EXPIRY = ""
"""The timer of the next search for expired transactional ids; all other timers are named by their transactional id."""


class ProducerIdNeeded(Exception):  # noqa: N818  (not a failure)
    """Asks the caller to call again, with a new producer id."""


class LateEnd(Exception):  # noqa: N818
    """There is a transaction to end, and nothing shows that this one was meant. Nothing was changed."""


class TransactionCoordinator:
    def __init__(self, settings: TransactionSettings) -> None:
        self.settings = settings
        self._transactions: dict[str, Transaction] = {}
        self._unmarked: dict[str, dict[TopicPartition, None]] = {}
        """For prepared transactions: the partitions whose marker is not known to be written."""
        self._told_late: dict[str, int] = {}
        """How often producers were told that their transaction had timed out, since it did. Not recorded: whoever loads
        the log begins anew."""
        self._timers: Timers[str] = Timers()
        self._now = Now(0, 0)
        self._effects = Effects()

    @property
    def effects(self) -> Effects:
        """Effects of the last operation that could have any, also if it was refused."""
        return self._effects

    # Loading

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Replays one record, in log order. Unknown kinds of records are skipped."""
        transactional_id = decode_key(key)
        if transactional_id is None:
            return
        if value is None:
            self._transactions.pop(transactional_id, None)
        else:
            self._transactions[transactional_id] = decode_value(transactional_id, value)

    def on_loaded(self, now: Now) -> Effects:
        """Called when the log has been read: timeouts run from here on, and markers are sent again, because it is
        unknown which were written."""
        self._begin(now)
        for transaction in list(self._transactions.values()):
            if transaction.state.is_prepared:
                self._prepared(transaction)
            elif transaction.state is State.ONGOING:
                left_ms = transaction.start_ms + transaction.timeout_ms - now.wall_ms
                self._set_deadline(transaction, max(0, min(left_ms, transaction.timeout_ms)))
        self._look_for_expired_later()
        return self._effects

    # Requests

    def init(self, request: InitRequest, fresh_id: ProducerId | None, now: Now) -> tuple[ProducerIdAndEpoch, Effects]:
        self._begin(now)
        if not request.transactional_id:
            raise KafkaError(ErrorCode.invalid_request, "an empty transactional id")
        max_timeout_ms = self.settings.transaction_max_timeout_ms
        if not 0 < request.timeout_ms <= max_timeout_ms:
            raise KafkaError(
                ErrorCode.invalid_transaction_timeout,
                f"{request.timeout_ms} is not between 1 and transaction.max.timeout.ms={max_timeout_ms}",
            )
        transaction = self._transactions.get(request.transactional_id)
        if transaction is None:
            transaction = Transaction(request.transactional_id, _needed(fresh_id))
            return self._initialised(transaction.initialised(request.timeout_ms, False, now.wall_ms))
        _check_expected(transaction, request.expected)
        if transaction.state.is_prepared:
            raise concurrent(transaction)
        if transaction.state is State.ONGOING:
            # The raised epoch that fences the producer is sent to no client but, perhaps, itself. The client retries.
            self._lock_out(transaction, owner_may_return=request.expected is not None, has_timed_out=False)
            return ProducerIdAndEpoch(NO_PRODUCER_ID, NO_PRODUCER_EPOCH), self._effects
        return self._initialised(_next_epoch(transaction, request, fresh_id, now.wall_ms))

    def _initialised(self, transaction: Transaction) -> tuple[ProducerIdAndEpoch, Effects]:
        self._write(transaction)
        return ProducerIdAndEpoch(transaction.producer_id, transaction.epoch), self._effects

    def add(self, request: AddRequest, now: Now) -> Effects:
        self._begin(now)
        self._fence_if_told(request)
        transaction = self._owned(request.transactional_id, request.producer, request.client_version)
        if transaction.state.is_prepared:
            raise concurrent(transaction)
        if not transaction.partitions.issuperset(request.partitions):
            added = transaction.with_partitions(request.partitions, request.client_version, now.wall_ms)
            _check_size(added)
            self._write(added)
            if transaction.state is not State.ONGOING:
                self._set_deadline(added, added.timeout_ms)
        return self._effects

    def verify(self, request: AddRequest) -> Verified:
        """Returns whether the partitions are in the transaction. Called for a broker that is about to append to
        them."""
        transaction = self._owned(request.transactional_id, request.producer, request.client_version)
        if transaction.state.is_prepared:
            raise concurrent(transaction)
        return {
            partition: ErrorCode.none if partition in transaction.partitions else ErrorCode.transaction_abortable
            for partition in request.partitions
        }

    def end(self, request: EndRequest, fresh_id: ProducerId | None, now: Now) -> tuple[ProducerIdAndEpoch, Effects]:
        """Returns the id and epoch that the producer has from now on. Raises LateEnd too."""
        self._begin(now)
        transaction = self._known(request.transactional_id)
        verdict = judge(transaction, request.producer, request.is_commit, request.client_version)
        raises = request.client_version >= TRANSACTION_VERSION_2
        if verdict is Verdict.DONE:
            if raises and transaction.epoch > LAST_EPOCH_FOR_CLIENTS:  # clients' last epoch timed out
                timeout_ms, now_ms = transaction.timeout_ms, now.wall_ms
                return self._initialised(transaction.rotated(_needed(fresh_id), timeout_ms, True, now_ms))
            if not raises and transaction.of_late_owner(request.producer.epoch):
                self._write(transaction.late_owner_aborted())
            return ProducerIdAndEpoch(transaction.producer_id, transaction.epoch), self._effects
        if request.may_be_late:
            raise LateEnd
        next_id = _needed(fresh_id) if raises and transaction.is_exhausted else NO_PRODUCER_ID
        ended = transaction.ended(request.is_commit, request.client_version, next_id, now.wall_ms)
        self._write(ended)
        self._prepared(ended)
        then = ended.completed(now.wall_ms)
        return ProducerIdAndEpoch(then.producer_id, then.epoch), self._effects

    # Markers

    def marker_written(
        self, transactional_id: str, producer: ProducerIdAndEpoch, partition: TopicPartition, now: Now
    ) -> Effects:
        """Called when a marker was written, or is no longer needed because the partition was deleted. A marker that is
        not waited for any more changes nothing."""
        self._begin(now)
        transaction = self._transactions.get(transactional_id)
        if transaction is None or producer != (transaction.producer_id, transaction.epoch):
            return self._effects
        unmarked = self._unmarked.get(transactional_id)
        if unmarked is not None and partition in unmarked:
            del unmarked[partition]
            if not unmarked:
                self._complete(transaction)
        return self._effects

    def owes(self, markers: Markers, partition: TopicPartition) -> bool:
        """Whether a transaction of that producer waits for exactly this marker."""
        transaction = self._transactions.get(markers.transactional_id)
        return (
            transaction is not None
            and markers.producer == (transaction.producer_id, transaction.epoch)
            and markers.is_commit == transaction.is_commit
            and partition in self._unmarked.get(markers.transactional_id, {})
        )

    # Time

    def next_deadline_ms(self) -> int | None:
        """On the monotonic clock."""
        return self._timers.next_deadline_ms()

    def tick(self, now: Now) -> Effects:
        """Handles expired timers, up to a limit: the rest is due at once, in another turn and another append."""
        self._begin(now)
        for _ in range(DUE_COUNT_MAX):
            name = self._timers.pop_due(now.monotonic_ms)
            if name is None:
                break
            if name == EXPIRY:
                if self._expire():
                    self._timers.set(EXPIRY, now.monotonic_ms)
                    break  # in pieces, each its own append
                self._look_for_expired_later()
                continue
            transaction = self._transactions.get(name)
            if transaction is not None and transaction.state is State.ONGOING:
                self._lock_out(transaction, owner_may_return=True, has_timed_out=True)
        return self._effects

    def _look_for_expired_later(self) -> None:
        interval_ms = self.settings.transaction_remove_expired_transaction_cleanup_interval_ms
        self._timers.set(EXPIRY, self._now.monotonic_ms + interval_ms)

    def _expire(self) -> bool:
        """Removes transactional ids that have not been used for long. Returns True if there is more to do."""
        before_ms = self._now.wall_ms - self.settings.transactional_id_expiration_ms
        for transaction in list(self._transactions.values()):
            if transaction.state.is_at_rest and transaction.update_ms <= before_ms:
                if len(self._effects.records) >= EXPIRED_COUNT_MAX:
                    return True
                after(transaction.state, Event.EXPIRE)
                del self._transactions[transaction.transactional_id]
                self._told_late.pop(transaction.transactional_id, None)
                self._effects.records.append((transaction.transactional_id, None))
        return False

    # Queries

    def get(self, transactional_id: str) -> Transaction | None:
        return self._transactions.get(transactional_id)

    def unmarked(self, transactional_id: str) -> tuple[TopicPartition, ...]:
        return tuple(sorted(self._unmarked.get(transactional_id, {})))

    def transactions(self) -> Iterable[Transaction]:
        return self._transactions.values()

    def matching(self, request: ListRequest, now: Now) -> list[Transaction]:
        text = request.transactional_id_pattern
        matches = compile_pattern(text, "TransactionalIdPattern") if text else None
        states, producer_ids = frozenset(request.states), frozenset(request.producer_ids)
        return [
            transaction
            for transaction in self._transactions.values()
            if (not states or transaction.state in states)
            and (not producer_ids or transaction.producer_id in producer_ids)
            and (request.longer_than_ms < 0 or now.wall_ms - transaction.start_ms > request.longer_than_ms)
            and (matches is None or matches(transaction.transactional_id))
        ]

    def check_invariants(self) -> None:
        for transactional_id, transaction in self._transactions.items():
            transaction.check_invariants()
            is_waiting = transactional_id in self._unmarked
            assert is_waiting == transaction.state.is_prepared, f"rule 8: {transaction!r} waits for {is_waiting}"
            has_deadline = transactional_id in self._timers
            assert has_deadline or transaction.state is not State.ONGOING, f"rule 8: {transaction!r} would never end"
        assert self._unmarked.keys() <= self._transactions.keys()

    # Internals

    def _begin(self, now: Now) -> None:
        self._now = now
        self._effects = Effects()

    def _write(self, transaction: Transaction) -> None:
        """Records the transaction and applies it here, as a replay of the record does."""
        self._transactions[transaction.transactional_id] = transaction
        self._effects.records.append((transaction.transactional_id, transaction))
        self._told_late.pop(transaction.transactional_id, None)

    def _known(self, transactional_id: str) -> Transaction:
        if not transactional_id:
            raise KafkaError(ErrorCode.invalid_request, "an empty transactional id")
        transaction = self._transactions.get(transactional_id)
        if transaction is None:
            raise KafkaError(ErrorCode.invalid_producer_id_mapping, f"transactional id {transactional_id} is not known")
        return transaction

    def _owned(self, transactional_id: str, producer: ProducerIdAndEpoch, client_version: int) -> Transaction:
        transaction = self._known(transactional_id)
        if transaction.is_next(producer):
            raise concurrent(transaction)
        if producer.producer_id != transaction.producer_id:
            raise KafkaError(ErrorCode.invalid_producer_id_mapping)
        if transaction.of_late_owner(producer.epoch):
            raise too_late(client_version)
        if producer.epoch != transaction.epoch:
            raise KafkaError(ErrorCode.producer_fenced)
        return transaction

    def _fence_if_told(self, request: AddRequest) -> None:
        transaction = self._known(request.transactional_id)
        is_late = (
            request.producer.producer_id == transaction.producer_id
            and transaction.of_late_owner(request.producer.epoch)
            and request.client_version < TRANSACTION_VERSION_2
        )
        if is_late:
            told = self._told_late[request.transactional_id] = self._told_late.get(request.transactional_id, 0) + 1
            if told > TOLD_LATE_MAX:
                raise KafkaError(ErrorCode.producer_fenced)

    def _lock_out(self, transaction: Transaction, *, owner_may_return: bool, has_timed_out: bool) -> None:
        aborted = transaction.locked_out(owner_may_return, has_timed_out, self._now.wall_ms)
        self._write(aborted)
        self._prepared(aborted)

    def _prepared(self, transaction: Transaction) -> None:
        """The end is decided: sends a marker to every partition, or completes the transaction if there is none."""
        self._timers.cancel(transaction.transactional_id)
        if not transaction.partitions:
            self._complete(transaction)
            return
        partitions = tuple(sorted(transaction.partitions))
        self._unmarked[transaction.transactional_id] = dict.fromkeys(partitions)
        self._effects.markers.append(
            Markers(
                transaction.transactional_id,
                ProducerIdAndEpoch(transaction.producer_id, transaction.epoch),
                transaction.is_commit,
                transaction.client_version,
                partitions,
            )
        )

    def _complete(self, transaction: Transaction) -> None:
        self._unmarked.pop(transaction.transactional_id, None)
        self._write(transaction.completed(self._now.wall_ms))
        self._effects.completed.append(transaction.transactional_id)

    def _set_deadline(self, transaction: Transaction, delay_ms: int) -> None:
        self._timers.set(transaction.transactional_id, self._now.monotonic_ms + delay_ms)


def _check_size(transaction: Transaction) -> None:
    """Checks that the transaction fits into a record, with all its partitions."""
    few = len(transaction.partitions) <= FEW_PARTITIONS
    if not few and len(encode_value(transaction)) > RECORD_BYTES_MAX:
        what = f"{len(transaction.partitions)} partitions are too many for one transaction"
        raise KafkaError(ErrorCode.unknown_server_error, what)  # as Kafka, for a record that is too large


def concurrent(transaction: Transaction) -> KafkaError:
    return KafkaError(
        ErrorCode.concurrent_transactions, f"markers of {transaction.transactional_id} are being written. Try again"
    )


def _check_expected(transaction: Transaction, expected: ProducerIdAndEpoch | None) -> None:
    """A producer that starts over must be the last valid owner. One that has begun a transaction knows its newest
    epoch."""
    if expected is None or expected == (transaction.producer_id, transaction.epoch) or transaction.is_next(expected):
        return
    is_former_name = transaction.epoch == 0 and expected.producer_id == transaction.previous_producer_id
    is_known = expected.producer_id == transaction.producer_id or is_former_name
    if not is_known or expected.epoch != transaction.last_epoch or transaction.state is State.ONGOING:
        raise KafkaError(ErrorCode.producer_fenced)


def _next_epoch(
    transaction: Transaction, request: InitRequest, fresh_id: ProducerId | None, now_ms: int
) -> Transaction:
    is_same = request.expected is not None
    is_current = not is_same or request.expected == (transaction.producer_id, transaction.epoch)
    if not is_current and transaction.epoch <= LAST_EPOCH_FOR_CLIENTS:
        return transaction.initialised_again(request.timeout_ms, now_ms)
    if transaction.is_exhausted:
        return transaction.rotated(_needed(fresh_id), request.timeout_ms, is_same, now_ms)
    return transaction.initialised(request.timeout_ms, is_same, now_ms)


def _needed(fresh_id: ProducerId | None) -> ProducerId:
    if fresh_id is None:
        raise ProducerIdNeeded
    return fresh_id
