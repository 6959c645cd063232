"""The records of `__transaction_state`: round trips, older versions, bytes that are cut off, and Kafka's own reader."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sexton.coordinators.transactions.records import decode_key, decode_value, encode_key, encode_value
from sexton.coordinators.transactions.states import State
from sexton.coordinators.transactions.transaction import Transaction
from sexton.errors import CorruptLogError
from sexton.harness.jars import VERSIONS
from sexton.harness.kafka_tools import DUMP_FAULTS, dump_log
from sexton.records import batch as batches
from sexton.types import ProducerEpoch, ProducerId

RECORDED = [state for state in State if state not in (State.DEAD, State.PREPARE_EPOCH_FENCE)]
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
ids = st.integers(0, 2**63 - 1)
optional_ids = st.one_of(st.just(-1), ids)
epochs = st.integers(-1, 2**15 - 1)
times = st.integers(-1, 2**62)


@st.composite
def transactions(draw: st.DrawFn) -> Transaction:
    state = draw(st.sampled_from(RECORDED))
    places = st.tuples(names, st.integers(0, 2**31 - 1))
    return Transaction(
        transactional_id=draw(names),
        producer_id=ProducerId(draw(ids)),
        epoch=ProducerEpoch(draw(epochs)),
        last_epoch=ProducerEpoch(draw(epochs)),
        previous_producer_id=ProducerId(draw(optional_ids)),
        next_producer_id=ProducerId(draw(optional_ids)),
        timeout_ms=draw(st.integers(1, 2**31 - 1)),
        state=state,
        partitions=frozenset() if state is State.EMPTY else draw(st.frozensets(places, max_size=6)),
        start_ms=draw(times),
        update_ms=draw(times),
        client_version=draw(st.integers(0, 2)),
        has_timed_out=draw(st.booleans()),
    )


@given(transactions())
def test_what_is_written_is_read(transaction: Transaction) -> None:
    assert decode_key(encode_key(transaction.transactional_id)) == transaction.transactional_id
    assert decode_value(transaction.transactional_id, encode_value(transaction)) == transaction


@given(transactions(), st.data())
def test_bytes_that_are_cut_off_are_noticed(transaction: Transaction, data: st.DataObject) -> None:
    value = encode_value(transaction)
    cut = data.draw(st.integers(0, len(value) - 1))
    with pytest.raises(CorruptLogError):
        decode_value("x", value[:cut])


def test_version_0_is_read_as_kafka_before_4_wrote_it() -> None:
    value = struct.pack(">hqhib", 0, 1000, 3, 60_000, State.ONGOING)
    value += struct.pack(">i", 1) + struct.pack(">h", 1) + b"t" + struct.pack(">iii", 2, 0, 4)
    value += struct.pack(">qq", 20, 10)
    read = decode_value("app", value)
    assert (read.producer_id, read.epoch, read.timeout_ms, read.state) == (1000, 3, 60_000, State.ONGOING)
    assert read.partitions == {("t", 0), ("t", 4)}
    assert (read.update_ms, read.start_ms, read.last_epoch, read.client_version) == (20, 10, -1, 0)


def test_version_0_without_partitions_is_read() -> None:
    value = struct.pack(">hqhibiqq", 0, 1000, 3, 60_000, State.EMPTY, -1, 20, -1)
    assert decode_value("app", value).partitions == frozenset()


@pytest.mark.parametrize("version", [-1, 2])
def test_a_version_from_the_future_is_refused(version: int) -> None:
    with pytest.raises(CorruptLogError):
        decode_value("app", struct.pack(">h", version) + bytes(40))


def test_a_state_that_does_not_exist_is_refused() -> None:
    with pytest.raises(CorruptLogError):
        decode_value("app", struct.pack(">hqhibiqq", 0, 1000, 3, 60_000, 8, -1, 20, -1))


def test_a_key_of_an_unknown_kind_is_skipped() -> None:
    assert decode_key(struct.pack(">h", 1) + b"whatever") is None


def test_the_bytes_are_kafkas() -> None:
    """As Kafka 4.3's TransactionLogValue writes them; our own two fields come behind Kafka's."""
    transaction = Transaction(
        "app",
        ProducerId(1000),
        ProducerEpoch(5),
        previous_producer_id=ProducerId(7),
        timeout_ms=60_000,
        state=State.PREPARE_COMMIT,
        partitions=frozenset({("t", 1), ("t", 0)}),
        start_ms=10,
        update_ms=20,
        client_version=2,
    )
    expected = struct.pack(">hqhib", 1, 1000, 5, 60_000, 2)
    expected += b"\x02" + b"\x02t" + b"\x03" + struct.pack(">ii", 0, 1) + b"\x00"
    expected += struct.pack(">qq", 20, 10)
    expected += b"\x02" + b"\x00\x08" + struct.pack(">q", 7) + b"\x02\x02" + struct.pack(">h", 2)
    assert encode_value(transaction) == expected
    assert encode_key("app") == b"\x00\x00\x00\x03app"


SHOWN = {
    "4.3.0": (
        '"producerId":1000,"producerEpoch":5,"transactionTimeoutMs":60000,"transactionStatus":3',
        '"transactionPartitions":[{"topic":"t","partitionIds":[1]}]',
        '"transactionLastUpdateTimestampMs":20,"transactionStartTimestampMs":10,"clientTransactionVersion":2',
    ),
    "3.9.2": ("producerId:1000,producerEpoch:5,state=PrepareAbort,partitions=[t-1],txnLastUpdateTimestamp=20",),
}


@pytest.mark.kafka
@pytest.mark.parametrize("version", VERSIONS)
def test_kafkas_own_tool_reads_them(tmp_path: Path, version: str) -> None:
    transaction = Transaction(
        "app",
        ProducerId(1000),
        ProducerEpoch(5),
        last_epoch=ProducerEpoch(4),
        timeout_ms=60_000,
        state=State.PREPARE_ABORT,
        partitions=frozenset({("t", 1)}),
        start_ms=10,
        update_ms=20,
        client_version=2,
        has_timed_out=True,
    )
    records = [
        batches.Record(0, 1, encode_key("app"), encode_value(transaction)),
        batches.Record(1, 1, encode_key("gone"), None),
    ]
    segment = tmp_path / f"{0:020}.log"
    segment.write_bytes(batches.encode(batches.make_batch(records)))
    text = dump_log(segment, "--transaction-log-decoder", "--print-data-log", version=version)
    for part in SHOWN[version]:
        assert part in text
    assert text.count("payload: <DELETE>") == 1
    assert not [fault for fault in DUMP_FAULTS if fault in text]
