"""The cluster's view as a group coordinator needs it."""

from __future__ import annotations

import uuid
from collections.abc import Iterable

from sexton.metadata.view import ClusterView


class ViewTopics:
    """Implements `Topics` on a ClusterView."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._seen_version = -1
        self._seen_topics: tuple[tuple[uuid.UUID, int], ...] = ()
        self._revision = 0

    @property
    def revision(self) -> int:
        """The view changes with every ISR change. Groups depend only on topics and their partition counts, and
        examining them is expensive for groups that subscribe by regular expression, so this changes only when those
        do."""
        if self._seen_version != self._view.version:
            self._seen_version = self._view.version
            topics = tuple((row.topic_id, self.partitions_count(row.topic_id)) for row in self._view.topics())
            if topics != self._seen_topics:
                self._seen_topics = topics
                self._revision += 1
        return self._revision

    def names(self) -> Iterable[str]:
        return self._view.topic_names()

    def topic_id(self, name: str) -> uuid.UUID | None:
        row = self._view.topic(name)
        return None if row is None else row.topic_id

    def topic_name(self, topic_id: uuid.UUID) -> str | None:
        row = self._view.topic_by_id(topic_id)
        return None if row is None else row.name

    def partitions_count(self, topic_id: uuid.UUID) -> int:
        return len(self._view.partitions_of(topic_id))
