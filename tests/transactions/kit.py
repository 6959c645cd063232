"""A client's producers and consumers for one test."""

from __future__ import annotations

import time
from contextlib import suppress

from sexton.verify.clients.base import RETRY, Consumer, Failure, Producer, Session, Settings
from tests.transactions.clients import ClientProcess
from tests.transactions.reading import COMMITTED
from tests.transactions.under_test import WAIT_S


class Kit:
    """Closes what it made at the test's end."""

    def __init__(self, process: ClientProcess, bootstrap: str) -> None:
        self.client = process.client
        self.process = process
        self.bootstrap = bootstrap
        self._made: list[Producer | Consumer | Session] = []

    def producer(self, transactional_id: str, timeout_ms: int = 60_000, settings: Settings | None = None) -> Producer:
        """Not initialised yet."""
        made = self.process.producer(self.bootstrap, transactional_id, timeout_ms, settings)
        self._made.append(made)
        return made

    def ready(self, transactional_id: str, timeout_ms: int = 60_000, settings: Settings | None = None) -> Producer:
        """Initialised, by another one if the first cannot say what became of it: franz-go before 1.21 gives up when the
        last instance's transaction is still being aborted, as Kafka tells it."""
        deadline_s = time.monotonic() + WAIT_S
        while True:
            made = self.producer(transactional_id, timeout_ms, settings)
            try:
                made.init()
                return made
            except Failure as failure:
                if failure.todo != RETRY or time.monotonic() > deadline_s:
                    raise

    def consumer(
        self, group: str | None = None, isolation: str = COMMITTED, settings: Settings | None = None
    ) -> Consumer:
        made = self.process.consumer(self.bootstrap, isolation, group, settings)
        self._made.append(made)
        return made

    def session(self, transactional_id: str, group: str) -> Session:
        made = self.process.session(self.bootstrap, transactional_id, group)
        self._made.append(made)
        return made

    def close(self) -> None:
        for each in self._made:
            with suppress(Exception):
                each.close()
