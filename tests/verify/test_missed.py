"""What a replica that is away has missed, and the others have forgotten: told by looks at the leader's log."""

from __future__ import annotations

from sexton.records.batch import Batch
from sexton.verify.faults.missed import Missed
from tests.verify.batches import marker, value

LOST_MS = 1_000
HIGH = 10
"""Up to here the replica has everything."""
OLD = [value(0, "a"), value(1, "b"), value(9, "c")]


def missed(*looks: list[Batch], before: list[Batch] | None = None) -> Missed:
    """The first look is the one after it was lost."""
    found = Missed(HIGH, OLD if before is None else before)
    found.lost(looks[0], LOST_MS)
    for look in looks[1:]:
        found.look(look)
    return found


def test_a_deletion_that_was_seen_and_is_gone_is_forgotten() -> None:
    found = missed(OLD, [*OLD, value(10, "a", is_tombstone=True)], [*OLD[1:], value(11, "c")])
    assert found.forgotten_keys == 1
    assert found.is_removed


def test_a_deletion_that_is_still_there_is_not() -> None:
    found = missed(OLD, [*OLD, value(10, "a", is_tombstone=True)], [*OLD[1:], value(10, "a", is_tombstone=True)])
    assert found.forgotten_keys == 0
    assert not found.is_removed


def test_a_key_that_was_written_again_is_not_forgotten() -> None:
    found = missed(OLD, [*OLD, value(10, "a", is_tombstone=True)], [*OLD[1:], value(11, "a")])
    assert found.forgotten_keys == 0
    assert found.is_removed


def test_a_key_that_the_replica_may_know_to_be_deleted_does_not_count() -> None:
    """The second record may have reached it before it was lost, or not."""
    away = [*OLD, value(10, "a", is_tombstone=True)]
    found = missed(away, [*away, value(11, "a", is_tombstone=True)], OLD[1:])
    assert found.forgotten_keys == 0


def test_a_key_that_the_replica_has_no_value_of_does_not_count() -> None:
    found = missed(OLD, [*OLD, value(10, "new", is_tombstone=True)], [*OLD, value(11, "b")])
    assert found.forgotten_keys == 0


def test_a_deletion_that_may_have_been_aborted_does_not_count() -> None:
    deleted = value(10, "a", is_tombstone=True, producer_id=7)
    found = missed(OLD, [*OLD, deleted], [*OLD, deleted, marker(11, 7)], [*OLD, value(12, "b")])
    assert found.forgotten_keys == 0
    assert found.is_removed


def test_the_end_of_a_transaction_that_is_open_on_the_replica_is_forgotten() -> None:
    before = [*OLD[:2], value(9, "c", producer_id=7)]
    found = missed(before, [*before, marker(10, 7)], [*before, value(11, "a")], before=before)
    assert found.forgotten_markers == 1


def test_a_marker_that_is_there_or_of_somebody_else_is_not() -> None:
    before = [*OLD[:2], value(9, "c", producer_id=7)]
    found = missed(before, [*before, marker(10, 7), marker(11, 8)], [*before, marker(10, 7)], before=before)
    assert found.forgotten_markers == 0


def test_a_marker_that_was_written_after_the_replica_was_lost_has_not_reached_it() -> None:
    before = [*OLD[:2], value(9, "c", producer_id=7)]
    late, early = marker(10, 7, LOST_MS + 1), marker(10, 7, LOST_MS)
    for first, forgotten in ((late, 1), (early, 0)):
        after = [*before, first]
        found = missed(after, [*before, value(11, "a")], before=before)
        assert found.forgotten_markers == forgotten


def test_compaction_has_gone_over_it_when_no_key_is_there_twice() -> None:
    """Below where the log ended before."""
    found = missed(OLD, [*OLD, value(10, "a")])
    assert found.passes_count == 1, "of what was there when the replica was lost"
    found.look([*OLD, value(10, "a"), value(11, "b")])
    assert found.passes_count == 1
    found.look([*OLD[1:], value(10, "a"), value(11, "b")])
    assert found.passes_count == 2
