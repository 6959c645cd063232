"""librdkafka as a second reader, where it is installed: our own client should not be the only witness."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

READ_TIMEOUT_S: Final = 60.0
POLL_S: Final = 0.2
GROUP: Final = "sexton-reproduce"


def is_installed() -> bool:
    try:
        import confluent_kafka  # noqa: F401
    except ImportError:
        return False
    return True


def read_committed(bootstrap: str, topic: str) -> Mapping[str, str] | None:
    """The latest value of each key, up to the last stable offset. None if librdkafka did not get there in time."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": GROUP,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    fold: dict[str, str | None] = {}
    deadline_s = time.monotonic() + READ_TIMEOUT_S
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while time.monotonic() < deadline_s:
            message: Any = consumer.poll(POLL_S)
            if message is None:
                continue
            if message.error() is None:
                value = message.value()
                fold[(message.key() or b"").decode()] = None if value is None else value.decode()
            elif message.error().code() == KafkaError._PARTITION_EOF:
                return {key: value for key, value in fold.items() if value is not None}
    finally:
        consumer.close()
    return None
