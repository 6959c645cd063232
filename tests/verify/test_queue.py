from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from sexton.history.op import F, Op, Poll, Record, Send, Type
from sexton.verify.generator import Ask
from sexton.verify.workloads.queue import Queue, QueueOptions, topic_of


def asked(options: QueueOptions, count: int, seed: int = 1) -> list[Ask]:
    queue = Queue(options, random.Random(seed))
    return [queue.next(process=index % 5) for index in range(count)]


def sends(asks: list[Ask]) -> list[Send]:
    return [each for ask in asks for each in ask.micro_ops if isinstance(each, Send)]


def test_a_process_is_given_something_to_read_before_anything_else() -> None:
    queue = Queue(QueueOptions(), random.Random(1))
    for process in range(20):
        assert queue.next(process).f == F.ASSIGN


def test_who_could_not_be_given_logs_is_given_some_again() -> None:
    queue = Queue(QueueOptions(), random.Random(1))
    ask = queue.next(0)
    queue.completed(Op(1, 0, 0, Type.FAIL, ask.f, logs=ask.logs))
    assert queue.next(0).f == F.ASSIGN


def test_without_transactions_an_operation_is_one_send_or_one_poll() -> None:
    asks = asked(QueueOptions(), 2000)
    kinds = Counter(ask.f for ask in asks)
    assert set(kinds) == {F.SEND, F.POLL, F.ASSIGN}
    assert abs(kinds[F.SEND] - kinds[F.POLL]) < 200
    assert all(len(ask.micro_ops) == 1 for ask in asks if ask.f != F.ASSIGN)


def test_transactions_mix_and_some_are_aborted_on_purpose() -> None:
    asks = [ask for ask in asked(QueueOptions(is_transactional=True), 2000) if ask.micro_ops]
    assert {len(ask.micro_ops) for ask in asks} == {1, 2, 3, 4}
    assert {ask.f for ask in asks} == {F.SEND, F.POLL, F.TXN}
    aborted = [ask for ask in asks if "abort_after" in ask.ext]
    assert all(0 <= ask.ext["abort_after"] <= len(ask.micro_ops) for ask in aborted)
    assert any(ask.ext["abort_after"] == len(ask.micro_ops) for ask in aborted), "just before the commit, too"


def test_a_transaction_may_be_aborted_at_each_of_its_steps() -> None:
    options = QueueOptions(is_transactional=True, abort_p=0.1)
    asks = [ask for ask in asked(options, 20_000) if len(ask.micro_ops) == 4]
    aborted = Counter(ask.ext.get("abort_after") for ask in asks)
    for step in range(5):
        assert aborted[step] / len(asks) == pytest.approx(0.1 * 0.9**step, rel=0.3)
    assert F.POLL in {ask.f for ask in asks}, "who only polls has a transaction, too"


def test_no_value_is_sent_twice() -> None:
    values = [send.value for send in sends(asked(QueueOptions(is_transactional=True), 5000))]
    assert len(values) == len(set(values)) > 3000


def test_a_full_log_is_left_for_a_new_one() -> None:
    per_log = Counter(send.log for send in sends(asked(QueueOptions(sends_per_log_max=16), 4000)))
    assert max(per_log.values()) == 16
    assert len(per_log) > 80


def test_of_neighbouring_logs_one_is_used_twice_as_often() -> None:
    per_log = Counter(send.log for send in sends(asked(QueueOptions(sends_per_log_max=10**9), 40_000)))
    assert per_log[9] / per_log[8] == pytest.approx(2, rel=0.1)
    assert per_log[8] / per_log[7] == pytest.approx(2, rel=0.1)


def test_a_log_with_unread_records_is_given_to_readers_even_after_it_was_left() -> None:
    queue = Queue(QueueOptions(sends_per_log_max=1), random.Random(1))
    while 0 not in queue.logs:
        queue.next(0)
    queue.completed(Op(1, 0, 0, Type.OK, F.SEND, (Send(0, 1, offset=7),)))
    given = [ask for ask in (queue.next(process) for process in range(1, 200)) if 0 in ask.logs]
    assert 40 < len(given) < 100
    queue.completed(Op(3, 0, 0, Type.OK, F.POLL, (Poll({0: [Record(7, 1)]}),)))
    assert not any(0 in queue.next(process).logs for process in range(200, 400))


def test_subscribing_and_assigning_are_chosen_among_those_allowed() -> None:
    both = replace(QueueOptions(), uses_subscribe=True)
    assert {ask.f for ask in asked(both, 2000)} >= {F.ASSIGN, F.SUBSCRIBE}
    assert F.ASSIGN not in {ask.f for ask in asked(replace(both, uses_assign=False), 2000)}


def test_final_reads_go_beyond_all_that_anybody_knows_to_be_written() -> None:
    queue = Queue(QueueOptions(), random.Random(1))
    while not {8, 9} <= queue.logs.keys():
        queue.next(0)
    queue.completed(Op(1, 0, 0, Type.OK, F.SEND, (Send(9, 1, offset=4),)))
    queue.completed(Op(3, 0, 0, Type.FAIL, F.SEND, (Send(9, 2, offset=6),)))
    queue.completed(Op(5, 0, 0, Type.INFO, F.POLL, (Poll({9: [Record(5, 3)], 8: []}),)))
    final = queue.final()
    assert final.offsets[9] == 6, "an unknown send proves nothing, a poll does"
    assert final.offsets[8] == 0
    assert final.logs == tuple(final.offsets)


def test_two_logs_share_a_topic() -> None:
    assert [topic_of(log) for log in (0, 1, 2)] == [("t0", 0), ("t0", 1), ("t1", 0)]
