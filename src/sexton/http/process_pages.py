"""The admin HTTP endpoint of a process that is not a broker: liveness, and metrics of a `prometheus_client` collector.
(A broker writes its metrics itself: `broker/observe`.)"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from sexton.http.exposition import CONTENT_TYPE
from sexton.http.server import HttpError, HttpServer, Page, Request
from sexton.ports.network import Network
from sexton.supervision import Supervisor

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

PAGES: Final = {"/live": "whether this process lives", "/metrics": "for Prometheus"}


class ProcessPages:
    def __init__(self, collector: Collector, **names: str) -> None:
        """`/live` also tells `names`: which process this is. A broker's host does not have `prometheus_client`."""
        from prometheus_client import CollectorRegistry, generate_latest

        self._names = names
        self._server = HttpServer(self.answer, Supervisor())
        metrics = CollectorRegistry(auto_describe=False)
        metrics.register(collector)
        self._metrics: Callable[[], bytes] = lambda: generate_latest(metrics)

    async def start(self, network: Network, host: str, port: int) -> int:
        return await self._server.start(network, host, port)

    def close(self) -> None:
        self._server.close()

    async def answer(self, request: Request) -> Page:
        if request.path == "/":
            return Page.of_json(PAGES)
        if request.path == "/live":
            return Page.of_json({**self._names, "is_live": True})
        if request.path == "/metrics":
            return Page(self._metrics(), CONTENT_TYPE)
        raise HttpError(404, f"there is no {request.path}; / lists what there is")
