"""What an EndTxn means: whether it ends the transaction, repeats what was done, or comes too late.

Pure, and apart from the rest because it is the heart of rule 8: *an EndTxn ends the transaction it was sent for and no
other*. The tables are KIP-890's. With transaction version 2 the epoch says which transaction is meant:

                     abort                     commit
                     epoch - 1    epoch        epoch - 1    epoch
    Empty            fenced       end          fenced       early
    Ongoing          fenced       end          fenced       end
    PrepareAbort     wait         wait         invalid      early
    PrepareCommit    invalid      wait         wait         early
    CompleteAbort    done         end          invalid      early
    CompleteCommit   invalid      end          done         early

Here "epoch" is what the coordinator has now and "epoch - 1" what it had before the last end: the client has not heard
the answer to its own request and asks again. In the prepared states, "epoch" ends the next transaction, which has begun
before the markers of the last are written. Kafka says "fenced" to that, though nobody fenced the producer; franz-go,
which aborts what it has only read, gives it up then. A producer that has run out of epochs comes under a new id then,
which the transaction has only once they are written.

"Early" is a commit of a transaction in which there is nothing yet. Java's client (4.x) sends it ahead of its records
when two of its threads meet in the wrong moment: it looks whether all is flushed before it takes the lock under which
an EndTxn is taken from the queue. Kafka says "invalid" (or "fenced"), which is the end of that producer. We let it ask
again (CONCURRENT_TRANSACTIONS): by then it waits for its records. The broker never waits in its stead, for it would
commit what is added first, without what is still to come.

Unless the last transaction was ended by a client of an older version, in the same epoch: then this may be its end once
more. Flink's committer does not know yet that the cluster has version 2 when it commits, and the writer, which does,
commits after it; told to ask again, it would do so for ever. Once the markers are written it gets Kafka's answer,
"invalid", and takes a new producer.

With older versions the epoch stays, so the state must do:

                     abort        commit
    Empty            done         invalid
    Ongoing          end          end
    PrepareAbort     wait         invalid
    PrepareCommit    wait         wait
    CompleteAbort    done         invalid
    CompleteCommit   unknown      done

That cannot tell a repeated EndTxn from one for the next transaction; `connection_binding.py` closes the gap.

The column of aborts is not Kafka's, which has "invalid" for Empty and after a commit. librdkafka aborts what the
coordinator may not have heard of (its AddPartitionsToTxn was not answered in time), and "invalid" is the end of the
producer. With Empty there is nothing to abort. After a commit it is not known which transaction is meant, and "done"
would call the committed one aborted: UNKNOWN_PRODUCER_ID makes librdkafka take a new epoch, which no request of either
has, and everybody else say that the abort failed.

Beyond Kafka (KIP-588): the producer whose transaction timed out, and nobody else has taken its place since, is told so
in a way that it can recover from. Its abort is done already. Its commit fails with an error after which it aborts:
TRANSACTION_ABORTABLE with version 2, whose abort tells it the new epoch; UNKNOWN_PRODUCER_ID before that, upon which
Java's client (up to 3.9) and librdkafka abort and then ask for a new epoch by InitProducerId. kafka-python (3.0) aborts
and goes on in the old epoch: once its abort was acknowledged, it is fenced (`Transaction.late_owner_aborted`). Where it
sends no abort, it is fenced after it was told a few times (`coordinator.TOLD_LATE_MAX`).
"""

from __future__ import annotations

from enum import Enum, auto

from sexton.coordinators.transactions.states import State
from sexton.coordinators.transactions.transaction import LAST_EPOCH_FOR_CLIENTS, Transaction
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.types import NO_PRODUCER_EPOCH, TRANSACTION_VERSION_2, ProducerIdAndEpoch


class EarlyCommitError(KafkaError):
    """Only the client knows when all its records are written: nobody but it may try again."""

    def __init__(self) -> None:
        super().__init__(ErrorCode.concurrent_transactions, "nothing was written in this transaction so far. Try again")


class Verdict(Enum):
    END = auto()
    DONE = auto()
    """It was done before; the answer is the same as then."""


def judge(transaction: Transaction, producer: ProducerIdAndEpoch, is_commit: bool, client_version: int) -> Verdict:
    """Raises what to answer if it may not be, or not yet."""
    if client_version >= TRANSACTION_VERSION_2:
        return _verdict_by_epoch(transaction, producer, is_commit)
    return _verdict_by_state(transaction, producer, is_commit)


def _verdict_by_epoch(transaction: Transaction, producer: ProducerIdAndEpoch, is_commit: bool) -> Verdict:
    state = transaction.state
    if transaction.is_next(producer):
        raise EarlyCommitError() if is_commit else _wait()
    is_rotated = (
        producer == (transaction.previous_producer_id, LAST_EPOCH_FOR_CLIENTS)
        and transaction.epoch == 0
        and (state in (State.COMPLETE_COMMIT, State.COMPLETE_ABORT) or transaction.last_epoch == producer.epoch)
        and state is not State.ONGOING
    )
    if producer.producer_id != transaction.producer_id and not is_rotated:
        raise KafkaError(ErrorCode.invalid_producer_id_mapping)
    is_repeated = is_rotated or producer.epoch == transaction.epoch - 1
    if is_repeated and transaction.of_late_owner(producer.epoch) and is_commit:
        raise too_late(TRANSACTION_VERSION_2)
    if is_repeated and not is_rotated and state in (State.EMPTY, State.ONGOING):
        raise KafkaError(ErrorCode.producer_fenced)
    if not is_repeated and producer.epoch != transaction.epoch:
        raise KafkaError(ErrorCode.producer_fenced)
    if not is_repeated and is_commit and state is not State.ONGOING:
        raise _nothing_to_commit(transaction)
    if not is_repeated and state.is_prepared:
        raise _wait()
    if is_rotated and state is State.EMPTY and not is_commit:
        return Verdict.DONE  # its transaction had timed out in the last epoch, and it was told its new id
    return _repeated(state, is_commit) if is_repeated else Verdict.END


def _nothing_to_commit(transaction: Transaction) -> KafkaError:
    is_old_end = transaction.state is not State.EMPTY and transaction.client_version < TRANSACTION_VERSION_2
    if transaction.state.is_prepared or not is_old_end:
        return EarlyCommitError()
    return KafkaError(ErrorCode.invalid_txn_state, "the last transaction was ended in this epoch, no other has begun")


def _verdict_by_state(transaction: Transaction, producer: ProducerIdAndEpoch, is_commit: bool) -> Verdict:
    if producer.producer_id != transaction.producer_id:
        raise KafkaError(ErrorCode.invalid_producer_id_mapping)
    if transaction.of_late_owner(producer.epoch):
        if is_commit:
            raise too_late(client_version=0)
        return _repeated(transaction.state, is_commit)
    was_owner = producer.epoch == transaction.last_epoch != NO_PRODUCER_EPOCH
    if was_owner and transaction.state is State.COMPLETE_ABORT and not is_commit:
        return Verdict.DONE  # it was late and aborts again: it has not heard the answer
    if producer.epoch != transaction.epoch:
        raise KafkaError(ErrorCode.producer_fenced)
    if transaction.state is State.ONGOING:
        return Verdict.END
    if transaction.state is State.EMPTY:
        if is_commit:
            raise KafkaError(ErrorCode.invalid_txn_state, "there is nothing to commit")
        return Verdict.DONE
    if transaction.state is State.PREPARE_COMMIT:
        raise _wait()
    if transaction.state is State.COMPLETE_COMMIT and not is_commit:
        raise KafkaError(ErrorCode.unknown_producer_id, "the last transaction was committed, no other has begun")
    return _repeated(transaction.state, is_commit)


def _repeated(state: State, is_commit: bool) -> Verdict:
    """Of a transaction that was ended before."""
    was_commit = state in (State.PREPARE_COMMIT, State.COMPLETE_COMMIT)
    if was_commit != is_commit:
        raise KafkaError(ErrorCode.invalid_txn_state, f"the transaction was {'committed' if was_commit else 'aborted'}")
    if state.is_prepared:
        raise _wait()
    return Verdict.DONE


def _wait() -> KafkaError:
    return KafkaError(ErrorCode.concurrent_transactions, "the markers of the last transaction are being written")


def too_late(client_version: int) -> KafkaError:
    """To the producer whose transaction timed out."""
    code = ErrorCode.transaction_abortable if client_version >= TRANSACTION_VERSION_2 else ErrorCode.unknown_producer_id
    return KafkaError(code, "the transaction took longer than transaction.timeout.ms and was aborted")
