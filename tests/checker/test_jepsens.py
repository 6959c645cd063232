"""Jepsen's own anomalies: of each the smallest history that shows it, and one that looks like it and proves nothing."""

from __future__ import annotations

from sexton.checker.view import Options
from sexton.history.op import F, Run, Type
from tests.checker.story import SECOND_NS, Story, poll, send


def test_two_values_at_one_offset_are_inconsistent() -> None:
    story = Story()
    first = story.sent(0, send(0, 1, 5))
    second = story.sent(1, send(0, 2, 5))
    found = story.findings()["inconsistent-offsets"]
    assert found.count == 1
    assert (found.cases[0].values, found.cases[0].ops) == ((1, 2), (first, second))
    assert found.cases[0].detail == {"offset": 5, "index": 0}


def test_a_send_whose_end_is_unknown_contradicts_nobody_until_part_of_it_is_read() -> None:
    story = Story()
    story.sent(0, send(0, 1, 0), send(1, 1), type=Type.INFO)
    story.sent(1, send(0, 2, 0))
    assert story.count("inconsistent-offsets") == 0
    story.polled(2, poll(1, (5, 1)))
    assert story.count("inconsistent-offsets") == 1


def test_a_value_at_two_offsets_is_a_duplicate() -> None:
    story = Story()
    story.sent(0, send(0, 1, 1))
    story.sent(1, send(0, 2), type=Type.INFO)
    story.polled(2, poll(0, (2, 2), (3, 1)))
    found = story.findings()["duplicate"]
    assert found.count == 1
    assert found.cases[0].values == (1,)
    assert found.cases[0].detail == {"offsets": [1, 3]}


def test_a_failed_send_is_at_no_offset_and_polls_of_failed_calls_count() -> None:
    story = Story()
    story.sent(0, send(0, 10, 1))
    story.sent(0, send(0, 11, 2), type=Type.FAIL)
    story.polled(1, poll(0, (11, 10), (12, 11)), type=Type.FAIL)
    found = story.findings()["duplicate"]
    assert [case.values for case in found.cases] == [(10,)]


def test_every_value_of_an_inconsistent_offset_can_be_a_duplicate() -> None:
    story = Story()
    for value in range(10):
        story.sent(0, send(0, value, 0))
        story.polled(1, poll(0, (1, value)))
    assert story.count("duplicate") == 10
    assert [case.detail["offset"] for case in story.findings()["inconsistent-offsets"].cases] == [0, 1]


def test_reading_what_failed_is_an_aborted_read() -> None:
    story = Story()
    writer = story.sent(0, send(0, 2), send(1, 3), type=Type.FAIL)
    reader = story.polled(1, poll(0, (0, 2)))
    found = story.findings()["G1a"]
    assert (found.count, found.cases[0].ops) == (1, (writer, reader))


def test_reading_what_may_have_failed_is_no_aborted_read() -> None:
    story = Story()
    story.sent(0, send(0, 2), type=Type.INFO)
    story.polled(1, poll(0, (0, 2)))
    story.sent(0, send(0, 3), type=Type.FAIL)
    story.polled(1, poll(0, (1, 3)), type=Type.FAIL)
    assert story.count("G1a") == 0


def test_a_transaction_that_reads_its_own_write_reads_too_early() -> None:
    story = Story()
    story.call(0, F.TXN, send(0, 1, 0), poll(0, (0, 1)))
    assert story.count("precommitted-read") == 1


def test_a_transaction_may_read_what_the_one_before_wrote() -> None:
    story = Story()
    story.sent(0, send(0, 1, 0))
    story.call(0, F.TXN, send(0, 2, 1), poll(0, (0, 1)))
    assert story.count("precommitted-read") == 0


def test_what_lies_below_a_record_that_was_read_and_was_read_by_nobody_is_lost() -> None:
    story = Story()
    one = story.sent(0, send(0, 1, 0))
    two = story.sent(0, send(0, 2, 1), send(0, 4, 3))
    story.sent(1, send(0, 3), type=Type.INFO)
    reader = story.polled(0, poll(0, (2, 3)))
    found = story.findings()["lost-write"]
    assert [(case.values, case.ops) for case in found.cases] == [((1,), (one, reader)), ((2,), (two, reader))]
    assert found.cases[0].detail == {"index": 0, "highest-index": 2}


def test_what_lies_above_all_that_was_read_is_not_lost() -> None:
    story = Story()
    story.sent(0, send(0, 1, 0))
    story.polled(1, poll(0, (0, 1)))
    story.sent(0, send(0, 2, 1))
    assert story.count("lost-write") == 0
    assert story.count("unseen") == 1


def test_the_last_record_of_a_log_is_lost_once_a_position_has_moved_over_it() -> None:
    story = Story()
    story.sent(0, send(0, 1, 0))
    sender = story.sent(0, send(0, 2, 1))
    story.read(1, (0, 2), (0, 1), type=Type.FAIL)
    assert story.count("lost-write") == 0, "whoever failed is rewound"
    story.read(1, (0, 2), (0, 1), rebalanced=frozenset({0}))
    assert story.count("lost-write") == 0, "a rebalance may have moved it"
    story.read(1, (0, 1), (0, 1))
    assert story.count("lost-write") == 0
    passed_by = story.read(1, (1, 2))
    [case] = story.findings()["lost-write"].cases
    assert (case.values, case.ops) == ((2,), (sender, passed_by))
    story.read(2, (0, 2), (0, 1), (1, 2))
    assert story.count("lost-write") == 0, "somebody was given it"


def test_the_only_record_of_a_log_is_lost_if_all_that_read_there_were_given_nothing() -> None:
    story = Story()
    sender = story.sent(0, send(0, 1, 0))
    passed_by = story.read(1, (0, 1))
    assert [case.ops for case in story.findings()["lost-write"].cases] == [(sender, passed_by)]


def test_a_value_that_shares_its_offset_with_another_can_be_lost() -> None:
    story = Story()
    story.sent(0, send(0, 1, 0))
    story.sent(0, send(0, 2, 0), send(0, 3, 2))
    story.polled(0, poll(0, (0, 2), (2, 3)))
    assert [case.values for case in story.findings()["lost-write"].cases] == [(1,)]


def test_a_send_whose_end_is_unknown_is_lost_once_another_part_of_it_was_read() -> None:
    story = Story()
    story.sent(0, send(0, 1), send(1, 2, 0), type=Type.INFO)
    story.sent(1, send(1, 3), type=Type.INFO)
    story.polled(3, poll(1, (1, 3)))
    assert story.count("lost-write") == 0
    story.polled(2, poll(0, (0, 1)))
    assert [case.values for case in story.findings()["lost-write"].cases] == [(2,)]


def _four_polled(*, between: tuple[str, tuple[int, ...]] | None = None) -> Story:
    """Process 0 polls the first and the third of three records; another has polled the second."""
    story = Story()
    story.sent(3, send(0, 1), send(0, 2), send(0, 3), type=Type.INFO)
    story.polled(1, poll(0, (2, 2)))
    story.polled(0, poll(0, (1, 1)))
    if between:
        story.call(0, between[0], logs=between[1])
    story.polled(0, poll(0, (4, 3)))
    return story


def test_a_poll_that_begins_behind_an_unread_record_skips_it() -> None:
    found = _four_polled().findings()["poll-skip"]
    assert (found.count, found.cases[0].values, found.cases[0].detail) == (1, (1, 3), {"delta": 2, "skipped": [2]})
    assert _four_polled(between=(F.ASSIGN, (0, 1))).count("poll-skip") == 1


def test_who_has_let_go_of_a_log_skips_nothing() -> None:
    assert _four_polled(between=(F.ASSIGN, (1,))).count("poll-skip") == 0
    assert _four_polled(between=(F.SUBSCRIBE, (1,))).count("poll-skip") == 0


def test_a_gap_in_which_nobody_ever_saw_a_record_is_no_skip() -> None:
    story = Story()
    story.sent(3, send(0, 1), send(0, 3), type=Type.INFO)
    story.polled(0, poll(0, (1, 1)))
    story.polled(0, poll(0, (4, 3)))
    assert story.count("poll-skip") == 0


def _aborted(*third: tuple[int, int], type: Type) -> Story:
    story = Story()
    story.sent(0, *(send(0, value, value) for value in range(6)))
    story.call(1, F.TXN, poll(0, (0, 0)))
    story.call(1, F.TXN, poll(0, (1, 1), (2, 2)), type=Type.FAIL)
    story.call(1, F.TXN, poll(0, *third), type=type)
    return story


def test_after_an_abort_the_consumer_begins_again_whatever_becomes_of_the_next() -> None:
    for type_ in (Type.OK, Type.INFO, Type.FAIL):
        assert _aborted((1, 1), (2, 2), type=type_).count("poll-skip") == 0
        found = _aborted((3, 3), (4, 4), type=type_).findings()["poll-skip"]
        assert (found.count, found.cases[0].detail["skipped"]) == (1, [1, 2])


def test_a_poll_that_gives_again_what_was_given_goes_back() -> None:
    story = Story()
    story.sent(0, *(send(0, value, value) for value in range(4)))
    story.polled(0, poll(0, (1, 1), (2, 2)))
    story.polled(0, poll(0, (1, 1), (2, 2)))
    found = story.findings()["nonmonotonic-poll"]
    assert (found.count, found.cases[0].values, found.cases[0].detail) == (1, (2, 1), {"delta": -1})


def test_another_process_may_read_the_same_again() -> None:
    story = Story()
    story.sent(0, *(send(0, value, value) for value in range(4)))
    story.polled(0, poll(0, (0, 0), (1, 1)))
    story.polled(1, poll(0, (0, 0), (1, 1)))
    story.call(1, F.ASSIGN, logs=(7,))
    story.polled(1, poll(0, (0, 0)))
    assert story.count("nonmonotonic-poll") == 0


def test_within_one_operation_a_record_is_missing() -> None:
    story = Story()
    story.sent(1, send(0, 1), send(0, 2), send(0, 4), type=Type.INFO)
    story.polled(0, poll(0, (1, 1), (4, 4)))
    story.call(0, F.POLL, poll(0, (1, 1)), poll(0, (4, 4)))
    story.polled(0, poll(0, (2, 2)))
    found = story.findings()["int-poll-skip"]
    assert [case.detail["skipped"] for case in found.cases] == [[2], [2]]


def test_a_log_that_was_rebalanced_meanwhile_proves_nothing() -> None:
    story = Story()
    story.sent(1, send(0, 1), send(0, 2), send(0, 4), type=Type.INFO)
    story.polled(0, poll(0, (1, 1), (4, 4), (1, 1)), rebalanced=frozenset({0}))
    story.polled(0, poll(0, (2, 2)))
    assert story.count("int-poll-skip") == story.count("int-nonmonotonic-poll") == 0


def test_within_one_operation_records_come_twice_or_out_of_order() -> None:
    story = Story()
    story.sent(0, send(0, 1), send(0, 2), send(0, 3), type=Type.INFO)
    story.polled(0, poll(0, (3, 3), (1, 1)))
    story.call(0, F.POLL, poll(0, (2, 2), (3, 3)), poll(0, (3, 3)))
    found = story.findings()["int-nonmonotonic-poll"]
    assert [case.detail["delta"] for case in found.cases] == [-2, 0]


def test_records_of_others_lie_between_those_of_one_operation() -> None:
    story = Story()
    story.sent(0, send(0, 1, 1), send(0, 3))
    story.sent(1, send(0, 2), type=Type.INFO)
    story.polled(2, poll(0, (2, 2), (3, 3)))
    found = story.findings()["int-send-skip"]
    assert (found.count, found.cases[0].detail["skipped"]) == (1, [2])
    assert "int-send-skip" not in story.wrong()


def test_a_marker_between_the_records_of_one_operation_is_no_skip() -> None:
    story = Story()
    story.sent(0, send(0, 1, 1), send(0, 2, 3))
    assert story.count("int-send-skip") == 0


def test_records_of_one_operation_lie_in_another_order() -> None:
    story = Story()
    story.sent(0, send(0, 3, 3), send(0, 1, 1))
    story.sent(0, send(1, 4), send(1, 2), type=Type.INFO)
    story.sent(1, send(1, 3), type=Type.INFO)
    story.polled(0, poll(1, (2, 2), (3, 3), (4, 4)))
    found = story.findings()["int-nonmonotonic-send"]
    assert [(case.log, case.detail["delta"]) for case in found.cases] == [(1, -2), (0, -1)]


def test_records_in_two_logs_have_no_order() -> None:
    story = Story()
    story.sent(0, send(0, 3, 3), send(1, 1, 1))
    assert story.count("int-nonmonotonic-send") == 0


def _sent_twice(between: tuple[int, ...] | None = None, process: int = 0) -> Story:
    story = Story()
    story.sent(0, send(0, 3, 3), send(0, 4, 4))
    if between is not None:
        story.call(0, F.SUBSCRIBE, logs=between)
    story.sent(process, send(0, 1, 1), send(0, 2, 2))
    return story


def test_a_producers_later_record_lies_before_its_earlier_one() -> None:
    for story in (_sent_twice(), _sent_twice((0, 1))):
        found = story.findings()["nonmonotonic-send"]
        assert (found.count, found.cases[0].values, found.cases[0].detail) == (1, (4, 1), {"delta": -3})


def test_producers_are_not_ordered_among_each_other_and_a_subscribe_forgets() -> None:
    assert _sent_twice(process=1).count("nonmonotonic-send") == 0
    assert _sent_twice((1,)).count("nonmonotonic-send") == 0


def test_what_was_acknowledged_and_given_to_nobody_is_unseen() -> None:
    story = Story()
    story.sent(0, send(0, 1, 0), send(0, 2, 1))
    reader = story.polled(1, poll(0, (0, 1)))
    found = story.findings()["unseen"]
    assert (found.count, found.cases[0].values, found.cases[0].ops) == (1, (2,), (reader,))
    story.polled(1, poll(0, (1, 2)))
    assert story.count("unseen") == 0


def test_what_was_not_acknowledged_need_not_be_seen() -> None:
    story = Story()
    story.sent(0, send(0, 1), type=Type.INFO)
    story.sent(0, send(0, 2), type=Type.FAIL)
    assert story.count("unseen") == 0


def test_what_was_sent_without_an_offset_to_a_log_that_nobody_read_is_unseen() -> None:
    story = Story()
    story.sent(0, send(0, 1))
    assert story.count("unseen") == 1


def test_the_worst_lag_is_told() -> None:
    story = Story()
    story.call(0, F.ASSIGN, logs=(0,))
    story.sent(1, send(0, 1, 0))
    story.wait(5)
    late = story.polled(0, poll(0))
    found = story.findings()["realtime-lag"]
    assert found.cases[0].ops == (late,)
    assert found.cases[0].severity == 5 * SECOND_NS + SECOND_NS // 2


def test_who_has_read_the_last_record_is_not_behind() -> None:
    story = Story()
    story.call(0, F.ASSIGN, logs=(0, 1))
    story.sent(1, send(0, 1, 0))
    story.wait(5)
    story.polled(0, poll(0, (0, 1)))
    assert story.count("realtime-lag") == 0
    story.call(0, F.SUBSCRIBE, logs=(0,))
    story.sent(1, send(0, 2, 1))
    story.wait(5)
    story.polled(0, poll(1))
    assert story.count("realtime-lag") == 0  # nobody knows which logs a subscriber has


def _overlapping(*micro_ops: tuple[object, ...]) -> Story:
    """Each process's transaction, all at the same time."""
    story = Story()
    for process, ops in enumerate(micro_ops):
        story.begin(process, F.TXN, *ops)  # type: ignore[arg-type]
    for process, ops in enumerate(micro_ops):
        story.end(process, F.TXN, *ops)  # type: ignore[arg-type]
    return story


def test_writes_in_opposite_orders_are_g0() -> None:
    story = _overlapping((send(0, 1, 0), send(1, 1, 1)), (send(0, 2, 1), send(1, 2, 0)))
    found = story.findings()
    assert found["G0"].count == found["PL-1-cycle-exists"].count == 1
    assert found["G0"].cases[0].ops == (2, 3)
    assert found["G0"].cases[0].detail["steps"] == [
        {"type": "ww", "log": 0, "value": 1, "next-value": 2},
        {"type": "ww", "log": 1, "value": 2, "next-value": 1},
    ]
    assert not {"G1c", "G0-realtime", "G1c-realtime", "PL-2-cycle-exists"} & found.keys()
    assert "G0" not in story.wrong()


def test_writes_in_the_same_order_are_no_cycle() -> None:
    story = _overlapping((send(0, 1, 0), send(1, 1, 0)), (send(0, 2, 1), send(1, 2, 1)))
    assert not {"G0", "G0-realtime"} & story.findings().keys()


def test_transactions_that_read_each_other_are_g1c_by_reads_alone() -> None:
    story = _overlapping((send(0, 1, 0), poll(1, (0, 2))), (send(1, 2, 0), poll(0, (0, 1))))
    found = story.findings()
    assert found["G1c"].count == found["PL-2-cycle-exists"].count == found["G1c-wr"].count == 1
    assert [step["type"] for step in found["G1c"].cases[0].detail["steps"]] == ["wr", "wr"]
    assert story.wrong() == {"G1c-wr"}


def test_one_transaction_that_reads_another_is_no_cycle() -> None:
    story = _overlapping((send(0, 1, 0),), (send(1, 2, 0), poll(0, (0, 1))))
    assert not {"G1c", "G1c-wr"} & story.findings().keys()


def test_a_read_of_what_comes_later_in_a_log_is_g1c_and_allowed() -> None:
    story = _overlapping((send(0, 1, 0), send(1, 3, 2)), (poll(0, (0, 1)), send(1, 2, 1)))
    found = story.findings()
    assert [step["type"] for step in found["G1c"].cases[0].detail["steps"]] == ["wr", "ww"]
    assert "G1c-wr" not in found
    assert story.wrong() == set()
    story.options = Options(ww_deps=False)
    assert "G1c" not in story.findings()


def test_a_later_send_at_a_lower_offset_is_g0_in_real_time() -> None:
    story = Story()
    story.sent(0, send(0, 1, 1))
    story.sent(1, send(0, 2, 0))
    found = story.findings()
    assert found["G0-realtime"].count == found["strong-PL-1-cycle-exists"].count == 1
    assert [step["type"] for step in found["G0-realtime"].cases[0].detail["steps"]] == ["rt", "ww"]
    assert not {"G0", "G1c-realtime"} & found.keys()


def test_sends_at_the_same_time_may_have_any_order() -> None:
    story = _overlapping((send(0, 1, 1),), (send(0, 2, 0),))
    assert "G0-realtime" not in story.findings()


def test_a_record_that_was_read_before_it_was_sent_is_g1c_in_real_time() -> None:
    story = Story()
    story.polled(0, poll(0, (0, 1)))
    story.sent(1, send(0, 1, 0))
    found = story.findings()
    assert found["G1c-realtime"].count == found["strong-PL-2-cycle-exists"].count == found["G1c-wr-realtime"].count == 1
    assert story.wrong() == {"G1c-wr-realtime"}


def test_a_record_that_was_read_before_its_acknowledgement_is_no_wonder() -> None:
    story = Story()
    story.begin(1, F.SEND, send(0, 1))
    story.polled(0, poll(0, (0, 1)))
    story.end(1, F.SEND, send(0, 1, 0))
    assert not {"G1c-realtime", "G1c-wr-realtime"} & story.findings().keys()


def test_a_component_can_have_a_cycle_of_reads_and_one_of_writes_in_real_time() -> None:
    story = _overlapping((send(0, 1, 0), send(1, 3, 2)), (poll(0, (0, 1)), send(1, 2, 1)))
    story.sent(4, send(1, 9, 0))
    found = story.findings()
    assert {"G1c", "G0-realtime", "PL-2-cycle-exists", "strong-PL-1-cycle-exists"} <= found.keys()
    assert not {"G0", "G1c-realtime", "strong-PL-2-cycle-exists"} & found.keys()


def test_where_nothing_has_to_do_with_anything_nothing_was_judged() -> None:
    story = Story()
    story.call(0, F.ASSIGN, logs=(0,))
    assert story.count("empty-transaction-graph") == 1
    story.sent(0, send(0, 1, 0))
    story.polled(0, poll(0, (0, 1)))
    assert story.count("empty-transaction-graph") == 0


def test_a_search_that_is_given_up_costs_the_example_and_not_the_finding() -> None:
    story = _overlapping((send(0, 1, 0), send(1, 1, 1)), (send(0, 2, 1), send(1, 2, 0)))
    story.options = Options(cycle_steps_max=0)
    found = story.findings()
    assert found["G0"].count == found["cycle-search-timeout"].count == 1
    assert found["G0"].cases[0].ops == (2, 3)
    assert "steps" not in found["G0"].cases[0].detail


def test_a_history_without_processes_is_judged_by_what_it_has() -> None:
    story = Story(Run())
    story.sent(-1, send(0, 1, 0))
    story.sent(-1, send(0, 2, 0))
    story.polled(-1, poll(0, (0, 2)))
    story.polled(-1, poll(0, (0, 2)))
    found = story.findings()
    assert {"inconsistent-offsets", "lost-write"} <= found.keys()
    assert not {"nonmonotonic-poll", "realtime-lag", "G1c-realtime"} & found.keys()
