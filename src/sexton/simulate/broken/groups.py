"""Defects of groups, put back."""

from __future__ import annotations

import uuid

from sexton.coordinators.groups import offset_operations
from sexton.coordinators.groups.records import OffsetValue
from sexton.simulate.broken.switch import Break, Patch


def _whatever_bears_the_name(value: OffsetValue, topic_id: uuid.UUID | None) -> bool:
    return True


GROUPS: dict[str, Break] = {
    "offsets-by-name": Break(Patch(offset_operations, "_is_of", _whatever_bears_the_name)),
}
"""A topic that is made again is read from where its groups were in the former one."""
