"""The ``sexton`` command: its subcommands, and what becomes of the errors that they expect.

A ``SextonError`` is told to the person in one or two lines and ends the process with the error's own exit code. Any
other exception is a bug and crashes with its whole traceback.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Annotated

import typer

from sexton.cli import show
from sexton.cli.compact import compact
from sexton.cli.demo import demo
from sexton.cli.log import app as log_app
from sexton.errors import SextonError

app = typer.Typer(
    name="sexton",
    help="Kafka-compatible log compaction that cannot corrupt data.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command()(compact)
app.command()(demo)
app.add_typer(log_app, name="log")


def _print_version(asked: bool) -> None:
    if asked:
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
    try:
        app()
    except SextonError as error:
        sys.stdout.flush()  # what was printed before it failed comes before what failed
        if "--json" in sys.argv[1:]:
            # On one line, because what came before may be one document a line.
            typer.echo(show.json_text({"error": show.error_dict(error)}))
        else:
            show.print_error(error)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
