"""What tests of a compactor's turns start from."""

from __future__ import annotations

import pytest

from tests.compactor.test_worker import World


@pytest.fixture
async def world() -> World:
    """Made inside the event loop of the test."""
    return World()
