"""Which of the clients' own integration suites are run, and what is left out of them, with the reason."""

from __future__ import annotations

from typing import Final

FRANZ_GO: Final = "v1.21.7"

FRANZ_GO_LEFT_OUT: Final = {
    "TestSCRAM": "needs brokers with SASL",
    "TestShare": "share groups (KIP-932) are not part of Sexton, and not advertised",
    "TestConsumeRegexShare": "share groups",
    "Test848RegexBrokerResolves": "counts what it reads of `__consumer_offsets` among the topics that it waits for, "
    "and stops too early now and then; others subscribe by patterns that brokers match",
}
"""Beginnings of names."""

KAFKA_PYTHON_LEFT_OUT: Final = {
    "test_sasl_integration.py": "needs brokers with SASL",
    "test_ssl_integration.py": "starts a broker of its own, with TLS",
    "test_create_describe_delete_acls": "access control is not part of Sexton; Kafka without it fails too",
    "test_create_partitions": "places a partition on broker 0, which only its own cluster has; fails with Kafka too",
    "test_alter_replica_log_dirs": "a Sexton broker has one folder",
    "test_describe_metadata_quorum": "the metastore is no KRaft quorum",
}
"""Files and tests."""


def section() -> str:
    """For docs/clients.md."""
    lines = [
        "## Their own integration suites",
        "",
        "Two clients bring suites that can be pointed at brokers that run. They are run too; this is left out:",
        "",
        "| suite | left out | because |",
        "|---|---|---|",
        *(f"| franz-go {FRANZ_GO} | `{name}*` | {reason} |" for name, reason in FRANZ_GO_LEFT_OUT.items()),
        *(f"| kafka-python | `{name}` | {reason} |" for name, reason in KAFKA_PYTHON_LEFT_OUT.items()),
        "",
    ]
    return "\n".join(lines)
