"""Spark takes half a minute to start on a small machine: what is wrong with a command is told before."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sexton.cli.main import app
from sexton.errors import SextonError
from tests.audit.replicas import On, brokers
from tests.cli.conftest import Sexton
from tests.logs import data

NOWHERE = "127.0.0.1:1"
"""Nobody listens there."""

FILLER = On([data((b"filler", b"x"), at=8)])

pytestmark = pytest.mark.usefixtures("no_spark")


def error_of(*arguments: object) -> str:
    """As it is told."""
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    assert isinstance(result.exception, SextonError), (result.output, result.exception)
    return str(result.exception)


@pytest.fixture
def dirs(tmp_path: Path) -> list[str]:
    found = brokers(tmp_path, FILLER, FILLER)
    (tmp_path / "empty").mkdir()
    return ["--dirs", *(f"{broker}={path}" for broker, (path,) in found.items())]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--topic", "("], "no regular expression"),
        (["--topic", "payments"], "payments: none of the 1 topics here has a name like this"),
        (["3=/nowhere"], "/nowhere: there is no such directory"),
        (["3={tmp}/empty"], "no broker's log directory"),
        (["--only", "/nowhere"], "/nowhere: cannot be read"),
        (["--html", "/nowhere/page.html"], "/nowhere: there is no such directory"),
        (["--bootstrap", "host:x"], "--bootstrap: host:x is no address"),
        (["--bootstrap", NOWHERE, "--command-config", "/nowhere"], "/nowhere: it cannot be read"),
        (["--bootstrap", NOWHERE], NOWHERE),
    ],
)
def test_audit(dirs: Sequence[str], tmp_path: Path, options: Sequence[str], told: str) -> None:
    assert told in error_of("audit", *dirs, *(each.format(tmp=tmp_path) for each in options))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--topic", "("], "no regular expression"),
        (["-o", "/nowhere/b1.fold"], "/nowhere: there is no such directory"),
        (["--plan", "/nowhere/plan.json"], "/nowhere: there is no such directory"),
        (["--plan", "{tmp}/no-plan.json"], "this is no plan"),
        (["{tmp}/empty"], "no broker's log directory"),
        (["/nowhere"], "/nowhere: there is no such directory"),
    ],
)
def test_audit_index(dirs: Sequence[str], tmp_path: Path, options: Sequence[str], told: str) -> None:
    (tmp_path / "no-plan.json").write_text("plan")
    files = ("--plan", tmp_path / "plan.json", "-o", tmp_path / "b1.fold")
    more = [each.format(tmp=tmp_path) for each in options]
    assert told in error_of("audit", "index", tmp_path / "broker-1", "--broker", 1, *files, *more)
    assert not (tmp_path / "plan.json").exists()


def test_audit_compare(tmp_path: Path) -> None:
    assert "/nowhere/b1.fold" in error_of("audit", "compare", "/nowhere/b1.fold", "/nowhere/b2.fold")
    assert "no such directory" in error_of("audit", "compare", "b1.fold", "b2.fold", "--plan", "/nowhere/plan.md")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--every", "6"], "6 is no time"),
        (["--metrics", "9400"], "9400 is no address"),
        (["--topic", "("], "no regular expression"),
        (["--command-config", "/nowhere"], "/nowhere: it cannot be read"),
        (["--bootstrap", "host:x"], "host:x is no address"),
    ],
)
def test_audit_watch(options: Sequence[str], told: str) -> None:
    assert told in error_of("audit", "watch", "--bootstrap", NOWHERE, *options)


def test_audit_watch_where_somebody_else_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = f"127.0.0.1:{taken.getsockname()[1]}"
        assert "Give another port" in error_of("audit", "watch", "--bootstrap", NOWHERE, "--metrics", endpoint)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["stats", "orders", "--sample", "much"], "much is no part of a whole"),
        (["stats", "orders", "--sample", "5%", "--sample-partitions", "1"], "Say one of them"),
        (["stats", "orders", "--bootstrap", "host:x"], "host:x is no address"),
        (["stats", "orders", "--command-config", "/nowhere"], "/nowhere: it cannot be read"),
        (["stats", "orders"], NOWHERE),
        (["repartition", "orders", "copy", "--config", "x"], "x"),
        (["repartition", "orders", "copy", "--delete-extra", "--no-verify"], "Leave out --no-verify"),
        (["repartition", "orders", "orders"], "source and target are the same topic"),
        (["repartition", "orders", "copy", "--command-config", "/nowhere"], "/nowhere: it cannot be read"),
        (["repartition", "orders", "copy"], NOWHERE),
    ],
)
def test_topic(arguments: Sequence[str], told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEXTON_BOOTSTRAP", NOWHERE)
    assert told in error_of("topic", *arguments)


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["audit", "--topic", "nothing"], "no topic has a name like this"),
        (["audit", "watch", "--topic", "nothing", "--metrics", ":0"], "no topic has a name like this"),
        (["topic", "stats", "nothing"], "nothing"),
        (["topic", "stats", "{topic}", "--partition", "9"], "no partition 9"),
        (["topic", "repartition", "nothing", "copy", "--partitions", "3"], "nothing"),
        (["topic", "repartition", "{topic}", "copy"], "Say how many partitions it shall have"),
        (["topic", "repartition", "{topic}", "{other}", "--partitions", "3"], "the topic exists, with 2 partitions"),
    ],
    ids=range(7),
)
def test_what_only_the_cluster_knows(sexton: Sexton, topic: str, arguments: Sequence[str], told: str) -> None:
    sexton("topic", "create", f"{topic}-other")
    names = {"topic": topic, "other": f"{topic}-other"}
    assert told in error_of(*(each.format(**names) for each in arguments), "--bootstrap", sexton.bootstrap)
