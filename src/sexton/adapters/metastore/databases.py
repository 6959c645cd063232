"""SQLite and PostgreSQL: how to connect to each, and what its errors mean."""

from __future__ import annotations

import socket
import sqlite3
from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from sqlalchemy import Engine, NullPool, StaticPool, create_engine, event, make_url
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError

from sexton import extras
from sexton.adapters.metastore.session import POSTGRES, SQLITE, Beginnings
from sexton.errors import SextonError
from sexton.ports.metastore import MetastoreUnavailableError

if TYPE_CHECKING:
    # PostgreSQL's driver takes a tenth of a second to import: SQLAlchemy does that, if PostgreSQL is used.
    import psycopg

CONNECT_TIMEOUT_S = 2
"""The least that libpq accepts. Below the default timeout of a call, so that a connection attempt without an answer
ends by itself."""

REACH_TIMEOUT_S = 0.7
"""Timeout of the TCP connection alone. Where packets vanish, libpq would wait its 2 s, and TCP repeats its first packet
after 1 s and 3 s: a new attempt succeeds sooner once the network is back."""

IN_MEMORY = "sqlite://"

DriverConnection: TypeAlias = "sqlite3.Connection | psycopg.Connection[Any]"


class MetastoreUrlError(SextonError):
    """The URL of the metastore is invalid. Correct the config."""

    exit_code: ClassVar[int] = 78


class Failure(Enum):
    CONFLICT = "conflict"
    """Another transaction was in the way; nothing was changed. Worth retrying."""
    BROKEN = "broken"
    """The connection is gone."""
    REFUSED = "refused"
    """The database answered that it cannot do it: disk full, read-only, no permission, timeout."""
    BUG = "bug"
    """We sent an invalid statement."""


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
    """Where the metastore is, and how to connect to it. `opened` is called with every driver connection as soon as it
    exists, in the thread that asked for it: the only chance to get hold of its socket."""

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
    """Returns the URL of a file, whatever characters its path has."""
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
        extras.need("postgres", "a metastore in PostgreSQL")
        return url.set(drivername="postgresql+psycopg")
    raise MetastoreUrlError(f"a metastore cannot be kept in {url.get_backend_name()!r}", remedy=remedy)


def _reach(parameters: Mapping[str, Any]) -> None:
    """Fails soon if the server cannot be reached. Several hosts, or a Unix socket, are left to libpq."""
    host, port = str(parameters.get("host", "")), parameters.get("port", 5432)
    if not host or host.startswith("/") or "," in host or "," in str(port):
        return
    import psycopg

    try:
        socket.create_connection((host, int(port)), timeout=REACH_TIMEOUT_S).close()
    except OSError as error:
        raise psycopg.OperationalError(f"{host}:{port}: {error.strerror or error}") from error


def _sqlite_engine(url: URL, timeout_ms: int) -> Engine:
    """Uses WAL, so that readers and the writer do not wait for each other; every commit is flushed (synchronous=FULL),
    because a decision that a broker has acted on must survive a power failure."""
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
    """The server gets our timeouts too. If we were cut off in the middle of a writing transaction, it would otherwise
    keep the lock that all writers need until TCP noticed, minutes later.

    Only a primary is asked, unless the URL says otherwise: what a standby tells may be long past."""
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
            "target_session_attrs": url.query.get("target_session_attrs", "primary"),
            "tcp_user_timeout": timeout_ms,
            "keepalives_idle": 5,
            "keepalives_interval": 2,
            "keepalives_count": 3,
        },
    )
