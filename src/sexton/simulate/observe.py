"""What the cluster has agreed on, written down as the metastore carries it out, and told in the trace."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

from sexton.ports.metastore import PartitionRow, TopicRow
from sexton.simulate.trace import Trace
from sexton.types import PartitionId

UNTOLD = (
    "read_changes",
    "read_leases",
    "renew_lease",
    "open_cluster",
    "find_cluster",
    "expire_owners",
    "read_collection",
    "collect",
    "find_purgeable",
)
"""What is asked all the time, and seldom of interest."""


class Agreement:
    """Topics and partitions as the metastore has them: the truth that no broker may know yet."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self.topics: dict[uuid.UUID, str] = {}
        self.rows: dict[PartitionId, PartitionRow] = {}
        """Rows of local topics."""
        self.cloud_rows: dict[PartitionId, PartitionRow] = {}
        """Rows of cloud topics, which have a judge of their own (`cloud_checks`)."""
        self.on_change: Callable[[str, PartitionId, PartitionRow], None] | None = None
        """Called with the process that changed a partition's row, and the row."""
        self.on_cloud_change: Callable[[str, PartitionId, PartitionRow], None] | None = None
        self.on_registered: Callable[[int, int], None] | None = None
        """Called with a broker's id and its new epoch."""

    def name(self, key: PartitionId) -> str:
        return f"{self.topics.get(key[0], '?')}-{key[1]}"

    def carried_out(self, who: str, operation: str, arguments: tuple[Any, ...], result: Any) -> None:
        """An observer of the metastore."""
        if isinstance(result, Exception):
            self._trace.note("metastore", f"{who}: {operation}: {type(result).__name__}")
            return
        if operation == "register_broker" and self.on_registered is not None:
            self.on_registered(result.broker_id, result.epoch)
        if operation == "create_topic":
            topic: TopicRow = arguments[0]
            self.topics[topic.topic_id] = topic.name
            self._trace.note("metastore", f"{who}: creates {topic.name}")
            self._take(who, arguments[1])
        elif operation == "add_partitions":
            self._take(who, arguments[2])
        elif operation == "update_partitions":
            self._take(who, [row for row in result if row is not None])
        elif operation in ("begin_move", "finish_move"):
            self._take(who, [] if result is None else [result])
        elif operation == "abandon_move":
            self._take(who, [] if result[0] is None else [result[0]])
        elif operation == "delete_topic":
            self._trace.note("metastore", f"{who}: deletes {self.topics.pop(arguments[0], '?')}")
            self.rows = {key: row for key, row in self.rows.items() if key[0] != arguments[0]}
            self.cloud_rows = {key: row for key, row in self.cloud_rows.items() if key[0] != arguments[0]}
        elif operation not in UNTOLD:
            self._trace.note("metastore", f"{who}: {operation} {_brief(arguments)}")

    def _take(self, who: str, rows: Sequence[PartitionRow]) -> None:
        for row in rows:
            key = (row.topic_id, row.partition)
            is_in_cloud = row.is_cloud
            if is_in_cloud:
                self.rows.pop(key, None)
            (self.cloud_rows if is_in_cloud else self.rows)[key] = row
            moving = f" adding {list(row.adding)} removing {list(row.removing)}" if row.adding or row.removing else ""
            self._trace.note(
                "metastore",
                f"{who}: {self.name(key)} leader {row.leader} epoch {row.leader_epoch} isr {list(row.isr)} "
                f"replicas {list(row.replicas)}{moving}",
            )
            on_change = self.on_cloud_change if is_in_cloud else self.on_change
            if on_change is not None:
                on_change(who, key, row)


def _brief(arguments: tuple[Any, ...]) -> str:
    return ", ".join(str(each) for each in arguments if isinstance(each, int | str))
