"""`sexton verify run --bootstrap` on clusters that ask who comes, and encrypt what is said: what goes wrong is told
before anything is written, and what was in the file of properties is found nowhere afterwards."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sexton.checker.verdict import Verdict
from sexton.cli.broker import UsageError
from sexton.cli.main import app
from sexton.client.security.errors import BadSecurityError, LoginFailedError
from sexton.harness.kafka import KafkaCluster
from sexton.history import run as description
from sexton.ports.tls import TlsFailedError
from sexton.verify import again
from sexton.verify import run as verifying
from sexton.verify.generator import NS
from sexton.verify.plan import Plan
from sexton.verify.run import ExcludedFaultError, Wanted
from sexton.verify.selftest import Silent
from sexton.verify.workloads.known import Asked
from tests.certificates import Authority
from tests.secure_kafka import LOGINS, doors_of, jaas, secure_settings

PASSWORD = "alice-secret"


def plan_of(*clients: str, faults: tuple[str, ...] = ()) -> Plan:
    return Plan(
        seed=5,
        concurrency=len(clients),
        rate=50,
        calm_ns=0,
        main_ns=3 * NS,
        final_ns=60 * NS,
        clients=clients,
        faults=faults,
        topic_prefix="sexton-verify-test-",
        transaction_timeout_ms=20_000,
    )


def config_at(path: Path, authority: Authority, *, password: str = PASSWORD, trusts: bool = True) -> Path:
    properties = {"security.protocol": "SASL_SSL", **jaas("SCRAM-SHA-512", "alice", password)}
    if trusts:
        properties["ssl.truststore.location"] = str(authority.path)
    path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    return path


def wanted_at(bootstrap: str, directory: Path, config: Path) -> Wanted:
    return Wanted(
        system=bootstrap,
        is_existing=True,
        command_config=config,
        asked=Asked(is_transactional=True),
        directory=directory,
    )


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


def test_what_cannot_be_had_over_tls_is_refused_before_anything_is_asked_for(
    authority: Authority, tmp_path: Path
) -> None:
    config = config_at(tmp_path / "client.properties", authority)
    wanted = wanted_at("127.0.0.1:1", tmp_path / "run", config)
    with pytest.raises(ExcludedFaultError, match="encrypt"):
        verifying.run(wanted, plan_of("confluent-kafka", faults=("late",)), Silent())
    config.write_text("security.protocol=SASL_SSL\nsasl.mechanism=GSSAPI\n")
    with pytest.raises(BadSecurityError, match="GSSAPI"):
        verifying.run(wanted, plan_of("confluent-kafka"), Silent())
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def secure(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The door that wants both."""
    directory = tmp_path_factory.mktemp("secure")
    settings = secure_settings(authority)
    with KafkaCluster("4.3.0", 1, directory, settings=settings, doors=doors_of(), format_args=LOGINS) as kafka:
        yield kafka.bootstrap_at("BOTH")


@pytest.mark.kafka
def test_who_is_not_let_in_is_told_why(secure: str, authority: Authority, tmp_path: Path) -> None:
    for name, password, trusts, error in (
        ("wrong", "wrong", True, LoginFailedError),
        ("nobody", PASSWORD, False, TlsFailedError),
    ):
        config = config_at(tmp_path / f"{name}.properties", authority, password=password, trusts=trusts)
        with pytest.raises(error):
            verifying.run(wanted_at(secure, tmp_path / name, config), plan_of("confluent-kafka"), Silent())
        assert not (tmp_path / name).exists()


@pytest.mark.kafka
@pytest.mark.parametrize("clients", [("confluent-kafka", "kafka-python"), ("aiokafka",)])
def test_over_scram_and_tls_a_run_is_judged_and_keeps_its_secrets(
    secure: str, authority: Authority, tmp_path: Path, clients: tuple[str, ...]
) -> None:
    config = config_at(tmp_path / "client.properties", authority)
    directory = tmp_path / "run"
    judgement = verifying.run(wanted_at(secure, directory, config), plan_of(*clients), Silent())
    assert judgement.verdict is not Verdict.FALSE
    ops = (directory / "history.jsonl").read_text()
    for client in clients:  # each has got in, and done something
        assert any('"ok"' in line and client in line for line in ops.splitlines()), client
    written = [path for path in directory.rglob("*") if path.is_file()]
    assert {"test.json", "history.jsonl", "report.html", "clients.log", "results.json"} <= {
        each.name for each in written
    }
    assert [path.name for path in written if PASSWORD.encode() in path.read_bytes()] == []
    assert description.read(directory).more["command-config"] == str(config)
    assert again.read(directory, tmp_path / "again")[0].command_config == config


@pytest.mark.kafka
def test_shards_get_in_with_all_their_lanes(secure: str, authority: Authority, tmp_path: Path) -> None:
    config = config_at(tmp_path / "client.properties", authority)
    plan = replace(plan_of("confluent-kafka"), shards=1, concurrency=3)
    wanted = replace(wanted_at(secure, tmp_path / "run", config), asked=Asked())
    assert verifying.run(wanted, plan, Silent()).verdict is not Verdict.FALSE
    ops = [json.loads(line) for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines()]
    sent = {op["process"] for op in ops if (op["type"], op["f"]) == ("ok", "send")}
    assert len(sent) > 1, "each lane is a process of the history"
    assert [
        path for path in (tmp_path / "run").rglob("*") if path.is_file() and PASSWORD.encode() in path.read_bytes()
    ] == []


@pytest.mark.soak
@pytest.mark.kafka
@pytest.mark.parametrize("clients", [("java", "franz-go")])
def test_clients_that_have_to_be_fetched_get_in_as_well(
    secure: str, authority: Authority, tmp_path: Path, clients: tuple[str, ...]
) -> None:
    test_over_scram_and_tls_a_run_is_judged_and_keeps_its_secrets(secure, authority, tmp_path, clients)


def test_a_file_of_properties_is_for_clusters_that_exist(tmp_path: Path) -> None:
    asked = ["verify", "run", "--client", "confluent-kafka", "--command-config", str(tmp_path / "client.properties")]
    with pytest.raises(UsageError, match="for a cluster that exists"):
        CliRunner().invoke(app, asked, catch_exceptions=False)
