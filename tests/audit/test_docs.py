"""docs/audit.md: its example is what the command prints, and its commands and classes are those that there are."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from sexton.audit.classes import Class
from sexton.audit.judge import Verdict
from sexton.cli.audit import spread
from sexton.cli.main import app
from sexton.records import checkpoints
from sexton.records.checkpoints import MetaProperties
from tests.audit.replicas import On, write
from tests.logs import commit, data, in_transaction
from tests.project import PROJECT_DIR

PAGE = PROJECT_DIR / "docs" / "audit.md"
WIDTH = 118
"""Of the example's tables."""

FILLER = data((b"filler", b"x"), at=8)
REST = [data((b"price", b"11"), at=6), FILLER]
AWAY = [
    data((b"user", b"alice"), at=0),
    in_transaction((b"price", b"10"), at=3, pid=4001),
]


def write_example(parent: Path) -> None:
    """Broker 3 has a key without its tombstone in one partition, and a transaction that nothing ends in the other."""
    healthy = On([data((b"a", b"1"), at=0), in_transaction((b"b", b"2"), at=1, pid=4002), commit(2, 4002), FILLER])
    for broker in (1, 2, 3):
        directory = parent / f"b{broker}"
        directory.mkdir()
        write(directory, On([AWAY[0], FILLER]) if broker == 3 else On([FILLER], clean=8), partition=0)
        write(directory, On([AWAY[1], *REST]) if broker == 3 else On(REST, clean=6), partition=1)
        write(directory, healthy, partition=2)


def run(command: str, parent: Path) -> str:
    arguments = shlex.split(command.replace("/mnt/", f"{parent}/"))[1:]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": str(WIDTH)})
    return _lasting(result.output.replace(f"{parent}/", "/mnt/"))


def _lasting(text: str) -> str:
    """Without what is another at each run."""
    text = re.sub(r"in [\d.]+ s \([^)]*\)", "in 1.0 s", text)
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


@pytest.mark.spark
def test_the_example_is_what_the_command_prints(spark: SparkSession, tmp_path: Path) -> None:
    command, printed = re.findall(r"```console\n\$ (.*?)\n```\n```text\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
    write_example(tmp_path)
    assert run(command, tmp_path) == _lasting(printed)


@pytest.mark.spark
def test_folds_are_made_and_compared_as_the_page_says(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From directories as brokers write them, which say whose they are."""
    index, compare = re.search(r"runs these -->\n```\n(.*?) *#.*\n(.*)\n```", PAGE.read_text()).groups()  # type: ignore[union-attr]
    write_example(tmp_path)
    monkeypatch.chdir(tmp_path)
    for broker in (1, 2, 3):
        meta = checkpoints.encode_meta_properties(MetaProperties("a cluster", broker))
        (tmp_path / f"b{broker}" / checkpoints.META_PROPERTIES).write_bytes(meta)
        told = run(index.replace("/var/lib/kafka", f"/mnt/b{broker}").replace("b1.fold", f"b{broker}.fold"), tmp_path)
        assert f"3 replicas of broker {broker}" in told
    assert "3 partitions: 1 agree, 2 diverged" in run(compare, tmp_path)


def test_every_command_in_the_page_exists_with_its_options() -> None:
    lines = re.findall(r"^(?:    )?\$? ?(sexton audit.*)$", PAGE.read_text(), re.MULTILINE)
    assert len(lines) >= 6
    for line in lines:
        words = spread(shlex.split(line.split("#")[0])[1:])
        command = words[:2] if words[1] in ("index", "compare", "watch") else words[:1]
        told = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "200"}).output
        for option in (word for word in words if word.startswith("-")):
            assert option in told, f"{option} in: {line}"


def test_every_class_and_verdict_is_in_the_page() -> None:
    text = PAGE.read_text()
    for each in Class:
        assert f"| {int(each)} {each.label} |" in text
    for verdict in Verdict:
        assert f"| {verdict.value} |" in text
