"""Patterns of topics' names: one syntax, and one error, wherever replicas are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from sexton.audit.folders import FolderSource
from sexton.audit.live.discovery import Scope
from sexton.audit.pattern import BadPatternError, compile_pattern


def test_whole_names_match() -> None:
    matches = compile_pattern("orders|users.*")
    assert [matches(name) for name in ("orders", "orders2", "users2", "my-orders")] == [True, False, True, False]


@pytest.mark.parametrize("text", ["(", "a{2,1}", "*", "(?=a)"])
def test_a_pattern_that_is_none_is_told_once(text: str, capfd: pytest.CaptureFixture[str]) -> None:
    """RE2 logs errors by itself."""
    for read in (compile_pattern, lambda text: Scope(text).matcher(), lambda text: FolderSource({1: [Path()]}, text)):
        with pytest.raises(BadPatternError, match="no regular expression"):
            read(text)
    assert capfd.readouterr() == ("", "")
