from __future__ import annotations

import pytest

from sexton.verify.clients.base import ABORT, FATAL, RETRY, Failure
from sexton.verify.outcomes import is_refused


@pytest.mark.parametrize(
    "name",
    [
        "UNKNOWN_TOPIC_OR_PART",  # librdkafka
        "TOPIC_EXCEPTION",
        "UnknownTopicOrPartitionError",  # kafka-python, aiokafka
        "UnknownTopicOrPartitionException",  # Java
        "INVALID_PRODUCER_EPOCH",
        "InvalidProducerEpoch",
        "ProducerFencedException",
        "OUT_OF_ORDER_SEQUENCE_NUMBER",
        "OutOfOrderSequenceException",
        "TopicAuthorizationFailedError",
    ],
)
def test_what_a_broker_refused_did_not_happen(name: str) -> None:
    assert is_refused(Failure(FATAL, name, ""))


@pytest.mark.parametrize(
    "name",
    [
        "NOT_LEADER_FOR_PARTITION",  # KAFKA-13574: it may have been written
        "NotLeaderOrFollowerException",
        "REQUEST_TIMED_OUT",
        "KafkaTimeoutError",
        "_MSG_TIMED_OUT",
        "_FENCED",
        "_TRANSPORT",
        "NETWORK_EXCEPTION",
        "UNKNOWN_SERVER_ERROR",
        "unexpected",
        "",
    ],
)
@pytest.mark.parametrize("todo", [ABORT, FATAL, RETRY])
def test_of_everything_else_nobody_knows(name: str, todo: str) -> None:
    assert not is_refused(Failure(todo, name, ""))
