"""Topics that were deleted and made again under their names: what is left of a former one is not compared with the
present one. Pure."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace

from sexton.audit.replica import Replica, Skipped


def of_one_topic_each(replicas: Sequence[Replica]) -> list[Replica]:
    """In the same order; those of former topics are not read. The present topic is the one that running brokers name;
    of directories and folds, the one that most are of."""
    votes: dict[str, dict[uuid.UUID, tuple[bool, int]]] = {}
    for replica in replicas:
        if replica.topic_id is not None:
            of_name = votes.setdefault(replica.id.topic, {})
            is_live, count = of_name.get(replica.topic_id, (False, 0))
            of_name[replica.topic_id] = is_live or replica.is_live, count + 1
    present = {topic: max(of_name, key=of_name.__getitem__) for topic, of_name in votes.items()}
    return [
        replica
        if replica.topic_id in (None, present.get(replica.id.topic))
        else replace(replica, is_read=False, skipped=(Skipped(replica.place, "it is of a former topic of this name"),))
        for replica in replicas
    ]
