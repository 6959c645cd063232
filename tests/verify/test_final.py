from __future__ import annotations

from sexton.history.op import Ext, F, Op, Type
from sexton.verify.final import ReplicaPasses
from sexton.verify.generator import Ask


def passes() -> ReplicaPasses:
    return ReplicaPasses({0: (1, 2), 4: (2, 3)}, {0: 7, 4: 9})


def completed(ask: Ask, process: int, type_: Type) -> Op:
    return Op(1, 0, process, type_, ask.f, logs=ask.logs, ext=ask.ext)


def test_each_broker_is_asked_once_for_each_log_that_it_has() -> None:
    some = passes()
    asks = [ask for process in range(5) if (ask := some.next(process)) is not None]
    assert [(ask.ext[Ext.REPLICA], ask.logs) for ask in asks] == [(1, (0,)), (2, (0,)), (2, (4,)), (3, (4,))]
    assert {ask.f for ask in asks} == {F.SCAN}
    assert asks[0].offsets == {0: 7}
    assert some.left == [(0, 1), (0, 2), (4, 2), (4, 3)], "none has answered yet"
    for process, ask in enumerate(asks):
        some.completed(completed(ask, process, Type.OK))
    assert not some.left


def test_a_replica_that_could_not_be_read_is_asked_again() -> None:
    some = passes()
    first = some.next(0)
    assert first is not None
    some.completed(completed(first, 0, Type.FAIL))
    again = [some.next(process) for process in range(4)]
    assert first in again
