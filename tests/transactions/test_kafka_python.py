"""kafka-python in the tests' own process, where its requests can be held back."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import Any, Final

import pytest
from kafka.net.manager import KafkaConnectionManager

from sexton.verify.clients import kafka_python
from tests.transactions.reading import COMMITTED
from tests.transactions.under_test import UnderTest, wait_until

pytestmark = pytest.mark.cluster

POLL_S: Final = 0.1
LATE_S: Final = 0.15


def polled_to(consumer: kafka_python.Consumer, partitions: int) -> bool:
    consumer.poll(POLL_S)
    return len(consumer.assignment()) == partitions


def test_a_member_that_joins_again_for_new_partitions_gets_them_when_polls_end_before_its_sync_is_answered(
    cluster: UnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = cluster.topic()
    send = KafkaConnectionManager.send

    def sent_late(manager: Any, request: Any, *arguments: Any, **options: Any) -> Any:
        async def later() -> Any:
            await manager._net.sleep(LATE_S)
            return await send(manager, request, *arguments, **options)

        is_sync = type(request).__name__ == "SyncGroupRequest"
        return manager.call_soon(later) if is_sync else send(manager, request, *arguments, **options)

    settings = {"metadata_max_age_ms": 200}
    with closing(kafka_python.Consumer(cluster.bootstrap, COMMITTED, cluster.name("group"), settings)) as consumer:
        consumer.subscribe([topic])
        wait_until(partial(polled_to, consumer, 1), "the partition")
        monkeypatch.setattr(KafkaConnectionManager, "send", sent_late)
        with closing(kafka_python.Admin(cluster.bootstrap)) as admin:
            admin.add_partitions(topic, 2)
        wait_until(partial(polled_to, consumer, 2), "both partitions", timeout_s=20)
