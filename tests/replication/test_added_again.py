"""A replica that is added, or removed and added again faster than everybody hears of it, ends up in sync."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from sexton.adapters.clock import SystemClock
from sexton.metadata.incarnations import is_added_again, marked_as_missing
from sexton.ports.metastore import PartitionRow
from sexton.protocol.errors import ErrorCode
from sexton.replication import messages
from sexton.replication.messages import FetchPartition, FetchRequest
from sexton.replication.session import FollowerSession
from sexton.types import LeaderEpoch
from tests.replication.answers import answered

TOPIC = uuid.UUID(int=1)
FIRST, SECOND = uuid.UUID(int=2, version=4), uuid.UUID(int=3, version=4)
ROW = PartitionRow(TOPIC, 0, (1, 2), (1, 2), 1, LeaderEpoch(5), 7, incarnations={2: FIRST})


def test_a_follower_that_knows_of_its_place_before_the_leader_does_is_told_to_say_again_what_it_holds() -> None:
    """It is silent once it has said everything: what the leader did not take in would be missing for good."""
    replica = SimpleNamespace(row=ROW, check_epoch=lambda epoch: None, check_serving_as_leader=lambda: None)
    session = FollowerSession(cast(Any, SimpleNamespace(by_id=lambda topic_id, partition: replica)), SystemClock())
    request = FetchRequest(3, 1, 0, 1000, 1000, [FetchPartition(TOPIC, 0, True, LeaderEpoch(5), 0, LeaderEpoch(-1), 0)])
    parts = asyncio.run(answered(session, request))
    (fetched,) = messages.decode_answer(memoryview(b"".join(cast(list[bytes], parts))))
    assert fetched.error is ErrorCode.unknown_leader_epoch


def test_a_replica_whose_log_has_a_new_id_starts_again_from_an_empty_one() -> None:
    added_again = replace(ROW, partition_epoch=9, incarnations={2: SECOND})
    assert is_added_again(added_again, ROW, 2)
    assert not is_added_again(ROW, added_again, 2), "the older row is only late"
    assert not is_added_again(replace(ROW, partition_epoch=8), ROW, 2)
    assert not is_added_again(replace(ROW, partition_epoch=8, incarnations={}), ROW, 2)
    assert not is_added_again(replace(ROW, partition_epoch=8, incarnations={2: marked_as_missing(FIRST)}), ROW, 2)
