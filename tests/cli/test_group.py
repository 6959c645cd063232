"""`sexton group` on real brokers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sexton.client.errors import RefusedError
from tests.cli.conftest import Sexton

pytestmark = pytest.mark.cluster


@pytest.fixture
def group(sexton: Sexton, topic: str) -> str:
    """One that has read ten records of partition 0 and has no members any more."""
    sexton.produce(topic, *map(str, range(10)), options=("--partition", "0"))
    name = f"of-{topic}"
    sexton.process("consume", topic, "--group", name, "--from-beginning", "--exit-at-end")
    return name


def committed(sexton: Sexton, group: str) -> dict[int, Any]:
    document = json.loads(sexton("group", "describe", group, "--json").stdout)
    return {each["partition"]: (each["committed"], each["lag"]) for each in document["offsets"]}


def test_groups_are_listed_with_their_offsets_and_lag(sexton: Sexton, topic: str, group: str) -> None:
    assert group in [each["group"] for each in json.loads(sexton("group", "list", "--json").stdout)]
    assert committed(sexton, group) == {0: (10, 0), 1: (0, 0)}
    sexton.produce(topic, "more", options=("--partition", "0"))
    assert committed(sexton, group)[0] == (10, 1)
    assert "nobody" in sexton("group", "describe", group).stdout


@pytest.mark.parametrize(
    ("where", "expected"),
    [(("--to", "earliest"), 0), (("--to", "4"), 4), (("--to", "99999"), 10), (("--shift-by", "-3"), 7)],
)
def test_offsets_move_within_the_log(
    sexton: Sexton, topic: str, group: str, where: tuple[str, str], expected: int
) -> None:
    dry = json.loads(sexton("group", "reset-offsets", group, topic, *where, "--dry-run", "--json").stdout)
    assert dry[0]["after"] == expected
    assert committed(sexton, group)[0] == (10, 0)
    sexton("group", "reset-offsets", group, topic, *where)
    assert committed(sexton, group)[0] == (expected, 10 - expected)


def test_a_group_that_is_deleted_is_gone(sexton: Sexton, group: str) -> None:
    sexton("group", "delete", group, "--yes")
    with pytest.raises(RefusedError, match="no such group"):
        sexton("group", "describe", group)
    with pytest.raises(RefusedError):
        sexton("group", "delete", group, "--yes")
