"""`sexton audit watch`: an audit every few hours, and what came of it for Prometheus."""

from __future__ import annotations

import asyncio
import logging
import math
import re
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console

from sexton.cli.broker import UsageError
from sexton.cli.connect import CommandConfig, parse_bootstrap

if TYPE_CHECKING:
    from pyspark import SparkContext

    from sexton.audit.live.opening import Opening
    from sexton.audit.report import Report

UNITS_S: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
EVERY_MIN_S: Final = 1.0


def parse_duration_s(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    if found is None or float(found[1]) * UNITS_S[found[2]] < EVERY_MIN_S:
        raise UsageError(f"{text} is no time", "--every", "Write a number and s, m, h or d: 6h, 30m")
    return float(found[1]) * UNITS_S[found[2]]


def parse_endpoint(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65_535:
        raise UsageError(f"{text} is no address", "--metrics", "Write [HOST]:PORT; without a host, all addresses")
    return host.strip("[]"), int(port)


def watch(
    bootstrap: Annotated[
        str, typer.Option("--bootstrap", "-b", metavar="HOST:PORT,...", help="Brokers of the cluster.")
    ],
    every: Annotated[str, typer.Option(metavar="TIME", help="From one audit's begin to the next: 30m, 6h.")] = "6h",
    metrics: Annotated[str, typer.Option(metavar="[HOST]:PORT", help="Where Prometheus asks.")] = "127.0.0.1:9400",
    topic: Annotated[str, typer.Option(metavar="REGEX", help="Topics, by their whole names.")] = "",
    everything: Annotated[bool, typer.Option("--all", help="Also topics that are not compacted.")] = False,
    command_config: CommandConfig = None,
    rate: Annotated[
        float, typer.Option(min=0, metavar="MB/S", help="Read no faster from a broker; 0 for no limit.")
    ] = 50,
    count: Annotated[int | None, typer.Option(min=1, help="End after so many audits.")] = None,
    master: Annotated[str, typer.Option(help="The Spark cluster: local[*], spark://host:7077, yarn, ...")] = "local[*]",
) -> None:
    """Audit a running cluster again and again, and serve the outcome as metrics for Prometheus.

    An audit that fails is told on the standard error and in the metrics, and tried again at the next time.
    """
    from sexton.audit.live.cluster import FAILURES
    from sexton.audit.live.opening import Opening

    every_s, endpoint, addresses = (
        parse_duration_s(every),
        parse_endpoint(metrics),
        parse_bootstrap(bootstrap, "--bootstrap"),
    )
    opening = Opening.of(
        addresses,
        topic,
        everything=everything,
        command_config=command_config,
        rate_bytes_per_s=rate * 1_000_000 if rate else math.inf,
    )
    with suppress(*FAILURES):  # a cluster that is away now is there another time
        opening.check()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)  # it tells of each connection that it closes
    with suppress(KeyboardInterrupt):
        asyncio.run(_run(opening, every_s, endpoint, count, master))


async def _run(opening: Opening, every_s: float, endpoint: tuple[str, int], count: int | None, master: str) -> None:
    from sexton.adapters.sockets import SocketNetwork
    from sexton.audit.watch import Watched, WatchMetrics, watch
    from sexton.http.process_pages import ProcessPages
    from sexton.spark import session

    watched = Watched()
    pages = ProcessPages(WatchMetrics(watched))
    host, port = endpoint
    try:
        port = await pages.start(SocketNetwork(), host, port)
    except OSError as error:
        what = f"cannot listen there: {error.strerror or error}"
        raise UsageError(what, f"{host}:{port}", "Give another port with --metrics") from error
    try:
        # In this thread, and last: Spark takes SIGINT over where it starts, and ends its jobs by it.
        context = session.start("sexton audit watch", master).sparkContext
        Console(stderr=True).print(f"Metrics: http://{host or 'localhost'}:{port}/metrics", highlight=False)
        await watch(partial(_look, opening, context), watched, every_s, count=count, tell=_tell)
    finally:
        pages.close()


def _look(opening: Opening, context: SparkContext) -> Report:
    from sexton.audit import run

    source = opening.source(tasks_count=context.defaultParallelism, master=str(context.master))
    try:
        return run.audit(context, [source])
    finally:
        source.close()


def _tell(report: Report) -> None:
    from sexton.audit.watch import differing_keys

    found = {label: count for label, count in differing_keys(report).items() if count}
    told = ", ".join(f"{count:,} {label}" for label, count in found.items()) or "no key differs"
    logging.getLogger(__name__).info(
        "%d partitions in %.1f s: %s; %s", len(report.partitions), report.took_s, report.verdict.value, told
    )
