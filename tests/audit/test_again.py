"""What a running broker lists of transactions is read again before anybody is told that it is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from sexton.audit.again import is_still_claimed
from sexton.audit.claims import WrongClaim, wrong_claims
from sexton.audit.replica import Replica, ReplicaId
from sexton.audit.standing import Standing
from sexton.records.batch import Batch, encode
from sexton.spark.stretches import Piece, Stretch
from tests.audit.replicas import On, judged
from tests.logs import commit, data, in_transaction

BATCHES = [in_transaction((b"k", b"v"), at=0, pid=7), commit(1, 7), data((b"filler", b"x"), at=8)]
LISTED = (7, 0)


@dataclass(frozen=True)
class Rereading:
    """A source that sends this, whatever it is asked for."""

    replica: Replica
    aborted: Sequence[tuple[int, int]]
    is_up: bool = True

    @property
    def from_offset(self) -> int:
        return 0

    @property
    def to_offset(self) -> int:
        return 9

    @property
    def size_bytes(self) -> int:
        return 1

    def pieces(self) -> Iterator[Piece]:
        data = b"".join(encode(batch) for batch in BATCHES[:2])
        yield Piece(np.frombuffer(data, dtype=np.uint8), "broker 1", aborted=tuple(self.aborted), high_watermark=9)

    def find(self) -> Sequence[Replica]:
        return [self.replica]

    def stretches(self, replica: Replica, number: int, from_offset: int, to_offset: int | None) -> Sequence[Stretch]:
        return [self]  # type: ignore[list-item]

    def read_on(self, wanted: Mapping[ReplicaId, int]) -> Sequence[Replica]:
        return [self.replica]

    def look_up(self, replica: Replica, offsets: Sequence[int]) -> Mapping[int, Batch]:
        return {}

    def now(self, ids: Sequence[ReplicaId]) -> Sequence[Replica]:
        return [replace(self.replica, is_read=self.is_up)]

    def close(self) -> None: ...


@pytest.fixture
def seen(tmp_path: Path) -> tuple[WrongClaim, dict[int, Standing]]:
    """Two running brokers, of which the first lists as aborted what its log has committed."""
    found = judged(tmp_path, On(BATCHES, aborted=[(7, 0, 1, 2)]), On(BATCHES))
    standings = {
        number: replace(each, replica=replace(each.replica, is_live=True, is_down=False, cut=9))
        for number, each in found.standings.items()
    }
    (claim,) = wrong_claims(standings)
    return claim, standings


@pytest.mark.parametrize(
    ("listed_again", "is_up", "is_told"), [([LISTED], True, True), ([], True, False), ([LISTED], False, False)]
)
def test_a_claim_is_told_only_if_the_broker_makes_it_again(
    seen: tuple[WrongClaim, dict[int, Standing]], listed_again: list[tuple[int, int]], is_up: bool, is_told: bool
) -> None:
    claim, standings = seen
    source = Rereading(standings[claim.replica].replica, listed_again, is_up)
    assert is_still_claimed(source, claim, standings) is is_told


def test_of_a_stopped_brokers_directory_nothing_is_read_again(seen: tuple[WrongClaim, dict[int, Standing]]) -> None:
    claim, standings = seen
    stopped = replace(standings[claim.replica].replica, is_live=False, is_down=True)
    together = {**standings, claim.replica: replace(standings[claim.replica], replica=stopped)}
    assert is_still_claimed(Rereading(stopped, []), claim, together)
