"""`sexton compactor`: a worker that compacts what brokers say is due, on Spark."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import socket
from pathlib import Path
from typing import Annotated

import typer

from sexton import extras
from sexton.cli.logs import log_to
from sexton.cli.processes import die_with, step_back
from sexton.compactor.memory import master_within, parse_size
from sexton.errors import UnsupportedFormatError


def compactor(
    metastore: Annotated[str, typer.Option(metavar="URL", help="The cluster's: sqlite:///path or postgresql://...")],
    master: Annotated[str, typer.Option(help="The Spark cluster: local[*], spark://host:7077, yarn, ...")] = "local[*]",
    bytes_per_second: Annotated[
        int | None, typer.Option(min=1, help="What it may read from brokers' disks, on average. No limit by default.")
    ] = None,
    remote: Annotated[
        bool, typer.Option("--remote", help="Read and write through the brokers' ports even where their files are.")
    ] = False,
    nice: Annotated[
        int, typer.Option(min=0, max=19, help="How far its processes step back for others, as with nice(1).")
    ] = 10,
    job_partitions: Annotated[int, typer.Option(min=1, help="Partitions of one Spark job.")] = 500,
    store: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The cluster's cloud.store.url, to level and compact cloud topics."),
    ] = None,
    memory: Annotated[
        str, typer.Option(metavar="SIZE", help="Heap of Spark's driver. Tasks have memory of their own beside it.")
    ] = "1g",
    memory_max: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="All memory of its processes, as in 4g: fewer tasks run at once. For local masters."
        ),
    ] = None,
    name: Annotated[str, typer.Option(help="How others see it. This machine's name and the process, by default.")] = "",
    admin_listener: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Address of the HTTP endpoint: /metrics, /live.")
    ] = None,
    log_file: Annotated[Path | None, typer.Option(help="Where it logs to; standard error by default.")] = None,
    parent: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Compact what is due, in the foreground, until it is stopped.

    Any number of compactors may run, anywhere. Executors that see a broker's folder under its own path work on the
    files; the others go through the broker's port. Spark runs while there are compacted topics; otherwise it is started
    when there is work, and stopped after two minutes without. On a machine that brokers use to the full they go first:
    `--nice 0` makes the compactor their equal.

    Cloud topics need no broker: with `--store`, a compactor levels and compacts them while all brokers are down.
    """
    if parent is not None:
        die_with(parent)
    log_to(log_file)
    step_back(nice)
    address = None if admin_listener is None else _address(admin_listener)
    limits = job_partitions, bytes_per_second
    if memory_max is not None:
        cores_count = len(os.sched_getaffinity(0))
        master = master_within(master, parse_size(memory_max), parse_size(memory), cores_count)
    asyncio.run(_run(metastore, store, master, memory, remote, limits, name, address))


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise typer.BadParameter(f"{text!r} is no address, as in 0.0.0.0:9095", param_hint="--admin-listener")
    return host.strip("[]"), int(port)


async def _run(
    url: str,
    store_url: str | None,
    master: str,
    memory: str,
    is_remote: bool,
    job_limits: tuple[int, int | None],
    name: str,
    admin_address: tuple[str, int] | None,
) -> None:
    extras.need("compactor", "a compactor")
    from sexton.adapters.clock import SystemClock
    from sexton.adapters.metastore import open_metastore
    from sexton.adapters.objects import open_store
    from sexton.adapters.sockets import SocketNetwork
    from sexton.compactor.brokers import Brokers
    from sexton.compactor.cloud.spark import SparkCloudEngine
    from sexton.compactor.cloud.work import CloudWorker
    from sexton.compactor.engines.spark import SparkEngine
    from sexton.compactor.metrics import CompactorMetrics
    from sexton.compactor.schedule import Limits
    from sexton.compactor.worker import Compactor
    from sexton.http.process_pages import ProcessPages

    name = name or f"{socket.gethostname()}:{os.getpid()}"
    metastore = open_metastore(url)
    brokers = Brokers(SocketNetwork(), metastore, f"compactor {name}")
    engine = SparkEngine(master, is_remote=is_remote, memory=memory)
    clock, rng = SystemClock(), random.Random()
    objects = None if store_url is None else open_store(store_url)
    cloud = None
    if store_url is not None and objects is not None:
        cloud = CloudWorker(metastore, objects, SparkCloudEngine(engine, store_url), clock, rng)
    worker = Compactor(
        metastore=metastore,
        brokers=brokers,
        engine=engine,
        clock=clock,
        rng=rng,
        limits=Limits(job_partitions_max=job_limits[0], bytes_per_second=job_limits[1]),
        name=name,
        cloud=cloud,
    )
    pages = ProcessPages(CompactorMetrics(worker), compactor=worker.name)
    if admin_address is not None:
        port = await pages.start(SocketNetwork(), *admin_address)
        logging.getLogger(__name__).info("compactor %s: metrics at port %d", name, port)
    running = asyncio.ensure_future(worker.run())
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, running.cancel)
    logging.getLogger(__name__).info("compactor %s looks for work", name)
    try:
        await running
    except asyncio.CancelledError:
        logging.getLogger(__name__).info("compactor %s stops", name)
    except UnsupportedFormatError as error:  # the log is all that is left of a child of `sexton up`
        logging.getLogger(__name__).error("compactor %s ends: %s", name, error)
        raise
    finally:
        pages.close()
        brokers.close()
        await engine.close()
        if objects is not None:
            await objects.close()
        await metastore.close()
