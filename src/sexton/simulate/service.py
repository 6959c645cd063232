"""What a metastore and an object store have in common in a simulation: a server that every process reaches over the
fabric, that may stop answering for a while, and that tells an observer what it has carried out."""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sexton.simulate.loop import Process, SimulatedLoop
from sexton.simulate.network import Fabric


@dataclass(slots=True, eq=False)
class Request:
    process: Process
    host_name: str
    operation: str
    arguments: tuple[Any, ...]
    answer: asyncio.Future[Any]


Observer = Callable[[str, str, tuple[Any, ...], Any], None]
"""Called after every operation that was carried out: for which process, its name, its arguments, and its result."""


class Service(ABC):
    def __init__(self, host: str, loop: SimulatedLoop, rng: random.Random, fabric: Fabric) -> None:
        self.loop = loop
        self._host = host
        self._rng = rng
        self._fabric = fabric
        self.is_down = False
        self._is_hanging = False
        self._held: list[Request] = []
        """Arrived while it hung."""
        self.observer: Observer | None = None

    def hang(self) -> None:
        self._is_hanging = True

    def go_on(self) -> None:
        self._is_hanging = False
        held, self._held = self._held, []
        for request in held:
            self._carry_out(request)

    def _carry_out(self, request: Request) -> None:
        result, failure = self._execute(request)
        if not self._fabric.is_cut(self._host, request.host_name):
            self._reply(request, result, failure)

    def _execute(self, request: Request) -> tuple[Any, Exception | None]:
        result, failure = self._outcome(request)
        if self.observer is not None:
            self.observer(request.process.name, request.operation, request.arguments, failure or result)
        return result, failure

    def _reply(self, request: Request, result: Any, failure: Exception | None, more_ns: int = 0) -> None:
        delay_ns = self._delay_ns() + more_ns
        self.loop.call_for(request.process, delay_ns, complete, request.answer, result, failure)

    @abstractmethod
    def _outcome(self, request: Request) -> tuple[Any, Exception | None]:
        """Carries out the operation."""

    @abstractmethod
    def _delay_ns(self) -> int:
        """How long a message takes, one way."""


def complete(answer: asyncio.Future[Any], result: Any, failure: Exception | None) -> None:
    if answer.done():
        return
    if failure is not None:
        answer.set_exception(failure)
    else:
        answer.set_result(result)
