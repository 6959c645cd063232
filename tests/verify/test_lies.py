"""What each lie makes of a request or an answer. Whether it is found out is in test_selftest.py."""

from __future__ import annotations

import struct
from pathlib import Path

import kio.schema.offset_commit.v7.request as committing
import kio.schema.txn_offset_commit.v3.request as copying
import pytest
from crc32c import crc32c
from kio.schema.types import GroupId, ProducerId, TopicName, TransactionalId
from kio.static.primitive import i16, i32, i64

from sexton.checker.planted import correct
from sexton.checker.reference import judge
from sexton.checker.sabotage import sabotage
from sexton.checker.verdict import Judgement
from sexton.harness.proxy import ADD_PARTITIONS, END_TXN, Request
from sexton.verify import run as verifying
from sexton.verify import selftest
from sexton.verify.lies import STALE_S, Batch, DropsCommits, LateCommits, StaleWatermarks, UnfencedCopiers
from sexton.verify.plan import Plan
from sexton.verify.run_history import Listener
from tests.verify.test_late import Clock, framed, request


def test_a_batch_with_another_number_is_whole() -> None:
    body = bytes(31) + struct.pack(">qhi", 7, 2, 40) + struct.pack(">i", 1) + b"records"
    batch = Batch(struct.pack(">qi", 5, len(body)) + body)
    assert batch.producer == (7, 2, 40)
    moved = batch.numbered(41)
    assert moved.producer == (7, 2, 41)
    assert struct.unpack_from(">I", moved.data, 17) == (crc32c(moved.data[21:]),)
    assert (len(moved.data), moved.data[:17], moved.data[57:]) == (len(batch.data), batch.data[:17], batch.data[57:])


def test_a_commit_comes_again_when_the_next_transaction_has_its_second_partition() -> None:
    liar = LateCommits()
    add, end = request(ADD_PARTITIONS, "one"), request(END_TXN, "one")
    assert [*liar.before(add), *liar.before(add)] == [], "nothing was committed yet"
    assert list(liar.before(end)) == []
    assert list(liar.before(add)) == []
    assert list(liar.before(request(ADD_PARTITIONS, "another"))) == []
    assert list(liar.before(add)) == [end]
    assert list(liar.before(add)) == [], "once"


def commit_of(offset: int) -> Request:
    partition = committing.OffsetCommitRequestPartition(
        partition_index=i32(0), committed_offset=i64(offset), committed_leader_epoch=i32(-1), committed_metadata=""
    )
    return framed(
        committing.OffsetCommitRequest(
            group_id=GroupId("g"),
            generation_id_or_member_epoch=i32(1),
            member_id="m",
            group_instance_id=None,
            topics=(committing.OffsetCommitRequestTopic(name=TopicName("t"), partitions=(partition,)),),
        )
    )


def test_every_third_commit_says_what_was_committed_before() -> None:
    liar = DropsCommits()
    told = [liar.request(commit_of(offset)).body() for offset in (10, 20, 30, 40)]
    assert [body.topics[0].partitions[0].committed_offset for body in told] == [10, 20, 20, 40]


def test_a_copier_that_is_not_fenced_names_nobody() -> None:
    body = copying.TxnOffsetCommitRequest(
        transactional_id=TransactionalId("one"),
        group_id=GroupId("g"),
        producer_id=ProducerId(1),
        producer_epoch=i16(0),
        generation_id=i32(5),
        member_id="m",
        group_instance_id=None,
        topics=(),
    )
    told = UnfencedCopiers().request(framed(body)).body()
    assert (told.generation_id, told.member_id, told.producer_id) == (-1, "", 1)


def test_a_stale_end_is_that_of_five_seconds_before() -> None:
    clock = Clock()
    liar = StaleWatermarks(clock)
    found = []
    for second in range(12):
        clock.now_s = float(second)
        found.append(liar.then((0, "t", 0), 100 + second))
    late = int(STALE_S)
    assert found == [100] * late + [100 + second - late for second in range(late, 12)]


class Runs:
    """In the place of real ones: each sees what its turn says."""

    def __init__(self, *planted: str) -> None:
        self.planted = list(planted)
        self.seeds: list[int] = []

    def __call__(self, wanted: verifying.Wanted, plan: Plan, listener: Listener) -> Judgement:
        self.seeds.append(plan.seed)
        name = self.planted.pop(0)
        history = sabotage(name, 1).history if name else correct(1)
        return judge(history.ops, history.run)


BAD = selftest.Known("kafka-3.9.2", Plan(seed=1, faults=("kill",)), shows=frozenset({"lost-write"}))
GOOD = selftest.Known("sexton", Plan(seed=1, faults=("kill",)))


@pytest.mark.parametrize(
    ("known", "planted", "is_good"),
    [
        (BAD, ["lost-write"], True),
        (BAD, ["", "G1a", "lost-write"], True),
        (BAD, ["", "", "G1a"], False),
        (GOOD, [""], True),
        (GOOD, ["lost-write"], False),
    ],
)
def test_what_is_bad_has_three_tries_to_show_it_and_what_is_good_has_one(
    known: selftest.Known, planted: list[str], is_good: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = Runs(*planted)
    monkeypatch.setattr(verifying, "run", runs)
    (result,) = selftest.systems(tmp_path, selftest.Silent(), [known])
    assert result.is_good is is_good
    assert runs.seeds == list(range(1, len(planted) + 1))
    assert (not is_good) == bool(result.wrong)


def test_a_name_tells_systems_apart() -> None:
    names = [each.name for each in selftest.SYSTEMS]
    assert len(set(names)) == len(names)
    assert "kafka-3.9.2: late, end-txn, java-3.9.2" in names
    assert "kafka-4.3.0: kill, partition, acks 1" in names
