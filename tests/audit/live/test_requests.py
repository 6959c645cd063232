"""What is asked of brokers: in every version a Fetch is a consumer's, without a session, and with a rack."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sexton.audit.live import asking, requests
from sexton.client.apis import Api
from sexton.client.errors import RefusedError
from sexton.errors import SextonError
from sexton.protocol import messages
from sexton.protocol.errors import ErrorCode

PEER = SimpleNamespace(rpc=SimpleNamespace(peer="h:1"))


@pytest.mark.parametrize("serves_consumers", [True, False])
def test_no_fetch_is_a_brokers_and_none_has_a_session(serves_consumers: bool) -> None:
    """Before version 11 followers answer only who comes for debugging."""
    api, replica_id = requests.fetch_as(serves_consumers)
    assert replica_id == (-1 if serves_consumers else -2)
    for version in range(api.lowest, api.highest + 1):
        body = requests.fetch_body({("t", 0): 5, ("t", 1): 6}, replica_id, 1, 1_000)
        frame = memoryview(messages.encode_request(api.key, version, 1, "c", body))[4:]
        position = messages.decode_request_header(frame).position
        asked = messages.decode_request(api.key, version, frame, position)
        assert asked.replica_id == replica_id
        assert getattr(asked, "session_epoch", -1) == -1
        assert getattr(asked, "rack_id", requests.RACK) == requests.RACK
        assert [part.fetch_offset for part in asked.topics[0].partitions] == [5, 6]


class Broker:
    def __init__(self, *keys: int) -> None:
        self._keys = keys

    def has(self, api: Api) -> bool:
        return api.key in self._keys

    def speaks(self, api: Api) -> bool:
        return True


def test_a_broker_is_asked_as_by_a_debugging_consumer_unless_it_has_what_came_with_kafka_2_4() -> None:
    """Kafka 2.3 speaks version 11 of Fetch, and its followers refuse consumers all the same."""
    assert asking.fetch_of_any_replica(Broker(1, 44)).replica_id == -2  # type: ignore[arg-type]
    assert asking.fetch_of_any_replica(Broker(1, 45)).replica_id == -1  # type: ignore[arg-type]
    assert asking.fetch_of_any_replica(Broker(1, 47)).replica_id == -1  # type: ignore[arg-type]


def test_versions_of_fetch_do_not_overlap() -> None:
    assert requests.FETCH_AS_DEBUGGER.highest < requests.FETCH_OF_ANY_REPLICA.lowest


def answered(**fields: object) -> object:
    part = {
        "partition_index": 0,
        "error_code": ErrorCode.none,
        "high_watermark": 9,
        "last_stable_offset": 9,
        "log_start_offset": 0,
        "preferred_read_replica": -1,
        "aborted_transactions": None,
        "records": None,
        **fields,
    }
    return asking.answer_of(PEER, "t", SimpleNamespace(**part))  # type: ignore[arg-type]


def test_a_broker_that_sends_readers_elsewhere_does_not_count_as_one_with_nothing() -> None:
    found = answered(preferred_read_replica=2)
    assert isinstance(found, SextonError)
    assert "sends readers to broker 2" in found.what


def test_a_refusal_names_the_partition_and_the_broker() -> None:
    found = answered(error_code=ErrorCode.not_leader_or_follower)
    assert isinstance(found, RefusedError)
    assert found.place == "t-0 at h:1"
