"""Brokers that tests of compaction start from. Each is started inside the event loop of its test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.broker.compaction.followed import Followed
from tests.broker.compaction.harness import Broker


@pytest.fixture
async def broker(tmp_path: Path) -> Broker:
    made = Broker(tmp_path)
    await made.start()
    return made


@pytest.fixture
async def pair(tmp_path: Path) -> Followed:
    made = Followed(tmp_path)
    await made.start()
    return made
