"""The controller's loop: what it is refused does not keep it from the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sexton.broker.lifecycle.control import Control
from sexton.metadata.view import ClusterView
from sexton.ports.metastore import BrokerRow, ControllerRow, PartitionRow, StaleError
from sexton.settings.topic import TopicConfig
from tests.metadata.rows import TOPIC, brokers, partition


class Refusing:
    """A metastore to which one broker is not the process that the controller takes it for."""

    def __init__(self, refused: int | None) -> None:
        self._refused = refused
        self.written: list[PartitionRow] = []

    async def read_leases(self) -> Mapping[int, tuple[int, int]]:
        return {}

    async def update_partitions(self, rows: Sequence[PartitionRow], live: Mapping[int, int]) -> None:
        if self._refused in live:
            raise StaleError("another process")
        self.written += rows


@pytest.mark.parametrize(("refused", "silent"), [(2, None), (None, 2)], ids=["not that process", "silent"])
def test_an_election_that_is_refused_does_not_keep_other_partitions_without_leader(
    refused: int | None, silent: int | None
) -> None:
    metastore = Refusing(refused)
    rows = [partition((4, leader), index=leader) for leader in (1, 2, 3)]
    view = ClusterView()
    view.apply_rows(
        rows, brokers=list(brokers("AAAF").values()), topics=[TOPIC], controller=ControllerRow(1, 101, term=1)
    )

    async def nothing() -> None:
        """There is nobody to tell, and nothing to hear."""

    async def is_answered_by(row: BrokerRow, wait_ms: int) -> bool:
        return row.broker_id != silent

    broker = SimpleNamespace(
        metastore=metastore,
        clock=SimpleNamespace(monotonic_ms=lambda: 0),
        view=view,
        config=SimpleNamespace(
            node_id=1,
            auto_leader_rebalance_enable=False,
            leader_imbalance_check_interval_seconds=300,
            broker_lease_ms=6000,
        ),
        topic_config=lambda topic: TopicConfig(),
        identity=(1, 101),
        catch_up=nothing,
        news=SimpleNamespace(tell=nothing, is_answered_by=is_answered_by),
    )
    asyncio.run(Control(cast(Any, broker)).look())
    assert [row.leader for row in metastore.written] == [1, 3]
