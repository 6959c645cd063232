"""A real S3 on this machine: versitygw (Apache 2.0, in Go) over a folder, one process, on loopback only.

    with VersityGateway(directory) as s3:
        s3.make_bucket("bkt")
        store = open_store(s3.url("bkt", "prefix"))     # with s3.credentials in the environment

`python -m sexton.harness.versitygw` builds the program, and prints where it is.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from urllib.parse import quote

from sexton.harness import golang, jars
from sexton.harness.errors import HarnessError
from sexton.harness.processes import HOST, Port, ServerProcess
from sexton.harness.properties import tail_of

PACKAGE: Final = "github.com/versity/versitygw/cmd/versitygw"
VERSION: Final = "v1.8.0"
READY_TIMEOUT_S: Final = 60
TAIL_LINES: Final = 30
ACCESS_KEY: Final = "sexton"
SECRET_KEY: Final = "sexton-on-loopback"


def program() -> Path:
    """Built first if need be, which takes minutes."""
    target = jars.cache_dir().with_name("stores") / f"versitygw-{VERSION}"
    if not target.exists():
        print(f"building versitygw {VERSION}, which takes a minute or two", file=sys.stderr)
        golang.install(PACKAGE, VERSION, target)
    return target


class VersityGateway:
    """Runs from `start` on. It keeps its port and its objects over stop, kill and start."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._objects = directory.resolve() / "objects"
        self._objects.mkdir(parents=True, exist_ok=True)
        self._console = directory / "versitygw.log"
        self._port = Port()
        self._process: ServerProcess | None = None

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self._port.number}"

    @property
    def port(self) -> int:
        return self._port.number

    @property
    def credentials(self) -> Mapping[str, str]:
        """Credentials, as environment variables of a client."""
        return {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}

    def url(self, bucket: str, prefix: str = "", endpoint: str = "") -> str:
        """As `cloud.store.url` has it; through a proxy if another endpoint is given."""
        return f"s3://{bucket}/{prefix}?region=us-east-1&endpoint={quote(endpoint or self.endpoint, safe='')}"

    def make_bucket(self, name: str) -> None:
        """A bucket is a directory of the folder."""
        self.bucket_dir(name).mkdir(exist_ok=True)

    def bucket_dir(self, name: str) -> Path:
        return self._objects / name

    def start(self) -> None:
        self.kill()
        command = [str(program()), "--port", f"{HOST}:{self._port.number}", "--quiet", "posix", str(self._objects)]
        environment = {**os.environ, "ROOT_ACCESS_KEY_ID": ACCESS_KEY, "ROOT_SECRET_ACCESS_KEY": SECRET_KEY}
        self._process = ServerProcess(command, self._console, environment)
        until_s = time.monotonic() + READY_TIMEOUT_S
        while not self._answers():
            if not self._process.is_running or time.monotonic() > until_s:
                self.kill()
                raise HarnessError(f"versitygw did not start\n{tail_of(self._console, TAIL_LINES)}")
            time.sleep(0.02)

    def _answers(self) -> bool:
        try:
            socket.create_connection((HOST, self._port.number), 1).close()
        except OSError:
            return False
        return True

    @property
    def pid(self) -> int:
        return self._running().pid

    def pause(self) -> None:
        """Connections stay open and new ones are accepted by the kernel; nobody answers."""
        self._running().pause()

    def resume(self) -> None:
        self._running().resume()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None

    def close(self) -> None:
        self.kill()
        self._port.release()

    def _running(self) -> ServerProcess:
        if self._process is None:
            raise HarnessError("versitygw is not running: start it first")
        return self._process

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


if __name__ == "__main__":
    try:
        print(program())
    except HarnessError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
