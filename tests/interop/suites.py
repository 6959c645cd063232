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

LIBRDKAFKA: Final = "2.15.1"

LIBRDKAFKA_LEFT_OUT: Final = {
    "0045_subscribe_update_topic_remove (consumer)": "waits for what only the classic protocol does; fails "
    "with Kafka 4.3 too",
    "0045_subscribe_update_non_exist_and_partchange (consumer)": "the same",
    "0045_resubscribe_with_regex (consumer)": "waits for two assignments where one comes; fails with Kafka 4.3 too",
    "0045_subscribe_many_updates (consumer)": "librdkafka forgets a subscription that is made while its request to "
    "leave is under way, or sends one that is refused; the test chooses at random, and meets that now and then, with "
    "Kafka 4.3 too",
    "0055_producer_latency": "fails when a message takes a few milliseconds more, as on a machine with other work",
    "0081_admin/do_test_CreateAcls": "access control is not part of Sexton; Kafka without it fails too",
    "0081_admin/do_test_DescribeAcls": "access control",
    "0081_admin/do_test_DeleteAcls": "access control",
    "0081_admin/do_test_DescribeConsumerGroups_with_authorized_ops": "access control: it skips itself",
    "0081_admin/do_test_AlterConfigs": "changes a setting of a broker that is about SASL, which Sexton has not; "
    "all else in it passes",
    "0081_admin/do_test_IncrementalAlterConfigs": "the same",
    "0081_admin/do_test_UserScramCredentials": "about users of SASL, which Sexton has not",
    "0081_admin/do_test_DescribeConsumerGroups (consumer)": "not called with this protocol",
    "0084_destroy_flags (consumer)": "skips itself with this protocol",
    "0092_mixed_msgver": "message format 1, which Kafka 4 has dropped (KIP-896): it skips itself",
    "0097_ssl_verify": "needs brokers with TLS",
    "0113_cooperative_rebalance/g_incremental_assign_call_eager (consumer)": "about the classic protocol alone",
    "0113_cooperative_rebalance/subscription_variation: ? (consumer)": "librdkafka itself hangs now and then where it "
    "destroys a consumer that was not closed",
    "0113_cooperative_rebalance/o_java_interop": "skips itself: it takes a default of librdkafka for SASL",
    "0115_producer_auth": "access control",
    "0119_consumer_auth": "access control",
    "0126_oauthbearer_oidc": "needs brokers with SASL",
    "0132_strategy_ordering (consumer)": "about the classic protocol's assignors: it skips itself",
    "0135_sasl_credentials": "needs brokers with SASL",
    "0139_offset_validation_mock": "uses no broker, but librdkafka's own imitation",
    "0142_reauthentication": "needs brokers with SASL",
    "0150_telemetry_mock": "uses no broker, but librdkafka's own imitation",
    "01??_share_consumer": "share groups (KIP-932) are not part of Sexton, and not advertised",
}
"""Beginnings of the names of tests, and, after a slash, of what they consist of."""


def section() -> str:
    """For docs/clients.md."""
    lines = [
        "## Their own integration suites",
        "",
        "Three clients bring suites that can be pointed at brokers that run. They are run too; this is left out:",
        "",
        "| suite | left out | because |",
        "|---|---|---|",
        *(f"| franz-go {FRANZ_GO} | `{name}*` | {reason} |" for name, reason in FRANZ_GO_LEFT_OUT.items()),
        *(f"| kafka-python | `{name}` | {reason} |" for name, reason in KAFKA_PYTHON_LEFT_OUT.items()),
        *(f"| librdkafka {LIBRDKAFKA} | `{name}*` | {reason} |" for name, reason in LIBRDKAFKA_LEFT_OUT.items()),
        "",
        "librdkafka's tests that use no broker are not run: they say nothing about Sexton. Those that join groups run",
        "twice: with the classic protocol, and with that of KIP-848.",
        "",
    ]
    return "\n".join(lines)
