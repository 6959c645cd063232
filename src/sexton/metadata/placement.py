"""Which brokers get the replicas of a new partition.

Leaders are spread evenly over brokers, and followers over the remaining brokers and racks. The brokers are put in one
list in which racks alternate. For each partition, the leader is the next broker of the list and the followers are those
after it, with a gap that grows each time the end of the list is reached (so that two brokers do not share all their
partitions), and a rack is used again only when all have been used. Where the list starts, and its order within a rack,
are random: otherwise many small topics would all begin at the same broker.

Fenced brokers get replicas only if there are not enough others, and never as leaders; a broker that is shutting down
counts as fenced here. So a topic can be created while a broker is down, as in Kafka.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from sexton.ports.metastore import BrokerRow, BrokerStatus
from sexton.protocol.errors import ErrorCode, KafkaError

Brokers = Mapping[int, BrokerRow]


def is_usable(broker: BrokerRow) -> bool:
    """Whether a new replica on it can be in sync from the start. A STARTING broker will soon have its logs, but that is
    not certain yet."""
    return broker.status is BrokerStatus.ACTIVE


def place(
    brokers: Brokers, partitions_count: int, replication_factor: int, rng: random.Random
) -> list[tuple[int, ...]]:
    """The replicas of each partition, in order of preference."""
    _check_counts(brokers, partitions_count, replication_factor)
    arranged = _arrange([broker for broker in brokers.values() if is_usable(broker)], rng)
    spare = _arrange([broker for broker in brokers.values() if not is_usable(broker)], rng)
    start = rng.randrange(len(arranged))
    gap = rng.randrange(len(arranged))
    placed = []
    for partition in range(partitions_count):
        first = (start + partition) % len(arranged)
        round_gap = gap + partition // len(arranged)
        chosen = _choose(arranged, first, round_gap, min(replication_factor, len(arranged)))
        chosen += _choose_spare(spare, partition, replication_factor - len(chosen))
        placed.append(tuple(broker.broker_id for broker in chosen))
    return placed


def check_assignment(replicas: Sequence[int], brokers: Brokers, expected_count: int | None = None) -> None:
    """Checks one partition's assignment, as given by an operator. Raises KafkaError."""
    if not replicas:
        raise _bad_assignment("a partition needs at least one replica")
    if len(set(replicas)) != len(replicas):
        raise _bad_assignment(f"a broker is named twice in {list(replicas)}")
    unknown = [broker_id for broker_id in replicas if broker_id not in brokers]
    if unknown:
        raise _bad_assignment(f"there is no broker {unknown[0]}")
    if expected_count is not None and len(replicas) != expected_count:
        what = f"{list(replicas)} has {len(replicas)} replicas, other partitions of the topic have {expected_count}"
        raise _bad_assignment(what)


def check_assignments(assignments: Mapping[int, Sequence[int]], first_partition: int, brokers: Brokers) -> None:
    """Checks the assignments of all partitions of a new topic, or of all that are added: consecutive numbers, and the
    same replication factor for each. Raises KafkaError."""
    indexes = list(range(first_partition, first_partition + len(assignments)))
    if sorted(assignments) != indexes:
        raise _bad_assignment(f"partitions must be numbered {first_partition}, {first_partition + 1} and so on")
    expected_count: int | None = None
    for index in indexes:
        check_assignment(assignments[index], brokers, expected_count)
        expected_count = len(assignments[index])
        if not any(is_usable(brokers[broker_id]) for broker_id in assignments[index]):
            raise _bad_assignment(f"no broker of partition {index} is active")


def _check_counts(brokers: Brokers, partitions_count: int, replication_factor: int) -> None:
    if partitions_count <= 0:
        raise KafkaError(ErrorCode.invalid_partitions, "a topic needs at least one partition")
    if replication_factor <= 0:
        raise KafkaError(ErrorCode.invalid_replication_factor, "a partition needs at least one replica")
    if replication_factor > len(brokers):
        what = f"{replication_factor} replicas need as many brokers; {len(brokers)} are registered"
        raise KafkaError(ErrorCode.invalid_replication_factor, what)
    if not any(is_usable(broker) for broker in brokers.values()):
        raise KafkaError(ErrorCode.invalid_replication_factor, "no broker is active")


def _bad_assignment(what: str) -> KafkaError:
    return KafkaError(ErrorCode.invalid_replica_assignment, what)


def _arrange(brokers: Sequence[BrokerRow], rng: random.Random) -> list[BrokerRow]:
    """Alternates racks, which are in random order, as are their brokers. Brokers without a rack form one rack."""
    racks: dict[str, list[BrokerRow]] = {}
    for broker in sorted(brokers, key=lambda broker: broker.broker_id):
        racks.setdefault(broker.rack or "", []).append(broker)
    shuffled = list(racks.values())
    rng.shuffle(shuffled)
    for rack in shuffled:
        rng.shuffle(rack)
    deepest = max((len(rack) for rack in shuffled), default=0)
    return [rack[depth] for depth in range(deepest) for rack in shuffled if depth < len(rack)]


def _choose(arranged: Sequence[BrokerRow], first: int, gap: int, count: int) -> list[BrokerRow]:
    """The leader, then followers from other racks as long as there are any, then any others."""
    leader = arranged[first]
    size = len(arranged)
    others = [arranged[(first + 1 + (gap + step) % (size - 1)) % size] for step in range(size - 1)]
    chosen = [leader]
    used_racks = {leader.rack}
    while len(chosen) < count:
        follower = next((broker for broker in others if broker.rack not in used_racks), None)
        if follower is None:
            used_racks = set()
            follower = others[0]
        others.remove(follower)
        used_racks.add(follower.rack)
        chosen.append(follower)
    return chosen


def _choose_spare(spare: Sequence[BrokerRow], partition: int, count: int) -> list[BrokerRow]:
    return [spare[(partition + step) % len(spare)] for step in range(count)]
