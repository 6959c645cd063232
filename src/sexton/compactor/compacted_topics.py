"""Tells whether the cluster has compacted topics of users. Then the engine is kept warm: the next compaction may be due
any moment, and starting Spark takes longer than most compactions. Internal topics do not count: their compaction is not
urgent."""

from __future__ import annotations

import uuid
from typing import Final

from sexton.ports.metastore import ConfigScope, Metastore

POLICY: Final = "cleanup.policy"
DEFAULT_POLICY: Final = "log.cleanup.policy"
COMPACT: Final = "compact"


class CompactedTopics:
    def __init__(self, metastore: Metastore) -> None:
        self._metastore = metastore
        self._revision = 0
        self._topics: dict[uuid.UUID, str] = {}
        self._policies: dict[str, str] = {}
        self._default = ""

    async def exist(self) -> bool:
        """Reads what has changed since the last call. Raises MetastoreUnavailableError."""
        changes = await self._metastore.read_changes(self._revision)
        if changes.is_snapshot:
            self._topics, self._policies, self._default = {}, {}, ""
        for topic in changes.topics:
            if not topic.is_internal:
                self._topics[topic.topic_id] = topic.name
        for topic_id in changes.deleted_topics:
            self._policies.pop(self._topics.pop(topic_id, ""), None)
        for row in changes.configs:
            if row.scope is ConfigScope.TOPIC:
                self._policies[row.name] = row.settings.get(POLICY, "")
            elif row.scope is ConfigScope.BROKER and row.name == "":
                self._default = row.settings.get(DEFAULT_POLICY, "")
        self._revision = changes.revision
        return any(COMPACT in (self._policies.get(name) or self._default) for name in self._topics.values())
