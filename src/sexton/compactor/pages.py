"""A compactor's admin HTTP endpoint: liveness and metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sexton.http.exposition import CONTENT_TYPE, Exposition
from sexton.http.server import HttpError, HttpServer, Page, Request
from sexton.ports.network import Network
from sexton.supervision import Supervisor

if TYPE_CHECKING:
    from sexton.compactor.worker import Compactor

PAGES: Final = {"/live": "whether this process lives", "/metrics": "for Prometheus"}


class CompactorPages:
    def __init__(self, compactor: Compactor) -> None:
        self._compactor = compactor
        self._server = HttpServer(self.answer, Supervisor())

    async def start(self, network: Network, host: str, port: int) -> int:
        return await self._server.start(network, host, port)

    def close(self) -> None:
        self._server.close()

    async def answer(self, request: Request) -> Page:
        if request.path == "/":
            return Page.of_json(PAGES)
        if request.path == "/live":
            return Page.of_json({"compactor": self._compactor.name, "is_live": True})
        if request.path == "/metrics":
            return Page(metrics(self._compactor), CONTENT_TYPE)
        raise HttpError(404, f"there is no {request.path}; / lists what there is")


def metrics(compactor: Compactor) -> bytes:
    out, totals = Exposition(), compactor.totals
    out.gauge("sexton_compactor_info", "Which compactor this is.", 1, {"compactor": compactor.name})
    out.gauge("sexton_compactor_due", "Replicas that are due, when it last looked.", compactor.due_count)
    out.gauge("sexton_compactor_underway", "Replicas that it works on.", compactor.underway_count)
    out.counter("sexton_compactor_jobs_total", "Spark jobs that it ran.", totals.jobs_count)
    out.counter("sexton_compactor_failed_jobs_total", "Of these, failed as a whole.", totals.failed_jobs_count)
    passes = [({"outcome": "committed"}, totals.committed_count), ({"outcome": "failed"}, totals.failed_count)]
    out.family("sexton_compactor_passes_total", "counter", "Passes over replicas, by how they ended.", passes)
    out.counter("sexton_compactor_input_bytes_total", "Sizes of committed logs before.", totals.input_bytes)
    out.counter("sexton_compactor_output_bytes_total", "Sizes of committed logs after.", totals.output_bytes)
    out.counter("sexton_compactor_busy_seconds_total", "Spent in jobs, of both lanes together.", totals.busy_ms / 1000)
    doc = "From when a replica was due to when its pass was committed, summed over committed passes."
    out.counter("sexton_compactor_due_to_done_seconds_total", doc, totals.due_to_done_ms / 1000)
    return out.encode()
