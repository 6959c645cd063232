"""With only the base installed, brokers run, and a command that needs more says what to install."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from sexton import extras
from tests.project import PROJECT_DIR

ALL = tuple(module for modules in extras.MODULES.values() for module in modules)
OTHERWISE_NAMED = {"kafka_python": "kafka"}
"""Packages whose module has another name."""

TIMEOUT_S = 120
UNAVAILABLE = 69

BLOCKED = f"import sys; sys.modules.update(dict.fromkeys({ALL!r}))"
"""None in sys.modules makes an import fail as if there were no such module."""


def run(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", f"{BLOCKED}\n{program}", *map(str, arguments)]
    return subprocess.run(command, cwd=PROJECT_DIR, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def sexton(*arguments: object) -> subprocess.CompletedProcess[str]:
    return run("from sexton.cli.main import main; main()", *arguments)


def test_brokers_serve_and_compact_without_any_extra() -> None:
    """Real brokers and clients in this one process, under virtual time, with the reference compactor."""
    done = run("from sexton.simulate.run import Options, run; print(run(3, Options(minutes=0.1)).is_clean)")
    assert done.stdout == "True\n", done.stderr


def test_what_a_broker_host_runs_can_be_imported_without_any_extra() -> None:
    program = """
from importlib import import_module
from pkgutil import walk_packages
import sexton
packages = ("adapters", "broker", "client", "coordinators", "http", "metadata", "protocol", "replication")
for found in walk_packages(sexton.__path__, "sexton."):
    if found.name.split(".")[1] in packages or found.name in ("sexton.cli.broker", "sexton.cli.up"):
        import_module(found.name)
"""
    done = run(program)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["compactor", "--metastore", "sqlite:///nowhere"], "compactor"),
        (["compact", "."], "compactor"),
        (["demo"], "compactor"),
        (["up", "--dir", "DIR"], "compactor"),
        (["compactor", "--metastore", "postgresql://h/d"], "compactor"),
        (["up", "--dir", "DIR", "--no-compactor", "--metastore", "postgresql://h/d"], "postgres"),
        (["verify", "run"], "verify"),
        (["verify", "report", "DIR"], "compactor"),
        (["verify", "suite"], "verify"),
        (["verify", "selftest"], "verify"),
        (["verify", "check", "DIR"], "compactor"),
    ],
)
def test_a_command_that_needs_more_says_what_to_install(arguments: list[str], extra: str, tmp_path: Path) -> None:
    done = sexton(*(str(tmp_path / "cluster") if argument == "DIR" else argument for argument in arguments))
    assert done.returncode == UNAVAILABLE, done.stderr
    said = " ".join(done.stderr.split())
    assert f"pip install 'sexton[{extra}]'" in said
    assert "Traceback" not in said
    assert ("--no-compactor" in said) is (arguments[0] == "up" and extra == "compactor")


def test_a_program_is_told_too(tmp_path: Path) -> None:
    done = sexton("compact", tmp_path, "--json")
    assert done.returncode == UNAVAILABLE
    assert "sexton[compactor]" in json.loads(done.stdout)["error"]["remedy"]


def test_an_extra_is_what_pyproject_says() -> None:
    declared = tomllib.loads((PROJECT_DIR / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra, modules in extras.MODULES.items():
        names = [re.split(r"[\[<>=]", each)[0].replace("-", "_") for each in declared[extra]]
        assert sorted(OTHERWISE_NAMED.get(name, name) for name in names) == sorted(modules)


def test_a_module_that_no_extra_has_is_a_bug() -> None:
    assert extras.missing_extra(ModuleNotFoundError("x", name="x")) is None
    assert extras.missing_extra(ModuleNotFoundError("x", name="pyspark.sql")) is not None
