"""A client's properties: Kafka's names, and mistakes that are told by the name of the property."""

from __future__ import annotations

import pytest

from sexton.client.security.errors import BadSecurityError
from sexton.client.security.login import Login
from sexton.client.security.properties import OPEN, parse_jaas, security_of
from sexton.settings.properties import parse_properties

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nAAAA\nBBBB\n-----END CERTIFICATE-----"

FILES = {
    "ca.pem": CERTIFICATE.encode(),
    "trust.jks": b"\xfe\xed\xfe\xed\x00\x00",
    "keys.p12": b"\x30\x82\x00\x00",
    "empty": b"",
}


def read(path: str) -> bytes:
    if path not in FILES:
        raise FileNotFoundError(2, "No such file or directory", path)
    return FILES[path]


def test_no_properties_are_an_open_cluster() -> None:
    assert security_of({}, read) == OPEN


def test_a_file_as_people_write_it() -> None:
    text = f"""\
# for the audit
security.protocol=SASL_SSL
sasl.mechanism=SCRAM-SHA-512
sasl.jaas.config={SCRAM} required \\
  username="alice" \\
  password="a\\\\"b c;d";
ssl.truststore.location=ca.pem
ssl.truststore.type=PEM
"""
    found = security_of(parse_properties(text), read)
    assert found.login == Login("SCRAM-SHA-512", "alice", 'a"b c;d')
    assert found.tls is not None
    assert found.tls.trusted_pem == CERTIFICATE
    assert found.tls.checks_host


def test_passwords_are_not_printed() -> None:
    properties = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": f'{PLAIN} required username=bob password="s3cret";',
        "ssl.keystore.certificate.chain": CERTIFICATE,
        "ssl.keystore.key": "-----BEGIN PRIVATE KEY-----\ns3cret\n-----END PRIVATE KEY-----",
        "ssl.key.password": "s3cret",
    }
    assert "s3cret" not in repr(security_of(properties, read))


def test_certificates_on_one_line_are_lines_again() -> None:
    properties = {"security.protocol": "SSL", "ssl.truststore.certificates": CERTIFICATE.replace("\n", " ")}
    found = security_of(properties, read)
    assert found.tls is not None
    assert found.tls.trusted_pem == CERTIFICATE


def test_the_host_is_not_checked_if_the_algorithm_is_empty() -> None:
    found = security_of({"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": ""}, read)
    assert found.tls is not None
    assert not found.tls.checks_host


@pytest.mark.parametrize(
    ("properties", "place", "told"),
    [
        ({"security.protocol": "TLS"}, "security.protocol", "SASL_SSL"),
        ({"security.protocol": "SASL_PLAINTEXT"}, "sasl.mechanism", "SCRAM-SHA-256"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}, "sasl.mechanism", "OAUTHBEARER"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, "sasl.jaas.config", "PlainLoginModule"),
        ({"security.protocol": "SSL", "ssl.truststore.location": "none"}, "ssl.truststore.location", "No such file"),
        ({"security.protocol": "SSL", "ssl.truststore.location": "trust.jks"}, "ssl.truststore.location", "keytool"),
        ({"security.protocol": "SSL", "ssl.keystore.location": "keys.p12"}, "ssl.keystore.location", "openssl pkcs12"),
        ({"security.protocol": "SSL", "ssl.keystore.location": "empty"}, "ssl.keystore.location", "PEM"),
        ({"security.protocol": "SSL", "ssl.keystore.key": "x"}, "ssl.keystore.certificate.chain", "not set"),
        (
            {"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "ldaps"},
            "ssl.endpoint.identification.algorithm",
            "https",
        ),
    ],
)
def test_a_mistake_names_the_property_and_what_to_do(properties: dict[str, str], place: str, told: str) -> None:
    with pytest.raises(BadSecurityError) as refused:
        security_of(properties, read)
    assert refused.value.place == place
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("mechanism", "jaas", "told"),
    [
        ("PLAIN", f'{SCRAM} required username="a" password="b";', "not for PLAIN"),
        ("SCRAM-SHA-256", f'{SCRAM} required username="a";', "password"),
        ("SCRAM-SHA-256", f'{SCRAM} required username="a" password="b"', "with its ;"),
        ("SCRAM-SHA-256", f"{SCRAM} required username a;", "NAME=VALUE"),
        ("SCRAM-SHA-256", 'com.example.Own required username="a" password="b";', "com.example.Own"),
    ],
)
def test_a_login_module_that_does_not_fit_is_told_without_its_password(mechanism: str, jaas: str, told: str) -> None:
    properties = {"security.protocol": "SASL_SSL", "sasl.mechanism": mechanism, "sasl.jaas.config": jaas}
    with pytest.raises(BadSecurityError, match=told) as refused:
        security_of(properties, read)
    assert '"b"' not in str(refused.value)


def test_options_may_be_bare_or_quoted_either_way() -> None:
    assert parse_jaas("""M required a=b c="d e" f='g"h' ;""") == ("M", {"a": "b", "c": "d e", "f": 'g"h'})
