"""What an application does with a transactional producer: docs/transactions.md recommends this loop, tests run it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from tests.transactions.drivers.base import ABORT, RETRY, Failure, Producer

ABORTS_BEFORE_A_NEW_PRODUCER: Final = 2
"""Some clients lose count of their sequence numbers with a failed send, and every later one fails as well."""


class Application:
    """A transactional id in use. `producer` is replaced when its client says that it cannot go on."""

    def __init__(self, make: Callable[[], Producer]) -> None:
        """`make` returns a producer that is initialised, or raises Failure."""
        self._make = make
        self.producer = make()
        self.failures: list[Failure] = []

    def run(self, work: Callable[[Producer], None], deadline_s: float) -> None:
        """Until the transaction is committed, or `time.monotonic()` has reached the deadline: then the last Failure."""
        aborts = 0
        while True:
            try:
                self.producer.begin()
                work(self.producer)
                self.producer.flush()
                self.commit(deadline_s)
                return
            except Failure as failure:
                self.failures.append(failure)
                if time.monotonic() > deadline_s:
                    raise
                aborts += failure.todo in (ABORT, RETRY)
                if failure.todo not in (ABORT, RETRY) or aborts >= ABORTS_BEFORE_A_NEW_PRODUCER or not self._abort():
                    self.renew(deadline_s)
                    aborts = 0

    def commit(self, deadline_s: float) -> None:
        """A commit whose outcome is not known is asked for again: nothing else may be done with the producer."""
        while True:
            try:
                self.producer.commit()
                return
            except Failure as failure:
                if failure.todo != RETRY or time.monotonic() > deadline_s:
                    raise
                self.failures.append(failure)

    def renew(self, deadline_s: float) -> None:
        with suppress(Failure):
            self.producer.close()
        while True:
            try:
                self.producer = self._make()
                return
            except Failure as failure:
                self.failures.append(failure)
                if time.monotonic() > deadline_s:
                    raise

    def _abort(self) -> bool:
        try:
            self.producer.abort()
        except Failure as failure:
            self.failures.append(failure)
            return False
        return True
