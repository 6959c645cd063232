"""Schemas: those of every earlier build are brought up to date, whatever happens meanwhile; newer ones are refused."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import uuid
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import NullPool, create_engine, inspect

from sexton.adapters.metastore import migrations, open_metastore, schema
from sexton.adapters.metastore.cloud_schema import cloud_partitions
from sexton.adapters.metastore.migrations import STEPS
from sexton.errors import UnsupportedFormatError
from sexton.ports.metastore import Metastore, MetastoreUnavailableError, Storage
from sexton.types import LeaderEpoch
from tests.adapters.metastore import old_schemas
from tests.adapters.metastore.conftest import Opener
from tests.adapters.metastore.rows import CLUSTER, broker, broker_in, partitions, topic

CRASHED = 42
every_old_schema = pytest.mark.parametrize("name", old_schemas.NAMES)


def version_in(url: str) -> int:
    ((version,),) = old_schemas.run_all(url, ["SELECT schema_version FROM sexton_cluster"])
    return int(version)


def shape_of(url: str) -> dict[str, Any]:
    """All that the database says of its tables, but for the order of columns."""
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"), poolclass=NullPool)
    with engine.connect() as connection:
        seen = inspect(connection)
        return {
            table: {
                "columns": {
                    column["name"]: (str(column["type"]), column["nullable"], column["default"])
                    for column in seen.get_columns(table)
                },
                "key": seen.get_pk_constraint(table)["constrained_columns"],
                "unique": sorted(tuple(one["column_names"]) for one in seen.get_unique_constraints(table)),
                "indexes": sorted((str(one["name"]), tuple(one["column_names"])) for one in seen.get_indexes(table)),
            }
            for table in sorted(seen.get_table_names())
        }


async def _open(url: str, proposed: uuid.UUID = CLUSTER) -> uuid.UUID:
    store = open_metastore(url, timeout_ms=20_000)
    try:
        return await store.open_cluster(proposed)
    finally:
        await store.close()


def test_every_version_has_its_step() -> None:
    assert [step.version for step in STEPS] == list(range(2, schema.SCHEMA_VERSION + 1))


def test_the_oldest_schemas_are_five_and_differ() -> None:
    assert len(old_schemas.NAMES) == 5
    made = {name: old_schemas.statements(name, is_sqlite=True) for name in old_schemas.NAMES}
    assert all(one != other for one, other in pairwise(sorted(made.values())))


@every_old_schema
async def test_an_old_schema_becomes_what_a_new_cluster_gets(name: str, two_urls: tuple[str, str]) -> None:
    old, new = two_urls
    old_schemas.make(name, old)
    assert await _open(old) == old_schemas.CLUSTER
    await _open(new)
    assert shape_of(old) == shape_of(new)
    assert version_in(old) == schema.SCHEMA_VERSION


@every_old_schema
async def test_what_an_old_schema_holds_is_read_and_written_afterwards(name: str, url: str) -> None:
    old_schemas.make(name, url)
    store = open_metastore(url)
    await store.open_cluster(CLUSTER)
    changes = await store.read_changes(0)
    has_generations = name not in ("1-first", "1-compactors")
    (row,) = changes.partitions
    assert (row.leader_epoch, row.generation) == (4, 2 if has_generations else 0)
    assert [one.name for one in changes.topics] == ["orders"]
    assert changes.revision == 7
    former = await broker_in(store, 1)
    assert former.start_id == ("s1" if name in ("1-starts", "1-dirty-sections") else None)
    assert len(await store.read_work()) == (0 if name == "1-first" else 1)
    runs = await store.read_runs(9)
    assert [run.first_dirty_offset for run in runs] == {"1-first": [], "1-dirty-sections": [4]}.get(name, [-1])
    assert (await store.register_broker(replace(broker(1), start_id="s2"), former)).start_id == "s2"
    made = topic("new")
    await store.create_topic(made, partitions(made, 1), {})
    (moved,) = await store.update_partitions([replace(row, leader_epoch=LeaderEpoch(5))])
    assert moved is not None
    await store.close()


OLD_STATEMENTS = {
    "sexton_partitions": "(topic_id, partition, replicas, isr, leader, leader_epoch, partition_epoch, adding, "
    "removing, incarnations, revision) "
    "VALUES ('a3000000000000000000000000000000', 0, '[]', '[]', 1, 0, 0, '[]', '[]', '{}', 8)",
    "sexton_brokers": "(broker_id, epoch, host, port, data_id, lease_ms, renewals_count, status, revision) "
    "VALUES (2, 8, 'h', 1, 'b2000000000000000000000000000000', 6000, 0, 'starting', 8)",
    "sexton_compaction_runs": "(run_id, finished_ms, broker_id, topic, partition, outcome, bound, bytes_before, "
    "bytes_after, duration_ms, fates) VALUES ('d2000000000000000000000000000000', 6, 1, 'o', 0, 'x', 1, 1, 1, 1, '{}')",
}
"""As builds sent them that did not know the columns that came later."""


async def test_a_broker_from_before_the_migration_goes_on_writing(url: str) -> None:
    """Brokers are replaced one by one."""
    old_schemas.make("1-compactors", url)
    await _open(url)
    for table, values in OLD_STATEMENTS.items():
        old_schemas.run_all(url, [f"INSERT INTO {table} {values}"])
        assert old_schemas.run_all(url, [f"SELECT count(*) FROM {table}"])[0][0] == 2


@every_old_schema
async def test_brokers_that_start_at_once_migrate_once(name: str, url: str) -> None:
    old_schemas.make(name, url)
    found = await asyncio.gather(*(_open(url, uuid.UUID(int=number)) for number in range(6)))
    assert set(found) == {old_schemas.CLUSTER}
    assert version_in(url) == schema.SCHEMA_VERSION


@pytest.mark.parametrize("version", [step.version for step in STEPS])
async def test_a_step_that_fails_leaves_the_one_before_it_and_is_done_again(
    url: str, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    old_schemas.make("1-first", url)

    def failing(step: migrations.Step) -> migrations.Step:
        def apply(session: Any) -> None:
            step.apply(session)
            raise MetastoreUnavailableError("the disk is full")

        return step._replace(apply=apply) if step.version == version else step

    with monkeypatch.context() as unlucky:
        unlucky.setattr(migrations, "STEPS", tuple(failing(step) for step in STEPS))
        with pytest.raises(MetastoreUnavailableError):
            await _open(url)
        assert version_in(url) == version - 1
    assert await _open(url) == old_schemas.CLUSTER
    assert version_in(url) == schema.SCHEMA_VERSION


async def test_partitions_of_cloud_topics_are_known_as_such_after_the_migration(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Schema 6 knew where a topic's records are by its settings alone."""

    def failing(_: Any) -> None:
        raise MetastoreUnavailableError("the disk is full")

    old_schemas.make("1-dirty-sections", url)
    with monkeypatch.context() as older:
        older.setattr(
            migrations, "STEPS", tuple(one._replace(apply=failing) if one.version == 7 else one for one in STEPS)
        )
        with pytest.raises(MetastoreUnavailableError):
            await _open(url)
    assert version_in(url) == 6
    cloud, numbers = "a4000000000000000000000000000000", {"topic_id", "partition", "producers"}
    names = [column.name for column in cloud_partitions.c if column.name not in numbers]
    placed = "'[1]', '[1]', 1, 4, 6, '[]', '[]', '{}', 2, 7"
    rows = "topic_id, partition, replicas, isr, leader, leader_epoch, partition_epoch, adding, removing, incarnations"
    old_schemas.run_all(
        url,
        [
            f"INSERT INTO sexton_topics (topic_id, name, is_internal, revision) VALUES ('{cloud}', 'c', false, 7)",
            *(
                f"INSERT INTO sexton_partitions ({rows}, generation, revision) VALUES ('{cloud}', {number}, {placed})"
                for number in (0, 1)
            ),
            *(
                f"INSERT INTO sexton_cloud_partitions (topic_id, partition, {', '.join(names)}) "
                f"VALUES ('{cloud}', {number}, {', '.join('0' for _ in names)})"
                for number in (0, 1)
            ),
        ],
    )
    await _open(url)
    store = open_metastore(url)
    found = {(one.topic_id.hex, one.partition): one.storage for one in (await store.read_changes(0)).partitions}
    local = ("a1000000000000000000000000000000", 0)
    assert found == {local: Storage.LOCAL, (cloud, 0): Storage.CLOUD, (cloud, 1): Storage.CLOUD}
    await store.close()


def _die_in(url: str, version: int, is_after_it: bool) -> None:
    """Ends the process without a word in the middle of a step, or between it and the next one."""
    for step in STEPS:
        if step.version == version + is_after_it:
            dying = step._replace(apply=(lambda _: os._exit(CRASHED)) if is_after_it else _dying_late(step))
            migrations.STEPS = tuple(dying if one is step else one for one in STEPS)  # type: ignore[misc]
    asyncio.run(_open(url))


def _dying_late(step: migrations.Step) -> Any:
    def apply(session: Any) -> None:
        step.apply(session)
        os._exit(CRASHED)

    return apply


@pytest.mark.parametrize("is_after_it", [False, True])
def test_a_broker_that_is_killed_on_the_way_leaves_something_that_the_next_one_goes_on_with(
    url: str, is_after_it: bool
) -> None:
    old_schemas.make("1-first", url)
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_die_in, args=(url, 3, is_after_it))
    process.start()
    process.join(60)
    assert process.exitcode == CRASHED
    assert version_in(url) == (3 if is_after_it else 2)
    assert asyncio.run(_open(url)) == old_schemas.CLUSTER
    assert version_in(url) == schema.SCHEMA_VERSION


async def test_a_newer_schema_is_refused_with_what_to_do_and_left_alone(
    opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: Metastore = opener()
    newer = schema.SCHEMA_VERSION + 1
    with monkeypatch.context() as newer_build:
        newer_build.setattr(migrations, "SCHEMA_VERSION", newer)
        await store.open_cluster(CLUSTER)
    with pytest.raises(UnsupportedFormatError, match=rf"schema {newer}.*up to {newer - 1}.*run that one") as refused:
        await store.open_cluster(CLUSTER)
    assert refused.value.exit_code == 76
    with pytest.raises(UnsupportedFormatError, match="run that one"):
        await store.find_cluster()


async def test_who_is_no_broker_finds_the_cluster_and_makes_none(opener: Opener) -> None:
    store = opener()
    with pytest.raises(MetastoreUnavailableError, match=r"holds no cluster.*Start a broker"):
        await store.find_cluster()
    with pytest.raises(MetastoreUnavailableError):
        await store.read_changes(0)
    assert await store.open_cluster(CLUSTER) == await store.find_cluster() == CLUSTER


@every_old_schema
async def test_who_is_no_broker_migrates_nothing(name: str, url: str) -> None:
    old_schemas.make(name, url)
    before = version_in(url)
    store = open_metastore(url)
    try:
        if before < schema.SCHEMA_VERSION:
            with pytest.raises(MetastoreUnavailableError, match=rf"schema {before}.*Start a broker of this build"):
                await store.find_cluster()
    finally:
        await store.close()
    assert version_in(url) == before
