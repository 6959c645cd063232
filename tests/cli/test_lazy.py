"""The command itself: quick where people wait for it, and the table of commands says what the commands say."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from sexton.cli import main
from sexton.cli.main import Commands, app

HEAVY = ("pyspark", "numpy", "sqlalchemy", "numba", "kio", "sexton.broker", "sexton.client")


@pytest.mark.parametrize("name", list(Commands.entries))
def test_the_summary_in_the_table_is_the_commands_own(name: str) -> None:
    entry = Commands.entries[name]
    command = entry.load(name)
    assert (command.help or "").strip().splitlines()[0] == entry.summary


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], []])
def test_help_and_version_import_nothing_heavy(arguments: list[str]) -> None:
    program = (
        "import sys; from sexton.cli.main import app\n"
        f"try: app({arguments!r})\n"
        "except SystemExit: pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_command_that_does_not_exist_is_told_as_such() -> None:
    result = CliRunner().invoke(app, ["nonsense"])
    assert result.exit_code == 2
    assert "No such command" in result.output


def test_help_lists_every_command_with_its_summary() -> None:
    output = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output
    for name, entry in Commands.entries.items():
        assert f" {name} " in output
        assert entry.summary in output


def test_a_bug_is_told_whole_and_does_not_look_like_an_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`sexton log diff` ends with 1 when two replicas differ, and Python does when it crashes."""

    def crash() -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(main, "app", crash)
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == main.BUG == 70
    said = capsys.readouterr().err
    assert said.startswith("Traceback")
    assert said.endswith("ZeroDivisionError: a bug\n")
