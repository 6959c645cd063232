"""The metastore of the simulator: the same operations on SQLite in memory, without threads.

A call runs to its end the moment it is made, so the order of calls is the order of the event loop, and a seed gives the
same history every time. The simulator adds delays and outages around it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from sqlalchemy.exc import DBAPIError

from sexton.adapters.metastore.databases import IN_MEMORY, Database, Failure, failure_of
from sexton.adapters.metastore.session import Session
from sexton.adapters.metastore.store import SqlMetastore

P = ParamSpec("P")
T = TypeVar("T")


class InProcessMetastore(SqlMetastore):
    """One object is one database: all brokers of a simulated cluster share it."""

    def __init__(self) -> None:
        self._database = Database(IN_MEMORY, timeout_ms=0, opened=lambda _: None)
        self._connection = self._database.engine.connect()

    def call(self, operation: Callable[Concatenate[Session, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return operation(Session(self._connection, self._database.beginnings), *args, **kwargs)
        except DBAPIError as error:
            if failure_of(error) is Failure.BUG:
                raise
            raise self._database.unavailable(error) from error

    async def run(self, operation: Callable[Concatenate[Session, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return self.call(operation, *args, **kwargs)

    def backup(self) -> bytes:
        return self._sqlite.serialize()

    def restore(self, backup: bytes) -> None:
        """From now on it is what it was when the backup was made."""
        self._sqlite.deserialize(backup)

    @property
    def _sqlite(self) -> sqlite3.Connection:
        found = self._connection.connection.dbapi_connection
        assert isinstance(found, sqlite3.Connection)
        return found

    async def close(self) -> None:
        """Keeps the data: a broker that closes its metastore leaves it to the others. It is gone with the object."""
