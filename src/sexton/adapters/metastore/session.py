"""One connection to the database, and the two kinds of transaction that the operations are made of.

The driver stays in autocommit mode and BEGIN and COMMIT are ours, because they are what differs: a writer must take its
lock first (`BEGIN IMMEDIATE` on SQLite), a reader wants one snapshot for several statements (`REPEATABLE READ` on
PostgreSQL, which SQLite's WAL gives anyway), and whoever loses the connection must know whether COMMIT had been sent.

**Why the revision counter has no gaps that fill later.** A writing transaction starts by adding one to the counter. On
PostgreSQL that locks the counter's row until the transaction ends, on SQLite `BEGIN IMMEDIATE` has locked the database:
either way the next writer gets its number only after this one has committed or rolled back (and given its number back).
So numbers become visible in order: a reader that has seen revision N has been shown everything numbered up to N, and
no transaction with a lower number can still commit. A sequence, or a counter incremented in a transaction of its own,
would let N+1 commit before N, and a follower that had seen N+1 would miss N for ever. It also makes every check inside
a writing transaction (is the epoch still this, is the name free) as good as its write: nobody else writes meanwhile.
Lease renewals stay outside: they take the lock of their broker's row alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column, Connection, CursorResult, Executable, Table, inspect, update
from sqlalchemy.schema import CreateColumn

from sexton.adapters.metastore.schema import ONLY_ROW, cluster
from sexton.ports.metastore import MetastoreUnavailableError

_NEXT_REVISION = (
    update(cluster)
    .where(cluster.c.id == ONLY_ROW)
    .values(revision=cluster.c.revision + 1)
    .returning(cluster.c.revision)
)


@dataclass(frozen=True, slots=True)
class Beginnings:
    """How a transaction of each kind begins in a dialect, and how the schema is kept from being made twice at once."""

    begin_read: str
    begin_write: str
    lock_schema: str | None


SQLITE = Beginnings("BEGIN", "BEGIN IMMEDIATE", lock_schema=None)

POSTGRES = Beginnings(
    "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
    "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE",
    # Any number that nobody else uses in this database: the bytes of "sexton".
    lock_schema=f"SELECT pg_advisory_xact_lock({int.from_bytes(b'sexton')})",
)


class Write:
    """A transaction that changes something. `revision` is its number; `discard` ends it as if it had never been."""

    def __init__(self, revision: int) -> None:
        self.revision = revision
        self.is_discarded = False

    def discard(self) -> None:
        self.is_discarded = True


class Session:
    def __init__(self, connection: Connection, beginnings: Beginnings) -> None:
        self._connection = connection
        self.beginnings = beginnings
        self.outcome_is_unknown = False
        """True while a COMMIT is under way: if the connection breaks then, nobody can tell whether the change was made,
        and trying again might make it twice."""

    def execute(self, statement: Executable, parameters: Any = None) -> CursorResult[*tuple[Any, ...]]:
        result = self._connection.execute(statement, parameters)
        assert isinstance(result, CursorResult)
        return result

    @contextmanager
    def reading(self) -> Iterator[None]:
        """All statements inside see the same moment."""
        self.control(self.beginnings.begin_read)
        try:
            yield
        except BaseException:
            self._roll_back()
            raise
        self.control("COMMIT")

    @contextmanager
    def writing(self) -> Iterator[Write]:
        """All or nothing, alone, with the next revision."""
        with self.writing_apart():
            write = Write(self.next_revision())
            yield write
            if write.is_discarded:
                raise _Discarded

    def next_revision(self) -> int:
        """Inside a writing transaction. Until that ends nobody else gets one: so it is taken first, by those who decide
        by what nobody else may change meanwhile, or last, by those who have locked the rows they decide by."""
        revision: int | None = self.execute(_NEXT_REVISION).scalar()
        if revision is None:
            raise MetastoreUnavailableError(
                "the metastore holds no cluster", remedy="Start a broker: it makes the cluster when it opens it"
            )
        return revision

    @contextmanager
    def writing_apart(self) -> Iterator[None]:
        """A writing transaction without a revision: for what brokers are not told of, and for the tables that revisions
        are kept in. On PostgreSQL others write meanwhile: it locks the rows that it decides by, or compares as it
        writes."""
        self.control(self.beginnings.begin_write)
        try:
            yield
        except _Discarded:
            self.control("ROLLBACK")
            return
        except BaseException:
            self._roll_back()
            raise
        self.outcome_is_unknown = True
        self.control("COMMIT")
        self.outcome_is_unknown = False

    def control(self, statement: str) -> None:
        self._connection.exec_driver_sql(statement)

    def has_table(self, name: str) -> bool:
        return inspect(self._connection).has_table(name)

    def make_tables(self, tables: Sequence[Table]) -> None:
        """Those that are not there yet."""
        for table in tables:
            table.create(self._connection, checkfirst=True)

    def add_column(self, column: Column[Any]) -> None:
        """Unless it is there. Rows that exist get its server default."""
        table = column.table.name
        if all(known["name"] != column.name for known in inspect(self._connection).get_columns(table)):
            definition = CreateColumn(column).compile(dialect=self._connection.dialect)
            self.control(f"ALTER TABLE {table} ADD COLUMN {definition}")

    def _roll_back(self) -> None:
        """After a failure. If this fails as well, the connection is gone, and with it the transaction."""
        try:
            self.control("ROLLBACK")
        except Exception:
            self._connection.invalidate()


class _Discarded(Exception):  # noqa: N818 - no error: how a transaction that changed nothing leaves its block
    pass
