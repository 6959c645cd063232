"""Following the metastore: `read_changes`, on every one of them."""

from __future__ import annotations

import asyncio
import random
import threading
from dataclasses import replace

import pytest

from sexton.adapters.metastore import open_metastore, operations
from sexton.adapters.metastore.session import Session
from sexton.adapters.metastore.threaded import ThreadedMetastore
from sexton.metadata.view import ClusterView
from sexton.ports.metastore import AlreadyExistsError, Changes, ConfigScope, Metastore, StaleError
from sexton.types import LeaderEpoch
from tests.adapters.metastore.conftest import Opener
from tests.adapters.metastore.rows import CLUSTER, partitions, register, topic


def everything_in(view: ClusterView) -> dict[str, object]:
    return {
        "brokers": {id_: (row.epoch, row.status) for id_, row in view.brokers.items()},
        "topics": {row.topic_id: row for row in view.topics()},
        "partitions": {(row.topic_id, row.partition): row for row in view.partitions()},
        "settings": {
            (scope, name): dict(view.settings_of(scope, name))
            for scope in ConfigScope
            for name in ["", "g", *view.topic_names()]
        },
        "controller": view.controller,
    }


async def test_a_new_cluster_is_an_empty_snapshot(store: Metastore) -> None:
    changes = await store.read_changes(0)
    assert (changes.revision, changes.is_snapshot, changes.controller) == (0, True, None)
    found = [changes.brokers, changes.topics, changes.partitions, changes.configs, changes.deleted_topics]
    assert [list(rows) for rows in found] == [[]] * 5


async def test_revision_zero_always_gives_a_snapshot_and_another_only_what_came_after_it(store: Metastore) -> None:
    first, second = topic("first", 1), topic("second", 2)
    await store.create_topic(first, partitions(first, 1), {})
    seen = await store.read_changes(0)
    assert seen.is_snapshot
    await store.create_topic(second, partitions(second, 1), {})
    after = await store.read_changes(seen.revision)
    assert (after.is_snapshot, list(after.topics)) == (False, [second])
    assert len((await store.read_changes(0)).topics) == 2


async def test_nothing_new_is_an_empty_answer_with_the_same_revision(store: Metastore) -> None:
    await register(store, 1)
    seen = await store.read_changes(0)
    again = await store.read_changes(seen.revision)
    assert again == Changes(revision=seen.revision, is_snapshot=False)


async def test_what_failed_takes_no_revision(store: Metastore) -> None:
    await register(store, 1)
    seen = await store.read_changes(0)
    for attempt in (store.delete_topic(topic("x").topic_id), store.claim_controller(1, 1, expected_term=7)):
        with pytest.raises(StaleError):
            await attempt
    assert (await store.read_changes(seen.revision)).revision == seen.revision


async def test_a_revision_from_before_what_is_remembered_of_deletions_gives_a_snapshot(
    store: Metastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "REMEMBERED_DELETIONS_MAX", 2)
    revisions = []
    for number in range(4):
        row = topic("again", number)
        await store.create_topic(row, partitions(row, 1), {})
        revisions.append((await store.read_changes(0)).revision)
        await store.delete_topic(row.topic_id)
    # The deletions of topics 0 and 1 are forgotten. Who has seen both needs no snapshot; who may have missed one does.
    assert [(await store.read_changes(revision)).is_snapshot for revision in revisions] == [True, True, False, False]
    exactly = await store.read_changes(revisions[2])
    assert list(exactly.deleted_topics) == [topic("", 2).topic_id, topic("", 3).topic_id]


async def test_a_revision_that_is_not_reached_yet_gives_a_snapshot(store: Metastore) -> None:
    await register(store, 1)
    seen = await store.read_changes(0)
    ahead = await store.read_changes(seen.revision + 5)
    assert (ahead.is_snapshot, ahead.revision, len(ahead.brokers)) == (True, seen.revision, 1)


async def _change_things(store: Metastore, rng: random.Random, mine: int, changes_count: int) -> None:
    """A broker that does all kinds of things, and loses a race now and then."""
    broker = await register(store, mine)
    known: list[int] = []
    for number in range(changes_count):
        own = topic(f"t{mine}-{number % 5}", mine * 1000 + number)
        what = rng.randrange(6)
        try:
            if what == 0 or not known:
                await store.create_topic(own, partitions(own, rng.randrange(1, 4)), {"n": str(number)})
                known.append(number)
            elif what == 1:
                await store.delete_topic(topic("", mine * 1000 + known.pop(0)).topic_id)
            elif what == 2:
                rows = (await store.read_changes(0)).partitions
                await store.update_partitions(
                    [replace(row, leader_epoch=LeaderEpoch(row.leader_epoch + 1)) for row in rows]
                )
            elif what == 3:
                await store.change_settings(ConfigScope.GROUP, "g", {str(mine): rng.choice([None, str(number)])})
            elif what == 4:
                term = (await store.read_changes(0)).controller
                await store.claim_controller(mine, broker.epoch, term.term if term else 0)
            else:
                await store.renew_lease(mine, broker.epoch)
        except (StaleError, AlreadyExistsError):
            continue


async def _follow(store: Metastore, done: asyncio.Event) -> ClusterView:
    """By changes alone, never by a second snapshot."""
    view = ClusterView()
    view.apply(await store.read_changes(0))
    while True:
        is_last = done.is_set()
        changes = await store.read_changes(view.revision)
        assert view.revision <= 0 or not changes.is_snapshot
        view.apply(changes)
        if is_last:
            return view
        await asyncio.sleep(0.001)  # hundreds of times while the others write, and the others get to write


@pytest.mark.parametrize("seed", range(3))
async def test_followers_miss_nothing_while_several_brokers_write(opener: Opener, seed: int) -> None:
    stores = [opener() for _ in range(4)]
    await stores[0].open_cluster(CLUSTER)
    done = asyncio.Event()
    followers = [asyncio.create_task(_follow(opener(), done)) for _ in range(2)]
    rng = random.Random(seed)
    writers = [
        _change_things(store, random.Random(rng.random()), mine, 40) for mine, store in enumerate(stores, start=1)
    ]
    await asyncio.gather(*writers)
    done.set()
    whole = ClusterView()
    whole.apply(await stores[0].read_changes(0))
    for follower in followers:
        assert everything_in(await follower) == everything_in(whole)


async def test_a_later_number_is_not_seen_while_an_earlier_one_may_still_commit(url: str) -> None:
    """Were it seen, a follower would go on from it, and miss the earlier one for ever."""
    slow, quick, follower = (open_metastore(url, timeout_ms=20_000) for _ in range(3))
    assert isinstance(slow, ThreadedMetastore)
    await slow.open_cluster(CLUSTER)
    await register(quick, 1)
    before = await follower.read_changes(0)
    has_number, may_commit = threading.Event(), threading.Event()

    def write_slowly(session: Session) -> int:
        with session.writing() as write:
            has_number.set()
            may_commit.wait()
            return write.revision

    first = asyncio.create_task(slow.run(write_slowly))
    await asyncio.to_thread(has_number.wait)
    second = asyncio.create_task(quick.change_settings(ConfigScope.GROUP, "g", {"a": "1"}))
    for _ in range(20):
        await asyncio.sleep(0.01)
        assert (await follower.read_changes(before.revision)).revision == before.revision
    assert not second.done()
    may_commit.set()
    assert await first == before.revision + 1
    await second
    after = await follower.read_changes(before.revision)
    assert (after.revision, len(after.configs)) == (before.revision + 2, 1)
    for store in (slow, quick, follower):
        await store.close()
