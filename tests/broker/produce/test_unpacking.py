"""Batches that are unpacked off the event loop keep their order, and each has its own fate."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from sexton.broker.produce import unpacking
from sexton.broker.produce.unpacking import SMALL_BYTES
from sexton.client import apis
from sexton.client.producer import Message
from sexton.client.transactions import TransactionalProducer
from sexton.log.inside import UNFOLDED_BYTES_MAX, validated
from sexton.protocol.errors import ErrorCode
from sexton.records.batch import Batch, Record, encode, make_batch
from sexton.records.codecs import Codec
from sexton.types import LeaderEpoch
from tests.log.helpers import read_all
from tests.simulated import TOPIC, Story

LEADER, OTHER = 1, 2
PRODUCER = 4242
NOISE = random.Random(1).randbytes(3 * SMALL_BYTES)
"""A value that makes a batch large, compressed or not."""

ZSTD = {"compression.type": "zstd"}
COMPACTED = {"cleanup.policy": "compact"}


def batch(sequence: int, *, is_large: bool, key: bytes | None = b"k", codec: int = 0, value: bytes = b"") -> bytes:
    value = value or (NOISE if is_large else b"small") + b" %d" % sequence
    made = make_batch(
        [Record(0, 1_000, key, value)],
        attributes=codec,
        producer_id=PRODUCER,
        producer_epoch=0,
        base_sequence=sequence,
        leader_epoch=-1,
    )
    return encode(made)


async def send(story: Story, *batches: bytes, timeout_ms: int = 30_000) -> list[Any]:
    """Each a request of its own, one behind the other on one connection, none waiting for the one before."""

    async def ask() -> list[Any]:
        peer = await story.admin.client.leader(TOPIC, 0)
        calls = []
        for each in batches:
            data = {"name": TOPIC, "partition_data": [{"index": 0, "records": each}]}
            body = {"acks": -1, "timeout": timeout_ms, "transactional_id": None, "topic_data": [data]}
            calls.append(asyncio.ensure_future(peer.call(apis.PRODUCE, body)))
        return [answer.responses[0].partition_responses[0] for answer in await asyncio.gather(*calls)]

    return await story.client_does(ask())


def codes(answers: Sequence[Any]) -> list[ErrorCode]:
    return [ErrorCode(answer.error_code) for answer in answers]


def log_of(story: Story, broker_id: int = LEADER) -> list[Batch]:
    return read_all(story.replica(broker_id).log)


def sequences(story: Story) -> list[int]:
    return [each.base_sequence for each in log_of(story)]


def told(settings: dict[str, str], steps: Callable[[Story], Awaitable[None]], *, has_bugs: bool = False) -> None:
    story = Story(2)
    story.has_bugs = has_bugs

    async def run() -> None:
        await story.start()
        await story.create_topic([LEADER, OTHER], settings)
        await story.in_sync(LEADER, OTHER)
        await steps(story)

    story.run(run())


def test_batches_of_a_producer_are_not_overtaken_by_smaller_ones_behind_them() -> None:
    """The producer is new here, so the log itself would take any of them for the first."""

    async def steps(story: Story) -> None:
        sizes = [True, False, False, True, False]
        answers = await send(story, *[batch(n, is_large=is_large) for n, is_large in enumerate(sizes)])
        assert codes(answers) == [ErrorCode.none] * 5
        assert [answer.base_offset for answer in answers] == [0, 1, 2, 3, 4]
        assert sequences(story) == [0, 1, 2, 3, 4]
        assert {each.codec for each in log_of(story)} == {Codec.ZSTD}
        await story.until(lambda: story.replica(OTHER).log.end_offset == 5)
        assert log_of(story, OTHER) == log_of(story)

    told(ZSTD, steps)


def test_one_that_has_the_topics_codec_waits_behind_one_that_has_not() -> None:
    async def steps(story: Story) -> None:
        answers = await send(story, batch(0, is_large=True), batch(1, is_large=True, codec=Codec.ZSTD))
        assert codes(answers) == [ErrorCode.none] * 2
        assert sequences(story) == [0, 1]

    told(ZSTD, steps)


def test_a_bad_batch_is_refused_alone() -> None:
    async def steps(story: Story) -> None:
        bad = batch(0, is_large=True, key=None)
        first, second = await send(story, bad, batch(0, is_large=True))
        assert codes([first, second]) == [ErrorCode.invalid_record, ErrorCode.none]
        assert [fault.batch_index for fault in first.record_errors] == [0]
        assert sequences(story) == [0]

    told(COMPACTED, steps)


def test_a_time_out_of_range_is_found_in_a_large_batch_too() -> None:
    async def steps(story: Story) -> None:
        late = encode(make_batch([Record(0, 10**15, b"k", NOISE), Record(1, 5, b"k", b"")], leader_epoch=-1))
        (answer,) = await send(story, late)
        assert codes([answer]) == [ErrorCode.invalid_timestamp]
        assert [fault.batch_index for fault in answer.record_errors] == [0]

    told({}, steps)


def work_of_threads(story: Story) -> list[object]:
    """What is given to threads from now on."""
    run_in_executor, given = story.loop.run_in_executor, []

    def noted(executor: object, work: Any, *args: Any) -> Any:
        given.append(work)
        return run_in_executor(executor, work, *args)

    story.loop.run_in_executor = noted  # type: ignore[method-assign, assignment]
    return given


def test_a_small_batch_that_unfolds_far_is_no_reason_to_stop_everything_else() -> None:
    async def steps(story: Story) -> None:
        bomb = batch(0, is_large=False, codec=Codec.ZSTD, value=bytes(UNFOLDED_BYTES_MAX // 16))
        assert len(bomb) < SMALL_BYTES
        given = work_of_threads(story)
        assert codes(await send(story, bomb)) == [ErrorCode.none]
        assert given, "it was a thread's work"

    told({"compression.type": "lz4"}, steps)


def test_what_is_not_unpacked_in_time_is_not_appended_later_nor_what_came_behind_it() -> None:
    async def steps(story: Story) -> None:
        answers = await send(story, batch(0, is_large=True), batch(1, is_large=True), timeout_ms=0)
        assert codes(answers) == [ErrorCode.request_timed_out] * 2
        await asyncio.sleep(1)
        assert sequences(story) == []
        assert codes(await send(story, batch(1, is_large=False))) == [ErrorCode.request_timed_out]
        both = await send(story, batch(0, is_large=False), batch(1, is_large=False))
        assert codes(both) == [ErrorCode.none] * 2

    told(ZSTD, steps)


def test_large_batches_of_a_transaction_are_unpacked_before_the_coordinator_is_asked() -> None:
    async def steps(story: Story) -> None:
        async def write() -> list[int]:
            producer = TransactionalProducer(story.admin.client, "large")
            await producer.init()
            producer.begin()
            sent = [await producer.send(TOPIC, 0, [Message(b"k", NOISE)]) for _ in range(3)]
            await producer.commit()
            return sent

        assert await story.client_does(write()) == [0, 1, 2]
        replica = story.replica(LEADER)
        await story.until(lambda: replica.last_stable_offset == replica.log.end_offset == 4)
        *written, marker = log_of(story)
        assert [(each.codec, each.is_transactional) for each in written] == [(Codec.ZSTD, True)] * 3
        assert marker.is_control

    told(ZSTD, steps)


def test_what_waits_when_its_leader_resigns_is_told_so() -> None:
    async def steps(story: Story) -> None:
        replica, given = story.replica(LEADER), work_of_threads(story)
        sent = asyncio.ensure_future(send(story, batch(0, is_large=True), batch(1, is_large=True)))
        await story.until(lambda: bool(given))
        replica.become_follower(replace(replica.row, leader=OTHER, leader_epoch=LeaderEpoch(replica.leader_epoch + 1)))
        assert codes(await sent) == [ErrorCode.not_leader_or_follower] * 2
        small = batch(0, is_large=False)
        assert story.broker(LEADER).unpacking.at_once(replica, small, is_suspect=False) is not None, "nobody waits"

    told(ZSTD, steps, has_bugs=True)


def test_a_batch_is_judged_again_if_the_topic_has_changed_its_mind() -> None:
    """It was judged for a topic that need not be compacted."""

    async def steps(story: Story) -> None:
        log = story.replica(LEADER).log
        keyless = batch(0, is_large=False, key=None)
        rules = log.rules
        log.reconfigure(replace(log.config, cleanup_policy=frozenset({"compact"})))
        with pytest.raises(Exception, match="has no key"):
            log.append_as_leader(bytes(validated(keyless, rules, 1_000)), LeaderEpoch(0), 1_000, validated_by=rules)

    told(ZSTD, steps)


def test_a_bug_in_unpacking_ends_one_connection_and_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(story: Story) -> None:
        def bug(*_: object) -> None:
            raise RuntimeError("a bug")

        with monkeypatch.context() as broken:
            broken.setattr(unpacking, "validated", bug)
            with pytest.raises(Exception, match=r"closed|lost|connection"):
                await send(story, batch(0, is_large=True), timeout_ms=1_000)
        assert codes(await send(story, batch(0, is_large=True))) == [ErrorCode.none]

    told(ZSTD, steps, has_bugs=True)


def test_compaction_leaves_batches_as_the_topic_had_them_compressed() -> None:
    """As in Kafka: what is rewritten keeps its codec, also if the topic has another one by now."""

    async def steps(story: Story) -> None:
        keys = (b"a", b"b", b"a", b"c")
        answers = await send(story, *[batch(n, is_large=n == 0, key=key) for n, key in enumerate(keys)])
        assert codes(answers) == [ErrorCode.none] * 4
        log = story.replica(LEADER).log
        log.reconfigure(replace(log.config, compression_type="gzip"))
        await story.compact(LEADER)
        records = [record for each in log_of(story) for record in each.records]
        assert [record.key for record in records] == [b"b", b"a", b"c"]
        assert {each.codec for each in log_of(story) if each.records} == {Codec.LZ4}

    told({**COMPACTED, "compression.type": "lz4"}, steps)
