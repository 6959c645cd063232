"""Defects of groups, put back."""

from __future__ import annotations

from typing import Any

from sexton.coordinators.groups.offset_operations import OffsetOperations
from sexton.simulate.broken.switch import Break, Patch


def _whatever_bears_the_name(self: OffsetOperations, topic: str, value: Any) -> bool:
    return True


GROUPS: dict[str, Break] = {
    "offsets-by-name": Break(Patch(OffsetOperations, "_is_told", _whatever_bears_the_name)),
}
"""A topic that is made again is read from where its groups were in the former one."""
