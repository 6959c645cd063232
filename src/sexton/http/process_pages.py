"""The admin HTTP endpoint of a process that is not a broker: liveness, and metrics of a `prometheus_client` collector.
(A broker writes its metrics itself: `broker/observe`.)"""

from __future__ import annotations

from typing import Final

from prometheus_client import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from sexton.http.exposition import CONTENT_TYPE
from sexton.http.server import HttpError, HttpServer, Page, Request
from sexton.ports.network import Network
from sexton.supervision import Supervisor

PAGES: Final = {"/live": "whether this process lives", "/metrics": "for Prometheus"}


class ProcessPages:
    def __init__(self, collector: Collector, **names: str) -> None:
        """`/live` also tells `names`: which process this is."""
        self._names = names
        self._server = HttpServer(self.answer, Supervisor())
        self._metrics = CollectorRegistry(auto_describe=False)
        self._metrics.register(collector)

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
            return Page(generate_latest(self._metrics), CONTENT_TYPE)
        raise HttpError(404, f"there is no {request.path}; / lists what there is")
