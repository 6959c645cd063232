"""SQLite and PostgreSQL: how to reach each, and what its failures mean."""

from __future__ import annotations

import socket
import sqlite3
from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from sqlalchemy import Engine, NullPool, StaticPool, create_engine, event, make_url
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError

from sexton.adapters.metastore.session import POSTGRES, SQLITE, Beginnings
from sexton.errors import SextonError
from sexton.ports.metastore import MetastoreUnavailableError

if TYPE_CHECKING:
    # PostgreSQL's driver takes a tenth of a second to import: SQLAlchemy does that, when there is a PostgreSQL.
    import psycopg

CONNECT_TIMEOUT_S = 2
"""The least that libpq takes. Below the default timeout of a call: a connection that is not answered ends by itself."""

REACH_TIMEOUT_S = 0.7
"""For TCP alone to get through. Where packets vanish, libpq would wait its 2 s, and TCP repeats its first packet after
1 s and 3 s: a connection begun anew finds the way sooner once there is one."""

IN_MEMORY = "sqlite://"

DriverConnection: TypeAlias = "sqlite3.Connection | psycopg.Connection[Any]"


class MetastoreUrlError(SextonError):
    """The address of the metastore makes no sense. Correct the setting."""

    exit_code: ClassVar[int] = 78


class Failure(Enum):
    CONFLICT = "conflict"
    """Another transaction was in the way; nothing was changed. Worth trying again."""
    BROKEN = "broken"
    """The connection is gone."""
    REFUSED = "refused"
    """The database answered, and cannot do it: disk full, read-only, no permission, out of time."""
    BUG = "bug"
    """We sent something that makes no sense."""


_POSTGRES_CONFLICTS = frozenset({"40001", "40P01", "55P03"})
_SQLITE_CONFLICTS = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})


def failure_of(error: DBAPIError) -> Failure:
    cause = error.orig
    if error.connection_invalidated:
        return Failure.BROKEN
    if getattr(cause, "sqlstate", None) in _POSTGRES_CONFLICTS:
        return Failure.CONFLICT
    if isinstance(cause, sqlite3.Error) and getattr(cause, "sqlite_errorcode", 0) & 0xFF in _SQLITE_CONFLICTS:
        return Failure.CONFLICT
    if isinstance(error, IntegrityError | DataError):
        return Failure.BUG
    return Failure.REFUSED


class Database:
    """Where the metastore is, and how to connect to it. `opened` is told of every driver connection as soon as it
    exists, in the thread that asked for it: the one chance to get hold of its socket."""

    def __init__(self, url: str, timeout_ms: int, opened: Callable[[DriverConnection], None]) -> None:
        self._url = _parse(url)
        self.place = self._url.render_as_string(hide_password=True)
        self.beginnings: Beginnings = SQLITE if self.is_sqlite else POSTGRES
        engine = _sqlite_engine(self._url, timeout_ms) if self.is_sqlite else _postgres_engine(self._url, timeout_ms)
        self.engine = engine

        @event.listens_for(engine, "do_connect")
        def connect(dialect: Any, record: Any, args: Any, parameters: Any) -> DriverConnection:
            if not self.is_sqlite:
                _reach(parameters)
            connection: DriverConnection = dialect.connect(*args, **parameters)
            opened(connection)
            return connection

    @property
    def is_sqlite(self) -> bool:
        return self._url.get_backend_name() == "sqlite"

    @property
    def remedy(self) -> str:
        if self.is_sqlite:
            return "Check that its folder exists, is writable and has space; the call will be tried again"
        return "Check that PostgreSQL is running and reachable from here; the call will be tried again"

    def unavailable(self, error: DBAPIError, outcome_is_unknown: bool = False) -> MetastoreUnavailableError:
        lines = str(error.orig).strip().splitlines()
        what = f"the metastore does not answer ({lines[0] if lines else type(error.orig).__name__})"
        if outcome_is_unknown:
            what += ", and whether the change was made is unknown"
        return MetastoreUnavailableError(what, self.place, self.remedy)


def sqlite_url(path: str) -> str:
    """Of a file, whatever characters its path has."""
    return URL.create("sqlite", database=path).render_as_string()


def _parse(text: str) -> URL:
    remedy = "Use sqlite:///path/to/file or postgresql://user:password@host:port/database"
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise MetastoreUrlError("the address of the metastore is not a URL", remedy=remedy) from None
    if url.get_backend_name() == "sqlite":
        return url.set(drivername="sqlite+pysqlite")
    if url.get_backend_name() in ("postgresql", "postgres"):
        return url.set(drivername="postgresql+psycopg")
    raise MetastoreUrlError(f"a metastore cannot be kept in {url.get_backend_name()!r}", remedy=remedy)


def _reach(parameters: Mapping[str, Any]) -> None:
    """Fails soon if nobody is there. Several hosts, or a socket in the file system, are left to libpq."""
    host, port = str(parameters.get("host", "")), parameters.get("port", 5432)
    if not host or host.startswith("/") or "," in host or "," in str(port):
        return
    import psycopg

    try:
        socket.create_connection((host, int(port)), timeout=REACH_TIMEOUT_S).close()
    except OSError as error:
        raise psycopg.OperationalError(f"{host}:{port}: {error.strerror or error}") from error


def _sqlite_engine(url: URL, timeout_ms: int) -> Engine:
    """WAL, so that readers and the writer do not wait for each other; every commit is flushed (synchronous=FULL),
    because what a broker was told is decided must still be so after a power failure."""
    engine = create_engine(
        url,
        isolation_level="AUTOCOMMIT",
        poolclass=StaticPool if url.database in (None, "", ":memory:") else NullPool,
        connect_args={"timeout": timeout_ms / 1000, "check_same_thread": False},
    )

    @event.listens_for(engine, "connect")
    def prepare(connection: sqlite3.Connection, record: Any) -> None:
        if connection.execute("PRAGMA journal_mode").fetchone() not in (("wal",), ("memory",)):
            connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")

    return engine


def _postgres_engine(url: URL, timeout_ms: int) -> Engine:
    """The server is told our timeouts too. Were we cut off in the middle of a writing transaction, it would keep the
    lock that all writers need until TCP noticed, minutes later."""
    options = f"-c statement_timeout={timeout_ms} -c idle_in_transaction_session_timeout={timeout_ms}"
    given = url.query.get("options", "")
    return create_engine(
        url.difference_update_query(["options"]),
        isolation_level="AUTOCOMMIT",
        poolclass=NullPool,
        connect_args={
            "connect_timeout": CONNECT_TIMEOUT_S,
            "application_name": "sexton",
            "options": f"{given if isinstance(given, str) else ' '.join(given)} {options}".strip(),
            "tcp_user_timeout": timeout_ms,
            "keepalives_idle": 5,
            "keepalives_interval": 2,
            "keepalives_count": 3,
        },
    )
