"""A real PostgreSQL on this machine, for tests and shows: Debian's binaries, a folder, a port of its own.

PostgreSQL refuses to run as root, so under root it runs as another user (`postgres` if Debian's package has made it,
else `nobody`), who must be able to enter the folder. Durability is off: who stops the server wants to see what clients
do, not what disks do.
"""

from __future__ import annotations

import glob
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from sexton import extras
from sexton.harness.errors import HarnessError
from sexton.harness.processes import HOST, Port, ServerProcess
from sexton.harness.undoing import Undoing

READY_TIMEOUT_S: Final = 60
BINARIES: Final = "/usr/lib/postgresql/*/bin"
SETTINGS: Final = {
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": "60",
    "shared_buffers": "16MB",
    "dynamic_shared_memory_type": "mmap",  # in its folder, and gone with that: /dev/shm keeps what a killed one had
    "unix_socket_directories": "",
    "log_min_messages": "warning",
}

WATCHDOG: Final = (
    'read -r _; grep -qaF -- "$2" "/proc/$1/cmdline" && kill -STOP "$1" && '
    'kill -KILL $(cat "/proc/$1/task/$1/children") "$1"'
)
"""Takes the server's processes along, too: those that are paused would never notice that it has ended. It is stopped
first, so that no child that it starts meanwhile is missed."""

REMOVE: Final = 'for _ in 1 2 3 4 5; do rm -rf -- "$1" && break; sleep 1; done'
"""Processes that are just being killed may still write there."""


def binaries() -> Path | None:
    """Directory of the newest version's programs; None if PostgreSQL is not installed."""
    found = sorted(glob.glob(BINARIES + "/postgres"), key=lambda path: float(Path(path).parts[-3]))
    return Path(found[-1]).parent if found else None


class Postgres:
    """One server. It keeps its port and its data over stop, kill and start. Used as a context manager it is started,
    and killed at the end."""

    def __init__(self, folder: Path, host: str = HOST, prefix: Sequence[str] = ()) -> None:
        """Starts nothing. The prefix, of commands, says where it runs, and the host what it listens on there."""
        self.check()
        found = binaries()
        assert found is not None
        self._binaries = found
        self._folder = folder
        self._data = folder / "data"
        self._user = _user()
        self._host = host
        self._prefix = tuple(prefix)
        self._process: ServerProcess | None = None
        self._databases_count = 0
        self._port = Port()
        if self._user is not None:
            shutil.chown(folder, self._user)
        self._run("initdb", "--auth=trust", "--username=sexton", "--no-sync", "--encoding=UTF8", "--pgdata", self._data)
        with (self._data / "pg_hba.conf").open("a") as rules:
            rules.write(f"host all all {host}/24 trust\n")

    @staticmethod
    def check() -> None:
        """Raises if it cannot be had here, and says what is missing."""
        extras.need("postgres", "PostgreSQL as the metastore")
        if binaries() is None:
            raise HarnessError("PostgreSQL is not installed", BINARIES, "apt-get install postgresql")

    @property
    def port(self) -> int:
        return self._port.number

    @property
    def data(self) -> Path:
        """Its data directory."""
        return self._data

    def start(self) -> None:
        """Again, once it has ended. Returns when it answers."""
        self._forget()
        options = [part for name, value in SETTINGS.items() for part in ("-c", f"{name}={value}")]
        options += ["-c", f"listen_addresses={self._host}", "-p", str(self.port)]
        command = [*self._prefix, *self._as_user(), str(self._binaries / "postgres"), *options, "-D", str(self._data)]
        self._process = ServerProcess(command, self._folder / "log", watchdog=WATCHDOG)
        end_s = time.monotonic() + READY_TIMEOUT_S
        while not self._answers():
            if time.monotonic() > end_s or not self._process.is_running:
                raise HarnessError(f"PostgreSQL did not start: {(self._folder / 'log').read_text(errors='replace')}")
            time.sleep(0.05)

    def new_database(self) -> str:
        """Its URL, as `open_metastore` takes it."""
        import psycopg

        self._databases_count += 1
        name = f"test_{self._databases_count}"
        with psycopg.connect(self._address("postgres"), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"'.encode())
        return self.url(name)

    def url(self, database: str) -> str:
        return f"postgresql://sexton@{self._host}:{self.port}/{database}"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.is_running

    def stop(self) -> None:
        """Stops the server with a "fast" shutdown: open connections are ended."""
        process = self._running()
        process.send_signal(signal.SIGINT)
        process.wait(READY_TIMEOUT_S)
        self._forget()

    def kill(self) -> None:
        """As by a power failure: nobody is told. The kernel resets the connections of a killed process."""
        self._signal_all(signal.SIGKILL)
        self._running().wait(READY_TIMEOUT_S)
        self._forget()

    def pause(self) -> None:
        """Connections stay open and the kernel accepts new ones; nobody answers."""
        self._signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal_all(signal.SIGCONT)

    def close(self) -> None:
        if self.is_running:
            self.kill()
        self._port.release()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _running(self) -> ServerProcess:
        if self._process is None:
            raise HarnessError("PostgreSQL is not running")
        return self._process

    def _forget(self) -> None:
        """Its watchdog, too."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()

    def _signal_all(self, how: signal.Signals) -> None:
        """The parent is stopped first, so that no child it starts meanwhile is missed; children may end any time."""
        process = self._running()
        process.pause()
        for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(child), how)
        process.send_signal(how)

    def _answers(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self._address("postgres"), connect_timeout=2).close()
        except psycopg.Error:
            return False
        return True

    def _address(self, database: str) -> str:
        return f"host={self._host} port={self.port} user=sexton dbname={database}"

    def _as_user(self) -> list[str]:
        if self._user is None:
            return []
        group = str(pwd.getpwnam(self._user).pw_gid)
        return ["setpriv", f"--reuid={self._user}", f"--regid={group}", "--clear-groups"]

    def _run(self, program: str, *arguments: str | Path) -> None:
        command = [*self._as_user(), str(self._binaries / program), *map(str, arguments)]
        done = subprocess.run(command, cwd=self._folder, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            told = "Its folder must be one that this user can enter"
            raise HarnessError(f"{program} failed: {done.stderr.strip()}", str(self._folder), told)


@contextmanager
def running(host: str = HOST, prefix: Sequence[str] = ()) -> Iterator[Postgres]:
    """In a folder of its own that any user can enter, which goes with the server."""
    folder = Path(tempfile.mkdtemp(prefix="sexton-postgres-"))
    undoing = Undoing(REMOVE, str(folder))
    try:
        folder.chmod(0o755)
        with Postgres(folder, host, prefix) as server:
            yield server
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # a hundred databases take a busy disk longer than `undoing` waits
        undoing.close()


def _user() -> str | None:
    """Whom to become; None when we are not root."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"
