"""A broker's file: Kafka's syntax, and a clear word about every mistake."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from sexton.ports.metastore import ConfigScope
from sexton.settings.broker_config import BrokerConfig, Endpoint
from sexton.settings.layers import CLUSTER_DEFAULT
from sexton.settings.properties import parse_properties
from sexton.settings.schema import BadSettingError

NEEDED = {"node.id": "3", "log.dirs": "/data", "metastore.url": "sqlite:///m.db"}


def config(**settings: str) -> BrokerConfig:
    return BrokerConfig.of({**NEEDED, **{name.replace("_", "."): text for name, text in settings.items()}})


def test_settings_become_attributes_with_kafka_s_defaults() -> None:
    found = config(num_partitions="12", auto_create_topics_enable="False")
    assert found.node_id == 3
    assert found.num_partitions == 12
    assert not found.auto_create_topics_enable
    assert found.socket_request_max_bytes == 104_857_600
    assert found.log_dir == "/data"
    assert found.listener == found.advertised == Endpoint("127.0.0.1", 9092)
    assert found.broker_rack is None
    assert found.static["num.partitions"] == "12"


def test_a_file_in_kafka_s_syntax_is_read() -> None:
    text = """
# a comment
! another
node.id = 3
log.dirs: /data/a\\ b
metastore.url sqlite:///m.db
num.\\
   partitions=\\
   7
broker.rack=r\\u00e4ck
log.retention.hours=1
log.retention.hours=2
"""
    found = BrokerConfig.of(parse_properties(text))
    assert (found.node_id, found.num_partitions, found.log_dir, found.broker_rack) == (3, 7, "/data/a b", "räck")
    assert found.static["log.retention.hours"] == "2"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b=c", {"a": "b=c"}),
        ("a", {"a": ""}),
        ("a\\=b=c", {"a=b": "c"}),
        ("  a  :  b  ", {"a": "b  "}),
        ("a=x\\\\", {"a": "x\\"}),
        ("a=x\\", {"a": "x"}),
        ("a=1\r\n#b\r\nc=2", {"a": "1", "c": "2"}),
        ("a=tab\\tend", {"a": "tab\tend"}),
        ("", {}),
    ],
)
def test_java_s_corner_cases_of_the_syntax(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"num_partitons": "1"}, "Unknown broker setting: num.partitons. Did you mean num.partitions"),
        ({"process_roles": "broker"}, "Sexton does not have it"),
        ({"num_partitions": "0"}, "num.partitions: value must be at least 1"),
        ({"log_dirs": "/a,/b"}, "exactly one folder"),
        ({"log_dirs": ""}, "exactly one folder"),
        ({"listeners": "SSL://h:1"}, "only PLAINTEXT"),
        ({"listeners": "PLAINTEXT://h:1,PLAINTEXT://h:2"}, "exactly one listener"),
        ({"listeners": "localhost:9092"}, "expected PLAINTEXT"),
        ({"listeners": "PLAINTEXT://h:70000"}, "no port 70000"),
        ({"listeners": "PLAINTEXT://0.0.0.0:9092"}, "advertised.listeners"),
        ({"broker_lease_renew_ms": "4000"}, "at most half"),
        ({"group_min_session_timeout_ms": "9", "group_max_session_timeout_ms": "8"}, "must not be above"),
        ({"compression_type": "zip"}, "must be one of"),
        ({"log_retention_ms": "soon"}, "log.retention.ms"),
    ],
)
def test_a_mistake_is_named(settings: dict[str, str], complaint: str) -> None:
    with pytest.raises(BadSettingError, match=complaint):
        config(**settings)


@pytest.mark.parametrize("name", sorted(NEEDED))
def test_what_must_be_given_is_asked_for(name: str) -> None:
    with pytest.raises(BadSettingError, match=f"{name} must be given"):
        BrokerConfig.of({known: text for known, text in NEEDED.items() if known != name})


def test_the_file_is_named_in_a_complaint() -> None:
    with pytest.raises(BadSettingError, match=r"^server\.properties: "):
        BrokerConfig.of({"node.id": "x"}, "server.properties")


@pytest.mark.parametrize(
    ("listeners", "expected"),
    [
        ("PLAINTEXT://:0", Endpoint("127.0.0.1", 0)),
        ("plaintext://example.org:9", Endpoint("example.org", 9)),
        ("PLAINTEXT://[::1]:9092", Endpoint("::1", 9092)),
    ],
)
def test_listeners_are_loopback_unless_told_otherwise(listeners: str, expected: Endpoint) -> None:
    assert config(listeners=listeners).listener == expected


def test_a_broker_that_listens_everywhere_says_how_to_reach_it() -> None:
    found = config(listeners="PLAINTEXT://0.0.0.0:9092", advertised_listeners="PLAINTEXT://b1:19092")
    assert (found.listener.host, str(found.advertised)) == ("0.0.0.0", "b1:19092")


def test_run_time_settings_lie_over_the_file() -> None:
    class View:
        def settings_of(self, scope: ConfigScope, name: str) -> Mapping[str, str]:
            assert scope is ConfigScope.BROKER
            return {"max.connections": "5"} if name == CLUSTER_DEFAULT else {}

    found = config(max_connections="9", num_partitions="2")
    assert found.effective(View()).max_connections == 5
    assert found.effective(View()).num_partitions == 2
    assert found.max_connections == 9
