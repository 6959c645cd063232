"""What brokers believe of their replicas, copied out as plain numbers.

The judge shares no code with what it judges: nothing else in it touches a broker's objects, and it reads logs from the
disks (`copies`). A snapshot says what was true when it was taken, and changes no more.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol, TypeVar

from sexton.broker.broker import Broker
from sexton.compaction.watermarks.replica import ReplicaWatermarks
from sexton.replication.leadership import IsrChange, Leadership
from sexton.replication.local_replica import LocalReplica, Role
from sexton.types import PartitionId


class Watermarks(NamedTuple):
    """The watermarks of one log; docs/rules.md defines them."""

    incarnation: uuid.UUID
    generation: int = 0
    mcco: int = 0
    mxfo: int = 0
    mtro: int = 0
    mxro: int = 0
    fence_below: int = 0
    planned_high_watermark: int = 0


class Snapshot(NamedTuple):
    """One replica that a broker has open."""

    topic: str
    topic_id: uuid.UUID
    partition: int
    role: str
    is_leader: bool
    leader_epoch: int
    incarnation: uuid.UUID | None
    """The replica's incarnation in the row that the broker knows."""
    high_watermark: int
    last_stable_offset: int
    start_offset: int
    end_offset: int
    flushed_offset: int
    kept: Watermarks
    """What is durable."""
    watermarks: Watermarks
    """What the broker acts on: the same, moved up to the log's start."""
    is_independent: bool
    counted: tuple[int, ...] | None = None
    """Followers without which it commits nothing, if it leads."""
    heard: Mapping[int, int] | None = None
    """The broker epoch of the process that was heard of last, by follower, if it leads."""

    @property
    def key(self) -> PartitionId:
        return self.topic_id, self.partition

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"


class CloudSnapshot(NamedTuple):
    """One partition of a cloud topic that a broker leads."""

    topic: str
    topic_id: uuid.UUID
    partition: int
    leader_epoch: int
    high_watermark: int
    last_stable_offset: int
    start_offset: int
    end_offset: int

    @property
    def key(self) -> PartitionId:
        return self.topic_id, self.partition

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"


class Machine(Protocol):
    """What is needed here of a simulated node."""

    @property
    def broker_id(self) -> int: ...

    @property
    def broker(self) -> Broker | None: ...


M = TypeVar("M", bound=Machine)


class Glances:
    """Remembers what was seen of each replica, so that little is done where nothing changed."""

    def __init__(self) -> None:
        self._seen: dict[LocalReplica, tuple[int, int, ReplicaWatermarks, Role, IsrChange | None]] = {}

    def changed(self, machines: Iterable[M]) -> Iterator[tuple[M, Snapshot]]:
        """Replicas whose high watermark, log start, durable watermarks or role are not what they were, and leaders that
        ask for another change of their ISR than they did."""
        seen = self._seen
        for machine in machines:
            for replica in _open_on(machine):
                leadership = replica.leadership
                state = (
                    replica.high_watermark,
                    replica.log.start_offset,
                    replica.coordination.kept.value,
                    replica.role,
                    None if leadership is None else leadership.pending,
                )
                if seen.get(replica) != state:
                    seen[replica] = state
                    yield machine, _snapshot(machine, replica)

    def forget(self) -> None:
        self._seen.clear()


def all_of(machine: Machine) -> list[Snapshot]:
    return [_snapshot(machine, replica) for replica in _open_on(machine)]


def find(machine: Machine, key: PartitionId) -> Snapshot | None:
    for replica in _open_on(machine):
        if replica.partition == key[1] and replica.topic_id == key[0]:
            return _snapshot(machine, replica)
    return None


def led_in_cloud(machine: Machine) -> list[CloudSnapshot]:
    cloud = machine.broker.replicas.cloud if machine.broker is not None else None
    return [
        CloudSnapshot(
            topic=replica.topic,
            topic_id=replica.topic_id,
            partition=replica.partition,
            leader_epoch=replica.leader_epoch,
            high_watermark=replica.high_watermark,
            last_stable_offset=replica.last_stable_offset,
            start_offset=replica.log.start_offset,
            end_offset=replica.log.end_offset,
        )
        for replica in (cloud.all() if cloud is not None else ())
        if replica.is_leader
    ]


def waiting_bytes(machine: Machine) -> int:
    """Of batches that were appended to cloud topics, and are neither committed nor dropped."""
    cloud = machine.broker.replicas.cloud if machine.broker is not None else None
    return 0 if cloud is None else cloud.parts.uploads.batches_bytes


def damaged(machine: Machine) -> list[tuple[str, str]]:
    """Logs that a broker calls so, by name, and what it says of them."""
    if machine.broker is None:
        return []
    replicas = machine.broker.replicas
    found = [(f"{replica.topic}-{replica.partition}", str(replica.log.damage)) for replica in replicas.damaged()]
    return found + [(f"{one.topic}-{key[1]}", str(one.error)) for key, one in replicas.refused().items()]


def _open_on(machine: Machine) -> list[LocalReplica]:
    return machine.broker.replicas.all() if machine.broker is not None else []


def _snapshot(machine: Machine, replica: LocalReplica) -> Snapshot:
    log, coordination, leadership = replica.log, replica.coordination, replica.leadership
    return Snapshot(
        replica.topic,
        replica.topic_id,
        replica.partition,
        replica.role.value,
        replica.is_leader,
        replica.leader_epoch,
        replica.row.incarnations.get(machine.broker_id),
        replica.high_watermark,
        replica.last_stable_offset,
        log.start_offset,
        log.end_offset,
        log.flushed_offset,
        _watermarks(coordination.kept.value),
        _watermarks(coordination.watermarks),
        coordination.is_independent,
        tuple(leadership.counted()) if leadership is not None else None,
        _heard(leadership) if leadership is not None else None,
    )


def _heard(leadership: Leadership) -> dict[int, int]:
    known = {follower: leadership.progress_of(follower) for follower in leadership.row.replicas}
    return {follower: progress.broker_epoch for follower, progress in known.items() if progress is not None}


def _watermarks(known: ReplicaWatermarks) -> Watermarks:
    return Watermarks(
        known.incarnation,
        known.generation,
        *known.compacted,
        *known.removable,
        known.fence_below,
        known.planned_high_watermark,
    )
