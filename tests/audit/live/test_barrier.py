"""The barrier: who has passed it, who is waited for, and who lags."""

from __future__ import annotations

from sexton.audit.live.barrier import PATIENCE_MS, Barrier, Standing


def barrier() -> Barrier:
    return Barrier(cut=90, barrier=100, in_sync=frozenset({1, 2}), started_ms=0)


def test_a_replica_whose_high_watermark_reaches_the_barrier_has_passed() -> None:
    assert barrier().heard(1, 100, 0) is Standing.PASSED


def test_one_in_sync_is_waited_for_until_patience_ends() -> None:
    waiting = barrier()
    assert waiting.heard(2, 99, PATIENCE_MS - 1) is Standing.WAITED_FOR
    assert waiting.heard(2, 99, PATIENCE_MS) is Standing.LAGS
    assert not waiting.has_passed(2)


def test_one_that_is_not_in_sync_is_not_waited_for() -> None:
    assert barrier().heard(3, 99, 0) is Standing.LAGS


def test_one_that_lagged_may_pass_later_and_then_has_passed() -> None:
    late = barrier()
    late.heard(3, 10, 0)
    assert late.heard(3, 120, 1) is Standing.PASSED
    assert late.heard(3, 80, 2) is Standing.PASSED
    assert late.has_passed(3)


def test_one_that_was_never_heard_has_not_passed() -> None:
    assert not barrier().has_passed(1)


def test_the_barrier_is_that_of_the_replica_that_shows_most_even_if_it_does_not_lead() -> None:
    """Broker 3 leads, and is stuck at 1."""
    made = Barrier.of({1: (100, 100), 2: (100, 99), 3: (1, 101)}, frozenset({1, 2, 3}), 0)
    assert (made.cut, made.barrier) == (100, 100)
    assert made.heard(3, 101, 0) is Standing.PASSED
