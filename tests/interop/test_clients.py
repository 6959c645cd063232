"""Every client in every version does what it does with Kafka (`features.FEATURES` says what)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.interop.clients import CLIENTS, Client, Worker
from tests.interop.conftest import ClusterUnderTest
from tests.interop.features import FEATURES

pytestmark = pytest.mark.cluster

CASES = [
    pytest.param(client, feature, id=f"{client.label}-{feature}")
    for client in CLIENTS
    for feature in FEATURES
    if feature in client.features
]


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("client", "feature"), CASES)
def test_a_client_finds_what_it_expects_of_kafka(
    client: Client, feature: str, cluster: ClusterUnderTest, worker_of: Callable[[Client], Worker]
) -> None:
    if client.broker_before_4 and cluster.is_kafka_4:
        pytest.skip(f"{client.label} cannot speak with Apache Kafka 4 (KIP-896)")
    worker_of(client).run(feature, cluster.bootstrap, cluster.brokers)
