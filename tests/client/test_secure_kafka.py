"""Our client at Apache Kafka's doors: SASL PLAIN and SCRAM, TLS, both, and certificates of clients."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sexton.adapters.clock import SystemClock
from sexton.adapters.connecting import network_of
from sexton.cli.connect import COMMAND_CONFIG
from sexton.cli.main import app
from sexton.client.client import Client
from sexton.client.errors import NotConnectedError
from sexton.client.security.errors import BadSecurityError, LoginFailedError
from sexton.client.security.properties import security_of
from sexton.harness.kafka import KafkaCluster
from sexton.ports.tls import TlsFailedError
from tests.certificates import Authority
from tests.secure_kafka import LOGINS, doors_of, jaas, secure_settings

pytestmark = pytest.mark.kafka

TRUST = "ssl.truststore.location"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def kafka(authority: Authority) -> Iterator[KafkaCluster]:
    with KafkaCluster(settings=secure_settings(authority), doors=doors_of(), format_args=LOGINS, heap="400m") as kafka:
        kafka.create_topic("t")
        yield kafka


async def topics_seen(kafka: KafkaCluster, door: str, properties: dict[str, str]) -> list[str]:
    security = security_of(properties, lambda path: Path(path).read_bytes())
    host, port = kafka.bootstrap_at(door).split(":")
    client = Client(
        network_of(security.tls),
        [(host, int(port))],
        clock=SystemClock(),
        rng=random.Random(1),
        login=security.login,
    )
    try:
        async with asyncio.timeout(60):
            return sorted((await client.refresh(None)).topics)
    finally:
        client.close()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_sasl_logs_in(kafka: KafkaCluster, mechanism: str) -> None:
    properties = {"security.protocol": "SASL_PLAINTEXT", **jaas(mechanism, "alice", "alice-secret")}
    assert await topics_seen(kafka, "LOGIN", properties) == ["t"]


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
async def test_a_wrong_password_is_told(kafka: KafkaCluster, mechanism: str) -> None:
    properties = {"security.protocol": "SASL_PLAINTEXT", **jaas(mechanism, "alice", "wrong")}
    with pytest.raises(LoginFailedError, match="refuses the login") as refused:
        await topics_seen(kafka, "LOGIN", properties)
    assert "password" in refused.value.remedy


async def test_tls_alone_encrypts(kafka: KafkaCluster, authority: Authority) -> None:
    properties = {"security.protocol": "SSL", TRUST: str(authority.path)}
    assert await topics_seen(kafka, "TLS", properties) == ["t"]


async def test_scram_over_tls(kafka: KafkaCluster, authority: Authority) -> None:
    login = jaas("SCRAM-SHA-512", "alice", "alice-secret")
    properties = {"security.protocol": "SASL_SSL", TRUST: str(authority.path), **login}
    assert await topics_seen(kafka, "BOTH", properties) == ["t"]


async def test_a_broker_that_asks_for_a_certificate_knows_ours(kafka: KafkaCluster, authority: Authority) -> None:
    mine = authority.issue("client").path
    properties = {"security.protocol": "SSL", TRUST: str(authority.path), "ssl.keystore.location": str(mine)}
    assert await topics_seen(kafka, "MUTUAL", properties) == ["t"]


async def test_without_a_certificate_it_says_which_property_to_set(kafka: KafkaCluster, authority: Authority) -> None:
    with pytest.raises((NotConnectedError, TlsFailedError)) as refused:
        await topics_seen(kafka, "MUTUAL", {"security.protocol": "SSL", TRUST: str(authority.path)})
    assert "ssl.keystore.location" in str(refused.value)


async def test_an_authority_that_is_not_trusted_is_told(kafka: KafkaCluster, tmp_path: Path) -> None:
    with pytest.raises(TlsFailedError, match="not accepted") as refused:
        await topics_seen(kafka, "TLS", {"security.protocol": "SSL", TRUST: str(Authority(tmp_path).path)})
    assert TRUST in refused.value.remedy


async def test_tls_at_a_door_without_it_is_told(kafka: KafkaCluster, authority: Authority) -> None:
    with pytest.raises((TlsFailedError, NotConnectedError)):
        await topics_seen(kafka, "LOGIN", {"security.protocol": "SSL", TRUST: str(authority.path)})


def test_every_command_gets_in_with_the_file_that_the_environment_names(
    kafka: KafkaCluster, authority: Authority, tmp_path: Path
) -> None:
    login = jaas("SCRAM-SHA-512", "alice", "alice-secret")
    properties = {"security.protocol": "SASL_SSL", TRUST: str(authority.path), **login}
    config = tmp_path / "client.properties"
    config.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    where = {"SEXTON_BOOTSTRAP": kafka.bootstrap_at("BOTH"), COMMAND_CONFIG: str(config)}
    done = CliRunner().invoke(app, ["topic", "describe", "t"], env=where, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    with pytest.raises(BadSecurityError):
        CliRunner().invoke(app, ["topic", "list"], env={**where, COMMAND_CONFIG: "none"}, catch_exceptions=False)
