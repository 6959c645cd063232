"""Apache Kafka with doors that ask who comes: settings for `KafkaCluster`, and what its clients need."""

from __future__ import annotations

from typing import Final

from sexton.harness.properties import Settings
from tests.certificates import Authority

USERS: Final = ("alice", "reader", "nobody")

SCRAM: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
PLAIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"

LOGINS: Final = tuple(
    part
    for user in USERS
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
    for part in ("--add-scram", f"{mechanism}=[name={user},password={user}-secret]")
)
"""For `format_args`: the first logins are in the cluster's metadata from the start."""


def doors_of() -> dict[str, str]:
    return {"LOGIN": "SASL_PLAINTEXT", "TLS": "SSL", "BOTH": "SASL_SSL", "MUTUAL": "SSL"}


def secure_settings(authority: Authority) -> Settings:
    settings: dict[str, str] = {}
    plain = " ".join(f'user_{user}="{user}-secret"' for user in USERS)
    for door in ("login", "both"):
        name = f"listener.name.{door}"
        settings[f"{name}.sasl.enabled.mechanisms"] = "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"
        settings[f"{name}.plain.sasl.jaas.config"] = f"{PLAIN} required {plain};"
        for mechanism in ("scram-sha-256", "scram-sha-512"):
            settings[f"{name}.{mechanism}.sasl.jaas.config"] = f"{SCRAM} required;"
    server = str(authority.issue("broker").path)
    for door in ("tls", "both", "mutual"):
        name = f"listener.name.{door}"
        settings |= {f"{name}.ssl.keystore.type": "PEM", f"{name}.ssl.keystore.location": server}
        settings |= {f"{name}.ssl.truststore.type": "PEM", f"{name}.ssl.truststore.location": str(authority.path)}
    settings["listener.name.mutual.ssl.client.auth"] = "required"
    return settings


def jaas(mechanism: str, user: str, password: str) -> dict[str, str]:
    module = PLAIN if mechanism == "PLAIN" else SCRAM
    config = f'{module} required username="{user}" password="{password}";'
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": config}
