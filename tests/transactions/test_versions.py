"""Which clients negotiate transaction version 2 (KIP-890): with every end of a transaction they take a new epoch."""

from __future__ import annotations

import pytest

from sexton.client.apis import DESCRIBE_TRANSACTIONS
from sexton.client.client import Peer
from tests.interop.clients import Client
from tests.transactions.clients import CLIENTS, NEW_EPOCHS
from tests.transactions.kit import Kit
from tests.transactions.reading import numbers
from tests.transactions.steps import write
from tests.transactions.under_test import UnderTest
from tests.transactions.wire import asking

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.usefixtures("together"),
    pytest.mark.parametrize("client", [pytest.param(each, id=each.label) for each in CLIENTS]),
]


def epoch_of(cluster: UnderTest, name: str) -> int:
    """Of the transaction that is open, as its coordinator tells it."""

    async def ask(peer: Peer) -> int:
        (state,) = (await peer.call(DESCRIBE_TRANSACTIONS, {"transactional_ids": [name]})).transaction_states
        return int(state.producer_epoch)

    return asking(cluster, name, ask)


def test_a_client_that_knows_transaction_version_2_takes_a_new_epoch_with_every_end(
    client: Client, kit: Kit, cluster: UnderTest
) -> None:
    topic, name = cluster.topic(), cluster.name("writer")
    producer = kit.ready(name)
    epochs = []
    for commit in (True, False, True, False):
        producer.begin()
        write(producer, (topic, 0), numbers(0, 5))
        epochs.append(epoch_of(cluster, name))
        producer.commit() if commit else producer.abort()
    steps = 1 if client in NEW_EPOCHS else 0
    assert epochs == [epochs[0] + steps * number for number in range(4)]
