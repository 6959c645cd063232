"""Small pure parts: partitions of keys, shares of a group, and what is believed of the cluster."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sexton.client.groups import (
    assign_ranges,
)
from sexton.client.metadata import Metadata
from sexton.client.partitioner import murmur2
from sexton.protocol.errors import ErrorCode


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_keys_are_hashed_as_by_the_java_client(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected & 0xFFFFFFFF


@given(st.dictionaries(st.text(min_size=1, max_size=3), st.integers(0, 20), max_size=4), st.integers(1, 6))
def test_every_partition_has_one_owner_and_shares_differ_by_one_at_most(counts: dict[str, int], members: int) -> None:
    subscriptions = {f"member-{number}": list(counts) for number in range(members)}
    assigned = assign_ranges(subscriptions, counts)
    for topic, count in counts.items():
        shares = [parts.get(topic, []) for parts in assigned.values()]
        assert sorted(each for share in shares for each in share) == list(range(count))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_a_topic_goes_only_to_those_who_asked_for_it() -> None:
    assert assign_ranges({"a": ["x"], "b": ["x", "y"]}, {"x": 3, "y": 1}) == {
        "a": {"x": [0, 1]},
        "b": {"x": [2], "y": [0]},
    }


def answer(topic_id: uuid.UUID, leader: int, epoch: int, code: int = 0) -> Any:
    part = SimpleNamespace(
        partition_index=0,
        leader_id=leader,
        leader_epoch=epoch,
        replica_nodes=(1, 2),
        isr_nodes=(1,),
        offline_replicas=(),
    )
    topic = SimpleNamespace(name="t", error_code=code, topic_id=topic_id, is_internal=False, partitions=(part,))
    return SimpleNamespace(topics=(topic,), brokers=(), cluster_id="c", controller_id=1)


FIRST, SECOND = uuid.UUID(int=1), uuid.UUID(int=2)


def leader_of(metadata: Metadata) -> int:
    info = metadata.leader("t", 0)
    return -2 if info is None else info.leader


def test_a_broker_that_lags_does_not_bring_an_old_leader_back() -> None:
    newer = Metadata().merged(answer(FIRST, 2, 5), is_complete=False)
    assert leader_of(newer.merged(answer(FIRST, 1, 4), is_complete=False)) == 2
    assert leader_of(newer.merged(answer(FIRST, 3, 6), is_complete=True)) == 3


def test_a_topic_that_was_made_anew_starts_over() -> None:
    old = Metadata().merged(answer(FIRST, 2, 5), is_complete=False)
    assert leader_of(old.merged(answer(SECOND, 1, 0), is_complete=False)) == 1


def test_a_topic_that_is_gone_is_forgotten() -> None:
    old = Metadata().merged(answer(FIRST, 2, 5), is_complete=False)
    gone = old.merged(answer(FIRST, 0, 0, ErrorCode.unknown_topic_or_partition), is_complete=False)
    assert leader_of(gone) == -2
    assert gone.errors == {"t": ErrorCode.unknown_topic_or_partition}
