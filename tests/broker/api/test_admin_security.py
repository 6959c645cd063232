"""What tools ask of a Kafka without security, and what they are told: there is none, in the words that they expect."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sexton.broker.api import (
    alter_replica_log_dirs,
    create_acls,
    delete_acls,
    describe_acls,
    describe_client_quotas,
    describe_user_scram_credentials,
)
from sexton.protocol.errors import ErrorCode
from tests.broker.api.admin_broker import broker_in_a_cluster

ANY_ACL = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}
ACL = {
    "resource_type": 2,
    "resource_name": "t",
    "resource_pattern_type": 3,
    "principal": "User:a",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}


def ask(api: Any, version: int, **body: Any) -> Any:
    async def asked() -> Any:
        return await (await broker_in_a_cluster()).ask(api, version, **body)

    return asyncio.run(asked())


@pytest.mark.parametrize("version", [1, 2, 3])
def test_access_control_is_answered_with_security_disabled(version: int) -> None:
    described = ask(describe_acls, version, **ANY_ACL)
    assert (described.error_code, described.resources) == (ErrorCode.security_disabled, ())
    created = ask(create_acls, version, creations=[ACL, ACL])
    assert [one.error_code for one in created.results] == [ErrorCode.security_disabled] * 2
    deleted = ask(delete_acls, version, filters=[ANY_ACL])
    assert [(one.error_code, one.matching_acls) for one in deleted.filter_results] == [
        (ErrorCode.security_disabled, ())
    ]


def component(entity_type: str, match_type: int, match: str | None) -> dict[str, Any]:
    return {"entity_type": entity_type, "match_type": match_type, "match": match}


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([], ErrorCode.none),
        ([component("user", 1, None), component("client-id", 0, "x")], ErrorCode.none),
        ([component("ip", 2, None)], ErrorCode.none),
        ([component("dog", 0, "x")], ErrorCode.unsupported_version),
        ([component("", 0, "x")], ErrorCode.invalid_request),
        ([component("user", 7, "x")], ErrorCode.invalid_request),
        ([component("user", 0, None)], ErrorCode.invalid_request),
        ([component("user", 1, "x")], ErrorCode.invalid_request),
        ([component("user", 2, None)] * 2, ErrorCode.invalid_request),
        ([component("ip", 2, None), component("user", 2, None)], ErrorCode.invalid_request),
    ],
)
def test_there_are_no_quotas_and_a_filter_that_makes_no_sense_is_refused(
    version: int, components: list[dict[str, Any]], code: ErrorCode
) -> None:
    answer = ask(describe_client_quotas, version, components=components, strict=True)
    assert answer.error_code is code
    assert answer.entries == (() if code is ErrorCode.none else None)


def test_nobody_has_scram_credentials() -> None:
    assert ask(describe_user_scram_credentials, 0, users=None).results == ()
    named = ask(describe_user_scram_credentials, 0, users=[{"name": name} for name in ("a", "a", "b")])
    assert named.error_code is ErrorCode.none
    assert [(one.user, one.error_code) for one in named.results] == [
        ("a", ErrorCode.duplicate_resource),
        ("b", ErrorCode.resource_not_found),
    ]


@pytest.mark.parametrize("version", [1, 2])
async def test_a_replica_can_be_moved_only_to_where_it_is(version: int) -> None:
    broker = await broker_in_a_cluster()
    await broker.make_topic("t", (1,), (2,))
    topics = [{"name": "t", "partitions": [0, 1, 2]}]
    for path, expected in {
        "/data": [ErrorCode.none, ErrorCode.replica_not_available, ErrorCode.unknown_topic_or_partition],
        "/elsewhere": [ErrorCode.log_dir_not_found] * 3,
    }.items():
        dirs = [{"path": path, "topics": topics}]
        (told,) = (await broker.ask(alter_replica_log_dirs, version, dirs=dirs)).results
        assert [one.error_code for one in told.partitions] == expected
