"""Keys of objects, their ids, and the marker of a store."""

from __future__ import annotations

import json
import random
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sexton.ports.object_names import (
    FORMAT_VERSION,
    ObjectName,
    check_marker,
    encode_marker,
    new_object_id,
    object_id_time_ms,
    parse_key,
)
from sexton.ports.objects import StoreRefusedError
from sexton.records.objects import Level

NOW_MS = 1_700_000_000_000
CLUSTER = uuid.UUID("11111111-2222-3333-4444-555555555555")


def test_a_key_has_cluster_level_and_two_random_digits() -> None:
    object_id = uuid.UUID("018bcfe5-6800-7c6f-9e1a-0123456789ab")
    key = ObjectName(CLUSTER, Level.L0, object_id).key
    assert key == f"{CLUSTER}/l0/ab/{object_id}"
    assert ObjectName(CLUSTER, Level.L1, object_id).key == f"{CLUSTER}/l1/ab/{object_id}"


@given(st.integers(0, 2**48 - 1), st.integers(), st.uuids(), st.sampled_from(Level))
def test_a_key_is_read_as_it_was_written(now_ms: int, seed: int, cluster: uuid.UUID, level: Level) -> None:
    name = ObjectName(cluster, level, new_object_id(now_ms, random.Random(seed)))
    assert parse_key(name.key) == name
    assert object_id_time_ms(name.object_id) == now_ms


@pytest.mark.parametrize(
    "key",
    [
        "",
        "sexton.json",
        f"{CLUSTER}/l2/ab/018bcfe5-6800-7c6f-9e1a-0123456789ab",
        f"{CLUSTER}/l0/ac/018bcfe5-6800-7c6f-9e1a-0123456789ab",
        f"{CLUSTER}/l0/AB/018BCFE5-6800-7C6F-9E1A-0123456789AB",
        f"{CLUSTER}/l0/ab/018bcfe5-6800-7c6f-9e1a-0123456789ab.77.1.tmp",
        f"x/{CLUSTER}/l0/ab/018bcfe5-6800-7c6f-9e1a-0123456789ab",
        f"{CLUSTER}/l0/ab/018bcfe5-6800-7c6f-9e1a-0123456789ab\n",
    ],
)
def test_other_keys_are_none_of_ours(key: str) -> None:
    assert parse_key(key) is None


def test_an_object_id_is_a_uuid_7() -> None:
    made = new_object_id(NOW_MS, random.Random(1))
    assert made.version == 7
    assert made.variant == uuid.RFC_4122
    assert made == new_object_id(NOW_MS, random.Random(1)), "the same of the same time and randomness"
    assert new_object_id(NOW_MS + 1, random.Random(1)) > made, "later ones sort later"
    for impossible in (-1, 2**48):
        with pytest.raises(ValueError, match="UUIDv7"):
            new_object_id(impossible, random.Random(1))


def test_object_ids_of_one_millisecond_differ_and_spread() -> None:
    rng = random.Random(1)
    made = [new_object_id(NOW_MS, rng) for _ in range(10_000)]
    assert len(set(made)) == len(made)
    assert len({ObjectName(CLUSTER, Level.L0, one).key.split("/")[2] for one in made}) == 256


def test_a_marker_is_accepted_by_its_own_cluster_alone() -> None:
    check_marker(encode_marker(CLUSTER), CLUSTER, "s3://b")
    other = uuid.UUID(int=7)
    with pytest.raises(StoreRefusedError, match=f"belongs to cluster {CLUSTER}, and this is cluster {other}") as caught:
        check_marker(encode_marker(CLUSTER), other, "s3://b")
    assert caught.value.place == "s3://b/sexton.json"
    assert "prefix or folder of its own" in caught.value.remedy


def test_a_marker_of_a_later_format_is_refused_with_the_remedy() -> None:
    later = json.dumps({"cluster_id": str(CLUSTER), "format_version": FORMAT_VERSION + 1, "more": 1}).encode()
    with pytest.raises(StoreRefusedError, match="Start a newer Sexton"):
        check_marker(later, CLUSTER, "s3://b")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"{}",
        b'{"cluster_id": 5, "format_version": 1}',
        b'{"cluster_id": "x", "format_version": 1}',
        b'{"cluster_id": "11111111-2222-3333-4444-555555555555", "format_version": "1"}',
        b'{"cluster_id": "11111111-2222-3333-4444-555555555555", "format_version": true}',
        b'{"cluster_id": "11111111-2222-3333-4444-555555555555", "format_version": 0}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_marker_is_refused(data: bytes) -> None:
    with pytest.raises(StoreRefusedError, match="no marker of a Sexton cluster"):
        check_marker(data, CLUSTER, "s3://b")


@given(st.binary(max_size=200))
def test_nothing_but_a_refusal_comes_out_of_any_bytes(data: bytes) -> None:
    with pytest.raises(StoreRefusedError):
        check_marker(data, CLUSTER, "s3://b")
