"""How long a follower waits for its leader's compaction, step by step."""

from __future__ import annotations

import uuid

from sexton.broker.compaction.patience import ATTEMPTS_MAX, GRACE_MS, NOTHING_MS, PATIENCE_MS, Patience

KEY = uuid.UUID(int=1), 0


def test_it_waits_a_while_for_a_leader_that_says_nothing() -> None:
    patience = Patience()
    assert patience.waits(KEY, 1000)
    assert patience.waits(KEY, 1000 + GRACE_MS - 1)
    assert not patience.waits(KEY, 1000 + GRACE_MS)
    assert patience.waiting == [KEY], "it still asks"


def test_it_waits_as_long_as_it_hears_that_one_is_coming_but_not_for_ever() -> None:
    patience = Patience()
    for now_ms in range(0, PATIENCE_MS, GRACE_MS // 2):
        assert patience.waits(KEY, now_ms)
        patience.heard(KEY, now_ms, is_coming=True)
    assert not patience.waits(KEY, PATIENCE_MS)


def test_it_does_not_wait_long_for_a_leader_that_has_nothing_in_mind() -> None:
    patience = Patience()
    patience.waits(KEY, 0)
    for now_ms in range(0, NOTHING_MS, 1000):
        patience.heard(KEY, now_ms, is_coming=False)
        assert patience.waits(KEY, now_ms)
    assert not patience.waits(KEY, NOTHING_MS)
    patience.heard(KEY, NOTHING_MS, is_coming=True)
    assert patience.waits(KEY, NOTHING_MS), "it has changed its mind"


def test_it_gives_up_when_taking_over_keeps_failing() -> None:
    patience = Patience()
    assert patience.waits(KEY, 0)
    for _ in range(ATTEMPTS_MAX):
        assert patience.waits(KEY, 0)
        patience.failed(KEY)
    assert not patience.waits(KEY, 0)


def test_after_a_pass_it_waits_again() -> None:
    patience = Patience()
    patience.waits(KEY, 0)
    assert not patience.waits(KEY, GRACE_MS)
    patience.forget(KEY)
    assert patience.waiting == []
    patience.heard(KEY, 0, is_coming=False)
    patience.failed(KEY)
    assert patience.waits(KEY, GRACE_MS), "what is not due is not waited for"
