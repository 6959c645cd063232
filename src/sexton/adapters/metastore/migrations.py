"""Makes the tables, or brings those of an older build up to date: `open_cluster`. Brokers do so; all others only look
which cluster this is, and whether they know its schema: `find_cluster`.

`sexton_cluster.schema_version` says which step was the last. Each step is one transaction that also writes its number,
under a lock that all who open the cluster take: brokers that start at once wait for each other, and a broker that dies
between two steps leaves a schema with a number, from which the next one goes on.

Three rules for a step:

- It makes what is *missing*, and leaves what is there. Builds before there were numbers made five different schemas and
  called each of them 1 (`tests/adapters/metastore/schemas`); and a step that makes a table makes it as it is today.
- It only adds: tables, or columns with a default. Brokers of the version before go on working while the cluster is
  upgraded one by one, and their statements name the columns that they know.
- It takes no longer than a call may (`TIMEOUT_MS`): it rewrites no table.

Why not Alembic: docs/decisions, 28.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from sqlalchemy import Column, Table, insert, select, tuple_, update

from sexton.adapters.metastore.cloud_schema import CLOUD_TABLES, cloud_partitions, collection
from sexton.adapters.metastore.schema import (
    ONLY_ROW,
    SCHEMA_VERSION,
    brokers,
    cluster,
    compactors,
    metadata,
    partitions,
    runs,
    work,
)
from sexton.adapters.metastore.session import Session
from sexton.errors import UnsupportedFormatError
from sexton.ports.metastore import MetastoreUnavailableError, Storage


class Step(NamedTuple):
    version: int
    what: str
    apply: Callable[[Session], None]


def _tables(*tables: Table) -> Callable[[Session], None]:
    return lambda session: session.make_tables(tables)


def _make_cloud(session: Session) -> None:
    session.make_tables(CLOUD_TABLES)
    if session.execute(select(collection.c.id)).first() is None:
        session.execute(insert(collection), {"id": ONLY_ROW, "round": 0, "scrub_round": -1, "scrub_ms": 0})


def _column(column: Column[Any]) -> Callable[[Session], None]:
    return lambda session: session.add_column(column)


def _say_where_partitions_are(session: Session) -> None:
    """Before this step a topic was in the store from its creation on, or never."""
    session.add_column(partitions.c.storage)
    in_cloud = select(cloud_partitions.c.topic_id, cloud_partitions.c.partition)
    its = tuple_(partitions.c.topic_id, partitions.c.partition).in_(in_cloud)
    session.execute(update(partitions).where(its).values(storage=Storage.CLOUD))


STEPS: Final[tuple[Step, ...]] = (
    Step(2, "compactors: their queue, their leases, what they have done", _tables(work, compactors, runs)),
    Step(3, "partitions have generations", _column(partitions.c.generation)),
    Step(4, "brokers say which start they are", _column(brokers.c.start_id)),
    Step(5, "runs say where their dirty section began", _column(runs.c.first_dirty_offset)),
    Step(6, "cloud topics", _make_cloud),
    Step(7, "partitions say where their records are", _say_where_partitions_are),
)
"""Every change of the tables since version 1, in order."""


def open_cluster(session: Session, proposed: uuid.UUID) -> uuid.UUID:
    """Brokers that start together all call this at once: one makes or migrates the tables, the others wait and find
    them done."""
    while True:
        with session.writing_apart():
            if session.beginnings.lock_schema is not None:
                session.control(session.beginnings.lock_schema)
            found = _known_cluster(session)
            if found is None:
                session.make_tables(metadata.sorted_tables)
                _make_cloud(session)
                session.execute(insert(cluster), _first_row(proposed))
                return proposed
            cluster_id, version = found
            step = next((one for one in STEPS if one.version > version), None)
            if step is None:
                return cluster_id
            step.apply(session)
            session.execute(update(cluster).where(cluster.c.id == ONLY_ROW).values(schema_version=step.version))


def find_cluster(session: Session) -> uuid.UUID:
    with session.reading():
        found = _known_cluster(session)
    if found is None:
        raise MetastoreUnavailableError(
            "the metastore holds no cluster", remedy="Start a broker: it makes the cluster when it opens it"
        )
    cluster_id, version = found
    if version < SCHEMA_VERSION:
        raise MetastoreUnavailableError(
            f"the metastore has schema {version}, and this build needs schema {SCHEMA_VERSION}",
            remedy="Start a broker of this build: it brings the tables up to date",
        )
    return cluster_id


def _known_cluster(session: Session) -> tuple[uuid.UUID, int] | None:
    """Its id and the version of its schema, if this build knows that version. None if there is no cluster yet."""
    if not session.has_table(cluster.name):
        return None
    found = session.execute(select(cluster.c.cluster_id, cluster.c.schema_version)).first()
    if found is None:
        return None
    cluster_id, version = found
    if version > SCHEMA_VERSION:
        raise UnsupportedFormatError(
            f"the metastore has schema {version}, and this build knows schemas up to {SCHEMA_VERSION}",
            remedy="A newer Sexton has opened this cluster: run that one",
        )
    return cluster_id, version


def _first_row(cluster_id: uuid.UUID) -> dict[str, Any]:
    return {
        "id": ONLY_ROW,
        "cluster_id": cluster_id,
        "schema_version": SCHEMA_VERSION,
        "revision": 0,
        "forgotten_revision": 0,
        "next_producer_id": 0,
        "controller_id": -1,
        "controller_epoch": -1,
        "controller_term": 0,
        "controller_revision": 0,
    }
