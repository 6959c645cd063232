"""Leases without a common clock: the holder stops before a watcher may take over."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sexton.metadata.leases import CountWatch, ExpiredLease, LeaseWatch, OwnLease
from sexton.ports.metastore import LEASE_MARGIN, BrokerStatus
from tests.metadata.rows import broker

ONE = replace(broker(1), lease_ms=1000)
EPOCH = ONE.epoch


def watched(*looks: tuple[int, int]) -> LeaseWatch:
    """Looks at (time, renewals_count) of broker 1."""
    watch = LeaseWatch()
    for now_ms, count in looks:
        watch.observe({1: (EPOCH, count)}, now_ms)
    return watch


def test_a_lease_counts_from_before_the_renewal_was_sent() -> None:
    lease = OwnLease(1000)
    assert not lease.is_valid(0)
    lease.renewed(sent_ms=100)
    assert lease.is_valid(100)
    assert lease.is_valid(1099)
    assert not lease.is_valid(1100)


def test_an_answer_that_was_overtaken_does_not_shorten_the_lease() -> None:
    lease = OwnLease(1000)
    lease.renewed(500)
    lease.renewed(200)
    assert lease.is_valid(1499)


def test_a_lease_that_was_lost_is_not_valid_until_the_next_one() -> None:
    lease = OwnLease(1000)
    lease.renewed(0)
    lease.lost()
    assert not lease.is_valid(1)
    lease.renewed(5)
    assert lease.is_valid(6)


def test_a_lease_runs_out_when_its_count_stands_still_for_longer_than_the_lease_and_the_margin() -> None:
    looks = [(now, 7) for now in range(0, 1101, 100)]
    assert not watched(*looks).has_run_out(ONE)
    watch = watched(*looks, (1101, 7))
    assert watch.has_run_out(ONE)
    assert watch.expired([ONE]) == [ExpiredLease(1, EPOCH, 7)]


def test_a_renewal_starts_the_watch_anew() -> None:
    watch = watched(*((now, 7) for now in range(0, 1000, 100)), *((now, 8) for now in range(1000, 2001, 100)))
    assert not watch.has_run_out(ONE)


def test_only_time_that_was_watched_counts() -> None:
    """Between two looks that are far apart anything may have happened."""
    assert not watched(*((now, 7) for now in range(0, 1001, 100))).has_run_out(ONE)
    assert not watched((0, 7), (400, 7), (901, 7), (1400, 7), (1900, 7)).has_run_out(ONE)
    assert watched((0, 7), (400, 7), (900, 7), (1400, 7)).has_run_out(ONE)


def test_a_watcher_may_look_as_often_as_it_likes() -> None:
    assert watched(*((now, 7) for now in range(0, 1200, 2))).has_run_out(ONE)
    assert watched(*((now, 7) for now in range(0, 50_000, 50))).has_run_out(ONE)


def test_a_watcher_that_could_not_look_starts_anew() -> None:
    """The metastore was away for a minute, for everybody: the first one back must not fence all the others."""
    watch = watched((0, 7), (500, 7), (60_000, 7))
    assert not watch.has_run_out(ONE)
    for now in range(60_000, 61_101, 100):
        watch.observe({1: (EPOCH, 7)}, now)
    assert not watch.has_run_out(ONE)
    watch.observe({1: (EPOCH, 7)}, 61_200)
    assert watch.has_run_out(ONE)


def looked_at_by_two(watch: LeaseWatch, *looks: tuple[int, int, int]) -> LeaseWatch:
    """Looks of broker 2, which has a lease of its own: when, the count of broker 1, its own count."""
    for now_ms, count, own_count in looks:
        watch.observe({1: (EPOCH, count), 2: (EPOCH, own_count)}, now_ms)
    return watch


@pytest.mark.parametrize("silence_ms", [900, 1_000, 1_100, 1_500, 60_000])
def test_who_could_not_renew_itself_does_not_take_others_for_dead(silence_ms: int) -> None:
    """The metastore could be read all the time, not written: the first one to renew must not fence the others."""
    looks = [(now, 7 + now // 200, 7 + now // 200) for now in range(0, 1000, 50)]
    last = looks[-1][1]
    looks += [(now, last, last) for now in range(1000, 1000 + silence_ms, 50)]
    back_ms = 1000 + silence_ms
    watch = looked_at_by_two(LeaseWatch(2, 1000), *looks, (back_ms, last, last + 1))
    assert not watch.has_run_out(ONE)
    looked_at_by_two(watch, *((back_ms + past, last, last + 1 + past // 200) for past in range(50, 1101, 50)))
    assert not watch.has_run_out(ONE)
    looked_at_by_two(watch, (back_ms + 1_150, last, last + 9))
    assert watch.has_run_out(ONE), "it had its time since others could renew"


@pytest.mark.parametrize("renew_ms", [200, 500, 700])
def test_who_renews_sees_others_run_out(renew_ms: int) -> None:
    watch = looked_at_by_two(LeaseWatch(2, 1000), *((now, 7, now // renew_ms) for now in range(0, 1101, 50)))
    assert not watch.has_run_out(ONE)
    assert looked_at_by_two(watch, (1_150, 7, 1_150 // renew_ms)).has_run_out(ONE)


@pytest.mark.parametrize(
    ("look_ms", "renewed_ms"),
    [(270, 700), (50, 850), (50, 990), (510, 510), (510, 950), (700, 600), (990, 990)],
    ids=lambda ms: f"{ms}ms",
)
def test_a_watcher_that_is_slow_itself_sees_in_the_end_that_another_has_died(look_ms: int, renewed_ms: int) -> None:
    """Renewals every half a lease, that take a fifth of it, or looks that wait for a broker that does not answer: such
    a watcher may serve, so it is the controller, and nobody else would fence the dead."""
    watch = LeaseWatch(2, 1000)
    for now_ms in range(0, 8_000, look_ms):
        watch.observe({1: (EPOCH, 7), 2: (EPOCH, now_ms // renewed_ms)}, now_ms)
        assert not (now_ms <= 1_100 and watch.has_run_out(ONE))
        if watch.has_run_out(ONE):
            return
    pytest.fail("a dead broker is never fenced")


def test_a_slow_watcher_takes_nobody_for_dead_who_renews_as_slowly() -> None:
    watch = LeaseWatch(2, 1000)
    for now_ms in range(0, 60_000, 130):
        watch.observe({1: (EPOCH, (now_ms + 400) // 950), 2: (EPOCH, now_ms // 950)}, now_ms)
        assert not watch.has_run_out(ONE)


def test_however_often_a_metastore_that_nobody_can_reach_is_tried_nobody_is_dead() -> None:
    """Looks that are far apart tell nothing as long as the watcher's own lease is not renewed, either."""
    watch = LeaseWatch(2, 1000)
    for now_ms in range(0, 60_000, 700):
        watch.observe({1: (EPOCH, 7), 2: (EPOCH, 7)}, now_ms)
        assert not watch.has_run_out(ONE)
    watch.observe({1: (EPOCH, 7), 2: (EPOCH, 8)}, 60_100)
    assert not watch.has_run_out(ONE)


def test_another_process_with_the_same_count_is_another_lease() -> None:
    watch = watched(*((now, 0) for now in range(0, 1000, 100)))
    watch.observe({1: (EPOCH + 5, 0)}, 1050)
    watch.observe({1: (EPOCH + 5, 0)}, 1200)
    assert not watch.has_run_out(replace(ONE, epoch=EPOCH + 5))
    assert not watch.has_run_out(ONE)


def test_what_is_not_seen_or_fenced_does_not_run_out() -> None:
    watch = watched(*((now, 7) for now in range(0, 1301, 100)))
    assert not watch.has_run_out(replace(ONE, broker_id=2))
    assert not watch.has_run_out(replace(ONE, status=BrokerStatus.FENCED))
    watch.observe({}, 1400)
    assert watch.expired([ONE]) == []


@given(
    st.lists(st.integers(1, 900), min_size=3, max_size=30),
    st.lists(st.integers(1, 600), min_size=3, max_size=30),
    st.floats(1 / LEASE_MARGIN, LEASE_MARGIN),
    st.integers(0, 400),
)
def test_the_holder_has_stopped_whenever_a_watcher_may_take_over(
    renewal_gaps: list[int], look_gaps: list[int], rate: float, delay_ms: int
) -> None:
    """The holder renews a while, then stops. Its clock runs at `rate` of the watcher's; a renewal takes effect some
    time after it was sent."""
    lease = OwnLease(1000)
    sent: list[int] = [sum(renewal_gaps[:number]) for number in range(len(renewal_gaps))]
    for time_ms in sent:
        lease.renewed(int(time_ms * rate))
    watch = LeaseWatch()
    now_ms = 0
    for gap in look_gaps * 3:
        now_ms += gap
        count = sum(1 for time_ms in sent if time_ms + delay_ms <= now_ms)
        watch.observe({1: (EPOCH, count)}, now_ms)
        if count == len(sent) and watch.has_run_out(ONE):
            assert not lease.is_valid(int(now_ms * rate))


def test_a_renewal_counts_as_later_only_between_two_later_looks() -> None:
    looks = [(0, 7), (100, 8), (200, 8), (300, 9)]
    assert not watched(*looks[:1]).has_renewed_since(ONE, 0)
    assert watched(*looks[:2]).has_renewed_since(ONE, 0)
    assert not watched(*looks[:3]).has_renewed_since(ONE, 1)  # it may have been before
    assert watched(*looks).has_renewed_since(ONE, 200)
    assert not watched(*looks).has_renewed_since(ONE, 201)
    assert not watched(*looks).has_renewed_since(replace(ONE, epoch=EPOCH + 1), 0)


def test_who_is_gone_is_forgotten() -> None:
    """A compactor has a new id with each start."""
    watch: CountWatch[str, int] = CountWatch()
    for at_ms in range(0, 1000, 10):
        watch.observe({f"compactor-{at_ms}": 1}, at_ms)
    assert len(watch._renewed_after_ms) <= 1
