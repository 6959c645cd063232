"""A limit on bytes a second: what was taken too soon is waited for."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from sexton.audit.live.pace import BURST_S, Pace
from sexton.audit.live.shared_pace import Limit, Limits


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


# ---- Shared by tasks of one machine


def test_tasks_that_read_from_one_broker_keep_its_limit_together(tmp_path: Path) -> None:
    limit = Limit(1_000, str(tmp_path))
    paces = [limit.of("h:9092", 0) for _ in range(4)]
    now_s, taken = 0.0, 0
    free_at_s = [0.0] * 4
    while now_s < 600:
        number = min(range(4), key=free_at_s.__getitem__)
        now_s = max(now_s, free_at_s[number])
        taken += 700
        free_at_s[number] = now_s + paces[number].pause_s(700, now_s)
    assert 0.95 * 1_000 * 600 < taken <= 1_000 * (600 + BURST_S) + 5 * 700  # a piece of each is not yet waited for


def test_one_task_alone_may_take_all_of_a_brokers_limit_and_brokers_have_one_each(tmp_path: Path) -> None:
    limit = Limit(1_000, str(tmp_path))
    assert limit.of("h:1", 0).pause_s(1_000, 0) == pytest.approx(1)
    assert limit.of("h:2", 0).pause_s(1_000, 0) == pytest.approx(1)
    assert limit.of("h:1", 0).pause_s(1_000, 0) == pytest.approx(2)


def test_on_a_cluster_of_machines_each_task_has_its_part() -> None:
    assert Limits.of_job(1_000, "spark://host:7077", 4).limit == Limit(250)
    local = Limits.of_job(1_000, "local[4]", 4).limit
    assert local.bytes_per_s == 1_000
    assert local.folder is not None
    assert Limits.of_job(math.inf, "local[4]", 4).limit == Limit()
