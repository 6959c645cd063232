"""A client that can misbehave: one blocking socket, honest and other requests."""

from __future__ import annotations

import itertools
import socket
import struct
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

from sexton.protocol.errors import ErrorCode
from sexton.protocol.messages import decode_response, encode_request
from sexton.records.batch import Record, encode, make_batch

PRODUCE: Final = 0
FETCH: Final = 1
LIST_OFFSETS: Final = 2
METADATA: Final = 3
API_VERSIONS: Final = 18
CREATE_TOPICS: Final = 19
DELETE_TOPICS: Final = 20

TIMEOUT_S: Final = 30
NOW_MS: Final = 1_700_000_000_000


def batch(*values: bytes, key: bytes | None = b"key", timestamp_ms: int = NOW_MS) -> bytes:
    """One batch as a producer sends it."""
    return encode(make_batch([Record(i, timestamp_ms, key, value) for i, value in enumerate(values)]))


class Wire:
    """`address` is host:port. Used as a context manager it hangs up at the end."""

    def __init__(self, address: str, timeout_s: float = TIMEOUT_S) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout_s)
        self._correlation_ids = itertools.count(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        """As much of it as the broker takes before it hangs up."""
        with suppress(ConnectionError):
            self.socket.sendall(data)

    def receive(self) -> bytes | None:
        """The next frame without its size; None if the broker has hung up."""
        size = self._exactly(4)
        return None if size is None else self._exactly(struct.unpack(">i", size)[0])

    def is_hung_up(self) -> bool:
        """Reads on until the end, which must come."""
        while self.receive() is not None:
            pass
        return True

    def call(self, api_key: int, version: int, body: dict[str, Any]) -> Any:
        correlation_id = next(self._correlation_ids)
        self.socket.sendall(encode_request(api_key, version, correlation_id, "robustness", body))
        answer = self.receive()
        assert answer is not None, f"API {api_key}, version {version}: the broker hung up"
        told_id, entity = decode_response(api_key, version, memoryview(answer))
        assert told_id == correlation_id
        return entity

    def produce(
        self,
        topic: str,
        records: bytes,
        *,
        partition: int = 0,
        acks: int = -1,
        version: int = 9,
        timeout_ms: int = 10_000,
    ) -> Any:
        """The one partition's part of the answer."""
        answer = self.call(PRODUCE, version, produce_body(topic, records, partition, acks, timeout_ms))
        (told,) = answer.responses
        (part,) = told.partition_responses
        return part

    def fetch(self, topic: str, offset: int, *, partition: int = 0, epoch: int = -1, max_bytes: int = 1 << 20) -> Any:
        body = fetch_body(topic, offset, partition=partition, epoch=epoch, max_bytes=max_bytes)
        answer = self.call(FETCH, 12, body)
        (told,) = answer.responses
        (part,) = told.partitions
        return part

    def end_offset(self, topic: str, partition: int = 0) -> int:
        body = {
            "replica_id": -1,
            "isolation_level": 0,
            "topics": [
                {
                    "name": topic,
                    "partitions": [{"partition_index": partition, "current_leader_epoch": -1, "timestamp": -1}],
                }
            ],
        }
        (told,) = self.call(LIST_OFFSETS, 5, body).topics
        (part,) = told.partitions
        assert part.error_code == ErrorCode.none, part
        return int(part.offset)

    def leader_and_isr(self, topic: str, partition: int = 0) -> tuple[int, list[int]]:
        """As this broker knows them; nobody, if it has not heard of the partition yet."""
        part = self.partition(topic, partition)
        return (-1, []) if part is None else (int(part.leader_id), sorted(part.isr_nodes))

    def partition(self, topic: str, partition: int = 0) -> Any:
        """What Metadata says of it."""
        body = {"topics": [{"topic_id": None, "name": topic}], "allow_auto_topic_creation": False}
        (told,) = self.call(METADATA, 12, body).topics
        return next((each for each in told.partitions if each.partition_index == partition), None)

    def _exactly(self, count: int) -> bytes | None:
        parts = bytearray()
        while len(parts) < count:
            try:
                more = self.socket.recv(count - len(parts))
            except ConnectionError:
                return None
            if not more:
                return None
            parts += more
        return bytes(parts)


def produce_body(topic: str, records: bytes, partition: int, acks: int, timeout_ms: int) -> dict[str, Any]:
    return {
        "transactional_id": None,
        "acks": acks,
        "timeout": timeout_ms,
        "topic_data": [{"name": topic, "partition_data": [{"index": partition, "records": records}]}],
    }


def fetch_body(
    topic: str, offset: int, *, partition: int = 0, epoch: int = -1, max_bytes: int = 1 << 20
) -> dict[str, Any]:
    return {
        "replica_id": -1,
        "max_wait": 0,
        "min_bytes": 0,
        "max_bytes": max_bytes,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [
            {
                "topic": topic,
                "partitions": [
                    {
                        "partition": partition,
                        "current_leader_epoch": epoch,
                        "fetch_offset": offset,
                        "last_fetched_epoch": -1,
                        "log_start_offset": -1,
                        "partition_max_bytes": max_bytes,
                    }
                ],
            }
        ],
        "forgotten_topics_data": [],
        "rack_id": "",
    }


def refused(part: Any, code: ErrorCode) -> bool:
    """Whether a produce failed with this code, and in no way looks like a success (rule 9)."""
    assert part.base_offset == -1, part
    assert part.error_code == code, part
    return True
