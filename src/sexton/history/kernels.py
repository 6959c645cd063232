"""Histories from bytes to flat arrays, compiled by Numba: no Python object per line or token.

A kernel reads what is spelled as we (JSON Lines) or Jepsen (EDN) spell it, and leaves every other line to the plain
reader, `history.lines` or `history.edn`: a nemesis' operations, escapes in strings, tagged elements, and whatever is
wrong. So a kernel never says what is wrong, and need not know all of a format; but what it takes, it must take as the
plain reader does. One suite runs over both.

The last byte of `data` is a newline. No kernel goes past a byte before it has compared it with one that is not a
newline, so none leaves its line, or `data`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sexton.jit import kernel

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int32]
Rows = npt.NDArray[np.void]

DONE, LEFT, OPS_FULL, MOPS_FULL, SPANS_FULL, TEXTS_FULL, LOGS_FULL, VALUES_FULL = range(8)
"""Why a kernel stopped: at the end, at a line that it leaves to the plain reader, or because an array is full."""

SEND, POLL, NOTHING, LOG, OFFSET, REBALANCED = range(6)
"""As `flat.Kind`."""

OTHER, MICRO_OPS, LOGS, OFFSETS = range(4)
"""What an operation's value is."""

BAD = -1
"""As a position: this line is left to the plain reader."""

_UNKNOWN = -1
_FIRST_NAMED = -2
_DIGITS_MAX = 18
_DEPTH_MAX = 64
_INT32_MAX = (1 << 31) - 1
_INT64_MAX = (1 << 63) - 1


class Tables(NamedTuple):
    """Of `flat`, with room for more rows; `counts` says how many of ops, mops and spans are in use."""

    ops: Rows
    mops: Rows
    spans: Rows
    counts: Longs


class Texts(NamedTuple):
    """Texts that were met, each once, by their place in `data`: a hash table."""

    slots: Ints
    """A power of two, at least twice as many as texts; -1 is free."""
    places: npt.NDArray[np.int64]
    """A row for each text: where it starts and ends. In the first row: how many there are."""


class Fs(NamedTuple):
    """The names of operations that have a value of ours."""

    data: Bytes
    ends: Longs
    kinds: Ints


# -- texts


@kernel
def _hash(data: Bytes, start: int, end: int) -> int:
    value = np.uint64(0xCBF29CE484222325)
    for position in range(start, end):
        value = (value ^ np.uint64(data[position])) * np.uint64(0x100000001B3)
    return value ^ (value >> np.uint64(29))


@kernel
def intern(data: Bytes, start: int, end: int, texts: Texts) -> int:
    """Returns the text's number, or -2 if there is no room for another.

    In `ops` a text is -1 minus its number, and the empty one is 0: so 1 is none, and tells that there was no room.
    """
    count = texts.places[0, 0]
    mask = np.uint64(len(texts.slots) - 1)
    slot = _hash(data, start, end) & mask
    while texts.slots[slot] >= 0:
        number = texts.slots[slot]
        other = texts.places[number + 1, 0]
        if texts.places[number + 1, 1] - other == end - start:
            same = 0
            while same < end - start and data[other + same] == data[start + same]:
                same += 1
            if same == end - start:
                return number
        slot = (slot + np.uint64(1)) & mask
    if 2 * (count + 1) > len(texts.slots):
        return -2
    texts.slots[slot] = count
    texts.places[count + 1, 0] = start
    texts.places[count + 1, 1] = end
    texts.places[0, 0] = count + 1
    return count


@kernel
def intern_all(data: Bytes, known: npt.NDArray[np.int64], texts: Texts) -> None:
    """Fills a larger table, `texts`, with those of another, in their order."""
    for row in range(1, known[0, 0] + 1):
        intern(data, known[row, 0], known[row, 1], texts)


# -- tokens


@kernel
def _expect(data: Bytes, position: int, text: Bytes) -> int:
    """Returns the position after `text`, or BAD."""
    if position < 0:
        return BAD
    for index in range(len(text)):
        if data[position + index] != text[index]:
            return BAD
    return position + len(text)


@kernel
def _natural(data: Bytes, position: int) -> tuple[int, int]:
    """Reads a number without sign or leading zero, of a size that cannot overflow."""
    if position < 0:
        return 0, BAD
    start = position
    value = 0
    while 48 <= data[position] <= 57 and position - start < _DIGITS_MAX:
        value = value * 10 + (data[position] - 48)
        position += 1
    if position == start or 48 <= data[position] <= 57 or (data[start] == 48 and position - start > 1):
        return 0, BAD
    return value, position


@kernel
def _integer(data: Bytes, position: int) -> tuple[int, int]:
    if position >= 0 and data[position] == 45:  # -
        value, after = _natural(data, position + 1)
        return (-value, after) if value else (0, BAD)
    return _natural(data, position)


@kernel
def _same(data: Bytes, start: int, end: int, text: Bytes) -> bool:
    return end - start == len(text) and _expect(data, start, text) == end


@kernel
def _kind_of(data: Bytes, start: int, end: int, fs: Fs) -> int:
    first = 0
    for row in range(len(fs.ends)):
        if _same(data, start, end, fs.data[first : fs.ends[row]]):
            return fs.kinds[row]
        first = fs.ends[row]
    return OTHER


@kernel
def _text(data: Bytes, position: int) -> int:
    """Returns the position of the quote that ends a string of plain ASCII; `position` is that after the first."""
    if position < 0:
        return BAD
    while data[position] != 34:
        if data[position] < 32 or data[position] > 126 or data[position] == 92:
            return BAD
        position += 1
    return position


@kernel
def _put(mops: Rows, count: int, op: int, mop: int, seq: int, kind: int, log: int, offset: int) -> bool:
    """Fills a row that has no record. Returns False if there is no room."""
    if count >= len(mops):
        return False
    row = mops[count]
    row.op = op
    row.mop = mop
    row.seq = seq
    row.kind = kind
    row.log = log
    row.offset = offset
    row.value = _UNKNOWN
    row.key = _UNKNOWN
    row.flags = 0
    return True


@kernel
def _clear(row: Any, index: int, line_offset: int) -> None:
    """An operation of which nothing else is known yet."""
    row.index = index
    row.time_ns = _UNKNOWN
    row.process = _UNKNOWN
    row.pair = _UNKNOWN
    row.line_offset = line_offset
    row.f = 0
    row.client = 0
    row.error = 0
    row.ext = 0
    row.node = _UNKNOWN


# -- JSON


def _bytes(text: str) -> Bytes:
    return np.frombuffer(text.encode(), np.uint8)


_INDEX = _bytes('{"index":')
_TIME = _bytes(',"time":')
_PROCESS = _bytes(',"process":')
_TYPE = _bytes(',"type":"')
_F = _bytes(',"f":"')
_VALUE = _bytes(',"value":')
_ERROR = _bytes(',"error":"')
_NODE = _bytes(',"node":')
_CLIENT = _bytes(',"client":"')
_REBALANCE = _bytes(',"rebalance-log":[{"keys":[')
_KEYS_END = _bytes("]}]")
_SPANS = _bytes(',"spans":{')
_EXT = _bytes(',"ext":')
_NULL = _bytes("null")
_TRUE = _bytes("true")
_FALSE = _bytes("false")
_SEND_START = _bytes('["send",')
_POLL_START = _bytes('["poll"')
_INVOKE = _bytes("invoke")
_OK = _bytes("ok")
_FAIL = _bytes("fail")
_INFO = _bytes("info")


@kernel
def _type_of(data: Bytes, start: int, end: int) -> int:
    if _same(data, start, end, _INVOKE):
        return 0
    if _same(data, start, end, _OK):
        return 1
    if _same(data, start, end, _FAIL):
        return 2
    if _same(data, start, end, _INFO):
        return 3
    return BAD


@kernel
def _natural_or_null(data: Bytes, position: int) -> tuple[int, int]:
    if position >= 0 and data[position] == 110:  # n
        return _UNKNOWN, _expect(data, position, _NULL)
    return _natural(data, position)


@kernel
def _byte(data: Bytes, position: int, byte: int) -> int:
    return position + 1 if position >= 0 and data[position] == byte else BAD


@kernel
def _json_record(data: Bytes, position: int, mops: Rows, count: int) -> int:
    """Reads `[offset,value]` or `[offset,value,key,flags]` into a row."""
    offset, position = _natural_or_null(data, _byte(data, position, 91))
    value, position = _integer(data, _byte(data, position, 44))
    if position < 0:
        return BAD
    mops[count].offset = offset
    mops[count].value = value
    if data[position] == 44:
        key, position = _natural_or_null(data, position + 1)
        flags, position = _natural(data, _byte(data, position, 44))
        if position < 0 or flags > 1:
            return BAD
        mops[count].key = key
        mops[count].flags = flags
    return _byte(data, position, 93)


@kernel
def _json_log(data: Bytes, position: int) -> tuple[int, int]:
    log, position = _integer(data, position)
    return log, position if -_INT32_MAX <= log <= _INT32_MAX else BAD


@kernel
def _json_log_key(data: Bytes, position: int, previous: int) -> tuple[int, int]:
    """Reads `"log":`. Logs rise, as we write them, so that none is there twice."""
    log, position = _json_log(data, _byte(data, position, 34))
    position = _byte(data, _byte(data, position, 34), 58)
    return log, position if log > previous else BAD


@kernel
def _json_poll(data: Bytes, position: int, mops: Rows, count: int, op: int, mop: int) -> tuple[int, int]:
    """Reads `{"log":[record,…],…}]`. Returns the position (or BAD) and the number of rows (-1: no room)."""
    previous = -_INT32_MAX - 1
    seq = 0
    position = _byte(data, position, 123)
    while True:
        log, position = _json_log_key(data, position, previous)
        position = _byte(data, position, 91)
        previous = log
        while position >= 0:
            if not _put(mops, count, op, mop, seq, POLL, log, _UNKNOWN):
                return position, -1
            position = _json_record(data, position, mops, count)
            count += 1
            seq += 1
            if position < 0 or data[position] != 44:
                break
            position += 1
        position = _byte(data, position, 93)
        if position < 0 or data[position] != 44:
            return _byte(data, _byte(data, position, 125), 93), count
        position += 1


@kernel
def _json_micro_op(data: Bytes, position: int, mops: Rows, count: int, op: int, mop: int) -> tuple[int, int]:
    after = _expect(data, position, _SEND_START)
    if after >= 0:
        log, position = _json_log(data, after)
        position = _byte(data, position, 44)
        if position < 0:
            return BAD, count
        if not _put(mops, count, op, mop, 0, SEND, log, _UNKNOWN):
            return position, -1
        if data[position] == 91:
            position = _json_record(data, position, mops, count)
        else:
            value, position = _integer(data, position)
            mops[count].value = value
        return _byte(data, position, 93), count + 1
    position = _expect(data, position, _POLL_START)
    if position < 0:
        return BAD, count
    if data[position] == 44:
        return _json_poll(data, position + 1, mops, count, op, mop)
    if not _put(mops, count, op, mop, 0, NOTHING, _UNKNOWN, _UNKNOWN):
        return position, -1
    return _byte(data, position, 93), count + 1


@kernel
def _json_micro_ops(data: Bytes, position: int, mops: Rows, count: int, op: int) -> tuple[int, int]:
    position = _byte(data, position, 91)
    if position < 0 or data[position] == 93:
        return _byte(data, position, 93), count
    mop = 0
    while True:
        position, count = _json_micro_op(data, position, mops, count, op, mop)
        if position < 0 or count < 0:
            return position, count
        mop += 1
        if data[position] != 44:
            return _byte(data, position, 93), count
        position += 1


@kernel
def _json_logs(data: Bytes, position: int, mops: Rows, count: int, op: int, kind: int) -> tuple[int, int]:
    """Reads the logs of a list, but not its brackets. Those of a rebalance rise."""
    if position < 0 or data[position] == 93:
        return position if kind == LOG else BAD, count
    previous = -_INT32_MAX - 1
    seq = 0
    while True:
        log, position = _json_log(data, position)
        if position < 0 or (kind == REBALANCED and log <= previous):
            return BAD, count
        previous = log
        if not _put(mops, count, op, _UNKNOWN, seq, kind, log, _UNKNOWN):
            return position, -1
        count += 1
        seq += 1
        if data[position] != 44:
            return position, count
        position += 1


@kernel
def _json_offsets(data: Bytes, position: int, mops: Rows, count: int, op: int) -> tuple[int, int]:
    position = _byte(data, position, 123)
    if position < 0 or data[position] == 125:
        return _byte(data, position, 125), count
    previous = -_INT32_MAX - 1
    seq = 0
    while True:
        log, position = _json_log_key(data, position, previous)
        offset, position = _integer(data, position)
        if position < 0:
            return BAD, count
        previous = log
        if not _put(mops, count, op, _UNKNOWN, seq, OFFSET, log, offset):
            return position, -1
        count += 1
        seq += 1
        if data[position] != 44:
            return _byte(data, position, 125), count
        position += 1


@kernel
def _json_spans(data: Bytes, position: int, spans: Rows, count: int, op: int) -> tuple[int, int]:
    previous = -_INT32_MAX - 1
    while True:
        log, position = _json_log_key(data, position, previous)
        start_offset, position = _integer(data, _byte(data, position, 91))
        end_offset, position = _integer(data, _byte(data, position, 44))
        position = _byte(data, position, 93)
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
            return _byte(data, position, 125), count
        position += 1


@kernel
def _json_number(data: Bytes, position: int) -> int:
    """Returns the position after any number, of a size that Python takes."""
    start = position
    if data[position] == 45:
        position += 1
    first = position
    while 48 <= data[position] <= 57:
        position += 1
    if position == first or (data[first] == 48 and position - first > 1):
        return BAD
    if data[position] == 46:
        position += 1
        first = position
        while 48 <= data[position] <= 57:
            position += 1
        if position == first:
            return BAD
    if data[position] == 101 or data[position] == 69:
        position += 1
        if data[position] == 43 or data[position] == 45:
            position += 1
        first = position
        while 48 <= data[position] <= 57:
            position += 1
        if position == first:
            return BAD
    return position if position - start < 1000 else BAD


@kernel
def _json_escaped(data: Bytes, position: int) -> int:
    """Returns the position after a string with escapes; `position` is that after the first quote."""
    while data[position] != 34:
        byte = data[position]
        if byte < 32 or byte > 126:
            return BAD
        position += 1
        if byte == 92:
            byte = data[position]
            if byte == 117:  # u
                for _ in range(4):
                    position += 1
                    digit = data[position] | 32
                    if not (48 <= data[position] <= 57 or 97 <= digit <= 102):
                        return BAD
            elif not (
                byte == 34
                or byte == 92
                or byte == 47
                or byte == 98
                or byte == 102
                or byte == 110
                or byte == 114
                or byte == 116
            ):
                return BAD
            position += 1
    return position + 1


@kernel
def _json_object(data: Bytes, position: int) -> int:
    """Returns the position after any object that is not nested too deeply."""
    if data[position] != 123:
        return BAD
    is_map = np.zeros(_DEPTH_MAX, np.bool_)
    is_map[0] = True
    depth = 1
    is_first = True
    position += 1
    while depth > 0:
        # After an opening bracket, or after a value.
        if data[position] == (125 if is_map[depth - 1] else 93):
            position += 1
            depth -= 1
            is_first = False
            continue
        if not is_first:
            position = _byte(data, position, 44)
            if position < 0:
                return BAD
        if is_map[depth - 1]:
            if data[position] != 34:
                return BAD
            position = _json_escaped(data, position + 1)
            position = _byte(data, position, 58)
            if position < 0:
                return BAD
        byte = data[position]
        is_first = False
        if byte == 123 or byte == 91:
            if depth == _DEPTH_MAX:
                return BAD
            is_map[depth] = byte == 123
            depth += 1
            position += 1
            is_first = True
        elif byte == 34:
            position = _json_escaped(data, position + 1)
        elif byte == 110:
            position = _expect(data, position, _NULL)
        elif byte == 116:
            position = _expect(data, position, _TRUE)
        elif byte == 102:
            position = _expect(data, position, _FALSE)
        else:
            position = _json_number(data, position)
        if position < 0:
            return BAD
    return position


@kernel
def _json_text(data: Bytes, position: int, key: Bytes, texts: Texts) -> tuple[int, int]:
    """Reads a field that is a text, if it is there: returns it as in `ops`, or 1 if there is no room for it."""
    first = _expect(data, position, key)
    if first < 0:
        return 0, position
    last = _text(data, first)
    if last <= first:
        return 0, BAD
    return -1 - intern(data, first, last, texts), last + 1


@kernel
def _json_value(data: Bytes, position: int, kind: int, mops: Rows, count: int, op: int) -> tuple[int, int]:
    after = _expect(data, position, _VALUE)
    if after < 0:
        return position, count
    if kind == MICRO_OPS:
        return _json_micro_ops(data, after, mops, count, op)
    if kind == OFFSETS:
        return _json_offsets(data, after, mops, count, op)
    if kind == LOGS:
        position, count = _json_logs(data, _byte(data, after, 91), mops, count, op, LOG)
        return _byte(data, position, 93), count
    return BAD, count


@kernel
def _json_line(data: Bytes, position: int, tables: Tables, texts: Texts, fs: Fs, base: int) -> tuple[int, int]:
    """Returns the position after the line's newline (or BAD) and DONE, or what is full."""
    start = position
    op_count, mop_count, span_count = tables.counts[0], tables.counts[1], tables.counts[2]
    if op_count >= len(tables.ops):
        return start, OPS_FULL
    row = tables.ops[op_count]
    index, position = _natural(data, _expect(data, position, _INDEX))
    _clear(row, index, base + start)
    after = _expect(data, position, _TIME)
    if after >= 0:
        row.time_ns, position = _natural(data, after)
    after = _expect(data, position, _PROCESS)
    if after >= 0:
        row.process, position = _natural(data, after)
    first = _expect(data, position, _TYPE)
    last = _text(data, first)
    if last < 0:
        return BAD, DONE
    row.type = _type_of(data, first, last)
    first = _expect(data, last + 1, _F)
    row.f, position = _json_text(data, last + 1, _F, texts)
    if row.type < 0 or first < 0 or position < 0:
        return BAD, DONE
    kind = _kind_of(data, first, position - 1, fs)
    position, mop_count = _json_value(data, position, kind, tables.mops, mop_count, index)
    if mop_count < 0:
        return start, MOPS_FULL
    row.error, position = _json_text(data, position, _ERROR, texts)
    after = _expect(data, position, _NODE)
    if after >= 0:
        node, position = _natural(data, after)
        if node > _INT32_MAX:
            return BAD, DONE
        row.node = node
    row.client, position = _json_text(data, position, _CLIENT, texts)
    after = _expect(data, position, _REBALANCE)
    if after >= 0:
        position, mop_count = _json_logs(data, after, tables.mops, mop_count, index, REBALANCED)
        if mop_count < 0:
            return start, MOPS_FULL
        position = _expect(data, position, _KEYS_END)
    after = _expect(data, position, _SPANS)
    if after >= 0:
        position, span_count = _json_spans(data, after, tables.spans, span_count, index)
        if span_count < 0:
            return start, SPANS_FULL
    first = _expect(data, position, _EXT)
    if first >= 0:
        position = _json_object(data, first)
        if position <= first + 2:  # an empty one is not written
            return BAD, DONE
        row.ext = -1 - intern(data, first, position, texts)
    position = _byte(data, _byte(data, position, 125), 10)
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


# -- EDN

_RECORD = _bytes("#jepsen.history.Op")
_NIL = _bytes("nil")
_SEND_NAME = _bytes(":send")
_POLL_NAME = _bytes(":poll")
_KEY_INDEX = _bytes(":index")
_KEY_TIME = _bytes(":time")
_KEY_PROCESS = _bytes(":process")
_KEY_TYPE = _bytes(":type")
_KEY_F = _bytes(":f")
_KEY_VALUE = _bytes(":value")
_KEY_ERROR = _bytes(":error")


@kernel
def _spaces(data: Bytes, position: int) -> int:
    while position >= 0 and (data[position] == 32 or data[position] == 44):
        position += 1
    return position


@kernel
def _is_in_atom(byte: int) -> bool:
    """Whether it goes on with a keyword, symbol or number: plain ASCII without space, comma, brackets, and what has a
    meaning of its own."""
    return not (
        byte <= 32
        or byte > 126
        or byte == 44
        or byte == 40
        or byte == 41
        or byte == 91
        or byte == 93
        or byte == 123
        or byte == 125
        or byte == 34
        or byte == 59
        or byte == 92
        or byte == 35
    )


@kernel
def _after_atom(data: Bytes, position: int) -> int:
    """Returns the position after a keyword, symbol, number, or string without escapes."""
    if position < 0:
        return BAD
    if data[position] == 34:
        end = _text(data, position + 1)
        return end + 1 if end >= 0 else BAD
    start = position
    while _is_in_atom(data[position]):
        position += 1
    # A tag, comment, escape or letter of another alphabet is left to the plain reader.
    byte = data[position]
    is_odd = byte > 126 or byte == 35 or byte == 59 or byte == 92 or byte == 34 or (byte < 32 and byte != 10)
    return BAD if position == start or is_odd else position


@kernel
def _after_form(data: Bytes, position: int, has_maps: bool) -> int:
    """Returns the position after an atom, vector, list or (if `has_maps`) map, whose keys are not counted."""
    closing = np.zeros(_DEPTH_MAX, np.uint8)
    depth = 0
    while True:
        position = _spaces(data, position)
        if position < 0:
            return BAD
        byte = data[position]
        if byte == 91 or byte == 40 or (byte == 123 and has_maps):
            if depth == _DEPTH_MAX:
                return BAD
            closing[depth] = 41 if byte == 40 else byte + 2
            depth += 1
            position += 1
            continue
        if depth > 0 and byte == closing[depth - 1]:
            depth -= 1
            position += 1
        else:
            position = _after_atom(data, position)
        if depth == 0 or position < 0:
            return position


@kernel
def _edn_number(data: Bytes, position: int) -> tuple[int, int]:
    """Reads a number that is not negative, and ends where an atom ends."""
    value, position = _natural(data, position)
    return value, position if position >= 0 and not _is_in_atom(data[position]) else BAD


@kernel
def _edn_number_or_nil(data: Bytes, position: int) -> tuple[int, int]:
    after = _expect(data, position, _NIL)
    if after >= 0:
        return _UNKNOWN, BAD if _is_in_atom(data[after]) else after
    return _edn_number(data, position)


@kernel
def _edn_name(data: Bytes, position: int, number_max: int, names: Texts) -> tuple[int, int]:
    """Reads a log or value: a number, or what gets one. The position is -2 if there is no room for another name."""
    if position < 0:
        return 0, BAD
    if 48 <= data[position] <= 57:
        number, position = _edn_number(data, position)
        return number, position if number <= number_max else BAD
    if data[position] == 43 or data[position] == 45:  # a sign
        return 0, BAD
    after = _after_atom(data, position)
    if after < 0:
        return 0, BAD
    name = intern(data, position, after, names)
    return _FIRST_NAMED - name, after if name >= 0 else -2


@kernel
def _edn_record(data: Bytes, position: int, mops: Rows, count: int, values: Texts) -> int:
    """Reads `[offset value]`. One with a key is ours, and is left to the plain reader."""
    offset, position = _edn_number_or_nil(data, _spaces(data, _byte(data, position, 91)))
    value, position = _edn_name(data, _spaces(data, position), _INT64_MAX, values)
    if position < 0:
        return position
    mops[count].offset = offset
    mops[count].value = value
    return _byte(data, _spaces(data, position), 93)


@kernel
def _edn_poll(
    data: Bytes, position: int, mops: Rows, count: int, op: int, mop: int, logs: Texts, values: Texts
) -> tuple[int, int, int]:
    """Reads `{log [record …] …}`. Returns position, number of rows, and DONE or what is full."""
    first = count
    position = _spaces(data, _byte(data, position, 123))
    while position >= 0 and data[position] != 125:
        log, position = _edn_name(data, position, _INT32_MAX, logs)
        if position < 0:
            return position, count, LOGS_FULL if position == -2 else DONE
        for row in range(first, count):
            if mops[row].log == log:
                return BAD, count, DONE
        position = _spaces(data, _byte(data, _spaces(data, position), 91))
        while position >= 0 and data[position] != 93:
            if not _put(mops, count, op, mop, count - first, POLL, log, _UNKNOWN):
                return position, count, MOPS_FULL
            position = _edn_record(data, position, mops, count, values)
            if position == -2:
                return position, count, VALUES_FULL
            position = _spaces(data, position)
            count += 1
        position = _spaces(data, _byte(data, position, 93))
    position = _byte(data, position, 125)
    if count == first:
        if not _put(mops, count, op, mop, 0, NOTHING, _UNKNOWN, _UNKNOWN):
            return position, count, MOPS_FULL
        count += 1
    return position, count, DONE


@kernel
def _edn_send(
    data: Bytes, position: int, mops: Rows, count: int, op: int, mop: int, logs: Texts, values: Texts
) -> tuple[int, int, int]:
    """Reads `log value` or `log [offset value]`."""
    log, position = _edn_name(data, position, _INT32_MAX, logs)
    if position < 0:
        return position, count, LOGS_FULL if position == -2 else DONE
    if not _put(mops, count, op, mop, 0, SEND, log, _UNKNOWN):
        return position, count, MOPS_FULL
    position = _spaces(data, position)
    if data[position] == 91:
        position = _edn_record(data, position, mops, count, values)
    else:
        value, position = _edn_name(data, position, _INT64_MAX, values)
        mops[count].value = value
    return position, count + 1, VALUES_FULL if position == -2 else DONE


@kernel
def _edn_micro_ops(
    data: Bytes, position: int, mops: Rows, count: int, op: int, logs: Texts, values: Texts
) -> tuple[int, int, int]:
    position = _spaces(data, _byte(data, position, 91))
    mop = 0
    while position >= 0 and data[position] != 93:
        position = _spaces(data, _byte(data, position, 91))
        after = _after_atom(data, position)
        if after < 0:
            return BAD, count, DONE
        status = DONE
        if _same(data, position, after, _SEND_NAME):
            position, count, status = _edn_send(data, _spaces(data, after), mops, count, op, mop, logs, values)
        elif _same(data, position, after, _POLL_NAME):
            position = _spaces(data, after)
            if data[position] == 123:
                position, count, status = _edn_poll(data, position, mops, count, op, mop, logs, values)
            elif _put(mops, count, op, mop, 0, NOTHING, _UNKNOWN, _UNKNOWN):
                count += 1
            else:
                status = MOPS_FULL
        else:
            return BAD, count, DONE
        if status != DONE:
            return position, count, status
        position = _spaces(data, _byte(data, _spaces(data, position), 93))
        mop += 1
    return _byte(data, position, 93), count, DONE


@kernel
def _edn_logs(data: Bytes, position: int, mops: Rows, count: int, op: int, logs: Texts) -> tuple[int, int, int]:
    """Reads a vector or list."""
    closing = 93 if data[position] == 91 else 41
    position = _spaces(data, _byte(data, position, 91 if closing == 93 else 40))
    seq = 0
    while position >= 0 and data[position] != closing:
        log, position = _edn_name(data, position, _INT32_MAX, logs)
        if position < 0:
            return position, count, LOGS_FULL if position == -2 else DONE
        if not _put(mops, count, op, _UNKNOWN, seq, LOG, log, _UNKNOWN):
            return position, count, MOPS_FULL
        position = _spaces(data, position)
        count += 1
        seq += 1
    return _byte(data, position, closing), count, DONE


@kernel
def _edn_fields(data: Bytes, position: int, places: npt.NDArray[np.int64]) -> int:
    """Finds where the seven known fields stand, and returns the position after the line's newline. A line with any
    other field, or with one of them twice, is left to the plain reader."""
    places[:] = -1
    position = _spaces(data, position)
    after = _expect(data, position, _RECORD)
    position = _spaces(data, _byte(data, after if after >= 0 else position, 123))
    while position >= 0 and data[position] != 125:
        end = _after_atom(data, position)
        if end < 0:
            return BAD
        field = -1
        if _same(data, position, end, _KEY_INDEX):
            field = 0
        elif _same(data, position, end, _KEY_TIME):
            field = 1
        elif _same(data, position, end, _KEY_PROCESS):
            field = 2
        elif _same(data, position, end, _KEY_TYPE):
            field = 3
        elif _same(data, position, end, _KEY_F):
            field = 4
        elif _same(data, position, end, _KEY_VALUE):
            field = 5
        elif _same(data, position, end, _KEY_ERROR):
            field = 6
        if field < 0 or places[field, 0] >= 0:
            return BAD
        places[field, 0] = _spaces(data, end)
        end = _after_form(data, places[field, 0], field == 5)
        if end < 0:
            return BAD
        places[field, 1] = end
        position = _spaces(data, end)
    return _byte(data, _spaces(data, _byte(data, position, 125)), 10)


@kernel
def _edn_field(data: Bytes, places: npt.NDArray[np.int64], field: int) -> tuple[int, bool]:
    """Returns a number (-1 for none), and whether it is one."""
    if places[field, 0] < 0:
        return _UNKNOWN, True
    number, position = _edn_number_or_nil(data, places[field, 0])
    return number, position == places[field, 1]


@kernel
def _edn_line(
    data: Bytes,
    start: int,
    tables: Tables,
    texts: Texts,
    logs: Texts,
    values: Texts,
    fs: Fs,
    base: int,
    first_index: int,
    places: npt.NDArray[np.int64],
) -> tuple[int, int]:
    op_count, mop_count = tables.counts[0], tables.counts[1]
    if op_count >= len(tables.ops):
        return start, OPS_FULL
    end = _edn_fields(data, start, places)
    if end < 0 or places[3, 0] < 0 or places[4, 0] < 0:
        return BAD, DONE
    index, is_index = _edn_field(data, places, 0)
    time_ns, is_time = _edn_field(data, places, 1)
    process, is_process = _edn_field(data, places, 2)
    if not (is_index and is_time and is_process) or data[places[3, 0]] != 58 or data[places[4, 0]] != 58:
        return BAD, DONE
    type_ = _type_of(data, places[3, 0] + 1, places[3, 1])
    if type_ < 0 or places[4, 1] == places[4, 0] + 1:
        return BAD, DONE
    if index < 0:
        index = first_index + op_count
    kind = _kind_of(data, places[4, 0] + 1, places[4, 1], fs)
    f = -1 - intern(data, places[4, 0] + 1, places[4, 1], texts)
    if f > 0:
        return start, TEXTS_FULL
    position = places[5, 0]
    if position >= 0 and not _same(data, position, places[5, 1], _NIL):
        status = DONE
        if kind == MICRO_OPS:
            position, mop_count, status = _edn_micro_ops(data, position, tables.mops, mop_count, index, logs, values)
        elif kind == LOGS:
            position, mop_count, status = _edn_logs(data, position, tables.mops, mop_count, index, logs)
        else:
            return BAD, DONE
        if status != DONE:
            return start, status
        if position != places[5, 1]:
            return BAD, DONE
    error = 0
    if places[6, 0] >= 0 and not _same(data, places[6, 0], places[6, 1], _NIL):
        is_string = data[places[6, 0]] == 34
        first, last = places[6, 0], places[6, 1]
        if is_string:
            first, last = first + 1, last - 1
        if last > first:
            error = -1 - intern(data, first, last, texts)
            if error > 0:
                return start, TEXTS_FULL
    row = tables.ops[op_count]
    _clear(row, index, base + start)
    row.time_ns = time_ns
    row.process = process
    row.f = f
    row.error = error
    row.type = type_
    tables.counts[0] = op_count + 1
    tables.counts[1] = mop_count
    return end, DONE


@kernel
def scan_edn(
    data: Bytes,
    position: int,
    tables: Tables,
    texts: Texts,
    logs: Texts,
    values: Texts,
    fs: Fs,
    base: int,
    first_index: int,
) -> tuple[int, int]:
    """As `scan_json`. Logs and values in `mops` that are no numbers are -2 minus the number of their name. An
    operation without an index gets `first_index` plus its place."""
    places = np.empty((7, 2), np.int64)
    while position < len(data):
        if data[position] == 10:
            position += 1
            continue
        after, status = _edn_line(data, position, tables, texts, logs, values, fs, base, first_index, places)
        if status != DONE:
            return position, status
        if after < 0:
            return position, LEFT
        position = after
    return position, DONE
