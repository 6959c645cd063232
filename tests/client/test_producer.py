"""Three outcomes, told truthfully, whatever the broker and the network do."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest

from sexton.client import apis
from sexton.client.errors import ProduceFailedError, ProduceUnknownError
from sexton.client.packed import PackedBatch
from sexton.client.producer import QUEUED_BYTES_MAX, Message, Producer, Records, records_of
from sexton.protocol.errors import ErrorCode
from sexton.records import batch as batches
from sexton.records.batch import Batch
from sexton.records.header import HEADER_BYTES
from sexton.simulate.network import Weather
from tests.client.scripted import TOPIC, HangUp, World, produce_answer, simulate

PRODUCE = apis.PRODUCE.key


class ModelLog:
    """A partition that checks sequences as Kafka does, and keeps what was written."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self._last: dict[int, tuple[int, int, int]] = {}

    def append(self, body: Any) -> Any:
        (batch,) = batches.decode_all(body.topic_data[0].partition_data[0].records)
        if batch.producer_id >= 0:
            first, next_sequence, offset = self._last.get(batch.producer_id, (-1, 0, -1))
            if batch.base_sequence == first:
                return produce_answer(base_offset=offset)
            if batch.base_sequence != next_sequence:
                return produce_answer(ErrorCode.out_of_order_sequence_number)
            after = batch.base_sequence + batch.record_count
            self._last[batch.producer_id] = (batch.base_sequence, after, len(self.values))
        offset = len(self.values)
        self.values += [record.value or b"" for record in batch.records]
        return produce_answer(base_offset=offset)


def batch_of(body: Any) -> Batch:
    (batch,) = batches.decode_all(body.topic_data[0].partition_data[0].records)
    return batch


def script(world: World, log: ModelLog, steps: Sequence[str | ErrorCode]) -> None:
    """What becomes of each Produce in turn; from the last on, all is well. `lost`: written, no answer."""
    left = list(steps)

    def handle(version: int, body: Any) -> Any:
        step = left.pop(0) if left else "fine"
        if step == "never arrived":
            return HangUp()
        if step == "lost":
            log.append(body)
            return HangUp()
        if isinstance(step, ErrorCode):
            return produce_answer(step)
        return log.append(body)

    world.broker.handlers[PRODUCE] = handle


def messages(*values: str) -> list[Message]:
    return [Message(None, value.encode()) for value in values]


@pytest.mark.parametrize("fault", ["lost", "never arrived", ErrorCode.not_leader_or_follower])
def test_a_lost_answer_is_asked_for_again_and_nothing_is_written_twice(fault: str | ErrorCode) -> None:
    async def scenario(world: World) -> None:
        log = ModelLog()
        script(world, log, ["fine", fault, fault])
        producer = Producer(world.client())
        assert await producer.send(TOPIC, 0, messages("a")) == 0
        assert await producer.send(TOPIC, 0, messages("b", "c")) == 1
        assert await producer.send(TOPIC, 0, messages("d")) == 3
        assert log.values == [b"a", b"b", b"c", b"d"]

    simulate(scenario)


@pytest.mark.parametrize("fault", ["lost", "never arrived"])
def test_a_batch_that_was_encoded_elsewhere_is_sent_alone_in_its_turn_and_once(fault: str) -> None:
    async def scenario(world: World) -> None:
        log = ModelLog()
        script(world, log, ["fine", fault, fault])
        producer = Producer(world.client())
        body = batches.encode(batches.make_batch(records_of(messages("b", "c"), 1)))[HEADER_BYTES:]
        sent: list[Records] = [messages("a"), PackedBatch(body, 2, 0, 1, 1), messages("d"), messages("e")]
        outcomes = [await producer.queue(TOPIC, 0, each) for each in sent]
        assert [await outcome for outcome in outcomes] == [0, 1, 3, 4]
        assert log.values == [b"a", b"b", b"c", b"d", b"e"]

    simulate(scenario)


def test_a_refused_batch_failed_for_sure_and_leaves_no_gap_in_the_sequence() -> None:
    async def scenario(world: World) -> None:
        log = ModelLog()
        script(world, log, ["fine", ErrorCode.message_too_large])
        producer = Producer(world.client())
        await producer.send(TOPIC, 0, messages("a"))
        with pytest.raises(ProduceFailedError) as failed:
            await producer.send(TOPIC, 0, messages("b"))
        assert failed.value.code == ErrorCode.message_too_large
        assert await producer.send(TOPIC, 0, messages("c")) == 1
        assert world.broker.producer_ids_count == 1

    simulate(scenario)


def test_too_few_replicas_until_the_time_is_over_is_a_sure_failure() -> None:
    async def scenario(world: World) -> None:
        world.broker.handlers[PRODUCE] = lambda version, body: produce_answer(ErrorCode.not_enough_replicas)
        producer = Producer(world.client(), delivery_timeout_ms=5000)
        with pytest.raises(ProduceFailedError):
            await producer.send(TOPIC, 0, messages("a"))

    simulate(scenario)


@pytest.mark.parametrize(
    "code",
    [ErrorCode.request_timed_out, ErrorCode.not_enough_replicas_after_append, ErrorCode.not_leader_or_follower],
)
def test_an_error_that_may_follow_the_write_leaves_the_outcome_unknown(code: ErrorCode) -> None:
    async def scenario(world: World) -> None:
        world.broker.handlers[PRODUCE] = lambda version, body: produce_answer(code)
        producer = Producer(world.client(), delivery_timeout_ms=5000)
        with pytest.raises(ProduceUnknownError):
            await producer.send(TOPIC, 0, messages("a"))

    simulate(scenario)


def test_once_unknown_always_unknown_even_if_the_last_attempt_was_refused() -> None:
    async def scenario(world: World) -> None:
        log = ModelLog()
        script(world, log, ["lost", ErrorCode.message_too_large])
        producer = Producer(world.client())
        with pytest.raises(ProduceUnknownError):
            await producer.send(TOPIC, 0, messages("a"))
        assert log.values == [b"a"]

    simulate(scenario)


def test_after_an_unknown_outcome_the_partition_goes_on_under_a_new_producer_id() -> None:
    async def scenario(world: World) -> None:
        log = ModelLog()
        script(world, log, ["lost", ErrorCode.message_too_large])
        producer = Producer(world.client())
        with pytest.raises(ProduceUnknownError):
            await producer.send(TOPIC, 0, messages("a"))
        assert await producer.send(TOPIC, 0, messages("b")) == 1
        ids = [batch_of(body).producer_id for key, body in world.broker.asked if key == PRODUCE]
        assert ids == [1, 1, 2]

    simulate(scenario)


def test_a_forgotten_sequence_of_a_batch_that_was_never_written_is_started_anew() -> None:
    async def scenario(world: World) -> None:
        log = ModelLog()
        script(world, log, ["fine", ErrorCode.unknown_producer_id])
        producer = Producer(world.client())
        await producer.send(TOPIC, 0, messages("a"))
        assert await producer.send(TOPIC, 0, messages("b")) == 1
        assert log.values == [b"a", b"b"]

    simulate(scenario)


def test_without_idempotence_a_lost_answer_is_not_followed_by_a_second_write() -> None:
    async def scenario(world: World) -> None:
        log = ModelLog()
        script(world, log, ["lost"])
        producer = Producer(world.client(), idempotent=False)
        with pytest.raises(ProduceUnknownError):
            await producer.send(TOPIC, 0, messages("a"))
        assert log.values == [b"a"]

    simulate(scenario)


def test_nobody_to_send_to_is_a_sure_failure() -> None:
    async def scenario(world: World) -> None:
        producer = Producer(world.client(), delivery_timeout_ms=3000)
        with pytest.raises(ProduceFailedError):
            await producer.send(TOPIC, 0, messages("a"))

    simulate(scenario, listening=False)


def test_an_unknown_topic_is_a_sure_failure() -> None:
    async def scenario(world: World) -> None:
        producer = Producer(world.client())
        with pytest.raises(ProduceFailedError) as failed:
            await producer.send("nobody-made-it", 0, messages("a"))
        assert failed.value.code == ErrorCode.unknown_topic_or_partition

    simulate(scenario)


def test_a_closed_producer_tells_everybody_who_waits() -> None:
    async def scenario(world: World) -> None:
        world.broker.handlers[PRODUCE] = lambda version, body: None
        producer = Producer(world.client(timeout_ms=60_000))
        under_way = await producer.queue(TOPIC, 0, messages("a"))
        await asyncio.sleep(1)
        waiting = await producer.queue(TOPIC, 0, messages("b"))
        await producer.close()
        with pytest.raises(ProduceUnknownError):
            await under_way
        with pytest.raises(ProduceFailedError):
            await waiting

    simulate(scenario)


def test_what_failed_for_sure_is_not_sent_with_what_comes_later() -> None:
    """And what is sent later is not taken for what was under way, which was written all the same."""

    async def scenario(world: World) -> None:
        log = ModelLog()
        world.broker.handlers[PRODUCE] = lambda version, body: log.append(body) and None
        producer = Producer(world.client(timeout_ms=60_000))
        await producer.queue(TOPIC, 0, messages("a"))
        await asyncio.sleep(1)
        waiting = await producer.queue(TOPIC, 0, messages("b"))
        await producer.close()
        with pytest.raises(ProduceFailedError):
            await waiting
        world.broker.hang_up()
        script(world, log, [])
        await producer.send(TOPIC, 0, messages("c"))
        assert log.values == [b"a", b"c"]

    simulate(scenario)


def test_a_producer_that_was_closed_gives_its_room_back() -> None:
    async def scenario(world: World) -> None:
        world.broker.handlers[PRODUCE] = lambda version, body: None
        producer = Producer(world.client(timeout_ms=60_000))
        large = [Message(None, bytes(QUEUED_BYTES_MAX * 2 // 5))]
        outcomes = [await producer.queue(TOPIC, 0, large) for _ in range(2)]
        await producer.close()
        for outcome in outcomes:
            with pytest.raises(ProduceFailedError):
                await asyncio.wait_for(outcome, 60)
        world.broker.hang_up()
        script(world, ModelLog(), [])
        await asyncio.wait_for(producer.send(TOPIC, 0, large), 60)

    simulate(scenario)


@pytest.mark.parametrize("seed", range(40))
def test_under_random_faults_every_outcome_is_true(seed: int) -> None:
    """Acknowledged: once, at its offset. Failed: never. Unknown: at most once. And in order."""

    async def scenario(world: World) -> None:
        log = ModelLog()
        rng = random.Random(seed)
        faults: list[str | ErrorCode] = [
            "lost",
            "never arrived",
            ErrorCode.not_leader_or_follower,
            ErrorCode.not_enough_replicas,
            ErrorCode.request_timed_out,
            ErrorCode.message_too_large,
            ErrorCode.unknown_producer_id,
        ]
        script(world, log, [rng.choice(faults) if rng.random() < 0.6 else "fine" for _ in range(80)])
        producer = Producer(world.client(), delivery_timeout_ms=rng.choice([200, 1000, 10_000]))
        sent = []
        for number in range(60):
            sent.append((str(number), await producer.queue(TOPIC, 0, messages(str(number)))))
            if rng.random() < 0.5:
                await asyncio.sleep(rng.random() * 0.3)
        await producer.flush()
        for value, outcome in sent:
            count = log.values.count(value.encode())
            error = outcome.exception()
            if error is None:
                assert count == 1
                assert log.values[outcome.result()] == value.encode()
            elif isinstance(error, ProduceFailedError):
                assert count == 0
            else:
                assert isinstance(error, ProduceUnknownError)
                assert count <= 1
        assert [int(value) for value in log.values] == sorted(int(value) for value in log.values)

    simulate(scenario, seed, Weather(break_probability=0.02))
