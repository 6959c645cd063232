"""Fetch, in every version: reading, waiting, limits, sessions, errors and hints."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sexton.adapters.files import FileDisk
from sexton.log.types import Read
from sexton.protocol.errors import ErrorCode
from sexton.records.batch import ControlType, decode_all
from sexton.settings.broker import RACK_AWARE_SELECTOR
from tests.broker.serving import (
    BOTH_IN_SYNC,
    OTHER_LEADS,
    TOPIC,
    TOPIC_ID,
    Client,
    ServingBroker,
    batch_of,
    serving_broker,
)

FETCH = 1
EVERY_VERSION = range(4, 19)
FULL, SESSIONLESS = 0, -1
READ_COMMITTED = 1
BATCH_BYTES = len(batch_of(b"1234"))


def body(
    offsets: dict[int, int],
    *,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    partition_max_bytes: int = 1 << 20,
    session: tuple[int, int] = (0, SESSIONLESS),
    forget: list[int] | None = None,
    **more: Any,
) -> dict[str, Any]:
    asked = [
        {"partition": partition, "fetch_offset": offset, "partition_max_bytes": partition_max_bytes, **more}
        for partition, offset in offsets.items()
    ]
    return {
        "max_wait": max_wait_ms,
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "session_id": session[0],
        "session_epoch": session[1],
        "topics": [{"topic": TOPIC, "topic_id": TOPIC_ID, "partitions": asked}] if asked else [],
        "forgotten_topics_data": [{"topic": TOPIC, "topic_id": TOPIC_ID, "partitions": forget}] if forget else [],
        **{name: more[name] for name in ("rack_id", "isolation_level") if name in more},
    }


def partitions(answer: Any) -> dict[int, Any]:
    return {found.partition_index: found for topic in answer.responses for found in topic.partitions}


def records(answer: Any) -> dict[int, list[bytes | None]]:
    """The values that were returned, by partition."""
    return {
        index: [record.value for batch in decode_all(found.records) for record in batch.records]
        for index, found in partitions(answer).items()
    }


class Observed:
    """Sees how often a replica is read, and how many watch it. It hinders nobody."""

    def __init__(self, broker: ServingBroker, partition: int, monkeypatch: pytest.MonkeyPatch) -> None:
        replica = broker.replica(partition)
        self._read, self._watch = replica.read, replica.watch
        self.reads_count = 0
        self.watchers_count = 0
        monkeypatch.setattr(replica, "read", self._count_read)
        monkeypatch.setattr(replica, "watch", self._count_watch)

    def _count_read(self, *args: Any, **kwargs: Any) -> Read:
        self.reads_count += 1
        return self._read(*args, **kwargs)

    def _count_watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        cancel, is_watching = self._watch(callback), True
        self.watchers_count += 1

        def cancel_once() -> None:
            nonlocal is_watching
            self.watchers_count -= is_watching
            is_watching = False
            cancel()

        return cancel_once


@pytest.mark.parametrize("version", EVERY_VERSION)
async def test_records_from_the_offset_on_are_returned(version: int) -> None:
    broker = await serving_broker()
    await broker.write(b"a", b"b", b"c")
    answer = await Client(broker).call(FETCH, version, body({0: 1, 1: 0}))
    assert records(answer) == {0: [b"b", b"c"], 1: []}
    found = partitions(answer)[0]
    assert found.error_code is ErrorCode.none
    assert (found.high_watermark, found.last_stable_offset) == (3, 3)
    assert found.aborted_transactions is None
    if version >= 5:
        assert found.log_start_offset == 0
    if version >= 11:
        assert found.preferred_read_replica == -1
    (topic,) = answer.responses
    assert (topic.topic_id if version >= 13 else topic.topic) == (TOPIC_ID if version >= 13 else TOPIC)


async def test_slices_of_files_leave_in_their_place(tmp_path: Path) -> None:
    broker = await serving_broker(FileDisk(), log_dirs=str(tmp_path))
    large = bytes(range(256)) * 400
    await broker.write(large)
    await broker.write(b"small", partition=1)
    for version in EVERY_VERSION:
        answer = await Client(broker).call(FETCH, version, body({0: 0, 1: 0, 2: 0}))
        assert records(answer) == {0: [large], 1: [b"small"], 2: []}


@pytest.mark.parametrize("version", EVERY_VERSION)
async def test_errors_are_told_per_partition(version: int) -> None:
    broker = await serving_broker()
    await broker.write(b"a")
    answer = await Client(broker).call(FETCH, version, body({0: 9, 1: 0, 77: 0}, max_wait_ms=10_000))
    codes = {index: found.error_code for index, found in partitions(answer).items()}
    assert codes == {
        0: ErrorCode.offset_out_of_range,
        1: ErrorCode.none,
        77: ErrorCode.unknown_topic_or_partition,
    }
    assert partitions(answer)[0].high_watermark == -1


async def test_topic_id_that_nobody_knows() -> None:
    client = Client(await serving_broker())
    for topic_id in (None, uuid.UUID(int=5)):
        asked = body({0: 0})
        asked["topics"][0]["topic_id"] = topic_id
        answer = await client.call(FETCH, 13, asked)
        assert partitions(answer)[0].error_code is ErrorCode.unknown_topic_id


@pytest.mark.parametrize("version", EVERY_VERSION)
async def test_leader_is_named_when_it_is_elsewhere(version: int) -> None:
    broker = await serving_broker()
    await broker.change(**OTHER_LEADS)
    answer = await Client(broker).call(FETCH, version, body({0: 0}))
    found = partitions(answer)[0]
    assert found.error_code is ErrorCode.not_leader_or_follower
    if version >= 12:
        assert (found.current_leader.leader_id, found.current_leader.leader_epoch) == (2, 9)
    if version >= 16:
        (node,) = answer.node_endpoints
        assert (node.node_id, node.host, node.port) == (2, "host2", 9002)


async def test_leader_epochs_that_differ_are_refused() -> None:
    broker = await serving_broker()
    await broker.change(leader_epoch=5)
    client = Client(broker)
    for epoch, code in ((4, ErrorCode.fenced_leader_epoch), (5, ErrorCode.none), (6, ErrorCode.unknown_leader_epoch)):
        answer = await client.call(FETCH, 12, body({0: 0}, current_leader_epoch=epoch))
        assert partitions(answer)[0].error_code is code


async def test_consumer_whose_log_was_truncated_is_told_where_it_diverges() -> None:
    broker = await serving_broker()
    for epoch, count in ((1, 6), (3, 4)):
        await broker.change(leader_epoch=epoch)
        await broker.write(*[b"x"] * count)
    client = Client(broker)
    answer = await client.call(FETCH, 12, body({0: 8}, last_fetched_epoch=2, max_wait_ms=10_000))
    found = partitions(answer)[0]
    assert (found.diverging_epoch.epoch, found.diverging_epoch.end_offset) == (1, 6)
    assert found.records == b""
    answer = await client.call(FETCH, 12, body({0: 8}, last_fetched_epoch=3))
    assert records(answer) == {0: [b"x", b"x"]}
    answer = await client.call(FETCH, 12, body({0: 8}, last_fetched_epoch=4))
    assert partitions(answer)[0].error_code is ErrorCode.offset_out_of_range


# Isolation


@pytest.mark.parametrize("version", EVERY_VERSION)
async def test_read_committed_stops_at_the_last_stable_offset_and_lists_what_was_aborted(version: int) -> None:
    broker = await serving_broker()
    await broker.write(b"a")
    broker.append_in_transaction(44)
    broker.append_marker(ControlType.ABORT, 44)
    broker.append_in_transaction(45)
    await broker.write()
    answer = await Client(broker).call(FETCH, version, body({0: 0}, isolation_level=READ_COMMITTED))
    found = partitions(answer)[0]
    assert [batch.base_offset for batch in decode_all(found.records)] == [0, 1, 2]
    assert (found.last_stable_offset, found.high_watermark) == (3, 4)
    assert [(entry.producer_id, entry.first_offset) for entry in found.aborted_transactions] == [(44, 1)]


# Waiting


async def test_fetch_waits_for_records_and_is_woken_by_them(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = await serving_broker()
    seen = [Observed(broker, partition, monkeypatch) for partition in (0, 1)]
    client = Client(broker)
    client.ask(FETCH, 12, body({0: 0, 1: 0}, max_wait_ms=60_000))
    await asyncio.sleep(0.01)
    assert not client.connection.sent
    assert seen[0].reads_count == 1
    await broker.write(b"news", partition=1)
    assert records(await client.answer()) == {0: [], 1: [b"news"]}
    assert [one.watchers_count for one in seen] == [0, 0]
    assert seen[0].reads_count == 1, "a quiet partition is not read again"


async def test_fetch_answers_with_nothing_when_the_wait_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = await serving_broker()
    seen = Observed(broker, 0, monkeypatch)
    answer = await Client(broker).call(FETCH, 12, body({0: 0}, max_wait_ms=20))
    assert records(answer) == {0: []}
    assert seen.watchers_count == 0


async def test_fetch_waits_for_as_many_bytes_as_it_asked_for() -> None:
    broker = await serving_broker()
    await broker.write(b"1234")
    client = Client(broker)
    client.ask(FETCH, 12, body({0: 0, 1: 0}, max_wait_ms=60_000, min_bytes=2 * BATCH_BYTES + 1))
    await broker.write(b"5678", partition=1)
    await asyncio.sleep(0.02)
    assert not client.connection.sent
    await broker.write(b"9", partition=1)
    assert records(await client.answer()) == {0: [b"1234"], 1: [b"5678", b"9"]}


async def test_change_of_leader_ends_the_wait() -> None:
    broker = await serving_broker()
    client = Client(broker)
    client.ask(FETCH, 10, body({0: 0}, max_wait_ms=60_000))
    await broker.change(**OTHER_LEADS)
    assert partitions(await client.answer())[0].error_code is ErrorCode.not_leader_or_follower


async def test_client_that_leaves_while_it_waits_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = await serving_broker()
    seen = Observed(broker, 0, monkeypatch)
    client = Client(broker)
    client.ask(FETCH, 12, body({0: 0}, max_wait_ms=60_000))
    assert seen.watchers_count == 1
    client.receiver.closed(None)
    await asyncio.sleep(0)
    assert seen.watchers_count == 0


async def test_slow_fetch_does_not_keep_later_requests_from_starting() -> None:
    broker = await serving_broker()
    client = Client(broker)
    client.ask(FETCH, 12, body({0: 0}, max_wait_ms=60_000))
    client.ask(
        0,
        9,
        {
            "acks": 1,
            "timeout": 100,
            "topic_data": [{"name": TOPIC, "partition_data": [{"index": 0, "records": batch_of(b"mine")}]}],
        },
    )
    await asyncio.sleep(0.01)
    fetched, produced = client.answers()
    assert records(fetched) == {0: [b"mine"]}
    assert produced.responses[0].partition_responses[0].base_offset == 0


# Limits


async def test_first_batch_is_returned_whatever_the_limits() -> None:
    broker = await serving_broker()
    await broker.write(b"a large batch", b"b")
    await broker.write(b"another", partition=1)
    answer = await Client(broker).call(FETCH, 12, body({0: 0, 1: 0}, max_bytes=1, partition_max_bytes=1))
    assert records(answer) == {0: [b"a large batch"], 1: []}


async def test_answer_stops_at_its_limit_and_at_each_partitions() -> None:
    broker = await serving_broker()
    for partition in range(3):
        await broker.write(b"1234", b"5678", b"9", partition=partition)
    client = Client(broker)
    answer = await client.call(
        FETCH, 12, body({0: 0, 1: 0, 2: 0}, max_bytes=4 * BATCH_BYTES - 1, partition_max_bytes=2 * BATCH_BYTES)
    )
    assert records(answer) == {0: [b"1234", b"5678"], 1: [b"1234"], 2: []}


async def test_brokers_own_limit_counts_too() -> None:
    broker = await serving_broker(fetch_max_bytes=1500)
    first, second = b"1" * 1000, b"2" * 1000
    await broker.write(first, second)
    answer = await Client(broker).call(FETCH, 12, body({0: 0}))
    assert records(answer) == {0: [first]}


async def test_partitions_that_were_served_come_last_next_time() -> None:
    broker = await serving_broker()
    for partition in range(3):
        await broker.write(*[b"1234"] * 10, partition=partition)
    client = Client(broker)
    first = await client.call(FETCH, 12, body({0: 0, 1: 0, 2: 0}, max_bytes=BATCH_BYTES, session=(0, FULL)))
    seen = [max(records(first), key=lambda index: len(records(first)[index]))]
    for epoch in (1, 2):
        answer = await client.call(FETCH, 12, body({}, max_bytes=BATCH_BYTES, session=(first.session_id, epoch)))
        (served,) = records(answer)
        seen.append(served)
    assert seen == [0, 1, 2]


# Sessions


async def test_session_tells_only_what_is_new() -> None:
    broker = await serving_broker()
    await broker.write(b"a")
    client = Client(broker)
    first = await client.call(FETCH, 12, body({0: 0, 1: 0}, session=(0, FULL)))
    assert first.session_id > 0
    assert records(first) == {0: [b"a"], 1: []}
    second = await client.call(FETCH, 12, body({0: 1}, session=(first.session_id, 1)))
    assert second.session_id == first.session_id
    assert partitions(second) == {}
    await broker.write(b"b", partition=1)
    third = await client.call(FETCH, 12, body({}, session=(first.session_id, 2)))
    assert records(third) == {1: [b"b"]}


async def test_batch_that_did_not_fit_is_not_forgotten_by_the_session() -> None:
    broker = await serving_broker()
    await broker.write(b"1234")
    await broker.write(b"too large for the rest", partition=1)
    client = Client(broker)
    first = await client.call(FETCH, 12, body({0: 0, 1: 0}, max_bytes=BATCH_BYTES + 10, session=(0, FULL)))
    assert records(first) == {0: [b"1234"], 1: []}
    second = await client.call(FETCH, 12, body({0: 1}, max_bytes=BATCH_BYTES + 10, session=(first.session_id, 1)))
    assert records(second) == {1: [b"too large for the rest"]}


async def test_quiet_partitions_of_a_session_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = await serving_broker()
    seen = [Observed(broker, partition, monkeypatch) for partition in range(4)]
    client = Client(broker)
    first = await client.call(FETCH, 12, body(dict.fromkeys(range(4), 0), session=(0, FULL)))
    reads = [one.reads_count for one in seen]
    await broker.write(b"x", partition=2)
    await client.call(FETCH, 12, body({}, session=(first.session_id, 1)))
    assert [one.reads_count for one in seen] == [count + (partition == 2) for partition, count in enumerate(reads)]


async def test_waiting_session_is_woken_and_answers_only_what_is_new() -> None:
    broker = await serving_broker()
    client = Client(broker)
    first = await client.call(FETCH, 12, body({0: 0, 1: 0}, session=(0, FULL)))
    client.ask(FETCH, 12, body({}, session=(first.session_id, 1), max_wait_ms=60_000))
    await asyncio.sleep(0.01)
    assert not client.connection.sent
    await broker.write(b"now")
    assert records(await client.answer()) == {0: [b"now"]}


async def test_watermark_that_moved_without_records_is_told() -> None:
    broker = await serving_broker()
    await broker.write(b"a")
    broker.append_in_transaction(44)
    await broker.write()
    client = Client(broker)
    first = await client.call(FETCH, 12, body({0: 1}, session=(0, FULL), isolation_level=READ_COMMITTED))
    broker.append_in_transaction(44, sequence=1)
    await broker.write()
    answer = await client.call(
        FETCH, 12, body({}, session=(first.session_id, 1), max_wait_ms=20, isolation_level=READ_COMMITTED)
    )
    assert partitions(answer)[0].high_watermark == 3
    assert records(answer) == {0: []}


async def test_forgotten_partitions_leave_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = await serving_broker()
    seen = [Observed(broker, partition, monkeypatch) for partition in (0, 1)]
    client = Client(broker)
    first = await client.call(FETCH, 13, body({0: 0, 1: 0}, session=(0, FULL)))
    await client.call(FETCH, 13, body({}, session=(first.session_id, 1), forget=[0]))
    await broker.write(b"a")
    await broker.write(b"b", partition=1)
    answer = await client.call(FETCH, 13, body({}, session=(first.session_id, 2)))
    assert records(answer) == {1: [b"b"]}
    assert [one.watchers_count for one in seen] == [0, 1]
    last = await client.call(FETCH, 13, body({}, session=(first.session_id, 3), forget=[1]))
    assert last.session_id == 0
    assert [one.watchers_count for one in seen] == [0, 0]


async def test_error_is_told_until_it_is_over() -> None:
    broker = await serving_broker()
    client = Client(broker)
    first = await client.call(FETCH, 12, body({0: 5}, session=(0, FULL)))
    assert partitions(first)[0].error_code is ErrorCode.offset_out_of_range
    second = await client.call(FETCH, 12, body({}, session=(first.session_id, 1)))
    assert partitions(second)[0].error_code is ErrorCode.offset_out_of_range
    third = await client.call(FETCH, 12, body({0: 0}, session=(first.session_id, 2)))
    assert partitions(third)[0].error_code is ErrorCode.none


async def test_session_that_is_not_as_the_client_believes_is_refused() -> None:
    broker = await serving_broker()
    client = Client(broker)
    first = await client.call(FETCH, 12, body({0: 0}, session=(0, FULL)))
    unknown = await client.call(FETCH, 12, body({}, session=(first.session_id + 1, 1)))
    assert unknown.error_code is ErrorCode.fetch_session_id_not_found
    early = await client.call(FETCH, 12, body({}, session=(first.session_id, 2)))
    assert early.error_code is ErrorCode.invalid_fetch_session_epoch
    by_id = await client.call(FETCH, 13, body({}, session=(first.session_id, 1)))
    assert by_id.error_code is ErrorCode.fetch_session_topic_id_error
    assert (unknown.session_id, early.session_id, by_id.responses) == (0, 0, ())


async def test_session_ends_when_the_client_says_so_or_starts_another(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = await serving_broker()
    seen = Observed(broker, 0, monkeypatch)
    client = Client(broker)
    sessions = broker.fetch_sessions
    first = await client.call(FETCH, 12, body({0: 0}, session=(0, FULL)))
    second = await client.call(FETCH, 12, body({0: 0}, session=(first.session_id, FULL)))
    assert second.session_id not in (0, first.session_id)
    assert len(sessions) == 1
    last = await client.call(FETCH, 12, body({0: 0}, session=(second.session_id, SESSIONLESS)))
    assert last.session_id == 0
    assert len(sessions) == 0
    assert seen.watchers_count == 0


async def test_cache_is_bounded_and_only_old_sessions_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = await serving_broker(max_incremental_fetch_session_cache_slots=2)
    seen = Observed(broker, 0, monkeypatch)
    client = Client(broker)
    ids = [(await client.call(FETCH, 12, body({0: 0}, session=(0, FULL)))).session_id for _ in range(3)]
    assert ids[2] == 0
    assert seen.watchers_count == 2
    broker.clock.ms += 100_000
    await client.call(FETCH, 12, body({}, session=(ids[0], 1)))
    broker.clock.ms += 30_000
    fourth = await client.call(FETCH, 12, body({0: 0}, session=(0, FULL)))
    assert fourth.session_id > 0
    gone = await client.call(FETCH, 12, body({}, session=(ids[1], 1)))
    assert gone.error_code is ErrorCode.fetch_session_id_not_found


async def test_next_request_of_a_session_ends_the_wait_of_the_one_before() -> None:
    broker = await serving_broker()
    client, again = Client(broker), Client(broker, "again:1")
    first = await client.call(FETCH, 12, body({0: 0}, session=(0, FULL)))
    client.ask(FETCH, 12, body({}, session=(first.session_id, 1), max_wait_ms=60_000))
    again.ask(FETCH, 12, body({}, session=(first.session_id, 2), max_wait_ms=60_000))
    assert partitions(await client.answer()) == {}
    await broker.write(b"x")
    assert records(await again.answer()) == {0: [b"x"]}


# Followers


async def test_consumer_is_sent_to_the_replica_in_its_rack() -> None:
    broker = await serving_broker(replica_selector_class=RACK_AWARE_SELECTOR)
    await broker.write(b"a")
    await broker.change(**BOTH_IN_SYNC)
    broker.fetched_by_follower()
    client = Client(broker)
    near = await client.call(FETCH, 12, body({0: 0}, rack_id="rack2", max_wait_ms=60_000))
    assert partitions(near)[0].preferred_read_replica == 2
    assert records(near) == {0: []}
    assert partitions(near)[0].high_watermark == 1
    for rack in ("rack1", "rack3", ""):
        here = await client.call(FETCH, 12, body({0: 0}, rack_id=rack))
        assert partitions(here)[0].preferred_read_replica == -1
        assert records(here) == {0: [b"a"]}


async def test_nobody_is_sent_elsewhere_unless_the_operator_chose_it() -> None:
    broker = await serving_broker()
    await broker.write(b"a")
    await broker.change(**BOTH_IN_SYNC)
    broker.fetched_by_follower()
    answer = await Client(broker).call(FETCH, 12, body({0: 0}, rack_id="rack2"))
    assert partitions(answer)[0].preferred_read_replica == -1


async def test_follower_that_is_in_sync_serves_consumers_from_version_11_on() -> None:
    broker = await serving_broker()
    await broker.write(b"a")
    await broker.change(**OTHER_LEADS | BOTH_IN_SYNC)
    client = Client(broker)
    assert records(await client.call(FETCH, 11, body({0: 0}))) == {0: [b"a"]}
    old = await client.call(FETCH, 10, body({0: 0}))
    assert partitions(old)[0].error_code is ErrorCode.not_leader_or_follower


@pytest.mark.parametrize("version", EVERY_VERSION)
async def test_a_topic_of_zstd_is_for_versions_whose_clients_know_it(version: int) -> None:
    broker = await serving_broker()
    await broker.configure(compression_type="zstd")
    found = partitions(await Client(broker).call(FETCH, version, body({0: 0})))[0]
    assert found.error_code is (ErrorCode.none if version >= 10 else ErrorCode.unsupported_compression_type)
