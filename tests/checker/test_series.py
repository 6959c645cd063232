from __future__ import annotations

from sexton.checker.positions import realtime_lags
from sexton.checker.series import Resumed, Unseen, after_aborts, consume_counts, unseen_over_time
from sexton.checker.view import View, prepare
from sexton.history.op import F, MicroOp, Op, Run, Type
from tests.checker.story import Story, poll, send


def _view(*calls: tuple[int, str, tuple[MicroOp, ...], tuple[int, ...]]) -> View:
    """Each begins and ends in a nanosecond."""
    ops: list[Op] = []
    for process, f, micro_ops, logs in calls:
        for type_ in (Type.INVOKE, Type.OK):
            answered = micro_ops if type_ is Type.OK else ()
            ops.append(Op(len(ops), len(ops), process, type_, f, answered, logs))
    return prepare(ops, Run())


def test_lag_is_counted_from_when_the_last_offset_seen_was_known_not_to_be_the_last() -> None:
    view = _view(
        (0, F.ASSIGN, (), (0,)),
        (0, F.POLL, (poll(0),), ()),  # nothing is there yet
        (0, F.SEND, (send(0, 1, 0),), ()),  # at 5
        (0, F.POLL, (poll(0),), ()),  # begins at 6
        (1, F.SEND, (send(0, 3, 2), send(0, 4, 3)), ()),  # at 9
        (0, F.POLL, (), ()),  # begins at 10, still at nothing
        (0, F.POLL, (poll(0, (0, 1), (1, 2)),), ()),  # offset 1 is old since 9
        (0, F.ASSIGN, (), (0, 1)),
        (0, F.POLL, (poll(0),), ()),  # begins at 16, and has kept its place
        (0, F.ASSIGN, (), (1,)),
        (0, F.ASSIGN, (), (0,)),
        (0, F.POLL, (poll(0),), ()),  # begins at 22, at the beginning again
        (0, F.POLL, (poll(0, (0, 1), (1, 2)), poll(0, (2, 3), (3, 4))), ()),
    )
    lags = [(lag.call.begin_ns, lag.log, lag.lag_ns) for lag in realtime_lags(view)]
    assert lags == [(2, 0, 0), (6, 0, 1), (10, 0, 5), (12, 0, 3), (16, 0, 7), (16, 1, 0), (22, 0, 17), (24, 0, 0)]


def test_unseen_falls_as_records_are_polled() -> None:
    view = _view(
        (0, F.POLL, (poll(1),), ()),
        (0, F.TXN, (send(0, 1, 0), send(0, 2, 1)), ()),
        (0, F.POLL, (poll(0, (0, 1)),), ()),
        (0, F.POLL, (poll(0, (0, 1), (1, 2)),), ()),
    )
    assert list(unseen_over_time(view)) == [Unseen(1, {}), Unseen(3, {0: 2}), Unseen(5, {0: 1}), Unseen(7, {0: 0})]


def test_what_was_polled_before_its_acknowledgement_was_never_unseen() -> None:
    view = _view((0, F.POLL, (poll(0, (0, 1)),), ()), (1, F.SEND, (send(0, 1, 0),), ()))
    assert [unseen.counts for unseen in unseen_over_time(view)] == [{0: 0}, {0: 0}]


def test_who_subscribes_is_counted_and_who_assigns_is_not() -> None:
    story = Story()
    story.call(0, F.SUBSCRIBE, logs=(0,))
    story.call(1, F.ASSIGN, logs=(0,))
    for process in (0, 0, 1, 1):
        story.polled(process, poll(0, (0, 7)))
    story.polled(0, poll(0, (1, 8)))
    counts = consume_counts(prepare(story.ops, story.run))
    assert counts.distribution == {1: 1, 2: 1}
    assert counts.repeated == [(0, 0, 7, 2)]


def test_where_a_consumer_goes_on_after_an_abort() -> None:
    story = Story()
    story.call(0, F.TXN, poll(0, (1, 1), (2, 2)), type=Type.FAIL)
    story.call(0, F.TXN, poll(0))
    story.call(0, F.TXN, poll(0, (3, 3), (4, 4)), type=Type.FAIL)
    story.call(0, F.TXN, poll(0, (3, 3), (4, 4)), type=Type.FAIL, rebalanced=frozenset({0}))
    story.call(0, F.TXN, poll(0, (0, 0)))
    story.call(0, F.TXN, poll(0, (5, 5)))
    assert after_aborts(prepare(story.ops, story.run)) == {
        (Resumed.ADVANCE, False): 1,
        (Resumed.REWIND, True): 1,
        (Resumed.REWIND_FURTHER, True): 1,
    }
