"""What the README shows works as it is written there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from sexton.cli.demo import write_sample
from sexton.cli.main import app

README = Path(__file__).parents[1] / "README.md"


@pytest.mark.spark
def test_the_sql_example_runs_on_a_log_directory(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    partition = write_sample(tmp_path)
    assert "/var/lib/kafka/data/orders-0" in example
    example = example.replace("/var/lib/kafka/data/orders-0", str(partition))
    exec(compile(example, str(README), "exec"), {})
    shown = capsys.readouterr().out
    assert re.search(r"customer-\d{3}\|\s+\d+\|\s*\d+\|", shown), shown


GROUPS = ("log", "topic", "group", "cluster", "config", "compaction", "cloud")


def test_every_sexton_command_and_option_in_the_readme_exists() -> None:
    lines = [line.strip() for line in README.read_text().splitlines() if line.startswith("    sexton ")]
    assert len(lines) >= 6
    for line in lines:
        words = line.split("#")[0].split()[1:]
        command = words[:2] if words[0] in GROUPS else words[:1]
        result = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "200"})
        assert result.exit_code == 0, line
        for option in (word for word in words if word.startswith("--")):
            assert option in result.output, f"{option} in: {line}"


def test_every_make_target_in_the_readme_is_listed_by_make_help() -> None:
    makefile = (README.parent / "Makefile").read_text()
    for target in re.findall(r"^    make ([a-z-]+)", README.read_text(), re.MULTILINE):
        assert re.search(rf"^{target}:.*## ", makefile, re.MULTILINE), target


NO_TESTS = frozenset({"help", "run", "demo", "lint", "lock", "test-fast", "test-all"})
"""Targets beside benchmarks that `make test-all` leaves out: they test nothing, or only what another tests, too."""


def test_make_test_all_runs_every_target_that_tests_something() -> None:
    targets = re.findall(r"^([a-z-]+):.*## ", (README.parent / "Makefile").read_text(), re.MULTILINE)
    listed = re.findall(r'^    "([a-z-]+)",$', (README.parent / "scripts" / "test-all").read_text(), re.MULTILINE)
    wanted = {target for target in targets if not target.startswith("bench")} - NO_TESTS
    assert sorted(listed) == sorted(wanted)
