"""Servers of a framework, each a JVM that listens on a loopback port of its own: killed, and started again."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from sexton.harness.jars import java, logging_config
from sexton.harness.kafka_logs import LOG_PATTERN, LogEvent, log_events
from sexton.harness.processes import HOST, Port, ServerProcess
from sexton.harness.properties import Settings, tail_of, write_properties
from tests.interop.frameworks.versions import Framework

JVM_OPTIONS: Final = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
REQUEST_TIMEOUT_S: Final = 60
STOP_TIMEOUT_S: Final = 60
TAIL_LINES: Final = 60


class Server:
    """A place to run a server: its directory, port and log outlive the process."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        self.directory = directory
        self.port = Port()
        self._process: ServerProcess | None = None

    def command(self) -> Sequence[str]:
        """Its last word is of this server alone."""
        raise NotImplementedError

    @property
    def log_path(self) -> Path:
        """What the process prints."""
        return self.directory / "console.log"

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port.number}"

    @property
    def tail(self) -> str:
        return tail_of(self.log_path, TAIL_LINES)

    def start(self) -> None:
        self._process = ServerProcess(self.command(), self.directory / "console.log")

    def kill(self) -> None:
        process, self._process = self._process, None  # first: whoever asks meanwhile must not take it for a crash
        if process is not None:
            process.kill()

    def stop(self) -> None:
        """In good order: it finishes what it has begun."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(STOP_TIMEOUT_S)
        self.kill()

    def close(self) -> None:
        self.kill()
        self.port.release()

    def check(self) -> None:
        assert self._process is None or self._process.is_running, f"it has ended:\n{self.tail}"

    def ask(self, method: str, path: str, body: object = None, port: Port | None = None) -> Any:
        """What it answers, as JSON; None while nobody answers, or only with an error of its own (5xx, or the 409 of a
        worker that is about to rebalance)."""
        self.check()
        request = urllib.request.Request(
            f"http://{HOST}:{(port or self.port).number}{path}",
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json", "Accept": "application/json"},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_S) as response:
                return json.loads(response.read() or b"{}")
        except urllib.error.HTTPError as refused:
            said = refused.read().decode(errors="replace")
            if refused.code >= 500 or refused.code in (404, 409):
                return None
            raise AssertionError(f"{method} {path}: {refused.code} {said}") from refused
        except OSError:  # a URLError is one
            return None


class ConnectServer(Server):
    """A process of Kafka Connect: a worker, or MirrorMaker."""

    def __init__(self, framework: Framework, main: str, directory: Path, settings: Settings) -> None:
        super().__init__(directory)
        self._framework = framework
        self._main = main
        self.settings = settings

    @property
    def log_path(self) -> Path:
        return self.directory / "server.log"

    @property
    def events(self) -> list[LogEvent]:
        return list(log_events(self.log_path.read_text(errors="replace"))) if self.log_path.exists() else []

    def command(self) -> Sequence[str]:
        config, option = logging_config(self._framework.version, self.log_path, LOG_PATTERN)
        logging_path = self.directory / "logging.properties"
        logging_path.write_text(config)
        properties = write_properties(self.directory / "server.properties", self.settings)
        classpath = self._framework.classpath()
        return java(), *JVM_OPTIONS, f"{option}{logging_path}", "-cp", classpath, self._main, str(properties)
