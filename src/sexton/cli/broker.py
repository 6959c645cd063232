"""`sexton broker`: one broker in the foreground, until it is told to stop.

The first SIGTERM or SIGINT asks for a controlled shutdown (leadership moves, everything is flushed, the folder is
marked as clean); the second ends the process at once, which loses nothing that was acknowledged but makes the next
start slower.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import random
import resource
import secrets
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sexton.cli.logs import log_to
from sexton.cli.processes import die_with
from sexton.errors import EnvironmentFailure, SextonError

if TYPE_CHECKING:
    from sexton.broker.broker import Broker
    from sexton.ports.objects import ObjectStore
    from sexton.settings.broker_config import BrokerConfig

READY = "ready"
"""The first word of the line on stdout that says where the broker serves. Programs wait for it."""

FILES_MAX = 1 << 20

logger = logging.getLogger(__name__)


class UsageError(SextonError):
    """What was asked for makes no sense as it stands."""

    exit_code = 64


def broker(
    config: Annotated[
        Path, typer.Option("--config", metavar="FILE", help="Settings, one name=value a line, as Kafka's brokers have.")
    ],
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting, over what the file says.")
    ] = None,
    log_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the log here, a few files in turn, and not to stderr.")
    ] = None,
    parent: Annotated[
        int | None, typer.Option(hidden=True, help="End when the process with this id does: used by `sexton up`.")
    ] = None,
) -> None:
    """Run one broker in the foreground.

    Stop it with Ctrl-C or SIGTERM: it hands its partitions over first. A second signal ends it at once.
    """
    gc.disable()  # until it is ready: nearly all that a start makes stays
    if parent is not None:
        die_with(parent)
    log_to(log_file)
    _allow_many_files()
    try:
        _run(read_config(config, settings or []))
    except SextonError as error:
        if log_file is not None:
            logger.critical("%s", error)
        raise
    except Exception:
        logger.critical("internal error: the broker cannot continue", exc_info=True)
        raise


def read_config(path: Path, overrides: list[str]) -> BrokerConfig:
    from sexton.settings.broker_config import BrokerConfig
    from sexton.settings.properties import parse_properties, parse_settings

    try:
        texts: dict[str, str] = parse_properties(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        what = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"cannot read the settings: {what}", str(path), "Name the broker's settings file") from error
    return BrokerConfig.of(texts | parse_settings(overrides), str(path))


def _allow_many_files() -> None:
    """Each connection and each log takes a file descriptor. Shells hand down a limit of 1,024, but may be asked for
    more, as Java does by itself."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, FILES_MAX)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _run(config: BrokerConfig) -> None:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(config))


def _store_of(config: BrokerConfig) -> ObjectStore | None:
    from sexton.adapters.objects import StoreTimeouts, open_store

    if config.cloud_store_url is None:
        return None
    return open_store(config.cloud_store_url, StoreTimeouts(config.cloud_put_timeout_ms, config.cloud_get_timeout_ms))


async def _serve(config: BrokerConfig) -> None:
    from sexton.adapters.clock import SystemClock
    from sexton.adapters.files import FileDisk
    from sexton.adapters.metastore import open_metastore
    from sexton.adapters.sockets import SocketNetwork
    from sexton.broker.broker import Broker

    stop = _stop_signal()
    disk = FileDisk()
    running = Broker(
        config,
        clock=SystemClock(),
        disk=disk,
        network=SocketNetwork(),
        metastore=open_metastore(config.metastore_url),
        rng=random.Random(secrets.randbits(128)),
        objects=_store_of(config),
    )
    running.supervisor.watch(asyncio.get_running_loop())
    if not await _started(running, config, stop):
        logger.info("stopped before it was ready")
        _leave(0)
    gc.freeze()  # what is there now is not looked through again and again
    gc.enable()
    _announce(running, config)
    await asyncio.wait([stop, running.failed], return_when=asyncio.FIRST_COMPLETED)
    if running.failed.done():
        # No controlled shutdown: something that it relies on is not as it should be. A restart recovers.
        running.failed.result()
    logger.info("stopping: leadership moves to other brokers, then everything is flushed")
    await running.stop()
    disk.close()
    logger.info("stopped")


async def _started(running: Broker, config: BrokerConfig, stop: asyncio.Future[None]) -> bool:
    """False if it was told to stop meanwhile."""
    starting = asyncio.ensure_future(running.start())
    await asyncio.wait([starting, stop], return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        return False
    try:
        starting.result()
    except OSError as error:
        raise _explained(error, config) from error
    return True


def _explained(error: OSError, config: BrokerConfig) -> SextonError:
    if error.errno == errno.EADDRINUSE:
        what = "another process listens there"
        remedy = "Stop it, or choose another port in `listeners` or `admin.listener`"
        return EnvironmentFailure(what, _listeners(config), remedy)
    if error.errno == errno.EADDRNOTAVAIL:
        return EnvironmentFailure("this machine has no such address", _listeners(config), "Correct `listeners`")
    place = str(error.filename) if error.filename is not None else config.log_dir
    return EnvironmentFailure(error.strerror or str(error), place, "Check the disk, its permissions and its space")


def _listeners(config: BrokerConfig) -> str:
    return " or ".join(str(one) for one in (config.listener, config.admin_endpoint) if one is not None)


def _announce(running: Broker, config: BrokerConfig) -> None:
    host = config.advertised.host
    port = config.advertised.port or running.port
    logger.info("ready at %s:%d", host, port)
    if config.admin_endpoint is not None:
        logger.info("admin HTTP endpoint at http://%s:%d/", config.admin_endpoint.host, running.admin.port)
    print(f"{READY}: broker {config.node_id} serves at {host}:{port}", flush=True)


def _stop_signal() -> asyncio.Future[None]:
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[None] = loop.create_future()

    def asked(signum: int) -> None:
        if stop.done():
            logger.warning("second %s received: exiting immediately", signal.Signals(signum).name)
            _leave(128 + signum)
        logger.info("%s received", signal.Signals(signum).name)
        stop.set_result(None)

    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, asked, signum)
    return stop


def _leave(exit_code: int) -> None:
    """Without waiting for threads that may hang on a disk or a database."""
    logging.shutdown()
    sys.stdout.flush()
    os._exit(exit_code)
