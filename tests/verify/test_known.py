from __future__ import annotations

from importlib.metadata import PackageNotFoundError

import pytest

from sexton.extras import MissingExtraError
from sexton.verify.clients import known


def test_a_client_that_is_not_installed_is_told_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(known, "version", missing)
    with pytest.raises(MissingExtraError, match="aiokafka is not installed"):
        known.prepare(["aiokafka"])
    assert known.installed(has_emptied_markers=False) == []


def test_who_cannot_read_emptied_markers_is_left_out_where_there_are_some() -> None:
    assert set(known.installed(has_emptied_markers=False)) == {"confluent-kafka", "aiokafka", "kafka-python"}
    assert known.installed(has_emptied_markers=True) == ["confluent-kafka"]
