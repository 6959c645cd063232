"""Fetch, in every version: reading, waiting, limits, sessions, errors and hints."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sexton.log.checks import Rules
from sexton.log.epochs import EpochHistory
from sexton.log.types import AbortedTransaction
from sexton.ports.disk import FileSlice
from sexton.ports.metastore import PartitionRow
from sexton.protocol.errors import ErrorCode
from sexton.records.checkpoints import EpochEntry
from sexton.settings.topic import TopicConfig
from tests.adapters.network_behaviour import MemoryFile
from tests.broker.fakes import TOPIC, TOPIC_ID, Client, FakeBroker, FakeReplica

FETCH = 1
EVERY_VERSION = range(4, 19)
FULL, SESSIONLESS = 0, -1
READ_COMMITTED = 1


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


def fill(replica: FakeReplica, *records: bytes) -> None:
    replica.log.records += records
    replica.commit()


def partitions(answer: Any) -> dict[int, Any]:
    return {found.partition_index: found for topic in answer.responses for found in topic.partitions}


def records(answer: Any) -> dict[int, bytes]:
    return {index: found.records for index, found in partitions(answer).items()}


@pytest.mark.parametrize("version", EVERY_VERSION)
async def test_records_from_the_offset_on_are_returned(version: int) -> None:
    broker = FakeBroker()
    fill(broker.replica(0), b"a", b"b", b"c")
    broker.replica(1).log.start_offset = 0
    answer = await Client(broker).call(FETCH, version, body({0: 1, 1: 0}))
    assert records(answer) == {0: b"bc", 1: b""}
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


@pytest.mark.parametrize("version", EVERY_VERSION)
def test_slices_of_files_leave_in_their_place(version: int) -> None:
    async def main() -> None:
        broker = FakeBroker()
        file = MemoryFile(bytes(range(256)) * 1000)
        for partition, size in ((0, 100_000), (1, 10), (2, 0)):
            replica = broker.replica(partition)
            fill(replica, b"x" * size)
            replica.read = lambda offset, max_bytes, size=size, **_: type_of_read(file, size)  # type: ignore
        answer = await Client(broker).call(FETCH, version, body({0: 0, 1: 0, 2: 0}))
        assert records(answer) == {0: file.content[5:100_005], 1: file.content[5:15], 2: b""}

    def type_of_read(file: MemoryFile, size: int) -> Any:
        from sexton.log.types import Read

        return Read([FileSlice(file, 5, size)] if size else [], size, 0, 1)

    asyncio.run(main())


@pytest.mark.parametrize("version", EVERY_VERSION)
async def test_errors_are_told_per_partition(version: int) -> None:
    broker = FakeBroker()
    fill(broker.replica(0), b"a")
    answer = await Client(broker).call(FETCH, version, body({0: 9, 1: 0, 77: 0}, max_wait_ms=10_000))
    codes = {index: found.error_code for index, found in partitions(answer).items()}
    assert codes == {
        0: ErrorCode.offset_out_of_range,
        1: ErrorCode.none,
        77: ErrorCode.unknown_topic_or_partition,
    }
    assert partitions(answer)[0].high_watermark == -1


async def test_topic_id_that_nobody_knows() -> None:
    client = Client(FakeBroker())
    for topic_id in (None, type(TOPIC_ID)(int=5)):
        asked = body({0: 0})
        asked["topics"][0]["topic_id"] = topic_id
        answer = await client.call(FETCH, 13, asked)
        assert partitions(answer)[0].error_code is ErrorCode.unknown_topic_id


@pytest.mark.parametrize("version", EVERY_VERSION)
async def test_leader_is_named_when_it_is_elsewhere(version: int) -> None:
    broker = FakeBroker()
    replica = broker.replica()
    replica.is_leader = False
    replica.row = PartitionRow(TOPIC_ID, 0, (1, 2), (2,), 2, 9, 0)

    def refuse(*_: Any, **__: Any) -> Any:
        replica.check_serving_as_leader()

    replica.read = refuse  # type: ignore[method-assign]
    answer = await Client(broker).call(FETCH, version, body({0: 0}))
    found = partitions(answer)[0]
    assert found.error_code is ErrorCode.not_leader_or_follower
    if version >= 12:
        assert (found.current_leader.leader_id, found.current_leader.leader_epoch) == (2, 9)
    if version >= 16:
        (node,) = answer.node_endpoints
        assert (node.node_id, node.host, node.port) == (2, "host2", 9002)


async def test_leader_epochs_that_differ_are_refused() -> None:
    broker = FakeBroker()
    broker.replica().row = PartitionRow(TOPIC_ID, 0, (1,), (1,), 1, 5, 0)
    client = Client(broker)
    for epoch, code in ((4, ErrorCode.fenced_leader_epoch), (5, ErrorCode.none), (6, ErrorCode.unknown_leader_epoch)):
        answer = await client.call(FETCH, 12, body({0: 0}, current_leader_epoch=epoch))
        assert partitions(answer)[0].error_code is code


async def test_consumer_whose_log_was_truncated_is_told_where_it_diverges() -> None:
    broker = FakeBroker()
    replica = broker.replica()
    fill(replica, *[b"x"] * 10)
    replica.log.epochs = EpochHistory([EpochEntry(1, 0), EpochEntry(3, 6)])
    client = Client(broker)
    answer = await client.call(FETCH, 12, body({0: 8}, last_fetched_epoch=2, max_wait_ms=10_000))
    found = partitions(answer)[0]
    assert (found.diverging_epoch.epoch, found.diverging_epoch.end_offset) == (1, 6)
    assert found.records == b""
    answer = await client.call(FETCH, 12, body({0: 8}, last_fetched_epoch=3))
    assert records(answer) == {0: b"xx"}
    answer = await client.call(FETCH, 12, body({0: 8}, last_fetched_epoch=4))
    assert partitions(answer)[0].error_code is ErrorCode.offset_out_of_range


# Isolation


@pytest.mark.parametrize("version", EVERY_VERSION)
async def test_read_committed_stops_at_the_last_stable_offset_and_lists_what_was_aborted(version: int) -> None:
    broker = FakeBroker()
    replica = broker.replica()
    fill(replica, b"a", b"b", b"c")
    replica.uncommitted = 1
    replica.log.aborted = [AbortedTransaction(44, 1), AbortedTransaction(45, 2)]
    answer = await Client(broker).call(FETCH, version, body({0: 0}, isolation_level=READ_COMMITTED))
    found = partitions(answer)[0]
    assert found.records == b"ab"
    assert found.last_stable_offset == 2
    assert [(entry.producer_id, entry.first_offset) for entry in found.aborted_transactions] == [(44, 1)]


# Waiting


async def test_fetch_waits_for_records_and_is_woken_by_them() -> None:
    broker = FakeBroker()
    client = Client(broker)
    client.ask(FETCH, 12, body({0: 0, 1: 0}, max_wait_ms=60_000))
    await asyncio.sleep(0.01)
    assert not client.connection.sent
    assert broker.replica(0).reads_count == 1
    fill(broker.replica(1), b"news")
    assert records(await client.answer()) == {0: b"", 1: b"news"}
    assert not any(broker.replica(partition).watchers for partition in (0, 1))
    assert broker.replica(0).reads_count == 1, "a quiet partition is not read again"


async def test_fetch_answers_with_nothing_when_the_wait_is_over() -> None:
    broker = FakeBroker()
    answer = await Client(broker).call(FETCH, 12, body({0: 0}, max_wait_ms=20))
    assert records(answer) == {0: b""}
    assert not broker.replica().watchers


async def test_fetch_waits_for_as_many_bytes_as_it_asked_for() -> None:
    broker = FakeBroker()
    fill(broker.replica(0), b"12345")
    client = Client(broker)
    client.ask(FETCH, 12, body({0: 0, 1: 0}, max_wait_ms=60_000, min_bytes=12))
    fill(broker.replica(1), b"12345")
    await asyncio.sleep(0.02)
    assert not client.connection.sent
    fill(broker.replica(1), b"12")
    assert records(await client.answer()) == {0: b"12345", 1: b"1234512"}


async def test_change_of_leader_ends_the_wait() -> None:
    broker = FakeBroker()
    client = Client(broker)
    client.ask(FETCH, 10, body({0: 0}, max_wait_ms=60_000))
    broker.replica().is_leader = False
    broker.replica().wake()
    assert partitions(await client.answer())[0].error_code is ErrorCode.not_leader_or_follower


async def test_client_that_leaves_while_it_waits_leaves_nothing_behind() -> None:
    broker = FakeBroker()
    client = Client(broker)
    client.ask(FETCH, 12, body({0: 0}, max_wait_ms=60_000))
    assert broker.replica().watchers
    client.receiver.closed(None)
    await asyncio.sleep(0)
    assert not broker.replica().watchers


async def test_slow_fetch_does_not_keep_later_requests_from_starting() -> None:
    broker = FakeBroker()
    client = Client(broker)
    client.ask(FETCH, 12, body({0: 0}, max_wait_ms=60_000))
    client.ask(
        0,
        9,
        {
            "acks": 1,
            "timeout": 100,
            "topic_data": [{"name": TOPIC, "partition_data": [{"index": 0, "records": b"mine"}]}],
        },
    )
    await asyncio.sleep(0.01)
    fetched, produced = client.answers()
    assert records(fetched) == {0: b"mine"}
    assert produced.responses[0].partition_responses[0].base_offset == 0


# Limits


async def test_first_batch_is_returned_whatever_the_limits() -> None:
    broker = FakeBroker()
    fill(broker.replica(0), b"a large batch", b"b")
    fill(broker.replica(1), b"another")
    answer = await Client(broker).call(FETCH, 12, body({0: 0, 1: 0}, max_bytes=1, partition_max_bytes=1))
    assert records(answer) == {0: b"a large batch", 1: b""}


async def test_answer_stops_at_its_limit_and_at_each_partitions() -> None:
    broker = FakeBroker()
    for partition in range(3):
        fill(broker.replica(partition), b"1234", b"5678", b"9")
    client = Client(broker)
    answer = await client.call(FETCH, 12, body({0: 0, 1: 0, 2: 0}, max_bytes=14, partition_max_bytes=8))
    assert records(answer) == {0: b"12345678", 1: b"1234", 2: b""}


async def test_brokers_own_limit_counts_too() -> None:
    broker = FakeBroker(fetch_max_bytes=5)
    fill(broker.replica(0), b"1234", b"5678")
    answer = await Client(broker).call(FETCH, 12, body({0: 0}))
    assert records(answer) == {0: b"1234"}


async def test_partitions_that_were_served_come_last_next_time() -> None:
    broker = FakeBroker()
    for partition in range(3):
        fill(broker.replica(partition), *[b"1234"] * 10)
    client = Client(broker)
    first = await client.call(FETCH, 12, body({0: 0, 1: 0, 2: 0}, max_bytes=4, session=(0, FULL)))
    seen = [max(records(first), key=lambda index: len(records(first)[index]))]
    for epoch in (1, 2):
        answer = await client.call(FETCH, 12, body({}, max_bytes=4, session=(first.session_id, epoch)))
        (served,) = records(answer)
        seen.append(served)
    assert seen == [0, 1, 2]


# Sessions


async def test_session_tells_only_what_is_new() -> None:
    broker = FakeBroker()
    fill(broker.replica(0), b"a")
    client = Client(broker)
    first = await client.call(FETCH, 12, body({0: 0, 1: 0}, session=(0, FULL)))
    assert first.session_id > 0
    assert records(first) == {0: b"a", 1: b""}
    second = await client.call(FETCH, 12, body({0: 1}, session=(first.session_id, 1)))
    assert second.session_id == first.session_id
    assert partitions(second) == {}
    fill(broker.replica(1), b"b")
    third = await client.call(FETCH, 12, body({}, session=(first.session_id, 2)))
    assert records(third) == {1: b"b"}


async def test_batch_that_did_not_fit_is_not_forgotten_by_the_session() -> None:
    broker = FakeBroker()
    fill(broker.replica(0), b"1234")
    fill(broker.replica(1), b"too large for the rest")
    client = Client(broker)
    first = await client.call(FETCH, 12, body({0: 0, 1: 0}, max_bytes=10, session=(0, FULL)))
    assert records(first) == {0: b"1234", 1: b""}
    second = await client.call(FETCH, 12, body({0: 1}, max_bytes=10, session=(first.session_id, 1)))
    assert records(second) == {1: b"too large for the rest"}


async def test_quiet_partitions_of_a_session_are_not_looked_at() -> None:
    broker = FakeBroker()
    client = Client(broker)
    first = await client.call(FETCH, 12, body(dict.fromkeys(range(4), 0), session=(0, FULL)))
    reads = [broker.replica(partition).reads_count for partition in range(4)]
    fill(broker.replica(2), b"x")
    await client.call(FETCH, 12, body({}, session=(first.session_id, 1)))
    assert [broker.replica(partition).reads_count for partition in range(4)] == [
        count + (partition == 2) for partition, count in enumerate(reads)
    ]


async def test_waiting_session_is_woken_and_answers_only_what_is_new() -> None:
    broker = FakeBroker()
    client = Client(broker)
    first = await client.call(FETCH, 12, body({0: 0, 1: 0}, session=(0, FULL)))
    client.ask(FETCH, 12, body({}, session=(first.session_id, 1), max_wait_ms=60_000))
    await asyncio.sleep(0.01)
    assert not client.connection.sent
    fill(broker.replica(0), b"now")
    assert records(await client.answer()) == {0: b"now"}


async def test_watermark_that_moved_without_records_is_told() -> None:
    broker = FakeBroker()
    replica = broker.replica()
    fill(replica, b"a", b"b")
    replica.uncommitted = 1
    client = Client(broker)
    first = await client.call(FETCH, 12, body({0: 1}, session=(0, FULL), isolation_level=READ_COMMITTED))
    replica.uncommitted = 2
    fill(replica, b"c")
    answer = await client.call(
        FETCH, 12, body({}, session=(first.session_id, 1), max_wait_ms=20, isolation_level=READ_COMMITTED)
    )
    assert partitions(answer)[0].high_watermark == 3
    assert records(answer) == {0: b""}


async def test_forgotten_partitions_leave_the_session() -> None:
    broker = FakeBroker()
    client = Client(broker)
    first = await client.call(FETCH, 13, body({0: 0, 1: 0}, session=(0, FULL)))
    await client.call(FETCH, 13, body({}, session=(first.session_id, 1), forget=[0]))
    fill(broker.replica(0), b"a")
    fill(broker.replica(1), b"b")
    answer = await client.call(FETCH, 13, body({}, session=(first.session_id, 2)))
    assert records(answer) == {1: b"b"}
    assert not broker.replica(0).watchers
    last = await client.call(FETCH, 13, body({}, session=(first.session_id, 3), forget=[1]))
    assert last.session_id == 0
    assert not broker.replica(1).watchers


async def test_error_is_told_until_it_is_over() -> None:
    broker = FakeBroker()
    client = Client(broker)
    first = await client.call(FETCH, 12, body({0: 5}, session=(0, FULL)))
    assert partitions(first)[0].error_code is ErrorCode.offset_out_of_range
    second = await client.call(FETCH, 12, body({}, session=(first.session_id, 1)))
    assert partitions(second)[0].error_code is ErrorCode.offset_out_of_range
    third = await client.call(FETCH, 12, body({0: 0}, session=(first.session_id, 2)))
    assert partitions(third)[0].error_code is ErrorCode.none


async def test_session_that_is_not_as_the_client_believes_is_refused() -> None:
    broker = FakeBroker()
    client = Client(broker)
    first = await client.call(FETCH, 12, body({0: 0}, session=(0, FULL)))
    unknown = await client.call(FETCH, 12, body({}, session=(first.session_id + 1, 1)))
    assert unknown.error_code is ErrorCode.fetch_session_id_not_found
    early = await client.call(FETCH, 12, body({}, session=(first.session_id, 2)))
    assert early.error_code is ErrorCode.invalid_fetch_session_epoch
    by_id = await client.call(FETCH, 13, body({}, session=(first.session_id, 1)))
    assert by_id.error_code is ErrorCode.fetch_session_topic_id_error
    assert (unknown.session_id, early.session_id, by_id.responses) == (0, 0, ())


async def test_session_ends_when_the_client_says_so_or_starts_another() -> None:
    broker = FakeBroker()
    client = Client(broker)
    sessions = broker.fetch_sessions
    first = await client.call(FETCH, 12, body({0: 0}, session=(0, FULL)))
    second = await client.call(FETCH, 12, body({0: 0}, session=(first.session_id, FULL)))
    assert second.session_id not in (0, first.session_id)
    assert len(sessions) == 1
    last = await client.call(FETCH, 12, body({0: 0}, session=(second.session_id, SESSIONLESS)))
    assert last.session_id == 0
    assert len(sessions) == 0
    assert not broker.replica().watchers


async def test_cache_is_bounded_and_only_old_sessions_make_room() -> None:
    broker = FakeBroker(max_incremental_fetch_session_cache_slots=2)
    client = Client(broker)
    ids = [(await client.call(FETCH, 12, body({0: 0}, session=(0, FULL)))).session_id for _ in range(3)]
    assert ids[2] == 0
    assert len(broker.replica().watchers) == 2
    broker.clock.ms += 100_000
    await client.call(FETCH, 12, body({}, session=(ids[0], 1)))
    broker.clock.ms += 30_000
    fourth = await client.call(FETCH, 12, body({0: 0}, session=(0, FULL)))
    assert fourth.session_id > 0
    gone = await client.call(FETCH, 12, body({}, session=(ids[1], 1)))
    assert gone.error_code is ErrorCode.fetch_session_id_not_found


async def test_next_request_of_a_session_ends_the_wait_of_the_one_before() -> None:
    broker = FakeBroker()
    client, again = Client(broker), Client(broker, "again:1")
    first = await client.call(FETCH, 12, body({0: 0}, session=(0, FULL)))
    client.ask(FETCH, 12, body({}, session=(first.session_id, 1), max_wait_ms=60_000))
    again.ask(FETCH, 12, body({}, session=(first.session_id, 2), max_wait_ms=60_000))
    assert partitions(await client.answer()) == {}
    fill(broker.replica(), b"x")
    assert records(await again.answer()) == {0: b"x"}


# Followers


async def test_consumer_is_sent_to_the_replica_in_its_rack() -> None:
    broker = FakeBroker(reads_from_near_replicas=True)
    fill(broker.replica(), b"a")
    client = Client(broker)
    near = await client.call(FETCH, 12, body({0: 0}, rack_id="rack2", max_wait_ms=60_000))
    assert partitions(near)[0].preferred_read_replica == 2
    assert records(near) == {0: b""}
    assert partitions(near)[0].high_watermark == 1
    for rack in ("rack1", "rack3", ""):
        here = await client.call(FETCH, 12, body({0: 0}, rack_id=rack))
        assert partitions(here)[0].preferred_read_replica == -1
        assert records(here) == {0: b"a"}


async def test_nobody_is_sent_elsewhere_unless_the_operator_chose_it() -> None:
    broker = FakeBroker()
    fill(broker.replica(), b"a")
    answer = await Client(broker).call(FETCH, 12, body({0: 0}, rack_id="rack2"))
    assert partitions(answer)[0].preferred_read_replica == -1


async def test_follower_serves_consumers_from_version_11_on() -> None:
    broker = FakeBroker()
    fill(broker.replica(), b"a")
    broker.replica().is_leader = False
    client = Client(broker)
    assert records(await client.call(FETCH, 11, body({0: 0}))) == {0: b"a"}
    old = await client.call(FETCH, 10, body({0: 0}))
    assert partitions(old)[0].error_code is ErrorCode.not_leader_or_follower


@pytest.mark.parametrize("version", EVERY_VERSION)
async def test_a_topic_of_zstd_is_for_versions_whose_clients_know_it(version: int) -> None:
    broker = FakeBroker()
    replica = broker.replica()
    fill(replica, b"record")
    replica.log.rules = Rules.of(TOPIC, TopicConfig(compression_type="zstd"))
    found = partitions(await Client(broker).call(FETCH, version, body({0: 0})))[0]
    assert found.error_code is (ErrorCode.none if version >= 10 else ErrorCode.unsupported_compression_type)
