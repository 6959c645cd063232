from __future__ import annotations

import io
from pathlib import Path

import pytest

from sexton.errors import CorruptHistoryError, NotAHistoryError
from sexton.history import edn, flat, flatten, run
from sexton.history.flat import to_ops
from sexton.history.lines import to_line
from sexton.history.load import load
from sexton.history.op import Log, Run
from sexton.history.order import Order
from sexton.history.run import Description
from tests.history.histories import EXAMPLE

RUN = Run("a run", "queue", {5: Log("t2", 1)})


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "history.jsonl").write_bytes(b"".join(map(to_line, EXAMPLE)))
    run.write(tmp_path, Description(RUN))
    return tmp_path


def test_a_run_is_loaded_by_its_directory_or_any_file_of_its_history(directory: Path) -> None:
    with (directory / "history.jsonl").open("rb") as file:
        flat.write_parquet(flatten.flat_lines(file, Order("x")), directory, Order("x"))
    for path in (directory, directory / "history.jsonl", directory / "ops.parquet"):
        loaded = load(path)
        assert loaded.run == RUN
        assert list(to_ops(loaded.history)) == EXAMPLE
        assert loaded.history.ops["pair"].tolist()[:3] == [-1, 2, 1]
        assert loaded.notes.op_count == len(EXAMPLE)


def test_a_run_that_was_killed_is_loaded(directory: Path) -> None:
    with (directory / "history.jsonl").open("r+b") as file:
        file.seek(-5, io.SEEK_END)
        file.truncate()
    loaded = load(directory)
    assert list(to_ops(loaded.history)) == EXAMPLE[:-1]
    assert loaded.notes.cut_off_bytes > 0


def test_a_history_of_jepsens_is_loaded_with_its_names_and_what_it_tells_of_its_run(tmp_path: Path) -> None:
    path = tmp_path / "history.edn"
    path.write_bytes(b"".join(edn.to_line(op, Run()) for op in EXAMPLE))
    assert load(path).run.uses_subscribe
    path.write_text("{:type :ok, :f :send, :value [[:send :x :a]]}\n")
    loaded = load(path)
    assert (loaded.run.log_names, loaded.run.value_names) == ({-2: ":x"}, {-2: ":a"})
    assert not loaded.run.uses_subscribe
    assert load(tmp_path).run == loaded.run


def test_what_is_no_history_is_told(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing.jsonl"):
        with pytest.raises(NotAHistoryError, match="there is no history"):
            load(path)
    other = tmp_path / "other.txt"
    other.write_text("hello\n")
    with pytest.raises(NotAHistoryError, match="its name does not tell what it is"):
        load(other)


def test_an_error_names_file_and_line(directory: Path) -> None:
    with (directory / "history.jsonl").open("ab") as file:
        file.write(b"{}\n")
    with pytest.raises(CorruptHistoryError, match=r"history\.jsonl, line 13: "):
        load(directory)
