from __future__ import annotations

import random
from collections import Counter

from sexton.history.op import F, Op, Poll, Record, Send, Type
from sexton.verify.generator import NTH_REPLICA
from sexton.verify.workloads.table import Table, TableOptions


def table(seed: int = 1, **options: bool) -> Table:
    return Table(TableOptions(**options), random.Random(seed))


def test_it_writes_deletes_and_reads_in_every_way() -> None:
    one = table()
    asks = [one.next(index % 5) for index in range(20_000)]
    kinds = Counter(ask.f for ask in asks)
    assert set(kinds) == {F.ASSIGN, F.SEND, F.TXN, F.POLL, F.TABLE, F.SCAN}
    sends = [each for ask in asks for each in ask.micro_ops if isinstance(each, Send)]
    assert len({send.value for send in sends}) == len(sends)
    assert 0.15 < sum(send.is_tombstone for send in sends) / len(sends) < 0.25
    assert {send.log for send in sends} == set(one.logs)
    assert any("abort_after" in ask.ext for ask in asks if ask.f == F.TXN)
    assert {ask.ext[NTH_REPLICA] for ask in asks if ask.f == F.SCAN} == {0, 1, 2}


def test_some_keys_are_written_much_more_often_than_others() -> None:
    one = table()
    asks = [one.next(0) for _ in range(20_000)]
    keys = Counter(each.key for ask in asks for each in ask.micro_ops if isinstance(each, Send))
    assert set(keys) == set(range(50))
    assert keys[0] > 10 * keys[49]


def test_without_transactions_there_is_none() -> None:
    one = table(is_transactional=False)
    assert not any(one.next(0).f == F.TXN for _ in range(1000))


def test_seeds_differ_in_how_long_tombstones_stay() -> None:
    assert {log.delete_retention_ms for seed in range(20) for log in table(seed).logs.values()} == {0, 2_000, 60_000}
    kept = table(3)
    assert kept.topic(0).settings["delete.retention.ms"] == str(kept.logs[0].delete_retention_ms)


def test_the_end_is_read_beyond_all_that_was_acknowledged_or_seen() -> None:
    one = table()
    one.completed(Op(1, 0, 0, Type.OK, F.SEND, (Send(1, 9, offset=4, key=3),)))
    one.completed(Op(3, 0, 0, Type.FAIL, F.POLL, (Poll({2: [Record(7, 1, 2)]}),)))
    assert one.final().offsets == {0: 0, 1: 5, 2: 8, 3: 0}


def test_seeds_differ_in_whether_old_records_may_be_deleted_as_well() -> None:
    policies = {one.topic(0).settings["cleanup.policy"]: one.logs[0].is_retained for one in map(table, range(20))}
    assert policies == {"compact": False, "compact,delete": True}
    assert not any(table(seed, forgets_at_once=True).logs[0].is_retained for seed in range(20))


def test_some_transactions_are_late_and_some_are_gone_on_with_by_a_zombie() -> None:
    one = table()
    asks = [ask for ask in (one.next(0) for _ in range(20_000)) if ask.f == F.TXN]
    late = [ask for ask in asks if "late_ms" in ask.ext]
    fenced = [ask for ask in asks if "succeeded_after" in ask.ext]
    assert 0.01 < len(late) / len(asks) < 0.03
    assert 0.02 < len(fenced) / len(asks) < 0.06
    assert all(1 <= ask.ext["succeeded_after"] <= len(ask.micro_ops) for ask in fenced)


def test_some_clients_send_without_idempotence() -> None:
    one = table()
    assert {one.needs(process).has_plain_producer for process in range(50)} == {True, False}
