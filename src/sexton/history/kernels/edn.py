"""`history.edn`, as Jepsen spells it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sexton.history.kernels.tables import (
    BAD,
    DEPTH_MAX,
    DONE,
    FIRST_NAMED,
    INT32_MAX,
    INT64_MAX,
    LEFT,
    LOG,
    LOGS,
    LOGS_FULL,
    MICRO_OPS,
    MOPS_FULL,
    NOTHING,
    OPS_FULL,
    POLL,
    SEND,
    TEXTS_FULL,
    UNKNOWN,
    VALUES_FULL,
    Bytes,
    Fs,
    Rows,
    Tables,
    clear,
    put,
)
from sexton.history.kernels.texts import Texts, intern
from sexton.history.kernels.tokens import after_byte, ascii_bytes, expect, kind_of, natural, same, text_end, type_of
from sexton.jit import kernel

_RECORD = ascii_bytes("#jepsen.history.Op")
_NIL = ascii_bytes("nil")
_SEND_NAME = ascii_bytes(":send")
_POLL_NAME = ascii_bytes(":poll")
_KEY_INDEX = ascii_bytes(":index")
_KEY_TIME = ascii_bytes(":time")
_KEY_PROCESS = ascii_bytes(":process")
_KEY_TYPE = ascii_bytes(":type")
_KEY_F = ascii_bytes(":f")
_KEY_VALUE = ascii_bytes(":value")
_KEY_ERROR = ascii_bytes(":error")


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
        end = text_end(data, position + 1)
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
    closing = np.zeros(DEPTH_MAX, np.uint8)
    depth = 0
    while True:
        position = _spaces(data, position)
        if position < 0:
            return BAD
        byte = data[position]
        if byte == 91 or byte == 40 or (byte == 123 and has_maps):
            if depth == DEPTH_MAX:
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
    value, position = natural(data, position)
    return value, position if position >= 0 and not _is_in_atom(data[position]) else BAD


@kernel
def _edn_number_or_nil(data: Bytes, position: int) -> tuple[int, int]:
    after = expect(data, position, _NIL)
    if after >= 0:
        return UNKNOWN, BAD if _is_in_atom(data[after]) else after
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
    return FIRST_NAMED - name, after if name >= 0 else -2


@kernel
def _edn_record(data: Bytes, position: int, mops: Rows, count: int, values: Texts) -> int:
    """Reads `[offset value]`. One with a key is ours, and is left to the plain reader."""
    offset, position = _edn_number_or_nil(data, _spaces(data, after_byte(data, position, 91)))
    value, position = _edn_name(data, _spaces(data, position), INT64_MAX, values)
    if position < 0:
        return position
    mops[count].offset = offset
    mops[count].value = value
    return after_byte(data, _spaces(data, position), 93)


@kernel
def _edn_poll(
    data: Bytes, position: int, mops: Rows, count: int, op: int, mop: int, logs: Texts, values: Texts
) -> tuple[int, int, int]:
    """Reads `{log [record …] …}`. Returns position, number of rows, and DONE or what is full."""
    first = count
    position = _spaces(data, after_byte(data, position, 123))
    while position >= 0 and data[position] != 125:
        log, position = _edn_name(data, position, INT32_MAX, logs)
        if position < 0:
            return position, count, LOGS_FULL if position == -2 else DONE
        for row in range(first, count):
            if mops[row].log == log:
                return BAD, count, DONE
        position = _spaces(data, after_byte(data, _spaces(data, position), 91))
        while position >= 0 and data[position] != 93:
            if not put(mops, count, op, mop, count - first, POLL, log, UNKNOWN):
                return position, count, MOPS_FULL
            position = _edn_record(data, position, mops, count, values)
            if position == -2:
                return position, count, VALUES_FULL
            position = _spaces(data, position)
            count += 1
        position = _spaces(data, after_byte(data, position, 93))
    position = after_byte(data, position, 125)
    if count == first:
        if not put(mops, count, op, mop, 0, NOTHING, UNKNOWN, UNKNOWN):
            return position, count, MOPS_FULL
        count += 1
    return position, count, DONE


@kernel
def _edn_send(
    data: Bytes, position: int, mops: Rows, count: int, op: int, mop: int, logs: Texts, values: Texts
) -> tuple[int, int, int]:
    """Reads `log value` or `log [offset value]`."""
    log, position = _edn_name(data, position, INT32_MAX, logs)
    if position < 0:
        return position, count, LOGS_FULL if position == -2 else DONE
    if not put(mops, count, op, mop, 0, SEND, log, UNKNOWN):
        return position, count, MOPS_FULL
    position = _spaces(data, position)
    if data[position] == 91:
        position = _edn_record(data, position, mops, count, values)
    else:
        value, position = _edn_name(data, position, INT64_MAX, values)
        mops[count].value = value
    return position, count + 1, VALUES_FULL if position == -2 else DONE


@kernel
def _edn_micro_ops(
    data: Bytes, position: int, mops: Rows, count: int, op: int, logs: Texts, values: Texts
) -> tuple[int, int, int]:
    position = _spaces(data, after_byte(data, position, 91))
    mop = 0
    while position >= 0 and data[position] != 93:
        position = _spaces(data, after_byte(data, position, 91))
        after = _after_atom(data, position)
        if after < 0:
            return BAD, count, DONE
        status = DONE
        if same(data, position, after, _SEND_NAME):
            position, count, status = _edn_send(data, _spaces(data, after), mops, count, op, mop, logs, values)
        elif same(data, position, after, _POLL_NAME):
            position = _spaces(data, after)
            if data[position] == 123:
                position, count, status = _edn_poll(data, position, mops, count, op, mop, logs, values)
            elif put(mops, count, op, mop, 0, NOTHING, UNKNOWN, UNKNOWN):
                count += 1
            else:
                status = MOPS_FULL
        else:
            return BAD, count, DONE
        if status != DONE:
            return position, count, status
        position = _spaces(data, after_byte(data, _spaces(data, position), 93))
        mop += 1
    return after_byte(data, position, 93), count, DONE


@kernel
def _edn_logs(data: Bytes, position: int, mops: Rows, count: int, op: int, logs: Texts) -> tuple[int, int, int]:
    """Reads a vector or list."""
    closing = 93 if data[position] == 91 else 41
    position = _spaces(data, after_byte(data, position, 91 if closing == 93 else 40))
    seq = 0
    while position >= 0 and data[position] != closing:
        log, position = _edn_name(data, position, INT32_MAX, logs)
        if position < 0:
            return position, count, LOGS_FULL if position == -2 else DONE
        if not put(mops, count, op, UNKNOWN, seq, LOG, log, UNKNOWN):
            return position, count, MOPS_FULL
        position = _spaces(data, position)
        count += 1
        seq += 1
    return after_byte(data, position, closing), count, DONE


@kernel
def _edn_fields(data: Bytes, position: int, places: npt.NDArray[np.int64]) -> int:
    """Finds where the seven known fields stand, and returns the position after the line's newline. A line with any
    other field, or with one of them twice, is left to the plain reader."""
    places[:] = -1
    position = _spaces(data, position)
    after = expect(data, position, _RECORD)
    position = _spaces(data, after_byte(data, after if after >= 0 else position, 123))
    while position >= 0 and data[position] != 125:
        end = _after_atom(data, position)
        if end < 0:
            return BAD
        field = -1
        if same(data, position, end, _KEY_INDEX):
            field = 0
        elif same(data, position, end, _KEY_TIME):
            field = 1
        elif same(data, position, end, _KEY_PROCESS):
            field = 2
        elif same(data, position, end, _KEY_TYPE):
            field = 3
        elif same(data, position, end, _KEY_F):
            field = 4
        elif same(data, position, end, _KEY_VALUE):
            field = 5
        elif same(data, position, end, _KEY_ERROR):
            field = 6
        if field < 0 or places[field, 0] >= 0:
            return BAD
        places[field, 0] = _spaces(data, end)
        end = _after_form(data, places[field, 0], field == 5)
        if end < 0:
            return BAD
        places[field, 1] = end
        position = _spaces(data, end)
    return after_byte(data, _spaces(data, after_byte(data, position, 125)), 10)


@kernel
def _edn_field(data: Bytes, places: npt.NDArray[np.int64], field: int) -> tuple[int, bool]:
    """Returns a number (-1 for none), and whether it is one."""
    if places[field, 0] < 0:
        return UNKNOWN, True
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
    type_ = type_of(data, places[3, 0] + 1, places[3, 1])
    if type_ < 0 or places[4, 1] == places[4, 0] + 1:
        return BAD, DONE
    if index < 0:
        index = first_index + op_count
    kind = kind_of(data, places[4, 0] + 1, places[4, 1], fs)
    f = -1 - intern(data, places[4, 0] + 1, places[4, 1], texts)
    if f > 0:
        return start, TEXTS_FULL
    position = places[5, 0]
    if position >= 0 and not same(data, position, places[5, 1], _NIL):
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
    if places[6, 0] >= 0 and not same(data, places[6, 0], places[6, 1], _NIL):
        is_string = data[places[6, 0]] == 34
        first, last = places[6, 0], places[6, 1]
        if is_string:
            first, last = first + 1, last - 1
        if last > first:
            error = -1 - intern(data, first, last, texts)
            if error > 0:
                return start, TEXTS_FULL
    row = tables.ops[op_count]
    clear(row, index, base + start)
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
