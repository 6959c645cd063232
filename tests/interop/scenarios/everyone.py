"""What every client is made to do, over the verbs of its driver (sexton.verify.clients). What one client alone can
show is in the module that has its name."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

from sexton.verify.clients.base import (
    ALTER_GROUP_OFFSETS,
    CREATE_TIME,
    DELETE_GROUP,
    INCREMENTAL,
    INVALID_RECORD,
    LOG_APPEND_TIME,
    NULL_HEADERS,
    NULL_PAIRS,
    ZSTD,
    ZSTD_TOPICS,
    Place,
    Settings,
)
from tests.interop.scenarios.common import (
    CODECS,
    KEPT,
    LARGE_BYTES,
    PAST_MS,
    TOO_LARGE_BYTES,
    TOPIC_CODECS,
    Cluster,
    Scenarios,
    numbers,
    text_of,
    wait_for_topic,
    wait_until,
)
from tests.interop.scenarios.kit import Client, Member, refusal, take, values_of, wait_for_shares

UNKNOWN_SERVER_ERROR = -1
UNKNOWN_TOPIC_OR_PARTITION = 3
MESSAGE_TOO_LARGE = 10
INVALID_TOPIC = 17
TOPIC_ALREADY_EXISTS = 36
INVALID_PARTITIONS = 37
INVALID_REPLICATION_FACTOR = 38
INVALID_CONFIG = 40
NON_EMPTY_GROUP = 68
INVALID_RECORD_CODE = 87

LONG_BEFORE_MS = 2**32
"""In 1970. Not 0: py4j gives Java an Integer for what fits in one, where a Long is wanted."""

DEFAULT_RETENTION_MS = "604800000"

QUICK: Settings = {"heartbeat.interval.ms": 200}
"""Members hear of a rebalance with their next heartbeat."""
KIP848: Settings = {"group.protocol": "consumer"}

_scenarios: dict[str, Callable[[Client], None]] = {}


def scenario(run: Callable[[Client], None]) -> Callable[[Client], None]:
    """It shows the feature that has its name."""
    _scenarios[run.__name__] = run
    return run


def over(driver: Any, without: tuple[str, ...] = ()) -> Scenarios:
    """The scenarios with this driver's client, but for features that it has nothing of."""
    made = Scenarios()
    for feature, run in _scenarios.items():
        if feature not in without:
            made(feature)(partial(_run, run, driver))
    return made


def _run(run: Callable[[Client], None], driver: Any, cluster: Cluster) -> None:
    run(Client(driver, cluster))


# ---- Producing.


@scenario
def codecs(client: Client) -> None:
    topic = client.create("codecs")
    used = [codec for codec in CODECS if codec != "zstd" or not client.lacks(ZSTD)]
    for codec in used:
        client.produce(topic, text_of(codec), {"compression.type": codec})
    expected = [value for codec in used for value in text_of(codec)]
    assert client.read(topic, len(expected)) == expected
    for own in [own for own in TOPIC_CODECS if own != "zstd" or not client.lacks(ZSTD_TOPICS)]:
        topic = client.create(own, config={"compression.type": own})
        for codec in ("none", "lz4"):
            client.produce(topic, text_of(codec), {"compression.type": codec})
        assert client.read(topic, 40) == text_of("none") + text_of("lz4")


@scenario
def acks(client: Client) -> None:
    topic = client.create("acks")
    levels: tuple[str | int, ...] = ("all", 1, 0)
    for count, level in enumerate(levels, start=1):
        client.produce(topic, [str(level).encode()] * 3, {"acks": level, "enable.idempotence": False})
        assert len(client.read(topic, 3 * count)) == 3 * count  # what is not acknowledged arrives as well, in its place
    assert client.read(topic, 9) == [b"all"] * 3 + [b"1"] * 3 + [b"0"] * 3


@scenario
def idempotent(client: Client) -> None:
    topic = client.create("idempotent")
    written = client.produce(topic, numbers(500), {"enable.idempotence": True, "linger.ms": 0, "batch.size": 100})
    assert [each.offset for each in written] == list(range(500))
    assert client.read(topic, 500) == numbers(500)


@scenario
def headers(client: Client) -> None:
    topic = client.create("headers")
    sent = [("trace", b"1"), ("trace", b"2"), ("empty", b""), ("none", None)]
    if client.lacks(NULL_HEADERS):
        sent.pop()
    client.produce(topic, [b"v"], headers=sent)
    (message,) = client.messages(topic, 1)
    assert message.headers == sent


@scenario
def nulls(client: Client) -> None:
    topic = client.create("nulls")
    sent: list[tuple[bytes | None, bytes | None]] = []
    for key in (None, b"", b"k"):
        values = [b"", b"v"] if key is None and client.lacks(NULL_PAIRS) else [None, b"", b"v"]
        client.produce(topic, values, key=key)
        sent += [(key, value) for value in values]
    assert [(message.key, message.value) for message in client.messages(topic, len(sent))] == sent


@scenario
def large(client: Client) -> None:
    topic = client.create("large")
    values = [bytes([65 + number]) * LARGE_BYTES for number in range(8)]
    client.produce(topic, values)
    assert client.read(topic, 8) == values


@scenario
def create_time(client: Client) -> None:
    topic = client.create("create-time", config=KEPT)
    client.produce(topic, [b"v"], at_ms=PAST_MS)
    (message,) = client.messages(topic, 1)
    assert (message.timestamp_type, message.timestamp_ms) == (CREATE_TIME, PAST_MS)


@scenario
def append_time(client: Client) -> None:
    topic = client.create("append-time", config={"message.timestamp.type": "LogAppendTime"})
    before_ms = time.time_ns() // 1_000_000 - 1_000
    (written,) = client.produce(topic, [b"v"], at_ms=PAST_MS)
    (message,) = client.messages(topic, 1)
    assert message.timestamp_type == LOG_APPEND_TIME
    assert before_ms <= message.timestamp_ms <= before_ms + 60_000
    assert written.timestamp_ms == message.timestamp_ms
    assert written.timestamp_type in (LOG_APPEND_TIME, None)


# ---- Consuming.


@scenario
def positions(client: Client) -> None:
    topic = client.create("positions")
    client.produce(topic, numbers(10))
    place = (topic, 0)
    with client.reader({place: 7}) as consumer:
        assert values_of(take(consumer, 3)) == numbers(3, 7)
        consumer.seek_to_beginning(place)
        assert values_of(take(consumer, 10)) == numbers(10)
        consumer.seek_to_end(place)
        assert take(consumer, 1, timeout_s=0.5) == []
        position = consumer.position(place)
        assert position == 10 or position < 0
        client.produce(topic, [b"new"])
        assert values_of(take(consumer, 1)) == [b"new"]
        assert consumer.position(place) == 11
        consumer.seek(place, 5)
        assert values_of(take(consumer, 6)) == [*numbers(5, 5), b"new"]
        consumer.seek(place, 1_000)  # out of range: auto.offset.reset applies
        assert values_of(take(consumer, 11)) == [*numbers(10), b"new"]
        assert consumer.bounds(place) == (0, 11)


@scenario
def times(client: Client) -> None:
    topic = client.create("times", config=KEPT)
    for number in range(5):
        client.produce(topic, [b"%d" % number], at_ms=PAST_MS + number * 1_000)
    place = (topic, 0)
    asked = {LONG_BEFORE_MS: 0, PAST_MS - 1: 0, PAST_MS + 1_500: 2, PAST_MS + 3_000: 3, PAST_MS + 4_001: None}
    with client.reader({place: 0}) as consumer:
        assert {time_ms: consumer.offset_at(place, time_ms) for time_ms in asked} == asked


@scenario
def long_poll(client: Client) -> None:
    topic = client.create("long-poll")
    settings: Settings = {"fetch.max.wait.ms": 20_000, "fetch.min.bytes": 1}
    with client.reader({(topic, 0): 0}, settings) as consumer:
        assert take(consumer, 1, timeout_s=1.0) == []
        started_s = time.monotonic()
        client.produce(topic, [b"v"])
        assert values_of(take(consumer, 1)) == [b"v"]
        assert time.monotonic() - started_s < 15, "the fetch was answered only when its time was up"


@scenario
def pause(client: Client) -> None:
    topic = client.create("pause", partitions=2)
    first, second = (topic, 0), (topic, 1)
    with client.reader({first: 0, second: 0}) as consumer:
        consumer.pause(first)
        for number in (0, 1):
            client.produce(topic, numbers(5), partition=number)
        assert {record.partition for record in take(consumer, 6, timeout_s=1.0)} == {1}
        consumer.resume(first)
        assert values_of(take(consumer, 5)) == numbers(5)


@scenario
def sessions(client: Client) -> None:
    topic = client.create("sessions", partitions=30)
    with client.reader({(topic, number): 0 for number in range(30)}) as consumer:
        for number in (3, 17, 3, 29, 0):
            client.produce(topic, [b"%d" % number], partition=number)
            (record,) = take(consumer, 1)
            assert (record.partition, record.value) == (number, b"%d" % number)


# ---- Groups.


@scenario
def auto_commit(client: Client) -> None:
    topic, group = client.create("auto-commit"), client.cluster.name("auto-commit")
    client.produce(topic, numbers(10))
    settings: Settings = {"enable.auto.commit": True, "auto.commit.interval.ms": 100}
    with client.subscribed(group, topic, settings) as consumer:
        assert values_of(take(consumer, 10)) == numbers(10)

        def is_committed() -> bool:
            assert consumer.poll(client.driver.POLL_S) == []
            return consumer.committed((topic, 0)) == 10

        wait_until(is_committed, "the automatic commit")
    client.produce(topic, numbers(5, 10))
    with client.subscribed(group, topic, settings) as follower:
        assert values_of(take(follower, 5)) == numbers(5, 10)


@scenario
def manual_commit(client: Client) -> None:
    topic, group = client.create("manual-commit"), client.cluster.name("manual-commit")
    client.produce(topic, numbers(10))
    with client.subscribed(group, topic) as consumer:
        assert values_of(take(consumer, 10)) == numbers(10)
        consumer.commit_offsets({(topic, 0): 6}, "note")
        assert consumer.committed((topic, 0)) == 6
    with client.subscribed(group, topic) as follower:  # closing has committed nothing more
        assert values_of(take(follower, 4)) == numbers(4, 6)


@scenario
def rebalance(client: Client) -> None:
    check_rebalance(client, {**client.driver.EAGER, **QUICK})


@scenario
def cooperative(client: Client) -> None:
    check_rebalance(client, {**client.driver.COOPERATIVE, **QUICK})


@scenario
def kip848(client: Client) -> None:
    check_rebalance(client, KIP848)
    check_rebalance(client, {**KIP848, "group.remote.assignor": "range"})


def check_rebalance(client: Client, settings: Settings) -> None:
    """One member, two, one again; all records are read, by whoever has the partition."""
    topic, group = client.create("rebalance", partitions=4), client.cluster.name("rebalance")
    with closing(client.member(group, topic, settings)) as first:
        wait_for_shares([first], 4, "the first member to have all")
        with closing(client.member(group, topic, settings)) as second:
            wait_for_shares([first, second], 4, "both members to share")
            for number in range(4):
                client.produce(topic, [b"%d" % number], partition=number)
            wait_until(lambda: len(first.records) + len(second.records) >= 4, "the records")
            assert sorted(values_of(first.records + second.records)) == numbers(4)
        wait_for_shares([first], 4, "the one that stays to have all again")


@scenario
def static(client: Client) -> None:
    topic, group = client.create("static", partitions=4), client.cluster.name("static")

    def member(name: str) -> Member:
        return client.member(group, topic, {"group.instance.id": name, "session.timeout.ms": 30_000, **QUICK})

    with closing(member("a")) as first:
        with closing(member("b")) as second:
            wait_for_shares([first, second], 4, "both members to share")
            kept, owned = first.partitions, second.partitions
        with closing(member("b")) as second:  # a static member that closes does not leave the group
            wait_until(lambda: second.partitions, "the member that came back")
            assert (first.partitions, second.partitions) == (kept, owned)


@scenario
def pattern(client: Client) -> None:
    check_pattern(client, {"metadata.max.age.ms": 500, **QUICK}, by_broker=False)


@scenario
def server_pattern(client: Client) -> None:
    check_pattern(client, KIP848, by_broker=True)


def check_pattern(client: Client, settings: Settings, by_broker: bool) -> None:
    prefix = client.cluster.name("pattern")
    topics = [client.create(f"{prefix}.{name}") for name in ("a", "b")]
    consumer = client.consumer(client.cluster.name("pattern"), settings)

    def has_all() -> bool:
        consumer.poll(client.driver.POLL_S)
        return sorted(consumer.assignment()) == sorted((topic, 0) for topic in topics)

    try:
        consumer.subscribe_pattern(f"^{prefix}[.].*", by_broker)
        wait_until(has_all, "both topics")
        topics.append(client.create(f"{prefix}.c"))
        wait_until(has_all, "the topic that was added")
    finally:
        consumer.leave()


# ---- Administration.


@scenario
def topics(client: Client) -> None:
    topic = client.create("topics", partitions=3)
    with client.admin() as admin:
        assert topic in admin.topics()
        described = admin.describe(topic)
        assert sorted(described) == [0, 1, 2]
        for replicas in described.values():
            assert len(replicas.all) == client.cluster.replication
            assert sorted(replicas.in_sync) == sorted(replicas.all)
        admin.delete(topic)
        wait_until(lambda: topic not in admin.topics(), "the topic to go")


@scenario
def configs(client: Client) -> None:
    topic = client.create("configs", config={"retention.ms": "12345678"})
    with client.admin() as admin:

        def current() -> tuple[str, str]:
            """As one broker has them: any may be asked, and some may not have heard of a change yet."""
            found = admin.config(topic)
            return found["retention.ms"], found["cleanup.policy"]

        assert current() == ("12345678", "delete")
        admin.alter(topic, {"cleanup.policy": "compact"})
        kept = DEFAULT_RETENTION_MS if client.lacks(INCREMENTAL) else "12345678"
        wait_until(lambda: current() == (kept, "compact"), "the new setting")


@scenario
def partitions(client: Client) -> None:
    topic = client.create("partitions", partitions=2)
    with client.admin() as admin:
        admin.add_partitions(topic, 4)
        wait_for_topic(client.cluster, topic, 4)
        (written,) = client.produce(topic, [b"v"], partition=3)
        assert written.partition == 3
        assert refusal(lambda: admin.add_partitions(topic, 3)) == INVALID_PARTITIONS


@scenario
def delete_records(client: Client) -> None:
    topic = client.create("delete-records")
    client.produce(topic, numbers(10))
    place = (topic, 0)
    with client.admin() as admin:
        assert admin.delete_records(place, before=6) == 6
    with client.reader({place: 0}) as consumer:
        assert values_of(take(consumer, 4)) == numbers(4, 6)
        assert consumer.bounds(place) == (6, 10)


@scenario
def groups(client: Client) -> None:
    topic, group = client.create("groups", partitions=2), client.cluster.name("groups")
    client.commit(group, {(topic, 0): 0})
    with client.admin() as admin:
        with closing(client.member(group, topic, {"client.id": "the-client", **QUICK})) as member:
            wait_for_shares([member], 2, "a member")
            described = admin.describe_group(group)
            assert described.state == "Stable"
            ((client_id, assigned),) = described.members
            assert client_id == "the-client"
            assert assigned is None or sorted(assigned) == [0, 1]
            assert group in admin.groups()
            if not client.lacks(DELETE_GROUP):
                assert refusal(lambda: admin.delete_group(group)) == NON_EMPTY_GROUP
        if not client.lacks(DELETE_GROUP):
            admin.delete_group(group)
            assert group not in admin.groups()


@scenario
def group_offsets(client: Client) -> None:
    topic, group, new_group = client.create("group-offsets", partitions=2), *map(client.cluster.name, ("old", "new"))
    first, second = (topic, 0), (topic, 1)
    offsets: dict[Place, int] = {first: 5, second: 6}
    client.commit(group, offsets)
    with client.admin() as admin:
        assert admin.group_offsets(group) == offsets
        if not client.lacks(ALTER_GROUP_OFFSETS):
            admin.alter_group_offsets(group, {first: 1})
            assert admin.group_offsets(group) == {first: 1, second: 6}
            admin.alter_group_offsets(new_group, offsets)
            assert admin.group_offsets(new_group) == offsets


@scenario
def cluster(client: Client) -> None:
    with client.admin() as admin:
        described = admin.describe_cluster()
    assert len(described.ids) == client.cluster.brokers
    assert described.controller in described.ids
    assert described.cluster_id


# ---- Mistakes.


@scenario
def unknown_topic(client: Client) -> None:
    """What else each client makes of it is in its own module."""
    with client.admin() as admin:
        assert refusal(lambda: admin.delete(client.cluster.name("unknown"))) == UNKNOWN_TOPIC_OR_PARTITION


@scenario
def existing_topic(client: Client) -> None:
    topic, other = client.create("existing"), client.cluster.name("w")
    with client.admin() as admin:
        assert refusal(lambda: admin.create(topic, 1, client.cluster.replication, {})) == TOPIC_ALREADY_EXISTS
        assert refusal(lambda: admin.create(other, 1, 100, {})) == INVALID_REPLICATION_FACTOR
        assert refusal(lambda: admin.create(other, 0, 1, {})) == INVALID_PARTITIONS
        assert refusal(lambda: admin.create("no/slash", 1, 1, {})) == INVALID_TOPIC
        assert refusal(lambda: admin.create(other, 1, 1, {"retention.ms": "soon"})) == INVALID_CONFIG


@scenario
def too_large(client: Client) -> None:
    topic = client.create("too-large")
    permissive: Settings = {"max.request.size": 10 * TOO_LARGE_BYTES}
    assert refusal(lambda: client.produce(topic, [b"x" * TOO_LARGE_BYTES], permissive)) == MESSAGE_TOO_LARGE
    (written,) = client.produce(topic, [b"small"])
    assert written.offset == 0


@scenario
def keyless_compacted(client: Client) -> None:
    topic = client.create("compacted", config={"cleanup.policy": "compact"})
    expected = UNKNOWN_SERVER_ERROR if client.lacks(INVALID_RECORD) else INVALID_RECORD_CODE
    assert refusal(lambda: client.produce(topic, [b"v"])) == expected
    (written,) = client.produce(topic, [b"v"], key=b"k")
    assert written.offset == 0
