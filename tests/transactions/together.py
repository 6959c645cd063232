"""Several clients at a time: each client's tests run in a thread, in their order, and each test waits for its own.

Tests mostly wait. One after the other they would take three times as long.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from tests.interop.clients import Client
from tests.transactions.clients import ClientProcess
from tests.transactions.kit import Kit
from tests.transactions.under_test import UnderTest

CLIENTS_AT_ONCE: Final = 4
FIXTURE: Final = "together"
OFFERED: Final = {"kit", "cluster", "directory"}


def client_of(item: pytest.Function) -> Client:
    client = item.callspec.params["client"]
    assert isinstance(client, Client)
    return client


def wanted_of(item: pytest.Function) -> set[str]:
    return set(inspect.signature(item.obj).parameters)


class Together:
    """Runs what the selected tests will ask for. A test may take `client`, its other parameters, `kit`, `cluster`,
    `directory`, and fixtures of the whole session. What it returns is printed when its turn comes."""

    def __init__(
        self,
        cluster: UnderTest,
        processes: Callable[[Client], ClientProcess],
        directory: Callable[[], Path],
        session_fixture: Callable[[str], Any],
        items: list[pytest.Item],
    ) -> None:
        self.cluster = cluster
        self._processes = processes
        self._directory = directory
        self._is_closing = False
        self._results: dict[str, Future[str | None]] = {}
        self._shared: dict[str, Any] = {}
        by_client: dict[Client, list[pytest.Function]] = {}
        for item in items:
            if isinstance(item, pytest.Function) and FIXTURE in item.fixturenames:
                client = client_of(item)
                if not cluster.is_out_of_reach(client):
                    by_client.setdefault(client, []).append(item)
                    self._results[item.nodeid] = Future()
                    for name in wanted_of(item) - OFFERED - item.callspec.params.keys() - self._shared.keys():
                        self._shared[name] = session_fixture(name)
        self._pool = ThreadPoolExecutor(CLIENTS_AT_ONCE)
        for client, wanted in by_client.items():
            self._pool.submit(self._run_all, client, wanted, dict(self._results))

    def check(self, item: pytest.Function) -> None:
        """Waits for the test's end; raises what it raised. Asked a second time, runs it again, in a process of its
        own: others may be using the client's first one."""
        result = self._results.pop(item.nodeid, None)
        if result is not None:
            told = result.result()
        else:
            client = client_of(item)
            process = ClientProcess(client, self._directory() / "client.log")
            try:
                told = self._run(process, item)
            finally:
                process.end()
        if told:
            print(told)

    def close(self) -> None:
        self._is_closing = True
        self._pool.shutdown(cancel_futures=True)

    def _run_all(self, client: Client, items: list[pytest.Function], results: dict[str, Future[str | None]]) -> None:
        for item in items:
            result = results[item.nodeid]
            try:
                if self._is_closing:
                    raise RuntimeError("the run was ended")
                result.set_result(self._run(self._processes(client), item))
            except BaseException as error:
                result.set_exception(error)

    def _run(self, process: ClientProcess, item: pytest.Function) -> str | None:
        kit = Kit(process, self.cluster.bootstrap)
        offered: dict[str, Any] = {
            **self._shared,
            **item.callspec.params,
            "kit": kit,
            "cluster": self.cluster,
            "directory": self._directory(),
        }
        try:
            told: str | None = item.obj(**{name: offered[name] for name in wanted_of(item)})
            return told
        except Exception as error:  # now, for a test that runs ahead is reported when more has been logged
            error.add_note(f"{process.describe_end()}\n{self.cluster.describe_end()}")
            raise
        finally:
            kit.close()
