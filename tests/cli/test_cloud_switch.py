"""`sexton cloud switch` asks first, and then changes the setting: the rest is the brokers' own work."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from sexton.cli import config
from sexton.cli.broker import UsageError
from sexton.cli.main import app
from sexton.client.admin import Resource


def test_a_topic_is_moved_only_if_somebody_is_sure(monkeypatch: pytest.MonkeyPatch) -> None:
    changed: list[Any] = []
    monkeypatch.setattr(config, "change", lambda *arguments: changed.append(arguments))
    unsure = CliRunner().invoke(app, ["cloud", "switch", "orders"])
    assert isinstance(unsure.exception, UsageError)
    assert "no way back" in str(unsure.exception)
    assert changed == []
    sure = CliRunner().invoke(app, ["cloud", "switch", "orders", "--yes", "--bootstrap-server", "localhost:1"])
    assert sure.exit_code == 0, sure.output
    assert changed == [("localhost:1", Resource.TOPIC, "orders", {"storage.mode": "cloud"})]
