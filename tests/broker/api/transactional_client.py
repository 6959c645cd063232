"""A producer that says exactly what a test wants, over connections that the test opens: one socket each."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

from sexton.broker.api import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    describe_transactions,
    end_txn,
    find_coordinator,
    init_producer_id,
    list_offsets,
    list_transactions,
    offset_fetch,
    produce,
    txn_offset_commit,
    write_txn_markers,
)
from sexton.protocol.errors import ErrorCode
from sexton.records.batch import Record, encode, make_batch
from sexton.records.header import TRANSACTIONAL
from tests.robustness.wire import Wire, produce_body

NOW_MS: Final = 1_700_000_000_000
OLD_PRODUCE: Final = 9
NEW_PRODUCE: Final = 12
OLD_END: Final = 3
NEW_END: Final = 5
ATTEMPTS_MAX: Final = 200

Producer = tuple[int, int]
"""Id and epoch."""


def batch(producer: Producer, sequence: int, *values: str, is_transactional: bool = True) -> bytes:
    records = [Record(index, NOW_MS, b"key", value.encode()) for index, value in enumerate(values)]
    return encode(
        make_batch(
            records,
            attributes=TRANSACTIONAL if is_transactional else 0,
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=sequence,
        )
    )


class TransactionalClient(Wire):
    """Of one transactional id, on one connection."""

    def __init__(self, address: str, transactional_id: str) -> None:
        super().__init__(address)
        self.transactional_id = transactional_id

    def find(self) -> ErrorCode:
        body = {"key_type": 1, "coordinator_keys": [self.transactional_id]}
        return ErrorCode(self.call(find_coordinator.API_KEY, 6, body).coordinators[0].error_code)

    def init(
        self, expected: Producer | None = None, *, timeout_ms: int = 60_000, version: int = 4, **fields: Any
    ) -> tuple[ErrorCode, Producer]:
        body = {"transactional_id": self.transactional_id, "transaction_timeout": timeout_ms, **fields}
        if expected is not None:
            body |= {"producer_id": expected[0], "producer_epoch": expected[1]}
        answer = self.call(init_producer_id.API_KEY, version, body)
        return answer.error_code, (answer.producer_id, answer.producer_epoch)

    def start(self, **fields: Any) -> Producer:
        code, producer = self.init(**fields)
        assert code is ErrorCode.none, code
        return producer

    def add(self, producer: Producer, topic: str, *partitions: int, version: int = 3) -> list[ErrorCode]:
        body = {
            "v3_and_below_transactional_id": self.transactional_id,
            "v3_and_below_producer_id": producer[0],
            "v3_and_below_producer_epoch": producer[1],
            "v3_and_below_topics": [{"name": topic, "partitions": list(partitions or (0,))}],
        }
        (told,) = self.call(add_partitions_to_txn.API_KEY, version, body).results_by_topic_v3_and_below
        return [one.partition_error_code for one in told.results_by_partition]

    def ask_as_broker(
        self, producer: Producer, topic: str, *partitions: int, verify_only: bool, version: int = 5
    ) -> list[ErrorCode]:
        transaction = {
            "transactional_id": self.transactional_id,
            "producer_id": producer[0],
            "producer_epoch": producer[1],
            "verify_only": verify_only,
            "topics": [{"name": topic, "partitions": list(partitions or (0,))}],
        }
        (told,) = self.call(
            add_partitions_to_txn.API_KEY, version, {"transactions": [transaction]}
        ).results_by_transaction
        return [one.partition_error_code for one in told.topic_results[0].results_by_partition]

    def send_batch(
        self, topic: str, records: bytes, *, partition: int = 0, version: int = OLD_PRODUCE, acks: int = -1
    ) -> tuple[ErrorCode, int]:
        """The error, and the offset."""
        body = produce_body(topic, records, partition, acks, 30_000)
        answer = self.call(produce.API_KEY, version, {**body, "transactional_id": self.transactional_id})
        part = answer.responses[0].partition_responses[0]
        return part.error_code, part.base_offset

    def end(self, producer: Producer, is_commit: bool, version: int = OLD_END) -> tuple[ErrorCode, Producer]:
        body = {
            "transactional_id": self.transactional_id,
            "producer_id": producer[0],
            "producer_epoch": producer[1],
            "committed": is_commit,
        }
        answer = self.call(end_txn.API_KEY, version, body)
        after = getattr(answer, "producer_id", -1), getattr(answer, "producer_epoch", -1)
        return answer.error_code, after

    def add_offsets(self, producer: Producer, group: str, version: int = 3) -> ErrorCode:
        body = {
            "transactional_id": self.transactional_id,
            "producer_id": producer[0],
            "producer_epoch": producer[1],
            "group_id": group,
        }
        return ErrorCode(self.call(add_offsets_to_txn.API_KEY, version, body).error_code)

    def commit_offset(
        self, producer: Producer, group: str, topic: str, offset: int, *, version: int = 3, **fields: Any
    ) -> ErrorCode:
        body = {
            "transactional_id": self.transactional_id,
            "group_id": group,
            "producer_id": producer[0],
            "producer_epoch": producer[1],
            "generation_id": -1,
            "member_id": "",
            "topics": [
                {
                    "name": topic,
                    "partitions": [{"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}],
                }
            ],
            **fields,
        }
        for _ in range(ATTEMPTS_MAX):
            answer = self.call(txn_offset_commit.API_KEY, version, body)
            code = ErrorCode(answer.topics[0].partitions[0].error_code)
            if code not in (ErrorCode.coordinator_not_available, ErrorCode.coordinator_load_in_progress):
                break
            time.sleep(0.05)  # it loads, or markers of the transaction before are on their way: clients ask again
        return code

    def offset(self, group: str, topic: str, *, require_stable: bool = True) -> tuple[ErrorCode, int]:
        asked = {"group_id": group, "topics": [{"name": topic, "partition_indexes": [0]}]}
        answer = self.call(offset_fetch.API_KEY, 8, {"groups": [asked], "require_stable": require_stable})
        (told,) = answer.groups
        if told.error_code is not ErrorCode.none:
            return told.error_code, -1
        part = told.topics[0].partitions[0]
        return part.error_code, part.committed_offset

    def mark(
        self,
        producer: Producer,
        topic: str,
        *,
        is_commit: bool = True,
        coordinator_epoch: int = 0,
        transaction_version: int = 0,
        partition: int = 0,
    ) -> ErrorCode:
        marker = {
            "producer_id": producer[0],
            "producer_epoch": producer[1],
            "transaction_result": is_commit,
            "coordinator_epoch": coordinator_epoch,
            "transaction_version": transaction_version,
            "topics": [{"name": topic, "partition_indexes": [partition]}],
        }
        answer = self.call(write_txn_markers.API_KEY, 2, {"markers": [marker]})
        return ErrorCode(answer.markers[0].topics[0].partitions[0].error_code)

    def describe(self) -> Any:
        body = {"transactional_ids": [self.transactional_id]}
        return self.call(describe_transactions.API_KEY, 0, body).transaction_states[0]

    def state(self) -> str:
        return str(self.describe().transaction_state)

    def listed(self, version: int = 2, **filters: Any) -> Any:
        body = {"state_filters": [], "producer_id_filters": [], **filters}
        return self.call(list_transactions.API_KEY, version, body)

    def committed(self, topic: str, isolation: int = 1) -> Sequence[int]:
        """The last stable offset, and the end for readers of everything."""
        ends = []
        for level in (isolation, 0):
            asked = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
            body = {
                "replica_id": -1,
                "isolation_level": level,
                "topics": [{"name": topic, "partitions": [asked]}],
            }
            ends.append(int(self.call(list_offsets.API_KEY, 5, body).topics[0].partitions[0].offset))
        return ends
