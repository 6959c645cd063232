from __future__ import annotations

import random
from collections import Counter

from sexton.history.op import F, Op, Poll, Type
from sexton.verify.generator import NS, Ask, Generator, Processes, Question, Wait


class Polls:
    """A workload that asks for nothing else."""

    def next(self, process: int) -> Ask:
        return Ask(F.POLL, (Poll(),))


def generator(**options: int) -> Generator:
    return Generator(Polls(), random.Random(1), rate=100, end_ns=10 * NS, **options)


def run(one: Generator, step_ns: int, free: list[int]) -> list[tuple[int, Question]]:
    asked = []
    for now_ns in range(0, 20 * NS, step_ns):
        answer = one.next(now_ns, free)
        if answer is None:
            break
        if isinstance(answer, Question):
            asked.append((now_ns, answer))
    return asked


def test_it_asks_as_often_as_it_is_told_and_every_process() -> None:
    asked = run(generator(), 1_000_000, [0, 1, 2])
    assert 800 < len(asked) < 1200
    assert set(Counter(question.process for _, question in asked)) == {0, 1, 2}
    assert max(now_ns for now_ns, _ in asked) < 10 * NS


def test_who_could_not_keep_up_is_not_asked_faster_later() -> None:
    one = generator()
    one.next(0, [0])
    assert one.next(5 * NS, []) == Wait(10 * NS), "nobody is free for five seconds"
    asked = [one.next(5 * NS, [0]) for _ in range(3)]
    assert sum(isinstance(answer, Question) for answer in asked) <= 2


def test_clients_crash_now_and_then() -> None:
    asked = run(generator(crash_every_ns=NS // 2), 1_000_000, [0, 1, 2])
    assert 10 < sum(question.ask.f == F.CRASH for _, question in asked) < 40
    assert not any(question.ask.f == F.CRASH for _, question in run(generator(), 1_000_000, [0]))


def test_one_seed_asks_the_same() -> None:
    assert run(generator(), 1_000_000, [0, 1, 2]) == run(generator(), 1_000_000, [0, 1, 2])


def test_a_process_whose_outcome_is_unknown_is_never_asked_again() -> None:
    processes = Processes(3)
    for process in (0, 1, 2):
        processes.invoked(process)
    assert list(processes.free) == []
    for process, type_ in ((0, Type.OK), (1, Type.INFO), (2, Type.FAIL)):
        processes.completed(Op(0, 0, process, type_, F.POLL))
    assert processes.free == [0, 4, 2]
    assert processes.thread_of(4) == 1
