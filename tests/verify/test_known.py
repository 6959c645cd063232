from __future__ import annotations

from importlib.metadata import PackageNotFoundError

import pytest

from sexton.extras import MissingExtraError
from sexton.verify.clients import known
from sexton.verify.clients.known import CLIENTS, consumer_settings


def test_a_client_that_is_not_installed_is_told_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(known, "version", missing)
    monkeypatch.setattr(known, "is_fetched", lambda name: False)
    with pytest.raises(MissingExtraError, match="aiokafka is not installed"):
        known.prepare(["aiokafka"])
    assert known.installed(has_emptied_markers=False) == []


@pytest.fixture
def everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine has fetched."""
    monkeypatch.setattr(known, "is_fetched", lambda name: True)


@pytest.mark.usefixtures("everything")
def test_by_default_all_that_are_there_are_used() -> None:
    assert list(known.installed(has_emptied_markers=False)) == list(known.CLIENTS)


@pytest.mark.usefixtures("everything")
def test_who_cannot_do_what_will_be_asked_for_is_left_out() -> None:
    assert known.installed(has_emptied_markers=True) == ["confluent-kafka", "java"]
    assert "franz-go" not in known.installed(has_emptied_markers=False, has_members=True)
    assert known.installed(has_emptied_markers=False, has_copiers=True) == ["confluent-kafka", "kafka-python", "java"]


def test_what_would_have_to_be_fetched_is_not_used_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "is_fetched", lambda name: False)
    assert set(known.installed(has_emptied_markers=False)) == {"confluent-kafka", "aiokafka", "kafka-python"}


def test_the_version_of_franz_go_is_that_of_its_module() -> None:
    assert known.version_of("franz-go").startswith("v1.")


def test_java_in_a_version_is_java_with_other_jars() -> None:
    assert known.client_of("java-3.9.2") is known.CLIENTS["java"]
    assert known.version_of("java-3.9.2") == "3.9.2"
    assert known.java_version("java-0.11.0.3") == "0.11.0.3"
    assert known.java_version("java-nonsense") == known.java_version("java") == known.java_version("franz-go") == ""


def test_a_setting_goes_to_who_knows_it() -> None:
    asked = {
        "acks": "1",
        "max.poll.records": "4",
        "request.timeout.ms": "2000",
        "producer.client.id": "mine",
        "consumer.check.crcs": "false",
    }
    producer, consumer = known.split(asked)
    assert producer == {"acks": 1, "request.timeout.ms": 2_000, "client.id": "mine"}
    assert consumer == {"max.poll.records": 4, "request.timeout.ms": 2_000, "check.crcs": False}


def test_who_speaks_the_new_protocol_leaves_timeouts_to_brokers() -> None:
    for name in ("confluent-kafka", "java"):
        settings = consumer_settings(name, speaks_kip848=True)
        assert settings["group.protocol"] == "consumer"
        assert not {"session.timeout.ms", "heartbeat.interval.ms"} & settings.keys()
        assert "group.protocol" not in consumer_settings(name, speaks_kip848=False)


def test_a_client_without_the_new_protocol_stays_with_the_old_one() -> None:
    assert consumer_settings("aiokafka", speaks_kip848=True) == CLIENTS["aiokafka"].consumer
