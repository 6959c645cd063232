"""`sexton log`: looking into partition directories without changing anything."""

from __future__ import annotations

import typer

from sexton.cli.log_diff import diff
from sexton.cli.log_dump import dump
from sexton.cli.log_stats import stats

app = typer.Typer(help="Look into a log: what is in it, and what becomes of it.", no_args_is_help=True)
app.command()(stats)
app.command()(dump)
app.command()(diff)
