"""Interface of what carries out jobs on cloud partitions. It decides nothing, and commits nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from sexton.compactor.cloud.plans import Compacted, Output, PartitionPlan, Writer, WrittenL1
from sexton.errors import SextonError
from sexton.ports.cloud import ObjectId

Register = Callable[[int], Awaitable[Sequence[ObjectId]]]
"""Registers so many ids for objects that will be written (C1)."""


class CloudEngine(Protocol):
    async def level(
        self, plans: Sequence[PartitionPlan], outputs: Sequence[Output], register: Register, writer: Writer
    ) -> list[WrittenL1 | SextonError]:
        """Writes each output: L0 becomes settled, what is L1 already is copied. Returns them in order."""
        ...

    async def compact(
        self, plans: Sequence[PartitionPlan], register: Register, writer: Writer, l1_bytes: int
    ) -> list[Compacted]:
        """Compacts each partition by its terms, into objects of about that size. Returns the results in the order of
        the plans."""
        ...
