"""The same questions to a Sexton broker and to a real one: what tools ask of a Kafka without security, and of one with
a single folder. Told apart by nothing but the words of the messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sexton.broker.api import api_versions
from sexton.harness.brokers import SextonCluster
from sexton.harness.kafka import KafkaCluster
from tests.broker.api.test_admin_security import ACL, ANY_ACL, component
from tests.robustness.wire import API_VERSIONS, Wire

pytestmark = [pytest.mark.kafka, pytest.mark.cluster]

Running = KafkaCluster | SextonCluster
WORDS = frozenset({"error_message", "cluster_id"})
QUOTA_FILTERS = [
    [],
    [component("user", 1, None), component("client-id", 0, "x")],
    [component("ip", 2, None)],
    [component("dog", 0, "x")],
    [component("", 0, "x")],
    [component("user", 7, "x")],
    [component("user", 0, None)],
    [component("user", 1, "x")],
    [component("user", 2, None)] * 2,
    [component("ip", 2, None), component("user", 2, None)],
]


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[Running, Running]]:
    with SextonCluster(nodes=1) as sexton, KafkaCluster(heap="512m") as kafka:
        for running in (sexton, kafka):
            running.create_topic("t", partitions=1)
        yield sexton, kafka


def told(answer: Any) -> Any:
    """All that an answer says but its words; what comes in no order, sorted."""
    if isinstance(answer, tuple):
        return sorted((told(one) for one in answer), key=repr)
    if hasattr(answer, "__dataclass_fields__"):
        return {name: told(getattr(answer, name)) for name in answer.__dataclass_fields__ if name not in WORDS}
    return answer


def ask(running: Running, api_key: int, version: int, body: dict[str, Any]) -> Any:
    with Wire(running.bootstrap) as wire:
        return wire.call(api_key, version, body)


QUESTIONS: list[tuple[int, int, dict[str, Any]]] = [
    *((29, version, ANY_ACL) for version in (1, 2, 3)),
    *((30, version, {"creations": [ACL] * count}) for version in (1, 2, 3) for count in (0, 2)),
    *((31, version, {"filters": [ANY_ACL]}) for version in (1, 2, 3)),
    *((48, version, {"components": each, "strict": False}) for version in (0, 1) for each in QUOTA_FILTERS),
    *((50, 0, {"users": users}) for users in (None, [], [{"name": "a"}, {"name": "b"}, {"name": "a"}])),
    (64, 0, {"broker_id": 9}),
]


def test_tools_are_told_the_same_as_by_kafka(both: tuple[Running, Running]) -> None:
    for api_key, version, body in QUESTIONS:
        ours, theirs = (told(ask(running, api_key, version, body)) for running in both)
        assert ours == theirs, (api_key, version, body)
    for is_own in (True, False):
        answers = []
        for running in both:
            path = str(running.log_dir(1)) if is_own else "/elsewhere"
            dirs = [{"path": path, "topics": [{"name": "t", "partitions": [0, 1]}, {"name": "u", "partitions": [0]}]}]
            answers.append(told(ask(running, 34, 2, {"dirs": dirs})))
        assert answers[0] == answers[1]


def test_no_api_is_offered_in_a_version_that_kafka_does_not_have(both: tuple[Running, Running]) -> None:
    """Older versions than Kafka 4 has are for older clients. Features are at Kafka's own levels."""
    software = {"client_software_name": "x", "client_software_version": "1"}
    ours, theirs = (ask(running, API_VERSIONS, 4, software) for running in both)
    highest = {one.api_key: one.max_version for one in theirs.api_keys}
    assert {one.api_key: one.max_version for one in ours.api_keys if one.max_version > highest[one.api_key]} == {}
    kafkas = {one.name: one for one in theirs.supported_features}
    for one in ours.supported_features:
        assert one == kafkas[one.name]
    finalized = {one.name: one for one in theirs.finalized_features}
    for one in ours.finalized_features:
        assert one == finalized[one.name]
    assert [one.name for one in ours.finalized_features] == [one.name for one in api_versions.FEATURES]
