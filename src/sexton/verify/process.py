"""The process of one client of a run: asked one thing at a time, and ended without notice."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import sexton
from sexton.history.op import Type
from sexton.verify.clients import known
from sexton.verify.clients.base import Failure, Place
from sexton.verify.clients.serve import MODULE
from sexton.verify.generator import Ask
from sexton.verify.session import Completion, Options, Topics

SESSION = 1
"""The first object that `serve` is asked to make."""


READ_BYTES: Final = 1 << 16
"""Bytes in one read: what a pipe has room for."""


class _Answers:
    """What comes through a pipe, read in as few pieces as it comes. What was read ahead does not make the pipe readable
    again, so whoever has taken an answer asks whether `has_more`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._data = b""
        self._position = 0

    @property
    def has_more(self) -> bool:
        return self._position < len(self._data)

    def read(self, count: int) -> bytes:
        while len(self._data) - self._position < count:
            self._go_on()
        self._position += count
        return self._data[self._position - count : self._position]

    def readline(self) -> bytes:
        while (end := self._data.find(b"\n", self._position)) < 0:
            self._go_on()
        return self.read(end + 1 - self._position)

    def _go_on(self) -> None:
        piece = os.read(self._descriptor, READ_BYTES)
        if not piece:
            raise EOFError("it closed its pipe")
        self._data, self._position = self._data[self._position :] + piece, 0


class ClientProcess:
    """Its session is made when it starts. Whoever asked waits for `fileno` to become readable, and takes the answer."""

    def __init__(self, client: str, options: Options, log_path: Path) -> None:
        self.client = f"{client} {known.version_of(client)}"
        self._told_places = 0
        path = str(Path(sexton.__file__).resolve().parents[1])
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "sexton.verify.clients.serve", "sexton.verify.session"],
                env={**os.environ, **known.environment(client), "PYTHONPATH": path},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                start_new_session=True,  # Ctrl-C is for whoever leads
            )
        self._answers = _Answers(self.fileno())
        self._ask(MODULE, "Session", options)
        self._is_new = True

    @property
    def pid(self) -> int:
        return self._process.pid

    def fileno(self) -> int:
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def ask(self, ask: Ask, places: Mapping[int, Place], topics: Mapping[str, Topics]) -> None:
        """Of all logs and topics so far, which only ever become more."""
        has_news = len(places) > self._told_places
        self._told_places = len(places)
        self._ask(SESSION, "do", ask, *((dict(places), dict(topics)) if has_news else ({}, {})))

    def answer(self) -> Completion | None:
        """None: it has started, and has not done yet what it was asked for. Of a process that has died, INFO."""
        try:
            found = self._take()
            if self._is_new:
                self._is_new = False
                if not self._answers.has_more:
                    return None
                found = self._take()
            assert isinstance(found, Completion)
            return found
        except Failure as failure:
            return Completion(type=Type.INFO, error=str(failure))
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            return Completion(type=Type.INFO, error=f"the client's process has ended: {error}")

    def kill(self) -> None:
        """As a crash does: nothing is flushed, nobody is told. Who asked it for something finds out by itself."""
        self._process.kill()

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        self.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    continue

    def _ask(self, target: int, method: str, *arguments: Any) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(pickle.dumps((target, method, list(arguments))))  # in one piece
        except OSError:
            return  # it has died; `answer` says so

    def _take(self) -> Any:
        result, failure = pickle.Unpickler(self._answers).load()
        if failure is not None:
            raise failure
        return result
