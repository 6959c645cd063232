from __future__ import annotations

import asyncio

import pytest

from sexton.ports.metastore import Metastore
from tests.adapters.metastore.cloud.world import World


@pytest.fixture
def world(store: Metastore) -> World:
    return asyncio.run(World(store).start())
