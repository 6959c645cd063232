"""ReplicaFetch there and back, cut short, and with nonsense."""

from __future__ import annotations

import struct
import uuid

import pytest

from sexton.compaction.watermarks.replica import Claim, Pair
from sexton.protocol.errors import ErrorCode
from sexton.replication.messages import (
    FetchPartition,
    FetchRequest,
    PartitionData,
    decode_answer,
    decode_request,
    encode_answer,
    encode_request,
)
from sexton.types import LeaderEpoch
from tests.epochs import history

TOPIC = uuid.UUID(int=77)
LOG = uuid.UUID(int=78, version=4)
REQUEST = FetchRequest(
    2,
    9,
    500,
    1 << 20,
    1 << 18,
    [
        FetchPartition(
            TOPIC, 3, True, LeaderEpoch(5), 1000, LeaderEpoch(4), 0xFFFFFFFF, claim=Claim(900, LeaderEpoch(4))
        ),
        FetchPartition(TOPIC, 4, False, LeaderEpoch(-1), -1, LeaderEpoch(-1), 0),
    ],
)
NEWS = [
    PartitionData(
        TOPIC,
        3,
        ErrorCode.none,
        LeaderEpoch(5),
        LOG,
        950,
        900,
        10,
        1100,
        list(history((0, 0), (5, 990))),
        [b"records"],
        7,
        generation=2,
        removable=Pair(300, 400),
        fence_below=20,
        planned_high_watermark=500,
    ),
    PartitionData(TOPIC, 4, ErrorCode.not_leader_or_follower),
    PartitionData(TOPIC, 5, ErrorCode.none, LeaderEpoch(5), LOG, 950, 900, 10, 1100, history=[]),
]


def joined(partitions: list[PartitionData]) -> bytes:
    return b"".join(bytes(part) for part in encode_answer(partitions))  # type: ignore[arg-type]


def decoded(data: bytes) -> list[PartitionData]:
    return decode_answer(memoryview(data))


def test_a_request_comes_back_as_it_was() -> None:
    assert decode_request(encode_request(REQUEST)) == REQUEST


def test_an_answer_comes_back_as_it_was() -> None:
    found = [one._replace(records=[bytes(part) for part in one.records]) for one in decoded(joined(NEWS))]  # type: ignore[arg-type]
    assert found == [one._replace(records=list(one.records)) for one in NEWS]


@pytest.mark.parametrize("cut", range(1, len(encode_request(REQUEST)) + 1))
def test_a_request_cut_short_is_refused(cut: int) -> None:
    with pytest.raises(ValueError, match="ReplicaFetch"):
        decode_request(encode_request(REQUEST)[:-cut])


def test_an_answer_cut_short_is_refused() -> None:
    """With the one error that whoever asked expects of a peer that is not ours."""
    whole = joined(NEWS)
    for cut in range(1, len(whole) + 1):
        with pytest.raises(ValueError, match="ReplicaFetch"):
            decoded(whole[:-cut])


def test_messages_with_something_behind_them_are_refused() -> None:
    with pytest.raises(ValueError, match="ReplicaFetch"):
        decoded(joined(NEWS) + b"\0")
    with pytest.raises(ValueError, match="ReplicaFetch"):
        decode_request(encode_request(REQUEST) + b"\0")


FIXED_BYTES = len(joined(NEWS[1:2]))
"""Of an answer about one partition, before its epochs and records. The last two fields count those."""


@pytest.mark.parametrize("count", [-1, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("position", [0, FIXED_BYTES - 8, FIXED_BYTES - 4], ids=["partitions", "epochs", "bytes"])
def test_counts_that_cannot_be_are_refused(position: int, count: int) -> None:
    whole = bytearray(joined(NEWS[:1]))
    struct.pack_into(">i", whole, position, count)
    with pytest.raises(ValueError, match="ReplicaFetch"):
        decoded(bytes(whole))
