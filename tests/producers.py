"""Producers for tests, from plain numbers."""

from __future__ import annotations

from sexton.types import ProducerEpoch, ProducerId, ProducerIdAndEpoch


def producer_at(producer_id: int, epoch: int = 0) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(ProducerId(producer_id), ProducerEpoch(epoch))
