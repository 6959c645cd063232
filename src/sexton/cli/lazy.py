"""A command group that imports a command's module when that command runs, and not before.

Spark, SQLAlchemy and the broker take a second or more to import; `--version`, `--help` and the shell's completion need
none of them. Names and one-line descriptions therefore stand in a table (`Entry`); a test checks that they agree with
the commands themselves.

Typer brings its own copy of click or uses the installed one, by version; hence the loose types.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup


@dataclass(frozen=True, slots=True)
class Entry:
    """`target` is `module:name`, of a function (a command) or of a `typer.Typer` (a group of them)."""

    target: str
    summary: str
    panel: str

    def load(self, name: str) -> Any:
        module, _, attribute = self.target.partition(":")
        found = getattr(import_module(module), attribute)
        if not isinstance(found, typer.Typer):
            single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
            single.command(name)(found)
            found = single
        command = typer.main.get_command(found)
        command.name = name
        return command

    def sketch(self, name: str) -> Any:
        return TyperCommand(name, help=self.summary, short_help=self.summary, rich_help_panel=self.panel)


class LazyGroup(TyperGroup):
    """Subclasses say which commands there are."""

    entries: ClassVar[dict[str, Entry]] = {}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._shows_sketches = False

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.entries)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        entry = self.entries.get(cmd_name)
        if entry is None:
            return None
        return entry.sketch(cmd_name) if self._shows_sketches else entry.load(cmd_name)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self._shows_sketches = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._shows_sketches = False

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        self._shows_sketches = True
        try:
            return super().shell_complete(ctx, incomplete)
        finally:
            self._shows_sketches = False
