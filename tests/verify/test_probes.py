from __future__ import annotations

from sexton.verify.probes import led_by_one


def test_a_log_counts_only_if_its_leader_was_known_and_the_same_before_and_after() -> None:
    same, moved, gone, new, unknown = ((name, 0) for name in ("same", "moved", "gone", "new", "unknown"))
    places = dict(enumerate((same, moved, gone, new, unknown)))
    before = {same: 1, moved: 1, gone: 1}
    after = {same: 1, moved: 2, new: 1}
    assert led_by_one(places, before, after) == {0: same}
