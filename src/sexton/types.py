"""Names and sentinels that every package shares: one meaning, one value, one place."""

from __future__ import annotations

import uuid
from typing import Final, NamedTuple, NewType, TypeAlias

ProducerId = NewType("ProducerId", int)
ProducerEpoch = NewType("ProducerEpoch", int)
LeaderEpoch = NewType("LeaderEpoch", int)
"""A producer's id and epoch stand side by side in dozens of signatures, as do a leader epoch and an offset, and a type
checker keeps them apart. They come out of decoders as they are, so that nothing is wrapped on the way of a batch.
Offsets are plain ints: every sum of an offset and a count would have to be wrapped, on the hot path too."""

CompactionEpoch = NewType("CompactionEpoch", int)
"""Of a cloud partition: raised whenever runs of its L1 are replaced."""
Round = NewType("Round", int)
"""Of the collector of objects: raised when it has seen the last one stand still for `cloud.gc.round.ms`."""

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1

OFFSET_MAX: Final = INT64_MAX
"""Kafka's limit. A batch that Sexton reads must end below a lower one (`records/header.py`)."""

NO_OFFSET: Final = -1
NO_EPOCH: Final = LeaderEpoch(-1)
NO_PRODUCER_ID: Final = ProducerId(-1)
NO_PRODUCER_EPOCH: Final = ProducerEpoch(-1)
NO_SEQUENCE: Final = -1
NO_TIMESTAMP: Final = -1
"""What Kafka writes, in files and messages, where there is none."""

NO_LEADER: Final = -1
"""Leader of a partition whose in-sync replicas are all dead."""

TRANSACTION_VERSION_2: Final = 2
"""From this transaction version on every end of a transaction raises the producer's epoch (KIP-890)."""

TopicPartition: TypeAlias = tuple[str, int]
"""A partition by its topic's name. The name may come to mean another topic: one that was deleted and made again."""

PartitionId: TypeAlias = tuple[uuid.UUID, int]
"""A partition by its topic's id, which is never used again."""


class ProducerIdAndEpoch(NamedTuple):
    """One producer. A higher epoch of the same id fences it."""

    producer_id: ProducerId
    epoch: ProducerEpoch
