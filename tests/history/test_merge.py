from __future__ import annotations

from pathlib import Path

import pytest

from sexton.errors import CorruptHistoryError
from sexton.history import flat
from sexton.history.lines import to_line
from sexton.history.load import load
from sexton.history.merge import merge_pieces, pieces_in
from sexton.history.op import F, Op, Send, Type


def send(index: int, time_ns: int, process: int, type_: Type = Type.INVOKE) -> Op:
    return Op(index, time_ns, process, type_, F.SEND, (Send(0, process, 5 if type_ is Type.OK else -1),))


def write(directory: Path, name: str, *ops: Op, cut: bytes = b"") -> None:
    (directory / f"piece-{name}.jsonl").write_bytes(b"".join(map(to_line, ops)) + cut)


def test_pieces_are_put_together_by_time_and_numbered_anew(tmp_path: Path) -> None:
    write(tmp_path, "a", send(0, 10, 1), send(1, 40, 1, Type.OK))
    write(tmp_path, "b", send(0, 20, 2), send(1, 30, 2, Type.OK))
    assert merge_pieces(tmp_path, tmp_path / "history.jsonl") == 4
    found = list(flat.to_ops(load(tmp_path).history))
    assert [(op.index, op.time_ns, op.process) for op in found] == [(0, 10, 1), (1, 20, 2), (2, 30, 2), (3, 40, 1)]
    assert found[2].micro_ops == (Send(0, 2, 5),)
    assert not pieces_in(tmp_path)


def test_of_one_time_the_order_of_a_piece_is_kept(tmp_path: Path) -> None:
    write(tmp_path, "a", send(0, 10, 1), send(1, 10, 1, Type.OK), send(2, 10, 1))
    write(tmp_path, "b", send(0, 10, 2))
    merge_pieces(tmp_path, tmp_path / "history.jsonl")
    found = [op.type for op in flat.to_ops(load(tmp_path).history) if op.process == 1]
    assert found == [Type.INVOKE, Type.OK, Type.INVOKE]


def test_a_run_that_was_killed_is_judged_from_its_pieces_without_the_line_that_was_cut(tmp_path: Path) -> None:
    write(tmp_path, "a", send(0, 10, 1), cut=b'{"index":1,"time":15,"proc')
    write(tmp_path, "b", send(0, 20, 2))
    assert len(load(tmp_path).history.ops) == 2
    assert (tmp_path / "history.jsonl").exists()


def test_a_piece_that_is_none_is_told_and_nothing_is_lost(tmp_path: Path) -> None:
    write(tmp_path, "a", send(0, 10, 1))
    (tmp_path / "piece-b.jsonl").write_bytes(b"what is this\n")
    with pytest.raises(CorruptHistoryError, match="no index and time"):
        load(tmp_path)
    assert len(pieces_in(tmp_path)) == 2
