"""Which clients negotiate transaction version 2 (KIP-890): with every end of a transaction they take a new epoch."""

from __future__ import annotations

import pytest

from sexton.client.apis import Api
from sexton.client.client import Peer
from tests.interop.clients import Client
from tests.transactions.clients import CLIENTS, NEW_EPOCHS
from tests.transactions.kit import Kit
from tests.transactions.reading import numbers, settled
from tests.transactions.steps import transact
from tests.transactions.under_test import UnderTest
from tests.transactions.wire import asking

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.usefixtures("together"),
    pytest.mark.parametrize("client", [pytest.param(each, id=each.label) for each in CLIENTS]),
]

DESCRIBE_TRANSACTIONS = Api(65, "DescribeTransactions", 0, 0)


def epoch_of(cluster: UnderTest, name: str) -> int:
    """As the coordinator of this transactional id tells it."""

    async def ask(peer: Peer) -> int:
        (state,) = (await peer.call(DESCRIBE_TRANSACTIONS, {"transactional_ids": [name]})).transaction_states
        return int(state.producer_epoch)

    return asking(cluster, name, ask)


def test_a_client_that_knows_transaction_version_2_takes_a_new_epoch_with_every_end(
    client: Client, kit: Kit, cluster: UnderTest
) -> None:
    topic, name = cluster.topic(), cluster.name("writer")
    producer = kit.ready(name)
    epochs = [epoch_of(cluster, name)]
    for commit in (True, False, True):
        transact(producer, topic, numbers(0, 5), commit=commit)
        settled(cluster.bootstrap, [(topic, 0)])
        epochs.append(epoch_of(cluster, name))
    steps = 1 if client in NEW_EPOCHS else 0
    assert epochs == [epochs[0] + steps * number for number in range(4)]
