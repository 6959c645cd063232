"""What one file of properties says, in each client's own words; and what a client cannot do with it."""

from __future__ import annotations

import json
import pickle
import ssl
import subprocess
from pathlib import Path

import pytest

from sexton.client.security.errors import BadSecurityError
from sexton.client.security.login import Login
from sexton.client.security.properties import OPEN, Security, parse_jaas
from sexton.ports.tls import TlsSettings
from sexton.verify.clients import confluent, secured
from sexton.verify.clients.known import CLIENTS
from sexton.verify.session import Options
from tests.certificates import Authority

PASSWORD = 'a "quoted\\ secret'
SCRAM = Login("SCRAM-SHA-512", "alice", PASSWORD)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def both(authority: Authority) -> Security:
    """SASL_SSL, with a certificate of one's own."""
    return Security(SCRAM, TlsSettings(trusted_pem=authority.pem, own_pem=authority.issue("alice").path.read_text()))


def trusting(authority: Authority, own_pem: str = "", key_password: str = "") -> Security:
    return Security(tls=TlsSettings(trusted_pem=authority.pem, own_pem=own_pem, key_password=key_password))


def test_a_cluster_that_is_open_adds_nothing_to_any_client() -> None:
    assert {} == secured.librdkafka(None) == secured.python(None) == secured.java(None) == secured.franz(None)
    for client in (*CLIENTS, "java-1.0.2"):
        secured.check(client, OPEN)


@pytest.mark.parametrize(
    ("security", "protocol"),
    [
        (Security(), "PLAINTEXT"),
        (Security(tls=TlsSettings()), "SSL"),
        (Security(login=SCRAM), "SASL_PLAINTEXT"),
        (Security(SCRAM, TlsSettings()), "SASL_SSL"),
    ],
)
def test_all_that_name_the_protocol_name_the_same(security: Security, protocol: str) -> None:
    assert secured.librdkafka(security)["security.protocol"] == protocol
    assert secured.python(security)["security_protocol"] == protocol
    assert secured.java(security)["security.protocol"] == protocol


def test_librdkafka_is_given_certificate_and_key_apart_and_takes_them(both: Security) -> None:
    found = secured.librdkafka(both)
    assert found["sasl.mechanism"] == "SCRAM-SHA-512"
    assert (found["sasl.username"], found["sasl.password"]) == ("alice", PASSWORD)
    assert "PRIVATE KEY" not in found["ssl.certificate.pem"]
    assert found["ssl.key.pem"].startswith("-----BEGIN PRIVATE KEY-----")
    assert found["ssl.endpoint.identification.algorithm"] == "https"
    confluent.Producer("127.0.0.1:1", "", 1_000, {}, both).close()  # it reads all of this when it is made


def test_python_clients_get_a_context_that_checks_who_the_broker_is(both: Security) -> None:
    found = secured.python(both)
    context = found["ssl_context"]
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert [dict(each[0] for each in ca["subject"])["commonName"] for ca in context.get_ca_certs()] == [
        "authority of a test"
    ]
    assert found["sasl_plain_password"] == PASSWORD


def test_who_checks_no_names_still_checks_who_has_signed(authority: Authority) -> None:
    careless = Security(tls=TlsSettings(trusted_pem=authority.pem, checks_host=False))
    context = secured.python(careless)["ssl_context"]
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, False)
    assert secured.librdkafka(careless)["ssl.endpoint.identification.algorithm"] == "none"
    assert secured.java(careless)["ssl.endpoint.identification.algorithm"] == ""
    assert secured.franz(careless)["security"]["tls"]["checks_host"] is False


def test_java_reads_the_password_back_as_it_was(both: Security) -> None:
    found = secured.java(both)
    module, options = parse_jaas(str(found["sasl.jaas.config"]))
    assert module.endswith("scram.ScramLoginModule")
    assert options == {"username": "alice", "password": PASSWORD}
    plain = secured.java(Security(Login("PLAIN", "alice", "x")))
    assert parse_jaas(str(plain["sasl.jaas.config"]))[0].endswith("plain.PlainLoginModule")
    assert (found["ssl.truststore.type"], found["ssl.keystore.type"]) == ("PEM", "PEM")
    assert "ssl.key.password" not in found


def test_franz_go_gets_it_as_one_object_that_json_can_carry(both: Security, authority: Authority) -> None:
    found = json.loads(json.dumps(secured.franz(both)))["security"]
    assert found["login"] == {"mechanism": "SCRAM-SHA-512", "user": "alice", "password": PASSWORD}
    assert found["tls"]["trusted"].strip() == authority.pem.strip()
    assert found["tls"]["key"].startswith("-----BEGIN PRIVATE KEY-----")
    assert found["tls"]["chain"].startswith("-----BEGIN CERTIFICATE-----")


def test_a_whole_chain_is_more_than_librdkafka_shows(authority: Authority) -> None:
    own = authority.issue("alice").path.read_text()
    chain = trusting(authority, own + authority.pem)
    with pytest.raises(BadSecurityError, match="confluent-kafka shows one certificate") as refused:
        secured.check("confluent-kafka", chain)
    assert refused.value.place == "ssl.keystore.location"
    for client in ("aiokafka", "kafka-python", "java", "franz-go"):
        secured.check(client, chain)
    secured.check("confluent-kafka", trusting(authority, own))


def test_old_java_reads_no_pem(authority: Authority) -> None:
    with pytest.raises(BadSecurityError, match=r"java-2\.6\.3 does not read PEM") as refused:
        secured.check("java-2.6.3", trusting(authority))
    assert refused.value.place == "ssl.truststore.location"
    secured.check("java-2.7.0", trusting(authority))
    secured.check("java-2.6.3", Security(SCRAM, TlsSettings()))  # what the system trusts is not PEM of ours


def test_java_reads_keys_in_pkcs8_only(authority: Authority, tmp_path: Path) -> None:
    key = tmp_path / "old.key"
    subprocess.run(["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", str(key)], check=True)
    traditional = trusting(authority, key.read_text() + authority.pem)
    for client in ("java", "java-3.9.2"):
        with pytest.raises(BadSecurityError, match=f"{client} reads private keys in PKCS8 only"):
            secured.check(client, traditional)
    secured.check("aiokafka", traditional)


def test_franz_go_reads_no_encrypted_key(authority: Authority, tmp_path: Path) -> None:
    plain, locked = authority.issue("bob").path, tmp_path / "locked.key"
    command = ["openssl", "pkcs8", "-topk8", "-in", str(plain), "-passout", "pass:pw", "-out", str(locked)]
    subprocess.run(command, check=True)
    encrypted = trusting(authority, locked.read_text() + authority.pem, "pw")
    with pytest.raises(BadSecurityError, match="franz-go reads no private key that is encrypted") as refused:
        secured.check("franz-go", encrypted)
    assert refused.value.place == "ssl.key.password"
    assert secured.java(encrypted)["ssl.key.password"] == "pw"


def test_a_clients_options_never_show_what_they_carry(both: Security) -> None:
    options = Options(driver="confluent", bootstrap="b:1", transactional_id="id", group="g", security=both)
    assert pickle.loads(pickle.dumps(options)).security == both
    assert PASSWORD not in repr(options)
    assert "alice" in repr(options)
    assert "PRIVATE KEY" not in repr(options)
