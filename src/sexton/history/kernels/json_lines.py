"""`history.jsonl`, as we spell it."""

from __future__ import annotations

from sexton.history.kernels.json_value import after_object
from sexton.history.kernels.tables import (
    BAD,
    DONE,
    INT32_MAX,
    LEFT,
    LOG,
    LOGS,
    MICRO_OPS,
    MOPS_FULL,
    NOTHING,
    OFFSET,
    OFFSETS,
    OPS_FULL,
    POLL,
    REBALANCED,
    SEND,
    SPANS_FULL,
    TEXTS_FULL,
    UNKNOWN,
    Bytes,
    Fs,
    Rows,
    Tables,
    clear,
    put,
)
from sexton.history.kernels.texts import Texts, intern
from sexton.history.kernels.tokens import (
    after_byte,
    ascii_bytes,
    expect,
    integer,
    kind_of,
    natural,
    natural_or_null,
    text_end,
    type_of,
)
from sexton.jit import kernel

_INDEX = ascii_bytes('{"index":')
_TIME = ascii_bytes(',"time":')
_PROCESS = ascii_bytes(',"process":')
_TYPE = ascii_bytes(',"type":"')
_F = ascii_bytes(',"f":"')
_VALUE = ascii_bytes(',"value":')
_ERROR = ascii_bytes(',"error":"')
_NODE = ascii_bytes(',"node":')
_CLIENT = ascii_bytes(',"client":"')
_REBALANCE = ascii_bytes(',"rebalance-log":[{"keys":[')
_KEYS_END = ascii_bytes("]}]")
_SPANS = ascii_bytes(',"spans":{')
_EXT = ascii_bytes(',"ext":')
_SEND_START = ascii_bytes('["send",')
_POLL_START = ascii_bytes('["poll"')


@kernel
def _json_record(data: Bytes, position: int, mops: Rows, count: int) -> int:
    """Reads `[offset,value]` or `[offset,value,key,flags]` into a row."""
    offset, position = natural_or_null(data, after_byte(data, position, 91))
    value, position = integer(data, after_byte(data, position, 44))
    if position < 0:
        return BAD
    mops[count].offset = offset
    mops[count].value = value
    if data[position] == 44:
        key, position = natural_or_null(data, position + 1)
        flags, position = natural(data, after_byte(data, position, 44))
        if position < 0 or flags > 1:
            return BAD
        mops[count].key = key
        mops[count].flags = flags
    return after_byte(data, position, 93)


@kernel
def _json_log(data: Bytes, position: int) -> tuple[int, int]:
    log, position = integer(data, position)
    return log, position if -INT32_MAX <= log <= INT32_MAX else BAD


@kernel
def _json_log_key(data: Bytes, position: int, previous: int) -> tuple[int, int]:
    """Reads `"log":`. Logs rise, as we write them, so that none is there twice."""
    log, position = _json_log(data, after_byte(data, position, 34))
    position = after_byte(data, after_byte(data, position, 34), 58)
    return log, position if log > previous else BAD


@kernel
def _json_poll(data: Bytes, position: int, mops: Rows, count: int, op: int, mop: int) -> tuple[int, int]:
    """Reads `{"log":[record,…],…}]`. Returns the position (or BAD) and the number of rows (-1: no room)."""
    previous = -INT32_MAX - 1
    seq = 0
    position = after_byte(data, position, 123)
    while True:
        log, position = _json_log_key(data, position, previous)
        position = after_byte(data, position, 91)
        previous = log
        while position >= 0:
            if not put(mops, count, op, mop, seq, POLL, log, UNKNOWN):
                return position, -1
            position = _json_record(data, position, mops, count)
            count += 1
            seq += 1
            if position < 0 or data[position] != 44:
                break
            position += 1
        position = after_byte(data, position, 93)
        if position < 0 or data[position] != 44:
            return after_byte(data, after_byte(data, position, 125), 93), count
        position += 1


@kernel
def _json_micro_op(data: Bytes, position: int, mops: Rows, count: int, op: int, mop: int) -> tuple[int, int]:
    after = expect(data, position, _SEND_START)
    if after >= 0:
        log, position = _json_log(data, after)
        position = after_byte(data, position, 44)
        if position < 0:
            return BAD, count
        if not put(mops, count, op, mop, 0, SEND, log, UNKNOWN):
            return position, -1
        if data[position] == 91:
            position = _json_record(data, position, mops, count)
        else:
            value, position = integer(data, position)
            mops[count].value = value
        return after_byte(data, position, 93), count + 1
    position = expect(data, position, _POLL_START)
    if position < 0:
        return BAD, count
    if data[position] == 44:
        return _json_poll(data, position + 1, mops, count, op, mop)
    if not put(mops, count, op, mop, 0, NOTHING, UNKNOWN, UNKNOWN):
        return position, -1
    return after_byte(data, position, 93), count + 1


@kernel
def _json_micro_ops(data: Bytes, position: int, mops: Rows, count: int, op: int) -> tuple[int, int]:
    position = after_byte(data, position, 91)
    if position < 0 or data[position] == 93:
        return after_byte(data, position, 93), count
    mop = 0
    while True:
        position, count = _json_micro_op(data, position, mops, count, op, mop)
        if position < 0 or count < 0:
            return position, count
        mop += 1
        if data[position] != 44:
            return after_byte(data, position, 93), count
        position += 1


@kernel
def _json_logs(data: Bytes, position: int, mops: Rows, count: int, op: int, kind: int) -> tuple[int, int]:
    """Reads the logs of a list, but not its brackets. Those of a rebalance rise."""
    if position < 0 or data[position] == 93:
        return position if kind == LOG else BAD, count
    previous = -INT32_MAX - 1
    seq = 0
    while True:
        log, position = _json_log(data, position)
        if position < 0 or (kind == REBALANCED and log <= previous):
            return BAD, count
        previous = log
        if not put(mops, count, op, UNKNOWN, seq, kind, log, UNKNOWN):
            return position, -1
        count += 1
        seq += 1
        if data[position] != 44:
            return position, count
        position += 1


@kernel
def _json_offsets(data: Bytes, position: int, mops: Rows, count: int, op: int) -> tuple[int, int]:
    position = after_byte(data, position, 123)
    if position < 0 or data[position] == 125:
        return after_byte(data, position, 125), count
    previous = -INT32_MAX - 1
    seq = 0
    while True:
        log, position = _json_log_key(data, position, previous)
        offset, position = integer(data, position)
        if position < 0:
            return BAD, count
        previous = log
        if not put(mops, count, op, UNKNOWN, seq, OFFSET, log, offset):
            return position, -1
        count += 1
        seq += 1
        if data[position] != 44:
            return after_byte(data, position, 125), count
        position += 1


@kernel
def _json_spans(data: Bytes, position: int, spans: Rows, count: int, op: int) -> tuple[int, int]:
    previous = -INT32_MAX - 1
    while True:
        log, position = _json_log_key(data, position, previous)
        start_offset, position = integer(data, after_byte(data, position, 91))
        end_offset, position = integer(data, after_byte(data, position, 44))
        position = after_byte(data, position, 93)
        if position < 0:
            return BAD, count
        previous = log
        if count >= len(spans):
            return position, -1
        spans[count].op = op
        spans[count].log = log
        spans[count].start_offset = start_offset
        spans[count].end_offset = end_offset
        count += 1
        if data[position] != 44:
            return after_byte(data, position, 125), count
        position += 1


@kernel
def _json_text(data: Bytes, position: int, key: Bytes, texts: Texts) -> tuple[int, int]:
    """Reads a field that is a text, if it is there: returns it as in `ops`, or 1 if there is no room for it."""
    first = expect(data, position, key)
    if first < 0:
        return 0, position
    last = text_end(data, first)
    if last <= first:
        return 0, BAD
    return -1 - intern(data, first, last, texts), last + 1


@kernel
def _json_value(data: Bytes, position: int, kind: int, mops: Rows, count: int, op: int) -> tuple[int, int]:
    after = expect(data, position, _VALUE)
    if after < 0:
        return position, count
    if kind == MICRO_OPS:
        return _json_micro_ops(data, after, mops, count, op)
    if kind == OFFSETS:
        return _json_offsets(data, after, mops, count, op)
    if kind == LOGS:
        position, count = _json_logs(data, after_byte(data, after, 91), mops, count, op, LOG)
        return after_byte(data, position, 93), count
    return BAD, count


@kernel
def _json_line(data: Bytes, position: int, tables: Tables, texts: Texts, fs: Fs, base: int) -> tuple[int, int]:
    """Returns the position after the line's newline (or BAD) and DONE, or what is full."""
    start = position
    op_count, mop_count, span_count = tables.counts[0], tables.counts[1], tables.counts[2]
    if op_count >= len(tables.ops):
        return start, OPS_FULL
    row = tables.ops[op_count]
    index, position = natural(data, expect(data, position, _INDEX))
    clear(row, index, base + start)
    after = expect(data, position, _TIME)
    if after >= 0:
        row.time_ns, position = natural(data, after)
    after = expect(data, position, _PROCESS)
    if after >= 0:
        row.process, position = natural(data, after)
    first = expect(data, position, _TYPE)
    last = text_end(data, first)
    if last < 0:
        return BAD, DONE
    row.type = type_of(data, first, last)
    first = expect(data, last + 1, _F)
    row.f, position = _json_text(data, last + 1, _F, texts)
    if row.type < 0 or first < 0 or position < 0:
        return BAD, DONE
    kind = kind_of(data, first, position - 1, fs)
    position, mop_count = _json_value(data, position, kind, tables.mops, mop_count, index)
    if mop_count < 0:
        return start, MOPS_FULL
    row.error, position = _json_text(data, position, _ERROR, texts)
    after = expect(data, position, _NODE)
    if after >= 0:
        node, position = natural(data, after)
        if node > INT32_MAX:
            return BAD, DONE
        row.node = node
    row.client, position = _json_text(data, position, _CLIENT, texts)
    after = expect(data, position, _REBALANCE)
    if after >= 0:
        position, mop_count = _json_logs(data, after, tables.mops, mop_count, index, REBALANCED)
        if mop_count < 0:
            return start, MOPS_FULL
        position = expect(data, position, _KEYS_END)
    after = expect(data, position, _SPANS)
    if after >= 0:
        position, span_count = _json_spans(data, after, tables.spans, span_count, index)
        if span_count < 0:
            return start, SPANS_FULL
    first = expect(data, position, _EXT)
    if first >= 0:
        position = after_object(data, first)
        if position <= first + 2:  # an empty one is not written
            return BAD, DONE
        row.ext = -1 - intern(data, first, position, texts)
    position = after_byte(data, after_byte(data, position, 125), 10)
    if position < 0:
        return BAD, DONE
    if row.f > 0 or row.error > 0 or row.client > 0 or row.ext > 0:
        return start, TEXTS_FULL
    tables.counts[0] = op_count + 1
    tables.counts[1] = mop_count
    tables.counts[2] = span_count
    return position, DONE


@kernel
def scan_json(data: Bytes, position: int, tables: Tables, texts: Texts, fs: Fs, base: int) -> tuple[int, int]:
    """Reads lines until one is left to the plain reader or something is full. Returns where that line begins, and why
    it stopped. Texts in `ops` are -1 minus their number; 0 is the empty one."""
    while position < len(data):
        if data[position] == 10:
            position += 1
            continue
        after, status = _json_line(data, position, tables, texts, fs, base)
        if status != DONE:
            return position, status
        if after < 0:
            return position, LEFT
        position = after
    return position, DONE
