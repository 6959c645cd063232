"""`sexton up`: a whole cluster on this machine, in one folder."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.markup import escape

from sexton import extras
from sexton.cli.cluster_folder import DEFAULT_BROKERS, DEFAULT_PORT, Cluster, ClusterFolder, Wishes
from sexton.cli.compactor_process import CompactorProcess
from sexton.cli.compactor_process import command as compactor_command
from sexton.cli.moved_store import check_store
from sexton.cli.processes import exclusively
from sexton.cli.supervisor import Child, State, Supervisor
from sexton.errors import SextonError
from sexton.settings.properties import parse_settings

DEFAULT_DIRECTORY: Final = Path("sexton-data")

_BROKERS_MAX: Final = 50

_STOPPED: Final = (0, -signal.SIGTERM)
"""Exit codes of a broker that did as it was told; the signal itself, if it had only just begun to start."""


class BrokerFailedError(SextonError):
    """A broker cannot run. Its own words say why."""

    exit_code = 70


def up(
    brokers: Annotated[
        int | None, typer.Option(min=1, max=_BROKERS_MAX, help=f"How many. As before, or {DEFAULT_BROKERS}.")
    ] = None,
    directory: Annotated[
        Path, typer.Option("--dir", metavar="DIR", help="The folder for all of the cluster's state.")
    ] = DEFAULT_DIRECTORY,
    port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65_535,
            help=f"The first broker's; the others take the next free ones. As before, or {DEFAULT_PORT}.",
        ),
    ] = None,
    metastore: Annotated[
        str | None,
        typer.Option(metavar="URL", help="postgresql://user@host/database. As before, or a file in the folder."),
    ] = None,
    cloud: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Where cloud topics are stored: s3://bucket/prefix, gs://, az://, file:///path; or folder, for one in "
            "the cluster's own. As before, or none.",
        ),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(help="The address to listen at. As before, or loopback: other machines cannot connect."),
    ] = None,
    advertise: Annotated[
        str | None, typer.Option(metavar="HOST", help="The name that clients are told, if it is not --host.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A broker setting, for this run.")
    ] = None,
    compactor: Annotated[
        bool,
        typer.Option(help="Whether a compactor runs too. It starts Spark when a compacted topic has work for it."),
    ] = True,
) -> None:
    """Start a cluster on this machine and keep it running.

    Everything is in one folder; started again on it, the cluster goes on where it left off. A broker that crashes is
    started again. Ctrl-C stops all of them cleanly.
    """
    if compactor:
        extras.need("compactor", "the compactor of this cluster", ", or start the cluster with --no-compactor")
    folder = ClusterFolder(directory)
    folder.make()
    with exclusively(folder.lock_path, "Another `sexton up` runs there. Stop it, or choose another --dir"):
        cluster = folder.resolve(
            Wishes(
                brokers=brokers,
                port=port,
                host=host,
                advertised_host=advertise,
                metastore_url=metastore,
                store_url=cloud,
            )
        )
        check_store(folder.recall(), cluster)
        overrides = parse_settings(settings or [])
        for broker_id in cluster.broker_ids:
            folder.write_config(cluster, broker_id, overrides)
        folder.remember(cluster)
        asyncio.run(_Up(folder, cluster, with_compactor=compactor).run())


class _Up:
    """One run: what is printed, and when it ends."""

    def __init__(self, folder: ClusterFolder, cluster: Cluster, *, with_compactor: bool) -> None:
        self._folder = folder
        self._with_compactor = with_compactor
        self._compactor: CompactorProcess | None = None
        self._cluster = cluster
        self._console = Console(highlight=False, soft_wrap=True)
        self._was_ready: dict[int, bool] = {}
        self._has_greeted = False
        self._failed: Child | None = None
        self._supervisor: Supervisor

    async def run(self) -> None:
        from sexton.adapters.metastore import open_metastore

        metastore = open_metastore(self._cluster.metastore_url)
        children = [
            Child(each, self._folder.config_path(each), self._folder.log_path(each))
            for each in self._cluster.broker_ids
        ]
        self._supervisor = Supervisor(children, metastore, self._report)
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(signum, self._asked_to_stop)
        shown = _shown(self._folder.path)
        count = len(children)
        self._say(f"[bold]Sexton[/] starts {count} broker{'s' if count > 1 else ''} in {escape(shown)}")
        if self._with_compactor:
            log_path = self._folder.path / "logs" / "compactor.log"
            started = compactor_command(self._cluster.metastore_url, log_path, self._cluster.store_url)
            self._compactor = CompactorProcess(started, lambda line: self._say(f"  compactor  {escape(line)}"))
        compacting = asyncio.ensure_future(self._compactor.run() if self._compactor else asyncio.sleep(0))
        await self._supervisor.run()
        if self._compactor is not None:
            self._compactor.stop()
        await compacting
        await metastore.close()
        if self._failed is not None:
            raise _explained(self._failed)
        self._say(f"Stopped. The data stays in {escape(shown)}; start it again with the same command.")

    def _asked_to_stop(self) -> None:
        running = [child for child in self._supervisor.children if child.state in (State.STARTING, State.READY)]
        if running:
            self._say("Stopping: leadership moves, logs are flushed. (Again to end at once.)")
        if self._compactor is not None:
            self._compactor.stop()
        self._supervisor.stop()

    def _report(self, child: Child) -> None:
        line = self._line(child)
        if line:
            self._say(f"  broker {child.broker_id}  {line}")
        if child.state is State.FAILED:
            self._failed = self._failed or child
            self._supervisor.stop()
        if child.state is State.READY:
            self._was_ready[child.broker_id] = True
            if not self._has_greeted and all(each.state is State.READY for each in self._supervisor.children):
                self._has_greeted = True
                self._greet()

    def _line(self, child: Child) -> str:
        address = self._cluster.address(child.broker_id)
        match child.state:
            case State.STARTING:
                return ""
            case State.READY:
                log = escape(_shown(child.log_path))
                return f"{address}  [green]ready[/] after {child.ready_after_s:.1f} s  [dim]log: {log}[/]"
            case State.WAITING:
                why = escape(_end_text(child))
                return f"[bold red]{why}[/]; {child.restarts}  [dim]log: {escape(_shown(child.log_path))}[/]"
            case State.FAILED:
                return f"[bold red]{escape(_end_text(child))}[/]"
            case State.STOPPED:
                return "stopped" if child.exit_code in _STOPPED else escape(_end_text(child))
        return ""

    def _greet(self) -> None:
        first = self._cluster.ports[str(self._cluster.broker_ids[0])]
        host = self._cluster.advertised_host or self._cluster.host
        address = f"{'localhost' if host == '127.0.0.1' else host}:{first}"
        command = _own_command()
        where = "" if address == f"localhost:{DEFAULT_PORT}" else f" --bootstrap-server {address}"
        self._say("\nReady. In another terminal:\n")
        self._say(f"  [cyan]{command} topic create hello --partitions 3{where}[/]")
        self._say(f"  [cyan]echo 'hello, world' | {command} produce hello{where}[/]")
        self._say(f"  [cyan]{command} consume hello --from-beginning{where}[/]")
        if self._cluster.store_url:
            self._say(f"\nand a topic that lives in {escape(self._cluster.store_url)}:\n")
            self._say(f"  [cyan]{command} topic create clicks --config storage.mode=cloud{where}[/]")
            known = (
                "" if self._folder.path == DEFAULT_DIRECTORY.absolute() else f" --dir {escape(str(self._folder.path))}"
            )
            self._say(f"  [cyan]{command} cloud status{known}[/]")
        self._say("\nor with any Kafka client, for example:\n")
        self._say(f"  [cyan]kcat -b {address} -t hello -C[/]")
        admin = self._cluster.admin_ports[str(self._cluster.broker_ids[0])]
        self._say(f"\nMetrics and health of each broker, as of the first: [cyan]http://127.0.0.1:{admin}/[/]")
        self._say("\nCtrl-C stops the cluster.\n")

    def _say(self, text: str) -> None:
        self._console.print(text)


def _end_text(child: Child) -> str:
    code = child.exit_code or 0
    if code < 0:
        return f"was killed ({signal.Signals(-code).name})"
    return f"ended with exit code {code}"


def _explained(child: Child) -> BrokerFailedError:
    """The error that the broker itself printed last, with its remedy."""
    words = [line for line in child.last_words if line.strip()]
    marks = ("error: ", "what to do: ")
    said: Mapping[str, str] = {
        mark: line.removeprefix(mark) for mark in marks for line in words if line.startswith(mark)
    }
    what = said.get(marks[0], words[-1] if words else _end_text(child))
    remedy = said.get(marks[1], f"Read {child.log_path}")
    error = BrokerFailedError(what, f"broker {child.broker_id}", remedy)
    error.exit_code = child.exit_code or BrokerFailedError.exit_code  # type: ignore[misc]
    return error


def _shown(path: Path) -> str:
    """Relative where that is shorter."""
    relative = os.path.relpath(path)
    return relative if not relative.startswith("..") else str(path)


def _own_command() -> str:
    """How this very program can be called from the shell it was called from."""
    called = Path(sys.argv[0])
    found = shutil.which("sexton")
    if found is not None and (not called.exists() or Path(found).resolve() == called.resolve()):
        return "sexton"
    return shlex.quote(_shown(called.absolute())) if called.name == "sexton" else "sexton"
