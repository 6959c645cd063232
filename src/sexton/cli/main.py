"""The ``sexton`` command: its subcommands, and what becomes of the errors that they expect.

A ``SextonError`` is told to the person in one or two lines and ends the process with the error's own exit code; so is a
module that is not installed but could be (``sexton.extras``). Any other exception is a bug and crashes with its whole
traceback and an exit code that no answer has: 1 may mean "no".
"""

from __future__ import annotations

import sys
import traceback
from typing import Annotated, ClassVar, Final, NoReturn

import typer

from sexton.cli.lazy import Entry, LazyGroup
from sexton.errors import SextonError
from sexton.extras import missing_extra

_RUN: Final = "Run a cluster"
_USE: Final = "Use a cluster"
_CHECK: Final = "Check Sexton itself"
_FILES: Final = "Work on a stopped broker's files"
_PROVE: Final = "Prove it"

BUG: Final = 70
"""EX_SOFTWARE of BSD's sysexits."""


class Commands(LazyGroup):
    entries: ClassVar[dict[str, Entry]] = {
        "up": Entry("sexton.cli.up:up", "Start a cluster on this machine and keep it running.", _RUN),
        "broker": Entry("sexton.cli.broker:broker", "Run one broker in the foreground.", _RUN),
        "compactor": Entry(
            "sexton.cli.compactor:compactor", "Compact what is due, in the foreground, until it is stopped.", _RUN
        ),
        "topic": Entry("sexton.cli.topic:app", "Make, show, change and delete topics.", _USE),
        "produce": Entry("sexton.cli.produce:produce", "Write lines from standard input to a topic.", _USE),
        "consume": Entry("sexton.cli.consume:consume", "Read a topic's records.", _USE),
        "group": Entry("sexton.cli.group:app", "Show consumer groups, move their offsets, delete them.", _USE),
        "txn": Entry("sexton.cli.txn:app", "Show transactions, find those that hang, end one by force.", _USE),
        "compaction": Entry("sexton.cli.compaction:app", "Show how compaction goes, ask for it, ask why.", _USE),
        "cloud": Entry(
            "sexton.cli.cloud:app",
            "Show what cloud topics have in their store, what an object is for, and whether all is there.",
            _USE,
        ),
        "cluster": Entry("sexton.cli.cluster:app", "Show brokers, their health and their disks.", _USE),
        "config": Entry("sexton.cli.config:app", "Show and change settings of topics, brokers and groups.", _USE),
        "audit": Entry(
            "sexton.cli.audit:app",
            "Whether the replicas of a cluster agree, key by key; if not, why, and what to do.",
            _PROVE,
        ),
        "simulate": Entry(
            "sexton.cli.simulate:simulate",
            "Run whole clusters under virtual time, with faults, and check every rule.",
            _CHECK,
        ),
        "reproduce": Entry(
            "sexton.cli.reproduce:reproduce",
            "Show on real clusters how compaction corrupts data, and that coordinated compaction does not.",
            _PROVE,
        ),
        "verify": Entry(
            "sexton.cli.verify:app", "Test any Kafka-compatible cluster as Jepsen does, and judge histories.", _PROVE
        ),
        "log": Entry("sexton.cli.log:app", "Look into a log: what is in it, and what becomes of it.", _FILES),
        "compact": Entry("sexton.cli.compact:compact", "Compact the partitions of a broker that is stopped.", _FILES),
        "demo": Entry(
            "sexton.cli.demo:demo",
            "A first look: make a sample partition, query it with SQL, compact it, show before and after.",
            _FILES,
        ),
    }


app = typer.Typer(
    name="sexton",
    cls=Commands,
    help="Kafka-compatible log compaction that cannot corrupt data.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"sexton {version('sexton')}")
        raise typer.Exit


@app.callback()
def root(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Kafka-compatible log compaction that cannot corrupt data."""


def main() -> None:
    """The console script."""
    # Where hypothesis is installed, kio (Kafka's messages) imports it, for its own tests: half a second and 30 MB of
    # every broker and every command on a developer's machine. None makes that import fail, as kio expects.
    sys.modules.setdefault("hypothesis", None)  # type: ignore[arg-type]
    try:
        app()
    except SextonError as error:
        _leave(error)
    except ImportError as error:
        missing = missing_extra(error)
        if missing is None:
            _crash()
        else:
            _leave(missing)
    except Exception:
        _crash()


def _leave(error: SextonError) -> NoReturn:
    from sexton.cli import show

    sys.stdout.flush()  # what was printed before it failed comes before what failed
    if "--json" in sys.argv[1:]:
        # On one line, because what came before may be one document a line.
        typer.echo(show.json_text({"error": show.error_dict(error)}))
    else:
        show.print_error(error)
    sys.exit(error.exit_code)


def _crash() -> NoReturn:
    traceback.print_exc()
    sys.exit(BUG)


if __name__ == "__main__":
    main()
