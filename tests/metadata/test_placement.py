"""Where replicas go."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sexton.metadata.placement import check_assignment, check_assignments, place
from sexton.ports.metastore import BrokerRow, BrokerStatus
from sexton.protocol.errors import ErrorCode, KafkaError
from tests.metadata.rows import broker, brokers


def racked(racks: Sequence[str | None]) -> dict[int, BrokerRow]:
    return {number: broker(number, rack=rack) for number, rack in enumerate(racks, start=1)}


def refused(code: ErrorCode, known: Mapping[int, BrokerRow], partitions: int, factor: int) -> str:
    with pytest.raises(KafkaError) as raised:
        place(known, partitions, factor, random.Random(1))
    assert raised.value.code is code
    return raised.value.message


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 60), st.integers())
def test_leaders_are_spread_evenly_and_no_broker_holds_a_partition_twice(
    size: int, factor: int, partitions: int, seed: int
) -> None:
    factor = min(factor, size)
    placed = place(brokers("A" * size), partitions, factor, random.Random(seed))
    assert len(placed) == partitions
    assert all(len(replicas) == len(set(replicas)) == factor for replicas in placed)
    leaders = Counter(replicas[0] for replicas in placed)
    assert max(leaders.values()) - min(leaders[id_] for id_ in range(1, size + 1)) <= 1


@pytest.mark.parametrize(("size", "factor"), [(3, 2), (5, 3), (6, 3), (10, 4)])
def test_replicas_are_spread_evenly_over_whole_rounds(size: int, factor: int) -> None:
    placed = place(brokers("A" * size), size * (size - 1), factor, random.Random(3))
    held = Counter(id_ for replicas in placed for id_ in replicas)
    assert set(held.values()) == {(size - 1) * factor}


def test_two_brokers_do_not_share_all_their_partitions() -> None:
    """When one is gone, the others share its leaderships."""
    placed = place(brokers("AAAAA"), 20, 2, random.Random(3))
    for leader in range(1, 6):
        assert len({replicas[1] for replicas in placed if replicas[0] == leader}) == 4


@given(st.integers(1, 4), st.integers(1, 3), st.integers())
def test_a_partition_uses_every_rack_before_it_uses_one_twice(racks: int, per_rack: int, seed: int) -> None:
    known = racked([f"rack{number % racks}" for number in range(racks * per_rack)])
    factor = min(3, len(known))
    for replicas in place(known, 12, factor, random.Random(seed)):
        used = Counter(known[id_].rack for id_ in replicas)
        assert len(used) == min(factor, racks)
        assert max(used.values()) - min(used.values()) <= 1 if factor >= racks else set(used.values()) == {1}


def test_racks_of_different_sizes_still_share_leaders_evenly() -> None:
    placed = place(racked(["a", "a", "a", "b", None, None]), 60, 3, random.Random(5))
    assert set(Counter(replicas[0] for replicas in placed).values()) == {10}


def test_where_it_starts_is_random_and_follows_from_the_seed() -> None:
    known = brokers("AAAAA")
    firsts = [place(known, 1, 3, random.Random(seed))[0][0] for seed in range(200)]
    assert min(Counter(firsts).values()) > 20
    assert place(known, 9, 3, random.Random(8)) == place(dict(reversed(known.items())), 9, 3, random.Random(8))


def test_brokers_that_are_not_active_come_last_and_never_lead() -> None:
    for replicas in place(brokers("AFASA"), 12, 4, random.Random(2)):
        assert set(replicas[:3]) == {1, 3, 5}
        assert replicas[3] in (2, 4)
    for replicas in place(brokers("AFASA"), 12, 3, random.Random(2)):
        assert set(replicas) == {1, 3, 5}


def test_what_cannot_be_placed_is_refused_with_kafkas_codes() -> None:
    assert "2 are registered" in refused(ErrorCode.invalid_replication_factor, brokers("AA"), 1, 3)
    refused(ErrorCode.invalid_replication_factor, brokers("AA"), 1, 0)
    refused(ErrorCode.invalid_replication_factor, brokers("AA"), 1, -2)
    refused(ErrorCode.invalid_partitions, brokers("AA"), 0, 1)
    assert "no broker is active" in refused(ErrorCode.invalid_replication_factor, brokers("FDS"), 1, 1)
    refused(ErrorCode.invalid_replication_factor, {}, 1, 1)


@pytest.mark.parametrize(
    ("replicas", "why"),
    [([], "at least one"), ([1, 1], "twice"), ([1, 9], "no broker 9"), ([1, 2, 3], "3 replicas")],
)
def test_a_replica_list_that_makes_no_sense_is_refused(replicas: list[int], why: str) -> None:
    with pytest.raises(KafkaError, match=why) as raised:
        check_assignment(replicas, brokers("AAA"), expected_count=2)
    assert raised.value.code is ErrorCode.invalid_replica_assignment


@pytest.mark.parametrize(
    ("assignments", "why"),
    [
        ({1: [1]}, "numbered 0"),
        ({0: [1], 2: [1]}, "numbered 0"),
        ({0: [1, 2], 1: [1]}, "1 replicas"),
        ({0: [1, 2], 1: [3, 4]}, "partition 1 is active"),
    ],
)
def test_assignments_of_a_topic_must_fit_together(assignments: dict[int, list[int]], why: str) -> None:
    known = {**brokers("AA"), 3: broker(3, BrokerStatus.FENCED), 4: broker(4, BrokerStatus.DRAINING)}
    with pytest.raises(KafkaError, match=why) as raised:
        check_assignments(assignments, 0, known)
    assert raised.value.code is ErrorCode.invalid_replica_assignment


def test_assignments_may_come_in_any_order_and_go_on_from_any_partition() -> None:
    check_assignments({4: [1, 2], 3: [2, 1]}, 3, brokers("AA"))
