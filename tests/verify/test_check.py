"""`verify check` judges small and large histories alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from sexton.checker.sabotage import sabotage
from sexton.errors import SextonError
from sexton.history import run
from sexton.history.lines import to_line
from sexton.history.run import Description
from sexton.verify import run as verify_run
from sexton.verify.run import Rules


def test_a_large_history_is_judged_like_a_small_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = sabotage("lost-write", 1).history
    run.write(tmp_path, Description(planted.run))
    (tmp_path / "history.jsonl").write_bytes(b"".join(map(to_line, planted.ops)))
    plain = verify_run.check(tmp_path, Rules())
    monkeypatch.setattr(verify_run, "PLAIN_OPS_MAX", 0)
    assert verify_run.check(tmp_path, Rules()).canonical() == plain.canonical()
    assert "lost-write" in plain.wrong()


def test_a_run_that_was_long_is_judged_from_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = sabotage("lost-write", 1).history
    run.write(tmp_path, Description(planted.run))
    (tmp_path / "history.jsonl").write_bytes(b"".join(map(to_line, planted.ops)))
    plain = verify_run.judge(tmp_path, planted.ops, planted.run, Rules())
    monkeypatch.setattr(verify_run, "PLAIN_OPS_MAX", 0)
    assert verify_run.judge(tmp_path, planted.ops, planted.run, Rules()).canonical() == plain.canonical()
    (tmp_path / "history.jsonl").unlink()
    with pytest.raises(SextonError):
        verify_run.judge(tmp_path, planted.ops, planted.run, Rules())
