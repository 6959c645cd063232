"""The metastore in SQLite or PostgreSQL, through SQLAlchemy Core: one schema, one set of compare-and-set operations.

    schema       the tables
    session      transactions, and why revisions have no gaps
    operations   the changes
    migrations   making the tables, and bringing older ones up to date
    reading      following changes
    databases    SQLite and PostgreSQL: connecting, failures
    workers      threads with a connection each, and how one that hangs is replaced
    threaded     the metastore of a broker
    inprocess    the metastore of the simulator

A PostgreSQL that fails over to a standby must do so without losing commits (`synchronous_commit=on` with a synchronous
standby): brokers act on what was committed.
"""

from __future__ import annotations

from sexton.adapters.metastore.databases import IN_MEMORY, MetastoreUrlError, sqlite_url
from sexton.adapters.metastore.inprocess import InProcessMetastore
from sexton.adapters.metastore.threaded import ThreadedMetastore
from sexton.ports.metastore import Metastore

__all__ = ["TIMEOUT_MS", "InProcessMetastore", "MetastoreUrlError", "open_metastore", "sqlite_url"]

TIMEOUT_MS = 3000
"""Timeout of one call. Well below a lease, so that a renewal that hangs can be retried in time."""


def open_metastore(url: str, timeout_ms: int = TIMEOUT_MS) -> Metastore:
    """Opens `sqlite:///path/to/file` or `postgresql://user:password@host:port/database`. Connects at the first call.

    `sqlite://` (in memory) is for experiments: it is gone with the process.
    """
    if url in (IN_MEMORY, IN_MEMORY + "/:memory:"):
        return InProcessMetastore()
    return ThreadedMetastore(url, timeout_ms)
