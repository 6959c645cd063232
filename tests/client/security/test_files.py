"""What a person names with --command-config: mistakes show before anything is connected."""

from __future__ import annotations

from pathlib import Path

import pytest

from sexton.client.security.errors import BadSecurityError
from sexton.client.security.files import security_from
from sexton.client.security.login import Login
from sexton.client.security.properties import OPEN


def test_without_a_file_the_cluster_is_taken_to_be_open() -> None:
    assert security_from(None) == OPEN


def test_the_file_is_read_with_all_that_it_names(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    config = tmp_path / "client.properties"
    config.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n"
        "sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="alice" password="secret";\n'
        f"ssl.truststore.location={tmp_path}/ca.pem\n"
    )
    found = security_from(config)
    assert found.login == Login("PLAIN", "alice", "secret")
    assert found.tls is not None
    assert "AAAA" in found.tls.trusted_pem


def test_a_file_that_is_missing_is_told_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(BadSecurityError, match="No such file") as refused:
        security_from(tmp_path / "none.properties")
    assert refused.value.place.endswith("none.properties")
