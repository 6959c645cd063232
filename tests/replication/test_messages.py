"""ReplicaFetch there and back, cut short, and with nonsense."""

from __future__ import annotations

import struct
import uuid

import pytest

from sexton.protocol.errors import ErrorCode
from sexton.records.checkpoints import EpochEntry
from sexton.replication.messages import (
    FetchRequest,
    Held,
    News,
    decode_answer,
    decode_request,
    encode_answer,
    encode_request,
)

TOPIC = uuid.UUID(int=77)
REQUEST = FetchRequest(
    2, 9, 500, 1 << 20, 1 << 18, [Held(TOPIC, 3, True, 5, 1000, 4, 0xFFFFFFFF), Held(TOPIC, 4, False, -1, -1, -1, 0)]
)
NEWS = [
    News(TOPIC, 3, ErrorCode.none, 5, 900, 10, 1100, [EpochEntry(0, 0), EpochEntry(5, 990)], [b"records"], 7),
    News(TOPIC, 4, ErrorCode.not_leader_or_follower),
]


def joined(news: list[News]) -> memoryview:
    return memoryview(b"".join(bytes(part) for part in encode_answer(news)))  # type: ignore[arg-type]


def test_a_request_comes_back_as_it_was() -> None:
    assert decode_request(encode_request(REQUEST)) == REQUEST


def test_an_answer_comes_back_as_it_was() -> None:
    first, second = decode_answer(joined(NEWS))
    assert bytes(first.records[0]) == b"records"  # type: ignore[arg-type]
    assert (first.high_watermark, first.log_start_offset, first.log_end_offset) == (900, 10, 1100)
    assert first.history == NEWS[0].history
    assert second.error is ErrorCode.not_leader_or_follower
    assert second.history is None


@pytest.mark.parametrize("cut", range(1, 40))
def test_a_request_cut_short_is_refused(cut: int) -> None:
    with pytest.raises((ValueError, struct.error)):
        decode_request(encode_request(REQUEST)[:-cut])


def test_an_answer_cut_short_is_refused() -> None:
    whole = joined(NEWS)
    for cut in range(1, len(whole)):
        with pytest.raises((ValueError, struct.error)):
            decode_answer(whole[:-cut])
