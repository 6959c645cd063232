"""Which requests are held, and when they are let through: in the middle of their producer's next transaction."""

from __future__ import annotations

import io
import random
from datetime import timedelta

import kio.schema.add_partitions_to_txn.v3.request as adding
import kio.schema.end_txn.v3.request as ending
import kio.schema.produce.v8.request as producing
import kio.schema.request_header.v1.header as header1
import kio.schema.request_header.v2.header as header2
import pytest
from kio.schema.types import ProducerId, TransactionalId
from kio.serial import entity_writer
from kio.static.primitive import i16, i32, i32Timedelta

from sexton.harness.proxy import ADD_PARTITIONS, END_TXN, PRODUCE, Hold, Request
from sexton.verify.faults.late import HELD_S_MAX, Holding


def request(api_key: int, producer: str | None) -> Request:
    name = TransactionalId(producer or "")
    body: object
    if api_key == END_TXN:
        body = ending.EndTxnRequest(
            transactional_id=name, producer_id=ProducerId(1), producer_epoch=i16(0), committed=True
        )
    elif api_key == ADD_PARTITIONS:
        body = adding.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=ProducerId(1),
            v3_and_below_producer_epoch=i16(0),
            v3_and_below_topics=(),
        )
    else:
        body = producing.ProduceRequest(
            transactional_id=name if producer else None,
            acks=i16(-1),
            timeout=i32Timedelta.parse(timedelta(seconds=1)),
            topic_data=(),
        )
    return framed(body)


def framed(body: object) -> Request:
    kind = type(body)
    module = header2 if kind.__flexible__ else header1  # type: ignore[attr-defined]
    header = module.RequestHeader(
        request_api_key=kind.__api_key__,  # type: ignore[attr-defined]
        request_api_version=kind.__version__,  # type: ignore[attr-defined]
        correlation_id=i32(1),
        client_id="test",
    )
    out = io.BytesIO()
    entity_writer(type(header))(out, header)
    entity_writer(kind)(out, body)  # type: ignore[type-var]
    return Request.of(out.getvalue())


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def holding(clock: Clock, *apis: int) -> Holding:
    return Holding(apis, random.Random(1), clock)


def caught(watch: Holding, api_key: int, producer: str = "one") -> Hold:
    hold = watch.caught(request(api_key, producer))
    assert hold is not None
    return hold


def test_an_end_is_let_through_when_its_producer_has_written_to_the_next_transaction(clock: Clock) -> None:
    watch = holding(clock, END_TXN)
    hold = caught(watch, END_TXN)
    assert watch.due(request(PRODUCE, "one")) == [], "that is of the transaction that is to be ended"
    assert watch.due(request(END_TXN, "one")) == [], "it has only asked again"
    assert watch.due(request(ADD_PARTITIONS, "one")) == []
    assert watch.due(request(PRODUCE, "another")) == []
    assert watch.due(request(PRODUCE, "one")) == [hold]
    assert (watch.count, watch.in_time_count) == (1, 1)
    assert watch.take_all() == []


def test_a_record_is_let_through_when_the_next_transaction_has_its_first_partition(clock: Clock) -> None:
    watch = holding(clock, PRODUCE)
    hold = caught(watch, PRODUCE)
    assert watch.due(request(ADD_PARTITIONS, "one")) == []
    watch.due(request(END_TXN, "one"))
    assert watch.due(request(ADD_PARTITIONS, "one")) == [hold]


def test_partitions_are_let_through_when_their_transaction_is_over(clock: Clock) -> None:
    watch = holding(clock, ADD_PARTITIONS)
    hold = caught(watch, ADD_PARTITIONS)
    assert watch.due(request(END_TXN, "one")) == [hold]


def test_of_one_producer_nothing_more_is_held_until_it_has_gone_on(clock: Clock) -> None:
    watch = holding(clock, END_TXN)
    caught(watch, END_TXN)
    assert watch.caught(request(END_TXN, "another")) is None, "not so soon"
    clock.now_s += 10
    assert watch.caught(request(END_TXN, "one")) is None
    caught(watch, END_TXN, "another")


def test_only_what_was_asked_for_and_only_of_transactions_is_held(clock: Clock) -> None:
    assert holding(clock, END_TXN).caught(request(PRODUCE, "one")) is None
    assert holding(clock, PRODUCE).caught(request(PRODUCE, None)) is None


def test_what_belongs_to_a_producer_that_has_died_is_let_through_in_the_end(clock: Clock) -> None:
    watch = holding(clock, END_TXN)
    hold = caught(watch, END_TXN)
    clock.now_s += HELD_S_MAX + 1
    assert watch.due(request(PRODUCE, "another")) == [hold]
    assert watch.in_time_count == 0
