"""A real PostgreSQL for tests: Debian's binaries, a temporary folder, a free port on loopback.

PostgreSQL refuses to run as root, so under root it runs as another user (`postgres` if Debian's package has made it,
else `nobody`). Durability is off: a test that stops the server wants to see what clients do, not what disks do.
"""

from __future__ import annotations

import glob
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import psycopg
import pytest

READY_TIMEOUT_S = 60
BINARIES = "/usr/lib/postgresql/*/bin"
SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": "60",
    "shared_buffers": "16MB",
    "unix_socket_directories": "",
    "listen_addresses": "127.0.0.1",
    "log_min_messages": "warning",
}


def binaries() -> Path | None:
    """Of the newest version installed."""
    found = sorted(glob.glob(BINARIES + "/postgres"), key=lambda path: float(Path(path).parts[-3]))
    return Path(found[-1]).parent if found else None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _user() -> str | None:
    """Whom to become; None when we are not root."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


class Postgres:
    """One server. It keeps its port and its data over stop, kill and start."""

    def __init__(self, folder: Path) -> None:
        found = binaries()
        if found is None:
            pytest.skip("PostgreSQL is not installed: run scripts/setup test")
        self._binaries = found
        self._folder = folder
        self._data = folder / "data"
        self._user = _user()
        self._process: subprocess.Popen[bytes] | None = None
        self._databases_count = 0
        self.port = _free_port()
        if self._user is not None:
            shutil.chown(folder, self._user)
        self._run("initdb", "--auth=trust", "--username=sexton", "--no-sync", "--encoding=UTF8", "--pgdata", self._data)

    def start(self) -> None:
        options = [part for name, value in SETTINGS.items() for part in ("-c", f"{name}={value}")]
        command = [str(self._binaries / "postgres"), "-D", str(self._data), "-p", str(self.port), *options]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, user=self._user, cwd=self._folder, start_new_session=True
            )
        end_s = time.monotonic() + READY_TIMEOUT_S
        while True:
            try:
                psycopg.connect(self._address("postgres"), connect_timeout=2).close()
            except psycopg.Error:
                if time.monotonic() > end_s or self._process.poll() is not None:
                    raise RuntimeError(f"PostgreSQL did not start: {(self._folder / 'log').read_text()}") from None
                time.sleep(0.05)
            else:
                return

    def new_database(self) -> str:
        """Its URL, as `open_metastore` takes it."""
        self._databases_count += 1
        name = f"test_{self._databases_count}"
        with psycopg.connect(self._address("postgres"), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"'.encode())
        return self.url(name)

    def url(self, database: str) -> str:
        return f"postgresql://sexton@127.0.0.1:{self.port}/{database}"

    def stop(self) -> None:
        """At once but orderly: connections are told ("fast" shutdown)."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """As by a power failure: nobody is told. The kernel resets the connections of a killed process."""
        self._signal_all(signal.SIGKILL)
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Connections stay open and the kernel accepts new ones; nobody answers."""
        self._signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal_all(signal.SIGCONT)

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def _signal_all(self, how: signal.Signals) -> None:
        """The parent is stopped first, so that no child it starts meanwhile is missed; children may end any time."""
        assert self._process is not None
        parent = psutil.Process(self._process.pid)
        parent.suspend()
        for process in [*parent.children(recursive=True), parent]:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(how)

    def _end(self, how: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(how)
        self._process.wait(timeout=READY_TIMEOUT_S)

    def _address(self, database: str) -> str:
        return f"host=127.0.0.1 port={self.port} user=sexton dbname={database}"

    def _run(self, program: str, *arguments: str | Path) -> None:
        subprocess.run(
            [self._binaries / program, *arguments], user=self._user, cwd=self._folder, check=True, capture_output=True
        )


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """Not under pytest's own temporary folder: only its owner may enter that one, and PostgreSQL is another user."""
    folder = Path(tempfile.mkdtemp(prefix="sexton-postgres-"))
    folder.chmod(0o755)
    server = Postgres(folder)
    try:
        server.start()
        yield server
    finally:
        server.close()
        shutil.rmtree(folder, ignore_errors=True)
