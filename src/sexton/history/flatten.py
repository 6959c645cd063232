"""From the bytes of a history to flat arrays: a file, or a piece of one, as a Spark task gets it.

Kernels read what they know, and the plain reader the lines that they leave to it, into the same arrays.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final

import numpy as np

from sexton.history import edn, lines
from sexton.history.edn import Names
from sexton.history.flat import TEXTS, Builder, FlatHistory, concat, with_pairs
from sexton.history.kernels import edn as edn_kernel
from sexton.history.kernels import json_lines
from sexton.history.kernels.tables import (
    DONE,
    LEFT,
    LOGS,
    LOGS_FULL,
    MICRO_OPS,
    MOPS_FULL,
    OFFSETS,
    OPS_FULL,
    SPANS_FULL,
    TEXTS_FULL,
    Bytes,
    Fs,
    Tables,
)
from sexton.history.kernels.texts import Texts, intern, intern_all
from sexton.history.op import NAMES_LOGS, NAMES_OFFSETS, READS_AND_WRITES, Op
from sexton.history.order import Order

PIECE_BYTES: Final = 64 << 20
"""How much of a file is read at once. A piece grows until it has a whole line."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some lines of a history."""

    data: bytes
    line_offset: int = 0
    """Where it begins in the file."""
    line: int = 1
    """The number of its first line."""
    is_last: bool = True
    """Whether its last line may be cut short."""


def pieces(file: BinaryIO, name: str) -> Iterator[Piece]:
    """Cuts a file at ends of lines. Never holds more than one piece, and the line that it grew by."""
    offset, line, rest = 0, 1, b""
    while block := file.read(PIECE_BYTES):
        end = block.rfind(b"\n") + 1
        if len(rest) + (block.find(b"\n") + 1 or len(block)) > lines.LINE_BYTES_MAX:
            raise lines.too_long(name, line)
        if not end:
            rest += block
            continue
        data, rest = rest + block[:end], block[end:]
        yield Piece(data, offset, line, is_last=False)
        offset += len(data)
        line += data.count(b"\n")
    if rest or not offset:
        yield Piece(rest, offset, line)


def flat_lines(file: BinaryIO, order: Order) -> Iterator[FlatHistory]:
    """The pieces of a `history.jsonl`, without pairs. `order` gets the note of a last line that is cut short."""
    return (flatten_lines(piece, order) for piece in pieces(file, order.name))


def flat_edn(file: BinaryIO, order: Order) -> Iterator[FlatHistory]:
    """The pieces of a `history.edn`, likewise."""
    op_count = 0
    for piece in pieces(file, order.name):
        flat = flatten_edn(piece, order, op_count)
        op_count += len(flat.ops)
        yield flat


def read_lines(file: BinaryIO, order: Order) -> FlatHistory:
    """A whole `history.jsonl`, checked and with pairs. `order` has the notes of what was let pass."""
    return with_pairs(concat(list(flat_lines(file, order))), order, LineNumbers(file))


def read_edn(file: BinaryIO, order: Order) -> FlatHistory:
    """A whole `history.edn`, likewise."""
    return with_pairs(concat(list(flat_edn(file, order))), order, LineNumbers(file))


@dataclass(slots=True)
class LineNumbers:
    """Counts lines up to a position that rises from call to call: asked only for an error."""

    file: BinaryIO
    _position: int = 0
    _line: int = 1

    def __call__(self, position: int) -> int:
        self.file.seek(self._position)
        self._line += self.file.read(position - self._position).count(b"\n")
        self._position = position
        return self._line


def flatten_lines(piece: Piece, order: Order) -> FlatHistory:
    """JSON Lines, without pairs and unchecked, but for what makes a single line unreadable.

    Raises CorruptHistoryError. Notes a last line that is cut short.
    """
    return _Lines(piece).flatten(order)


def flatten_edn(piece: Piece, order: Order, first_index: int) -> FlatHistory:
    """EDN, likewise. An operation without an index gets `first_index` plus its place in the piece."""
    if piece.line_offset == 0 and piece.data.startswith(edn.JEPSEN_MAGIC):
        raise edn.binary(order.name)
    return _Edn(piece, first_index).flatten(order)


def _fs() -> Fs:
    kinds = {
        **dict.fromkeys(sorted(READS_AND_WRITES), MICRO_OPS),
        **dict.fromkeys(sorted(NAMES_LOGS), LOGS),
        **dict.fromkeys(sorted(NAMES_OFFSETS), OFFSETS),
    }
    names = [name.encode() for name in kinds]
    ends = np.cumsum([len(name) for name in names], dtype=np.int64)
    return Fs(np.frombuffer(b"".join(names), np.uint8), ends, np.array(list(kinds.values()), np.int32))


_FS: Final = _fs()
_TEXTS_ROOM: Final = 256


def _texts(room: int) -> Texts:
    return Texts(np.full(2 * room, -1, np.int32), np.zeros((room + 1, 2), np.int64))


class _Scan(ABC):
    """Has a kernel go on until it is done or leaves a line, and gives it room where it needs more."""

    def __init__(self, piece: Piece) -> None:
        self.piece = piece
        self.position = 0
        self.builder = Builder()
        self.builder.reserve(len(piece.data) // 256, len(piece.data) // 64, len(piece.data) // 256)
        self.texts = _texts(_TEXTS_ROOM)
        has_end = piece.data.endswith(b"\n")
        self.data: Bytes = np.frombuffer(piece.data if has_end else piece.data + b"\n", np.uint8)

    @abstractmethod
    def scan(self, tables: Tables) -> tuple[int, int]:
        """Calls the kernel."""

    @abstractmethod
    def read(self, line: bytes) -> Op | None:
        """Calls the plain reader."""

    @abstractmethod
    def make_room(self, status: int) -> None:
        """For names, if there are any."""

    def flatten(self, order: Order) -> FlatHistory:
        data = self.piece.data
        while self._goes_on():
            end = data.find(b"\n", self.position) + 1 or len(data)
            line = data[self.position : end]
            try:
                op = None if line.isspace() else self.read(line)
            except ValueError as error:
                if self.piece.is_last and not line.endswith(b"\n"):
                    order.notes.cut_off_bytes = len(line)
                    break
                number = self.piece.line + data.count(b"\n", 0, self.position)
                raise lines.unreadable(order.name, number, error) from None
            if op is not None:
                self.builder.put(op, self.piece.line_offset + self.position)
            self.position = end
        return self.build()

    def _goes_on(self) -> bool:
        """Returns whether a line is left to the plain reader, at `position`."""
        while True:
            tables = Tables(self.builder.ops, self.builder.mops, self.builder.spans, self.builder.counts)
            self.position, status = self.scan(tables)
            if status in (DONE, LEFT):
                return status == LEFT
            if status == TEXTS_FULL:
                self.texts = self.larger(self.texts)
            elif status in _TABLES:
                table = _TABLES.index(status)
                self.builder.reserve(*(len(rows) + 1 if row == table else 0 for row, rows in enumerate(tables[:3])))
            else:
                self.make_room(status)

    def larger(self, texts: Texts) -> Texts:
        larger = _texts(len(texts.slots))
        intern_all(self.data, texts.places, larger)
        return larger

    def met(self, texts: Texts, known: int = 0) -> list[str]:
        """The texts after the first `known` ones."""
        places = texts.places[1 + known : 1 + texts.places[0, 0]].tolist()
        return [self.piece.data[start:end].decode() for start, end in places]

    def build(self) -> FlatHistory:
        strings = self.builder.strings
        numbers = np.array([strings.setdefault(text, len(strings)) for text in self.met(self.texts)], np.int32)
        ops = self.builder.ops[: self.builder.counts[0]]
        for name in TEXTS:
            is_met = ops[name] < 0
            ops[name][is_met] = numbers[-1 - ops[name][is_met]]
        return self.builder.build()


_TABLES: Final = (OPS_FULL, MOPS_FULL, SPANS_FULL)


class _Lines(_Scan):
    def scan(self, tables: Tables) -> tuple[int, int]:
        position, status = json_lines.scan_json(
            self.data, self.position, tables, self.texts, _FS, self.piece.line_offset
        )
        return position, status

    def read(self, line: bytes) -> Op:
        return lines.from_line(line)

    def make_room(self, status: int) -> None:
        raise AssertionError(f"JSON Lines have no names: {status}")


class _Edn(_Scan):
    """Kernel and plain reader number the same names: what one has met, the other is told before it goes on."""

    def __init__(self, piece: Piece, first_index: int) -> None:
        super().__init__(piece)
        self.first_index = first_index
        self.names = Names()
        self.logs = _texts(_TEXTS_ROOM)
        self.values = _texts(_TEXTS_ROOM)

    def scan(self, tables: Tables) -> tuple[int, int]:
        position, status = edn_kernel.scan_edn(
            *(self.data, self.position, tables, self.texts, self.logs, self.values),
            *(_FS, self.piece.line_offset, self.first_index),
        )
        return position, status

    def make_room(self, status: int) -> None:
        if status == LOGS_FULL:
            self.logs = self.larger(self.logs)
        else:
            self.values = self.larger(self.values)

    def read(self, line: bytes) -> Op | None:
        self._tell_plain_reader()
        op = edn.from_line(line, self.names, self.first_index + int(self.builder.counts[0]))
        self.logs = self._tell_kernel(self.logs, self.names.logs)
        self.values = self._tell_kernel(self.values, self.names.values)
        return op

    def _tell_plain_reader(self) -> None:
        for texts, names in ((self.logs, self.names.logs), (self.values, self.names.values)):
            for text in self.met(texts, len(names)):
                names[text] = edn.FIRST_NAMED - len(names)

    def _tell_kernel(self, texts: Texts, names: dict[str, int]) -> Texts:
        for name in list(names)[int(texts.places[0, 0]) :]:
            start = self.piece.data.index(name.encode(), self.position)
            while intern(self.data, start, start + len(name.encode()), texts) < 0:
                texts = self.larger(texts)
        return texts

    def build(self) -> FlatHistory:
        self._tell_plain_reader()
        flat = super().build()
        return FlatHistory(
            ops=flat.ops,
            mops=flat.mops,
            spans=flat.spans,
            strings=flat.strings,
            log_names=list(self.names.logs),
            value_names=list(self.names.values),
        )
