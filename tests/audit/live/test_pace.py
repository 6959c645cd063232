"""A limit on bytes a second: what was taken too soon is waited for."""

from __future__ import annotations

import math

import pytest

from sexton.audit.live.pace import BURST_S, Pace


def test_what_comes_at_once_is_waited_for_as_long_as_it_should_have_taken() -> None:
    pace = Pace(1_000, now_s=10)
    assert pace.pause_s(500, 10) == pytest.approx(0.5)
    assert pace.pause_s(500, 10.5) == pytest.approx(0.5)


def test_over_an_hour_no_more_goes_through_than_the_rate_allows() -> None:
    pace, now_s, taken = Pace(1_000, now_s=0), 0.0, 0
    while now_s < 3_600:
        taken += 700
        now_s += pace.pause_s(700, now_s) + 0.01
    assert taken <= 1_000 * (3_600 + BURST_S) + 700


def test_a_pause_of_others_is_made_up_for_by_a_burst_only() -> None:
    pace = Pace(1_000, now_s=0)
    assert pace.pause_s(int(1_000 * BURST_S), 100) == 0
    assert pace.pause_s(100, 100) == pytest.approx(0.1)


def test_without_a_limit_nothing_is_waited_for() -> None:
    assert Pace(math.inf, 0).pause_s(1 << 40, 0) == 0
