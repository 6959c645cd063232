"""Runs that are about one thing."""

from __future__ import annotations

from sexton.simulate.plan import Profile
from sexton.simulate.planning import make_plan
from sexton.simulate.themes import OF_CLOUD, OF_COMPACTION, Theme, theme_of, themed


def test_every_theme_is_drawn_within_a_few_seeds() -> None:
    assert {theme_of(seed, is_compacting=True) for seed in range(100)} == {None, *Theme} - {*OF_CLOUD}
    assert {theme_of(seed, is_compacting=False) for seed in range(100)} == {None, *Theme} - {*OF_COMPACTION, *OF_CLOUD}
    assert {theme_of(seed, is_compacting=False, is_cloud=True) for seed in range(100)} == {None, *OF_CLOUD}


def test_a_theme_is_the_same_each_time_and_a_seed_without_one_is_left_as_it_was() -> None:
    for profile in Profile:
        for seed in range(60):
            plan = make_plan(seed, 3, 0.5, profile)
            assert themed(plan) == themed(plan)
            theme = theme_of(seed, is_compacting=bool(plan.compactors), is_cloud=plan.store is not None)
            assert (themed(plan) == plan) == (theme is None)


def test_everything_of_a_theme_begins_before_all_is_healed_and_in_order() -> None:
    for profile in Profile:
        for seed in range(100):
            before = make_plan(seed, 3, 0.3, profile)
            plan = themed(before)
            if plan == before:
                continue
            for items in (plan.faults, plan.moves):
                times = [item.at_ms for item in items]
                assert times == sorted(times)
                assert all(item.at_ms < plan.until_ms for item in items if item not in before.items)
            assert len(plan.clients) == len(set(plan.clients))
