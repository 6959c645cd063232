"""What an application does with a transactional producer: docs/transactions.md recommends this loop, tests run it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from sexton.verify.clients.base import ABORT, RETRY, Failure, Producer

ABORTS_BEFORE_A_NEW_PRODUCER: Final = 2
"""Some clients lose count of their sequence numbers with a failed send, and every later one fails as well."""

COMMITTED: Final = "committed"
ABORTED: Final = "aborted"
"""Its commit was never asked for."""
UNKNOWN: Final = "unknown"
"""The commit was asked for, and the client cannot say what became of it."""


class Application:
    """A transactional id in use. `producer` is replaced when its client says that it cannot go on."""

    def __init__(self, make: Callable[[], Producer]) -> None:
        """`make` returns a producer that is initialised, or raises Failure."""
        self._make = make
        self.producer = make()
        self.failures: list[Failure] = []
        self._aborts = 0

    def attempt(self, work: Callable[[Producer], None], deadline_s: float) -> str:
        """One transaction. Afterwards the producer is ready for the next, or `time.monotonic()` is past the deadline
        and the last Failure is raised."""
        outcome = ABORTED
        try:
            self.producer.begin()
            work(self.producer)
            self.producer.flush()
            outcome = UNKNOWN
            self._commit(deadline_s)
        except Failure as failure:
            self.failures.append(failure)
            self._recover(failure, deadline_s)
            return outcome
        self._aborts = 0
        return COMMITTED

    def run(self, work: Callable[[Producer], None], deadline_s: float) -> None:
        """Until the transaction is committed."""
        while True:
            outcome = self.attempt(work, deadline_s)
            if outcome == COMMITTED:
                return
            if outcome == UNKNOWN or time.monotonic() > deadline_s:
                raise self.failures[-1]

    def renew(self, deadline_s: float) -> None:
        """A new producer: its first act ends what the old one has left open."""
        self._aborts = 0
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

    def _commit(self, deadline_s: float) -> None:
        """A commit whose outcome is not known is asked for again: nothing else may be done with the producer."""
        while True:
            try:
                self.producer.commit()
                return
            except Failure as failure:
                if failure.todo != RETRY or time.monotonic() > deadline_s:
                    raise
                self.failures.append(failure)

    def _recover(self, failure: Failure, deadline_s: float) -> None:
        self._aborts += 1
        if failure.todo in (ABORT, RETRY) and self._aborts < ABORTS_BEFORE_A_NEW_PRODUCER:
            try:
                self.producer.abort()
                return
            except Failure as last:
                self.failures.append(last)
        self.renew(deadline_s)
