"""Routes of the admin HTTP endpoint. Pages about the whole cluster ask all brokers, as a client would."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from sexton.broker.compaction import answers
from sexton.broker.compaction.requests import RUNS_MAX
from sexton.broker.observe import metrics
from sexton.client.client import Client
from sexton.client.errors import RefusedError
from sexton.errors import SextonError
from sexton.http.exposition import CONTENT_TYPE
from sexton.http.server import HttpError, HttpServer, Page, Request

if TYPE_CHECKING:
    from sexton.broker.broker import Broker

CALL_TIMEOUT_MS: Final = 10_000
CONNECT_TIMEOUT_MS: Final = 3_000
HISTORY_DEFAULT: Final = 20
TOPIC_PATIENCE_MS: Final = 1_000

PAGES: Final[Mapping[str, str]] = {
    "/live": "whether this process lives: 200, also while it starts or the metastore is unreachable",
    "/health": "whether this broker serves: 200, or 503",
    "/metrics": "for Prometheus",
    "/cluster": "brokers, and partitions that are not well",
    "/compaction/status": "each compacted replica; ?topic=T&partition=P",
    "/compaction/history": "the last runs; ?limit=N&topic=T",
    "/compaction/why": "why is it still there: ?topic=T&partition=P&key=K, or &offset=N",
}


ALWAYS_TOLD: Final = frozenset({"/", "/live", "/health"})
"""Pages that are served even before the broker has joined its cluster."""


class AdminPages:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._client: Client | None = None
        self._server = HttpServer(self.answer, broker.supervisor)
        self.port = 0
        self._pages: Mapping[str, Callable[[Mapping[str, str]], Awaitable[Page]]] = {
            "/": self._index,
            "/live": self._live,
            "/health": self._health,
            "/metrics": self._metrics,
            "/cluster": self._cluster,
            "/compaction/status": self._status,
            "/compaction/history": self._history,
            "/compaction/why": self._why,
        }

    async def start(self, host: str, port: int) -> None:
        self.port = await self._server.start(self._broker.network, host, port)

    def close(self) -> None:
        self._server.close()
        if self._client is not None:
            self._client.close()

    async def answer(self, request: Request) -> Page:
        page = self._pages.get(request.path)
        if page is None:
            raise HttpError(404, f"there is no {request.path}; / lists what there is")
        if not self._broker.has_joined and request.path not in ALWAYS_TOLD:
            raise HttpError(503, "this broker has not joined its cluster yet")
        try:
            return await page(request.parameters)
        except (answers.NotFoundError, RefusedError) as error:
            raise HttpError(404, str(error)) from error
        except SextonError as error:
            raise HttpError(503, str(error)) from error

    async def _index(self, parameters: Mapping[str, str]) -> Page:
        return Page.of_json(PAGES)

    async def _live(self, parameters: Mapping[str, str]) -> Page:
        """Liveness probe. An unreachable metastore or other broker does not fail it: a broker waits for them, and a
        restarted one could do no more, while a restart of all brokers at once would take the cluster down."""
        is_live = not self._broker.failed.done()
        return Page.of_json({"broker": self._broker.config.node_id, "is_live": is_live}, 200 if is_live else 503)

    async def _health(self, parameters: Mapping[str, str]) -> Page:
        if not self._broker.has_joined:
            starting = {"broker": self._broker.config.node_id, "status": "starting", "is_serving": False}
            return Page.of_json(starting, 503)
        is_serving = self._broker.lease_is_valid()
        row = self._broker.registration.row
        what = {"broker": row.broker_id, "epoch": row.epoch, "status": row.status.value, "is_serving": is_serving}
        return Page.of_json(what, 200 if is_serving else 503)

    async def _metrics(self, parameters: Mapping[str, str]) -> Page:
        return Page(await metrics.metrics(self._broker), CONTENT_TYPE)

    async def _cluster(self, parameters: Mapping[str, str]) -> Page:
        return Page.of_json(await answers.cluster(self._cluster_client()))

    async def _status(self, parameters: Mapping[str, str]) -> Page:
        partition = _number(parameters, "partition")
        replicas, count = await answers.overview(self._cluster_client(), parameters.get("topic"), partition)
        return Page.of_json({"replicas": replicas, "compactors_count": count})

    async def _history(self, parameters: Mapping[str, str]) -> Page:
        limit = _number(parameters, "limit")
        wanted = HISTORY_DEFAULT if limit is None else min(limit, RUNS_MAX)
        return Page.of_json(dict(await answers.history(self._cluster_client(), wanted, parameters.get("topic"))))

    async def _why(self, parameters: Mapping[str, str]) -> Page:
        topic, partition = parameters.get("topic"), _number(parameters, "partition")
        key, offset = parameters.get("key"), _number(parameters, "offset")
        if topic is None or partition is None or (key is None) is (offset is None):
            raise HttpError(400, "topic, partition, and either key or offset are needed")
        now_ms = self._broker.clock.now_ms()
        encoded = None if key is None else key.encode()
        found: dict[str, Any] = await answers.why(self._cluster_client(), topic, partition, encoded, offset, now_ms)
        return Page.of_json(found)

    def _cluster_client(self) -> Client:
        """Returns the one client of all pages, created at first use."""
        if self._client is None:
            row = self._broker.registration.row
            self._client = Client(
                self._broker.network,
                [(row.host, row.port)],
                clock=self._broker.clock,
                rng=self._broker.rng,
                client_id=f"sexton-admin-{row.broker_id}",
                timeout_ms=CALL_TIMEOUT_MS,
                connect_timeout_ms=CONNECT_TIMEOUT_MS,
                unknown_topic_patience_ms=TOPIC_PATIENCE_MS,
            )
        return self._client


def _number(parameters: Mapping[str, str], name: str) -> int | None:
    text = parameters.get(name)
    if text is None:
        return None
    if not text.isdecimal() or len(text) > 18:
        raise HttpError(400, f"{name} is a number, 0 or more")
    return int(text)
