"""What each workload asks for, without any client."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from sexton.history.op import F, Op, Poll, Record, Send, Span, Type
from sexton.verify.generator import Ask, Workload
from sexton.verify.workloads.abort import ENDINGS, FILL, Abort
from sexton.verify.workloads.append import Append, AppendOptions
from sexton.verify.workloads.common import Parts
from sexton.verify.workloads.eos import Eos, EosOptions
from sexton.verify.workloads.known import SUBSCRIBE, WORKLOADS, Asked
from sexton.verify.workloads.mixed import Mixed
from sexton.verify.workloads.queue import Queue, QueueOptions

PROCESSES = 6


def made(name: str) -> Workload:
    return WORKLOADS[name].make(Asked(is_transactional=True), random.Random(1))


def completed(ask: Ask, process: int, type_: Type = Type.OK, index: int = 0) -> Op:
    return Op(index, 0, process, type_, ask.f, ask.micro_ops, ask.logs, ext=ask.ext)


def answered(workload: Workload, count: int) -> list[tuple[int, Ask]]:
    """All is ok, and nobody is given anything."""
    found = []
    for index in range(count):
        process = index % PROCESSES
        workload.needs(process)
        ask = workload.next(process)
        workload.completed(completed(ask, process, index=index))
        found.append((process, ask))
    return found


@pytest.mark.parametrize("name", WORKLOADS)
def test_each_log_that_is_named_can_be_made_and_is_read_at_the_end(name: str) -> None:
    workload = made(name)
    asks = [ask for _, ask in answered(workload, 2_000)]
    sent = {each.log for ask in asks for each in ask.micro_ops if isinstance(each, Send)}
    named = sent.union(*(ask.logs for ask in asks))
    for log in named:
        assert workload.log(log).partition < workload.topic(log).partitions
    assert sent <= set(workload.logs)
    assert sent <= set(workload.final().logs)


@pytest.mark.parametrize("name", WORKLOADS)
def test_no_value_is_sent_twice_to_a_log(name: str) -> None:
    asks = [ask for _, ask in answered(made(name), 2_000)]
    sent = Counter((each.log, each.value) for ask in asks for each in ask.micro_ops if isinstance(each, Send))
    assert set(sent.values()) == {1}


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_topic_is_made_in_one_way(name: str) -> None:
    workload = made(name)
    answered(workload, 2_000)
    topics = {(each.topic, str(workload.topic(log))) for log, each in workload.logs.items()}
    assert len(topics) == len({topic for topic, _ in topics})


def test_the_part_of_who_is_gone_goes_to_its_successor() -> None:
    parts = Parts(("sends", "polls"))
    assert [parts.of(process) for process in (0, 1)] == ["sends", "polls"]
    parts.completed(Op(0, 0, 0, Type.INFO, F.CRASH))
    assert parts.of(2) == "sends"
    assert parts.of(1) == "polls"


def abort_asks(workload: Abort, process: int = 0) -> Ask:
    """The first transaction of a process."""
    for _ in range(FILL + 1):
        ask = workload.next(process)
        assert ask.f in (F.SEND, F.ASSIGN, F.SUBSCRIBE)
        workload.completed(completed(ask, process))
    return workload.next(process)


def polled(ask: Ask, offsets: list[int]) -> Op:
    log = next(each.log for each in ask.micro_ops if isinstance(each, Send))
    records = Poll({log: [Record(offset, offset) for offset in offsets]})
    type_ = Type.FAIL if "abort_after" in ask.ext else Type.OK
    return replace(completed(ask, 0, type_), micro_ops=(records, ask.micro_ops[1]))


@pytest.mark.parametrize(
    ("second", "where"),
    [([8, 9], "advance"), ([4, 5], "rewind"), ([0, 1], "rewind-further"), ([6, 7], "other")],
)
def test_where_a_consumer_stands_after_an_abort_is_counted(second: list[int], where: str) -> None:
    workload = Abort(random.Random(1))
    ask = abort_asks(workload)
    workload.completed(polled(ask, [0, 1, 2, 3]))
    ask = workload.next(0)
    assert "abort_after" in ask.ext, ENDINGS
    workload.completed(polled(ask, [4, 5, 6, 7]))
    workload.completed(polled(workload.next(0), second))
    assert workload.seen == {f"{where}, not rebalanced": 1}


def test_a_full_list_is_left_for_a_new_one_that_is_read_at_the_end() -> None:
    workload = Append(AppendOptions(appends_per_list_max=8), random.Random(1))
    answered(workload, 500)
    assert len(workload.logs) > 20
    assert set(workload.final().logs) == set(workload.logs)


def test_a_copier_makes_one_output_of_each_input_that_it_was_given() -> None:
    workload = Eos(EosOptions(abort_p=0), random.Random(1))
    copier = next(process for process in range(PROCESSES) if workload.next(process).f == F.SUBSCRIBE)
    poll = workload.next(copier)
    assert poll.f == F.POLL
    given = (Poll({1: [Record(0, 70), Record(1, 71)], 2: [Record(0, 70)]}),)
    workload.completed(replace(completed(poll, copier), micro_ops=given))
    copy = workload.next(copier)
    assert copy.f == F.EOS
    sends = [each for each in copy.micro_ops if isinstance(each, Send)]
    assert [(each.log, each.key) for each in sends] == [(5, 70), (5, 71), (6, 70)]
    assert workload.log(5).eos_input == (1,)
    workload.completed(completed(copy, copier))
    assert workload.next(copier).f == F.POLL


def test_mixed_tells_each_of_its_workloads_what_was_its_own() -> None:
    workload = Mixed({name: Queue(QueueOptions(), random.Random(1)) for name in ("a", "b")})
    asks = answered(workload, 200)
    of_a = {each.log % 2 for process, ask in asks if process == 0 for each in ask.micro_ops if isinstance(each, Send)}
    assert len(of_a) == 1, "a process has logs of one of them only"
    assert {workload.log(log).topic for log in (0, 1)} == {"a-t0", "b-t0"}
    log = next(iter(workload.logs))
    op = Op(9, 0, 0, Type.OK, F.POLL, (Poll({log: [Record(41, 5)]}),), spans={log: Span(0, 42)})
    workload.completed(op)
    assert workload.final().offsets[log] == 42


def test_every_second_member_is_static_and_its_successor_has_its_name() -> None:
    workload = made("groups")
    names = {process: workload.needs(process).consumer.get("group.instance.id") for process in range(PROCESSES)}
    static = {process: name for process, name in names.items() if name}
    assert len(set(static.values())) == len(static) >= 2
    gone = next(iter(static))
    workload.completed(Op(0, 0, gone, Type.INFO, F.CRASH))
    assert workload.needs(gone + PROCESSES).consumer["group.instance.id"] == static[gone]


def test_of_six_processes_mixed_has_who_sends_and_who_reads_in_each_workload() -> None:
    workload = made("mixed")
    asks = answered(workload, 600)
    sent = {
        workload.log(each.log).topic.partition("-")[0]
        for _, ask in asks
        for each in ask.micro_ops
        if isinstance(each, Send)
    }
    joined = {workload.log(log).topic.partition("-")[0] for _, ask in asks if ask.f == F.SUBSCRIBE for log in ask.logs}
    assert sent == {"queue", "table", "eos", "groups"}
    assert joined == {"eos", "groups"}


@pytest.mark.parametrize("name", ["groups", "eos", "queue"])
def test_seeds_differ_in_which_members_speak_the_new_protocol(name: str) -> None:
    shares = set()
    for seed in range(20):
        asked = Asked(is_transactional=True, ways=(SUBSCRIBE,))
        workload = WORKLOADS[name].make(asked, random.Random(seed))
        needs = [workload.needs(process) for process in range(40) if workload.next(process).f == F.SUBSCRIBE]
        speaks = {each.speaks_kip848 for each in needs}
        assert {each.has_generation for each in needs} == {speaks == {False}}
        shares.add(tuple(sorted(speaks)))
    assert shares == {(False,), (True,), (False, True)}


def test_who_assigns_logs_to_itself_needs_no_protocol_of_groups() -> None:
    assert not any(made("queue").needs(process).speaks_kip848 for process in range(PROCESSES))
