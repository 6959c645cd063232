"""Threads that talk to the database, so that the event loop never waits for it.

A worker is one thread with one connection. A call that is not answered in time must not block the worker for ever: the
worker is *abandoned*. Its socket is shut down, which ends the wait of its thread at once with an error; the thread
closes the connection and ends. The next call gets another worker and another connection. So after an outage of any kind
nothing is left to time out, and the first call after the database's return works.

A thread that hangs where no socket helps (a name server that does not answer, a disk that hangs) ends when that does;
the number of such threads is bounded.
"""

from __future__ import annotations

import os
import queue
import random
import socket
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from sexton.adapters.metastore.databases import Database, DriverConnection, Failure, failure_of
from sexton.adapters.metastore.session import Session
from sexton.ports.metastore import MetastoreUnavailableError

CONFLICTS_MAX = 8
"""How often one call is retried because another transaction was in its way. With the pauses below that is about a
second; a caller that has not succeeded by then should read again and decide again."""

CONFLICT_PAUSE_MS = 4

Operation = Callable[[Session], Any]

_here = threading.local()


def connection_opened(connection: DriverConnection) -> None:
    """Called by `Database` in the thread that connects: the worker must know its socket before it first waits on it."""
    worker = getattr(_here, "worker", None)
    if isinstance(worker, Worker):
        worker.watch(connection)


class Worker:
    def __init__(self, database: Database, name: str) -> None:
        self._database = database
        self._jobs: queue.SimpleQueue[Callable[[Worker], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._driver: DriverConnection | None = None
        self._connection: Connection | None = None
        self._abandoned = threading.Event()
        self.thread = threading.Thread(target=self._work, name=name, daemon=True)
        self.thread.start()

    @property
    def is_abandoned(self) -> bool:
        return self._abandoned.is_set()

    def submit(self, job: Callable[[Worker], None]) -> None:
        self._jobs.put(job)

    def stop(self) -> None:
        """Ends the thread after the jobs that it has been given."""
        self._jobs.put(None)

    def abandon(self) -> None:
        """Called from another thread: ends whatever the worker's thread is waiting for, and the thread."""
        with self._lock:
            self._abandoned.set()
            if self._socket is not None:
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)
            elif isinstance(self._driver, sqlite3.Connection):
                self._driver.interrupt()
        self.stop()

    def watch(self, connection: DriverConnection) -> None:
        """Keeps a duplicate of the socket: libpq closes its own at any time, and the descriptor may by then belong to
        another connection."""
        with self._lock:
            if self.is_abandoned:
                connection.close()
                raise MetastoreUnavailableError("the call had ended before the connection was made")
            self._driver = connection
            if not isinstance(connection, sqlite3.Connection):
                self._socket = socket.socket(fileno=os.dup(connection.fileno()))

    def _work(self) -> None:
        _here.worker = self
        while (job := self._jobs.get()) is not None:
            job(self)
            if self.is_abandoned:
                break
        self._drop_connection()

    def execute(self, operation: Operation, deadline_s: float) -> Any:
        """Returns the result of the operation, retried where that is safe and the deadline (monotonic) allows it."""
        is_second_try = False
        conflicts_count = 0
        while True:
            was_open = self._connection is not None
            session: Session | None = None
            try:
                session = self._session()
                return operation(session)
            except DBAPIError as error:
                failure = failure_of(error)
                if failure is Failure.BUG:
                    self._drop_connection()
                    raise
                if failure is Failure.CONFLICT and conflicts_count < CONFLICTS_MAX and not _is_late(deadline_s):
                    conflicts_count += 1
                    if session is not None and session.outcome_is_unknown:
                        self._drop_connection()  # a conflict at COMMIT: the transaction may still be open
                    self._abandoned.wait(random.uniform(0.5, 1) * CONFLICT_PAUSE_MS / 1000 * 2**conflicts_count)
                    continue
                is_unknown = session is not None and session.outcome_is_unknown
                self._drop_connection()
                # An idle connection may have broken long ago, with the server of that time. A new one tells.
                may_try_again = was_open and not is_second_try and not is_unknown and not self.is_abandoned
                if failure is Failure.BROKEN and may_try_again:
                    is_second_try = True
                    continue
                raise self._database.unavailable(error, is_unknown) from error
            finally:
                if self._connection is not None and self._connection.invalidated:
                    self._drop_connection()

    def _session(self) -> Session:
        if self._connection is None:
            self._connection = self._database.engine.connect()
        return Session(self._connection, self._database.beginnings)

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        with self._lock:
            duplicate, self._socket = self._socket, None
            self._driver = None
        if duplicate is not None:
            duplicate.close()
        if connection is not None:
            with suppress(Exception):
                connection.invalidate()
            with suppress(Exception):
                connection.close()


def _is_late(deadline_s: float) -> bool:
    return time.monotonic() >= deadline_s
