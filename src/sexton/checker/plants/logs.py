"""Anomalies of logs that keep everything, of groups and of transactions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from sexton.checker.edit import Edit, NoPlaceError
from sexton.checker.planted import (
    COPIERS,
    GROUP,
    INPUT,
    OUTPUT,
    QUEUES,
    SHARED,
    TABLES,
)
from sexton.checker.plants.registry import SKIPS, Place, Plants
from sexton.checker.view import Call, Look
from sexton.history.op import HEAL, NEMESIS, UNKNOWN, Ext, F, Poll, Record, Send, Span, Type

PLANTS: Final = Plants()


@PLANTS.named("inconsistent-offsets", implied=["duplicate"])
def _acknowledged_at_anothers_offset(edit: Edit) -> Place:
    call, log, send = edit.pick(edit.sends())
    order = edit.view.order(log)
    lower = [index for index in range(order.index_of[send.value]) if order.values[index][0] < send.value]
    edit.change_send(call, send.value, offset=order.offsets[edit.pick(lower)])
    return Place(log, send.value)


@PLANTS.named("duplicate", implied=SKIPS)
def _acknowledged_where_nothing_is(edit: Edit) -> Place:
    call, log, send = edit.pick(edit.sends())
    free = set(range(send.offset)) - set(edit.view.order(log).offsets)
    edit.change_send(call, send.value, offset=edit.pick(sorted(free)))
    return Place(log, send.value)


def _show_aborted(edit: Edit, logs: Sequence[int], looks: Iterable[Look]) -> Place:
    aborted = [
        (look, log, send)
        for look in looks
        for call in edit.view.calls
        if call.op.type is Type.FAIL
        for log in logs
        for send in call.sends.get(log, ())
        if send.offset != UNKNOWN
        and log in look.call.op.spans
        and Look(look.call, look.call.op.spans[log], ()).is_over(send.offset)
        and log in look.call.polled
    ]
    look, log, send = edit.pick(aborted)
    edit.insert(look.call, log, Record(send.offset, send.value, send.key, send.is_tombstone))
    return Place(log, send.value)


@PLANTS.named("G1a", implied=[*SKIPS, "torn-transaction"])
def _aborted_record_is_read(edit: Edit) -> Place:
    looks = [look for log in QUEUES for look in edit.view.looks_at.get(log, ()) if look.call.op.process == edit.reader]
    return _show_aborted(edit, QUEUES, looks)


@PLANTS.named("aborted-in-table", implied=["G1a", "torn-transaction", "resurrected-key", "table-drift"])
def _aborted_record_is_in_a_table(edit: Edit) -> Place:
    return _show_aborted(edit, TABLES, [look for look, _ in edit.tables()])


@PLANTS.named("precommitted-read")
def _own_record_is_read(edit: Edit) -> Place:
    log = edit.pick(QUEUES)
    offset, value = edit.new_offset(log), edit.new_value()
    poll = Poll({log: [Record(offset, value)]})
    edit.call(edit.new_process(), F.TXN, Send(log, value, offset), poll, spans={log: Span(offset, offset + 1)})
    return Place(log, value)


@PLANTS.named("lost-write", implied=[*SKIPS, "unseen"])
def _nobody_is_given_a_record(edit: Edit) -> Place:
    last = {log: edit.view.order(log).offsets[-1] for log in QUEUES}
    _, log, send = edit.pick(sent for sent in edit.sends() if sent[2].offset < last[sent[1]])
    edit.drop_everywhere(log, send.value)
    return Place(log, send.value)


@PLANTS.named("poll-skip", implied=SKIPS)
def _first_record_is_withheld(edit: Edit) -> Place:
    """From a poll that goes on where another ended."""
    calls = [
        (call, log, records)
        for call, log, records in edit.polls(2)
        if _before(edit, call, log) is not None and edit.is_seen_twice(log, records[0].value)
    ]
    call, log, records = edit.pick(calls)
    edit.drop(call, log, records[0].value)
    return Place(log, records[1].value)


@PLANTS.named("nonmonotonic-poll")
def _last_record_is_given_again(edit: Edit) -> Place:
    polls = [(call, log, _before(edit, call, log)) for call, log, _ in edit.polls(1)]
    call, log, before = edit.pick(poll for poll in polls if poll[2] is not None)
    assert before is not None
    edit.insert(call, log, before)
    edit.change_span(call, log, Span(before.offset, call.op.spans[log].end_offset))
    return Place(log, before.value)


def _before(edit: Edit, call: Call, log: int) -> Record | None:
    """The last record of the poll in which this one's consumer was given the one before its first."""
    order = edit.view.order(log)
    index = order.index_of[call.polled[log][0].value]
    value = order.values[index - 1][0] if index else UNKNOWN
    for other in edit.view.by_process[call.op.process]:
        is_earlier = other.is_ok and other.index < call.index and other.op.f == F.POLL and other.polled.get(log)
        if is_earlier and other.polled[log][-1].value == value:
            between = [
                each
                for each in edit.view.by_process[call.op.process]
                if other.index < each.index < call.index and (log in each.polled or each.op.f == F.ASSIGN)
            ]
            if not between:
                return other.polled[log][-1]
    return None


@PLANTS.named("int-poll-skip", implied=SKIPS)
def _middle_record_is_withheld(edit: Edit) -> Place:
    call, log, records = edit.pick(poll for poll in edit.polls(3) if edit.is_seen_twice(poll[1], poll[2][1].value))
    edit.drop(call, log, records[1].value)
    return Place(log, records[2].value)


@PLANTS.named("int-nonmonotonic-poll")
def _record_is_given_twice(edit: Edit) -> Place:
    call, log, records = edit.pick(edit.polls(1))
    edit.insert(call, log, records[0])
    return Place(log, records[0].value)


@PLANTS.named("int-send-skip", "G0", "PL-1-cycle-exists")
def _record_between_two_of_one_transaction(edit: Edit) -> Place:
    log = edit.pick(QUEUES)
    records = [Record(edit.new_offset(log), edit.new_value()) for _ in range(3)]
    first, second, third = (Send(log, record.value, record.offset) for record in records)
    both, between = edit.new_process(), edit.new_process()
    edit.begin(both, F.TXN)
    edit.call(between, F.SEND, second)
    edit.end(both, F.TXN, first, third)
    edit.poll(log, *records)
    return Place()


@PLANTS.named("int-nonmonotonic-send")
def _sent_in_one_order_and_written_in_the_other(edit: Edit) -> Place:
    log = edit.pick(QUEUES)
    records = [Record(edit.new_offset(log), edit.new_value()) for _ in range(2)]
    later, earlier = (Send(log, record.value, record.offset) for record in records)
    edit.call(edit.new_process(), F.TXN, earlier, later)
    edit.poll(log, *records)
    return Place(log, later.value)


@PLANTS.named("nonmonotonic-send", implied=["G0-realtime", "strong-PL-1-cycle-exists"])
def _second_send_lies_before_the_first(edit: Edit) -> Place:
    process = edit.new_process()
    return _send_backwards(edit, process, process)


@PLANTS.named("G0-realtime", "strong-PL-1-cycle-exists")
def _later_send_lies_before_an_earlier_one(edit: Edit) -> Place:
    _send_backwards(edit, edit.new_process(), edit.new_process())
    return Place()


def _send_backwards(edit: Edit, first: int, second: int) -> Place:
    log = edit.pick(QUEUES)
    records = [Record(edit.new_offset(log), edit.new_value()) for _ in range(2)]
    edit.call(first, F.SEND, Send(log, records[1].value, records[1].offset))
    edit.call(second, F.SEND, Send(log, records[0].value, records[0].offset))
    edit.poll(log, *records)
    return Place(log, records[0].value)


@PLANTS.named("G-single-realtime")
def _a_whole_log_is_read_as_it_was_before(edit: Edit) -> Place:
    content, end, value = edit.content(SHARED), edit.end_of(SHARED), edit.new_value()
    record = Record(edit.new_offset(SHARED), value)
    edit.call(edit.new_process(), F.SEND, Send(SHARED, value, record.offset))
    edit.call(edit.new_process(), F.TABLE, Poll({SHARED: content}), spans={SHARED: Span(0, end)})
    edit.poll(SHARED, record)
    return Place(SHARED, value)


@PLANTS.named("unseen")
def _sent_and_not_read(edit: Edit) -> Place:
    log, value = edit.pick(QUEUES), edit.new_value()
    edit.call(edit.new_process(), F.SEND, Send(log, value, edit.new_offset(log)))
    return Place(log, value)


@PLANTS.named("realtime-lag")
def _consumer_gets_nothing_for_an_hour(edit: Edit) -> Place:
    log, process = edit.pick(QUEUES), edit.new_process()
    edit.call(process, F.ASSIGN, logs=(log,))
    edit.wait(3_600)
    edit.call(process, F.POLL, Poll())
    return Place(log)


@PLANTS.named("G1c", "PL-2-cycle-exists")
def _reads_what_lies_behind_it(edit: Edit) -> Place:
    one, other = QUEUES
    read = Record(edit.new_offset(one), edit.new_value())
    before, after = (Record(edit.new_offset(other), edit.new_value()) for _ in range(2))
    first, second = edit.new_process(), edit.new_process()
    edit.begin(first, F.TXN)
    edit.begin(second, F.TXN)
    edit.end(first, F.TXN, Send(one, read.value, read.offset), Send(other, after.value, after.offset))
    edit.end(second, F.TXN, Poll({one: [read]}), Send(other, before.value, before.offset))
    edit.poll(other, before, after)
    return Place()


@PLANTS.named("G1c-realtime", "strong-PL-2-cycle-exists")
def _reads_what_lies_behind_what_is_yet_to_be_sent(edit: Edit) -> Place:
    log = edit.pick(QUEUES)
    records = [Record(edit.new_offset(log), edit.new_value()) for _ in range(2)]
    late, early = edit.new_process(), edit.new_process()
    edit.begin(early, F.SEND)
    edit.poll(log, records[1])
    edit.begin(late, F.SEND)
    edit.end(late, F.SEND, Send(log, records[0].value, records[0].offset))
    edit.end(early, F.SEND, Send(log, records[1].value, records[1].offset))
    edit.poll(log, *records)
    return Place()


@PLANTS.named("G1c-wr", implied=["G1c", "PL-2-cycle-exists"])
def _transactions_read_each_other(edit: Edit) -> Place:
    records = [Record(edit.new_offset(log), edit.new_value()) for log in QUEUES]
    processes = [edit.new_process() for _ in QUEUES]
    for process in processes:
        edit.begin(process, F.TXN)
    for log, other in ((0, 1), (1, 0)):
        own, read = records[log], records[other]
        edit.end(processes[log], F.TXN, Send(log, own.value, own.offset), Poll({other: [read]}))
    return Place()


@PLANTS.named("G1c-wr-realtime", implied=["G1c-realtime", "strong-PL-2-cycle-exists"])
def _read_before_it_is_sent(edit: Edit) -> Place:
    log = edit.pick(QUEUES)
    record = Record(edit.new_offset(log), edit.new_value())
    edit.poll(log, record)
    edit.call(edit.new_process(), F.SEND, Send(log, record.value, record.offset))
    return Place()


@PLANTS.named("cycle-search-timeout", implied=["G0", "PL-1-cycle-exists", "int-send-skip"])
def _cycle_and_no_time_to_find_it(edit: Edit) -> Place:
    edit.options = replace(edit.options, cycle_steps_max=0)
    return _record_between_two_of_one_transaction(edit)


@PLANTS.named("empty-transaction-graph")
def _nothing_is_done(edit: Edit) -> Place:
    edit.ops.clear()
    edit.call(0, F.ASSIGN, logs=QUEUES)
    return Place()


@PLANTS.named("unwritten-read")
def _read_and_never_sent(edit: Edit) -> Place:
    log, value = edit.pick(QUEUES), edit.new_value()
    edit.poll(log, Record(edit.new_offset(log), value))
    return Place(log, value)


@PLANTS.named("torn-transaction", implied=["lost-write", "unseen", *SKIPS])
def _one_record_of_a_transaction_is_given_to_nobody(edit: Edit) -> Place:
    last = {log: edit.view.order(log).offsets[-1] for log in QUEUES}
    sends = [
        (log, send)
        for call in edit.view.calls
        if call.is_ok and len([send for log in QUEUES for send in call.sends.get(log, ())]) > 1
        for log in QUEUES
        for send in call.sends.get(log, ())
        if send.offset < last[log]
    ]
    log, send = edit.pick(sends)
    edit.drop_everywhere(log, send.value)
    return Place(log, send.value)


@PLANTS.named("fractured-read", implied=SKIPS)
def _one_record_of_a_transaction_is_withheld(edit: Edit) -> Place:
    found = []
    for call, log, records in edit.polls(2):
        senders = [edit.view.sender_of[log, record.value] for record in records]
        found += [
            (call, log, record)
            for record, sender in zip(records, senders, strict=True)
            if senders.count(sender) > 1 and sender.is_ok and edit.is_seen_twice(log, record.value)
        ]
    call, log, record = edit.pick(found)
    edit.drop(call, log, record.value)
    return Place(log, record.value)


@PLANTS.named("wrong-span")
def _span_ends_before_the_last_record(edit: Edit) -> Place:
    call, log, records = edit.pick(edit.polls(1))
    edit.change_span(call, log, Span(call.op.spans[log].start_offset, records[-1].offset))
    return Place(log, records[-1].value)


@PLANTS.named("stuck", implied=["unseen"])
def _consumer_stands_still(edit: Edit) -> Place:
    log, value, process = edit.pick(QUEUES), edit.new_value(), edit.new_process()
    end = edit.end_of(log)
    edit.end(NEMESIS, HEAL, type=Type.INFO)
    edit.call(edit.new_process(), F.SEND, Send(log, value, edit.new_offset(log)))
    edit.call(process, F.ASSIGN, logs=(log,))
    edit.call(process, F.POLL, Poll(), spans={log: Span(end, end)})
    edit.wait(61)
    edit.call(process, F.POLL, Poll(), spans={log: Span(end, end)})
    return Place(log, value)


def _highest_committed(edit: Edit, group: str, log: int) -> int:
    commits = [
        call.op.offsets[log]
        for call in edit.view.calls
        if call.is_ok and call.op.ext.get(Ext.GROUP) == group and log in call.op.offsets
    ]
    return max(commits, default=0)


@PLANTS.named("committed-too-far", implied=["group-skip"])
def _more_is_committed_than_was_given(edit: Edit) -> Place:
    offset = edit.end_of(SHARED) + 5
    edit.call(edit.new_process(), F.COMMIT, offsets={SHARED: offset}, ext={Ext.GROUP: GROUP})
    return Place(SHARED)


@PLANTS.named("group-skip", implied=SKIPS)
def _no_member_is_given_a_record(edit: Edit) -> Place:
    committed = _highest_committed(edit, GROUP, SHARED)
    order = edit.view.order(SHARED)
    values = [
        value
        for value in order.last
        if order.offset_of(value) < committed and edit.view.is_certain(edit.view.sender_of[SHARED, value])
    ]
    value = edit.pick(values)
    for call in edit.view.readers_of.get((SHARED, value), ()):
        if Ext.GROUP in call.op.ext:
            edit.drop(call, SHARED, value)
    return Place(SHARED, value)


@PLANTS.named("offset-went-back")
def _committed_offset_is_forgotten(edit: Edit) -> Place:
    if _highest_committed(edit, GROUP, SHARED) == 0:
        raise NoPlaceError
    edit.call(edit.new_process(), F.COMMITTED, offsets={SHARED: UNKNOWN}, ext={Ext.GROUP: GROUP})
    return Place(SHARED)


@PLANTS.named("zombie-commit")
def _former_member_commits(edit: Edit) -> Place:
    members = [call for call in edit.view.calls if call.op.ext.get(Ext.GENERATION, 0) > 1]
    generation = edit.pick(members).op.ext[Ext.GENERATION] - 1
    offsets = {SHARED: _highest_committed(edit, GROUP, SHARED)}
    ext = {Ext.GROUP: GROUP, Ext.GENERATION: generation}
    edit.call(edit.new_process(), F.COMMIT, offsets=offsets, ext=ext)
    return Place()


@PLANTS.named("eos-duplicate")
def _input_is_copied_again(edit: Edit) -> Place:
    copied = [send.key for call in edit.view.calls if call.is_ok for send in call.sends.get(OUTPUT, ())]
    key, value, offset = edit.pick(copied), edit.new_value(), edit.new_offset(OUTPUT)
    edit.call(edit.new_process(), F.EOS, Send(OUTPUT, value, offset, key), ext={Ext.GROUP: COPIERS})
    edit.poll(OUTPUT, Record(offset, value, key))
    return Place(OUTPUT, value)


@PLANTS.named("eos-loss")
def _output_is_left_out(edit: Edit) -> Place:
    copies = [(call, send) for call in edit.view.calls if call.is_ok for send in call.sends.get(OUTPUT, ())]
    attempts = [send.key for call in edit.view.calls for send in call.sends.get(OUTPUT, ())]
    call, copy = edit.pick(pair for pair in copies if attempts.count(pair[1].key) == 1)
    op = edit.ops[call.index]
    edit.ops[call.index] = replace(op, micro_ops=tuple(micro_op for micro_op in op.micro_ops if micro_op != copy))
    edit.drop_everywhere(OUTPUT, copy.value)
    return Place(INPUT, copy.key)


def _look_back(edit: Edit, epochs_later: int) -> Place:
    log = edit.pick(QUEUES)
    before = edit.view.probes[-1].op.ext
    ext = {
        Ext.HIGH_WATERMARKS: {str(log): before[Ext.HIGH_WATERMARKS][str(log)] - 1},
        Ext.LEADER_EPOCHS: {str(log): before[Ext.LEADER_EPOCHS][str(log)] + epochs_later},
    }
    edit.call(edit.new_process(), F.DEBUG, ext=ext)
    return Place(log)


@PLANTS.named("watermark-went-back")
def _high_watermark_is_lower(edit: Edit) -> Place:
    return _look_back(edit, 0)


@PLANTS.named("watermark-went-back-at-failover")
def _high_watermark_is_lower_after_a_failover(edit: Edit) -> Place:
    return _look_back(edit, 1)


@PLANTS.named("acknowledged-nowhere", implied=["unseen"])
def _sent_without_an_offset_and_read_by_nobody(edit: Edit) -> Place:
    begins_ns = {log: [call.begin_ns for call, at, _ in edit.sends() if at == log] for log in QUEUES}
    sends = [sent for sent in edit.sends() if sent[0].end_ns < max(begins_ns[sent[1]])]
    call, log, send = edit.pick(sends)
    edit.change_send(call, send.value, offset=UNKNOWN)
    edit.drop_everywhere(log, send.value)
    return Place(log, send.value)
