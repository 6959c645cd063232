"""Every client in every version does what it does with Kafka (`features.FEATURES` says what)."""

from __future__ import annotations

import pytest

from tests.interop.clients import CLIENTS, Client
from tests.interop.conftest import ClusterUnderTest, Scenarios, out_of_reach
from tests.interop.features import FEATURES

pytestmark = pytest.mark.cluster

CASES = [
    pytest.param(
        client, feature, id=f"{client.label}-{feature}", marks=[getattr(pytest.mark, mark) for mark in client.marks]
    )
    for client in CLIENTS
    for feature in FEATURES
    if feature in client.features
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("client", "feature"), CASES)
def test_a_client_finds_what_it_expects_of_kafka(
    client: Client, feature: str, cluster: ClusterUnderTest, scenarios: Scenarios
) -> None:
    reason = out_of_reach(client, feature, cluster)
    if reason:
        pytest.skip(reason)
    scenarios.check(client, feature)
