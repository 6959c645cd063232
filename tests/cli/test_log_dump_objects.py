"""`sexton log dump` of objects of cloud topics: by path and by URL, one or many, with filters, damaged, and of none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from sexton.cli.main import app
from sexton.errors import CorruptLogError, NotALogError
from sexton.records.objects import check_object
from tests.records.objects.samples import OTHER_ID, SETTLED, SMALL, TOPIC_ID


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["log", "dump", *map(str, arguments)])


def lines(*arguments: object) -> list[dict[str, Any]]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A folder with an object of each level, and what else lies in one."""
    for name, data in {
        "l0/ab/small": SMALL,
        "l1/cd/settled": SETTLED,
        "marker.json": b"{}",
        "l0/ab/cut.tmp": b"",
    }.items():
        path = tmp_path / "cluster" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return tmp_path / "cluster"


def test_a_record_says_where_in_the_object_it_lies(store: Path) -> None:
    path = store / "l0/ab/small"
    second_run = check_object(SMALL).runs[1]
    (line, _) = (line for line in lines(path) if line["partition"] == f"{TOPIC_ID}-1")
    assert line["key"] == {"utf8": "k0"}
    assert line["batch"]["segment"] == f"file://{path}"
    assert line["batch"]["position"] == second_run.position
    assert SMALL[second_run.position : second_run.position + 8] == bytes(8), "a batch begins with its base offset"


def test_every_run_is_printed_under_its_partition(store: Path) -> None:
    found = [(line["partition"], line["offset"]) for line in lines(store / "l0/ab/small")]
    expected = {f"{TOPIC_ID}-0": range(40, 46), f"{TOPIC_ID}-1": range(2), f"{OTHER_ID}-7": range(9, 13)}
    assert found == [(partition, offset) for partition, offsets in expected.items() for offset in offsets]
    assert run(store / "l0/ab/small").stdout.startswith(f"{TOPIC_ID}-0           40 ")


def test_a_url_names_an_object_or_all_below_a_prefix(store: Path) -> None:
    one = lines(f"file://{store}/l1/cd/settled")
    assert [line["offset"] for line in one] == [*range(4, 8), *range(20, 26), 7, 8], "gaps are what compaction took"
    assert len(lines(f"file://{store}")) == len(one) + len(lines(store / "l0/ab/small"))


def test_filters_are_those_of_logs(store: Path) -> None:
    path = store / "l0/ab/small"
    assert [line["offset"] for line in lines(path, "--from-offset", 12, "--to-offset", 42)] == [40, 41, 12]
    assert [line["offset"] for line in lines(path, "--key", "k11")] == [11]
    assert "3 records" not in run(path, "--headers-only").stdout
    assert run(path, "--headers-only").stdout.count("2 records") == 6


def test_a_damaged_batch_is_named_after_what_came_before_it(store: Path) -> None:
    path = store / "l0/ab/small"
    last = check_object(SMALL).runs[2]
    damaged = bytearray(SMALL)
    damaged[last.position + last.size_bytes - 1] ^= 1
    path.write_bytes(damaged)
    result = run(path, "--json")
    assert isinstance(result.exception, CorruptLogError)
    assert f"{path}, from byte {last.position} on" in str(result.exception)
    assert len(result.stdout.splitlines()) == 10, "two are in the last batch"


def test_a_file_that_is_neither_is_told(store: Path) -> None:
    (store / "notes").write_bytes(b"nothing of ours, and long enough for a trailer")
    result = run(store / "notes")
    assert isinstance(result.exception, NotALogError)
    assert "neither a segment's .log file nor an object" in str(result.exception)
