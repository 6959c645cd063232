"""Replicas of Apache Kafka, read one by one from brokers with default settings; and what brokers are asked for it."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from sexton.audit.live import requests
from sexton.audit.live.connecting import Connecting
from sexton.audit.live.errors import NoPermissionError, NothingMatchesError
from sexton.audit.live.source import LiveSource
from sexton.audit.replica import Replica, ReplicaId
from sexton.audit.run import audit
from sexton.client.consumer import fetch_from_replica
from sexton.client.errors import RefusedError
from sexton.client.fetching import READ_UNCOMMITTED
from sexton.client.security.properties import Security, security_of
from sexton.harness.kafka import KafkaCluster
from sexton.harness.proxy import FETCH, Liar, Proxy, Request
from tests.audit.live.reading import read, source_at
from tests.certificates import Authority
from tests.secure_kafka import LOGINS, jaas, secure_settings
from tests.spark.local_context import LocalContext

pytestmark = pytest.mark.kafka

OPERATORS = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}
"""Whoever comes through the plain door may do everything, which is how brokers come, too."""
LIST_OFFSETS = 2
TOPIC = "users"
UNKNOWN_BROKER = 99


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    settings = {
        **secure_settings(Authority(tmp_path_factory.mktemp("certificates"))),
        **OPERATORS,
        "super.users": "User:ANONYMOUS",
    }
    doors = {"LOGIN": "SASL_PLAINTEXT", "TLS": "SSL", "BOTH": "SASL_SSL", "MUTUAL": "SSL"}
    with KafkaCluster(nodes=3, settings=settings, doors=doors, format_args=LOGINS, heap="400m") as kafka:
        kafka.create_topic(TOPIC, 2, 3, {"cleanup.policy": "compact"})
        kafka.create_topic("plain", 1, 3, {"cleanup.policy": "delete"})
        kafka.create_topic("single", 1, 1, {"cleanup.policy": "compact"})
        write(kafka)
        yield kafka


def write(kafka: KafkaCluster) -> None:
    """Partition 0 of the topic: plain records, an aborted and a committed transaction, and an open one at the end."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 5})
    for number in range(5_000):
        producer.produce(TOPIC, key=f"k{number % 700}", value="x" * 100, partition=number % 2)
    producer.flush()
    transactional = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": "t"})
    transactional.init_transactions()
    for end in (transactional.abort_transaction, transactional.commit_transaction, None):
        transactional.begin_transaction()
        transactional.produce(TOPIC, key="in-transaction", value="v", partition=0)
        transactional.flush()
        if end is not None:
            end()


def settled(source: LiveSource) -> list[Replica]:
    replicas = [each for each in source.find() if each.id.topic == TOPIC]
    assert len(replicas) == 6
    return replicas


def test_each_replica_is_read_from_its_own_broker_with_default_settings(kafka: KafkaCluster) -> None:
    with source_at(kafka.bootstrap) as source:
        replicas = settled(source)
        assert sorted(each.id.broker for each in replicas if each.id.partition == 0) == [1, 2, 3]
        assert sum(bool(each.is_leader) for each in replicas) == 2
        contents = [read(source, each) for each in replicas if each.id.partition == 0]
        assert len(contents[0].records) == 2_500 + 3 + 2  # two markers
        assert contents[1].records == contents[0].records == contents[2].records


def test_each_replica_tells_of_its_own_transactions(kafka: KafkaCluster) -> None:
    with source_at(kafka.bootstrap) as source:
        for each in settled(source):
            is_first = each.id.partition == 0
            assert each.high_watermark == (2_505 if is_first else 2_500)
            assert each.last_stable_offset == (2_504 if is_first else 2_500)
            assert (each.cut, each.barrier) == (each.last_stable_offset, each.high_watermark)
            assert each.claims_are_complete
            assert [(claim.first_offset, claim.is_known) for claim in each.open] == (
                [(2_504, True)] if is_first else []
            )
            assert {offset for _, offset in read(source, each).aborted} == ({2_500} if is_first else set())


def test_only_compacted_topics_are_in_scope_and_one_copy_is_told_as_nothing_to_compare(kafka: KafkaCluster) -> None:
    with source_at(kafka.bootstrap) as source:
        assert {each.id.topic for each in source.find()} == {TOPIC}
        (skipped,) = source.skipped
        assert skipped.place == "single"
        assert "nothing to compare" in skipped.reason


def test_an_audit_of_nothing_but_single_copies_finds_nothing_wrong(kafka: KafkaCluster) -> None:
    with source_at(kafka.bootstrap, "single") as source:
        report = audit(LocalContext(random.Random(1)).as_spark, [source])
    assert (report.partitions, report.is_diverged, report.is_judged) == ((), False, True)
    assert [each.place for each in report.skipped] == ["single"]


@pytest.mark.parametrize("pattern", ["no-such", "plai.", "__consumer_offset"])
def test_a_pattern_that_matches_no_compacted_topic_is_told(kafka: KafkaCluster, pattern: str) -> None:
    with source_at(kafka.bootstrap, pattern) as source, pytest.raises(NothingMatchesError) as told:
        source.find()
    assert told.value.place == pattern


def test_records_are_looked_up_again_by_their_offsets(kafka: KafkaCluster) -> None:
    with source_at(kafka.bootstrap, TOPIC) as source:
        follower = next(each for each in settled(source) if not each.is_leader and each.id.partition == 0)
        found = source.look_up(follower, [0, 1, 2_499, 2_500, 10_000])
        assert sorted(found) == [0, 1, 2_499, 2_500]
        assert found[0].base_offset == 0
        assert found[2_500].records[0].key == b"in-transaction"
        assert found[1].base_offset <= 1 < found[1].next_offset


def test_what_was_written_since_is_read_on(kafka: KafkaCluster) -> None:
    with source_at(kafka.bootstrap, TOPIC) as source:
        before = [each for each in settled(source) if each.id.partition == 1]
        producer = Producer({"bootstrap.servers": kafka.bootstrap})
        producer.produce(TOPIC, key="later", value="v", partition=1)
        producer.flush()
        wanted = {each.id: 1 + (each.high_watermark or 0) for each in before}
        for old, new in zip(before, source.read_on(wanted), strict=True):
            assert new.high_watermark == wanted[old.id]
            assert [key for _, key, _ in read(source, new, old.high_watermark).records] == [b"later"]


# ---- What brokers are asked


class Recorder(Liar):
    def __init__(self) -> None:
        self.asked: list[Request] = []

    def request(self, request: Request) -> Request:
        self.asked.append(request)
        return request


def test_brokers_are_asked_nothing_that_could_change_anything(kafka: KafkaCluster) -> None:
    recorder = Recorder()
    with Proxy(kafka.bootstrap, recorder) as proxy, source_at(proxy.bootstrap) as source:
        replicas = settled(source)
        for each in replicas:
            read(source, each)
            source.look_up(each, [0])
        source.read_on({each.id: 0 for each in replicas})
        source.now([each.id for each in replicas])
    assert {request.api_key for request in recorder.asked} <= requests.ALLOWED
    bodies = [(request, request.body()) for request in recorder.asked]
    fetches = [body for request, body in bodies if request.api_key == FETCH]
    assert len(fetches) > 12
    assert {body.replica_id for body in fetches} == {-1}
    assert {body.session_epoch for body in fetches} == {-1}
    assert {body.rack_id for body in fetches} == {requests.RACK}
    assert {body.replica_id for request, body in bodies if request.api_key == LIST_OFFSETS} == {-2}
    metadata = [body for request, body in bodies if request.api_key == 3]
    assert not any(body.allow_auto_topic_creation for body in metadata)


class AsRedpanda(Liar):
    """Answers consumers only if they name a rack: another id than a consumer's is refused by any follower."""

    def request(self, request: Request) -> Request:
        if request.api_key == FETCH and not request.body().rack_id:
            return request.with_body(dataclasses.replace(request.body(), replica_id=UNKNOWN_BROKER))
        return request


def test_a_system_that_serves_followers_only_to_who_names_a_rack_is_read(kafka: KafkaCluster) -> None:
    with Proxy(kafka.bootstrap, AsRedpanda()) as proxy, source_at(proxy.bootstrap, TOPIC) as source:
        replicas = settled(source)
        assert all(len(read(source, each).records) >= 2_500 for each in replicas)
        follower = next(each.id for each in replicas if not each.is_leader)
        with pytest.raises(RefusedError):
            asyncio.run(fetch_without_rack(proxy.bootstrap, follower))


async def fetch_without_rack(bootstrap: str, replica: ReplicaId) -> None:
    addresses = tuple((host, int(port)) for host, port in (part.split(":") for part in bootstrap.split(",")))
    client = Connecting(addresses).client()
    await client.open()
    try:
        offsets = {replica.topic_partition: 0}
        await fetch_from_replica(client, replica.broker, offsets, isolation=READ_UNCOMMITTED)
    finally:
        client.close()


# ---- Permissions


def grant(kafka: KafkaCluster, user: str, topic: str, operation: AclOperation) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    binding = AclBinding(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.LITERAL,
        f"User:{user}",
        "*",
        operation,
        AclPermissionType.ALLOW,
    )
    for result in admin.create_acls([binding]).values():
        result.result(30)
    wanted = AclBindingFilter(
        ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, f"User:{user}", "*", operation, AclPermissionType.ALLOW
    )
    for broker in kafka.bootstrap.split(","):
        heard_of = AdminClient({"bootstrap.servers": broker})
        deadline_s = time.monotonic() + 30
        while not heard_of.describe_acls(wanted).result(30):
            assert time.monotonic() < deadline_s
            time.sleep(0.05)


def as_user(user: str) -> Security:
    properties = {"security.protocol": "SASL_PLAINTEXT", **jaas("SCRAM-SHA-512", user, f"{user}-secret")}
    return security_of(properties, lambda path: Path(path).read_bytes())


def test_the_permission_to_read_a_topic_is_enough(kafka: KafkaCluster) -> None:
    grant(kafka, "reader", TOPIC, AclOperation.READ)
    with source_at(kafka.bootstrap_at("LOGIN"), TOPIC, as_user("reader")) as source:
        replicas = settled(source)
        assert all(each.is_read for each in replicas)
        assert all(len(read(source, each).records) >= 2_500 for each in replicas)
        (claim,) = replicas[0].open
        assert claim.is_known is None  # without the permission coordinators say nothing, nor that they know more


def test_without_permission_the_topic_and_the_permission_are_named(kafka: KafkaCluster) -> None:
    with (
        source_at(kafka.bootstrap_at("LOGIN"), TOPIC, as_user("nobody")) as source,
        pytest.raises(NoPermissionError, match=f"Describe topic {TOPIC}"),
    ):
        source.find()
    grant(kafka, "nobody", TOPIC, AclOperation.DESCRIBE)
    with (
        source_at(kafka.bootstrap_at("LOGIN"), TOPIC, as_user("nobody")) as source,
        pytest.raises(NoPermissionError, match=f"Read topic {TOPIC}") as refused,
    ):
        source.find()
    assert "--operation Read" in refused.value.remedy


def test_without_a_name_and_without_seeing_settings_it_says_what_to_do(kafka: KafkaCluster) -> None:
    grant(kafka, "reader", TOPIC, AclOperation.READ)
    with (
        source_at(kafka.bootstrap_at("LOGIN"), "", as_user("reader")) as source,
        pytest.raises(NothingMatchesError, match="DescribeConfigs"),
    ):
        source.find()
