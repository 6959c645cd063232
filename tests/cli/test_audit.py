"""`sexton audit` from the command line: what it takes, what it prints, and how it ends."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from sexton.cli.audit import spread
from sexton.cli.main import app
from sexton.records import checkpoints
from tests.audit.replicas import On, brokers
from tests.logs import data

FILLER = data((b"filler", b"x"), at=8)
CLEANED = On([FILLER], clean=8)
CAME_BACK = On([data((b"user", b"alice"), at=0), FILLER])


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def dirs_of(parent: Path, *replicas: On) -> list[str]:
    return ["--dirs", *(f"{broker}={path}" for broker, (path,) in brokers(parent, *replicas).items())]


def test_dirs_takes_all_values_that_follow_it() -> None:
    assert spread(["--dirs", "1=/a", "2=/b", "--json", "3=/c"]) == [
        "--dirs",
        "1=/a",
        "--dirs",
        "2=/b",
        "--json",
        "3=/c",
    ]
    assert spread(["--dirs=1=/a", "2=/b", "--json"]) == ["--dirs=1=/a", "--dirs", "2=/b", "--json"]
    assert spread(["--dirs", "/a", "/b"]) == ["--dirs", "/a", "--dirs", "/b"]
    assert spread(["index", "/a", "--plan", "p=1"]) == ["index", "/a", "--plan", "p=1"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--dirs", "/nowhere"], "/nowhere: there is no such directory"),
        (["--dirs", "/"], "/: nothing in it says which broker's it is"),
        (["--dirs", "1=/", "/"], "Write BROKER=DIRECTORY, for example 1=/mnt/b1/kafka"),
        (["--dirs"], "no directory was named"),
        (["--dirs", "--json"], "no directory was named"),
        (["/mnt/b1"], "--dirs 1=/mnt/b1 2=/mnt/b2"),
        (["--dirs", "1=/a", "--json", "2=/b"], "2=/b belongs to no option"),
    ],
)
def test_directories_that_are_not_named_as_they_should_be_are_told_how(
    arguments: list[str], told: str, no_spark: None
) -> None:
    assert told in str(run("audit", *arguments).exception)


def test_help_tells_of_both_ways_to_read_and_of_folds() -> None:
    told = run("audit", "--help").output
    assert all(word in told for word in ("--bootstrap", "--dirs", "--plan", "--only", "index", "compare"))


def test_nothing_to_read_and_a_single_broker_are_refused(tmp_path: Path) -> None:
    assert "there is nothing to read" in str(run("audit").exception)
    alone = run("audit", *dirs_of(tmp_path, CLEANED))
    assert "nothing to be compared with" in str(alone.exception)


@pytest.mark.spark
def test_agreement_ends_with_0_divergence_with_1_and_what_cannot_be_read_with_3(
    spark: SparkSession, tmp_path: Path
) -> None:
    for name in ("same", "other", "broken"):
        (tmp_path / name).mkdir()
    same = run("audit", *dirs_of(tmp_path / "same", CLEANED, CLEANED))
    assert (same.exit_code, "1 partitions: 1 agree" in same.output) == (0, True), same.output
    other = run("audit", *dirs_of(tmp_path / "other", CLEANED, CLEANED, CAME_BACK), "--show-values")
    assert other.exit_code == 1
    assert 'broker 3: 0: "alice"' in other.output
    assert "tombstone: 1" in other.output
    broken = dirs_of(tmp_path / "broken", CLEANED, CLEANED)
    (tmp_path / "broken" / "broker-2" / "orders-0" / "00000000000000000000.log").write_bytes(b"\xff" * 100)
    assert run("audit", *broken).exit_code == 3


@pytest.mark.spark
def test_all_that_can_be_written_is_written_at_once(spark: SparkSession, tmp_path: Path) -> None:
    page, plan, parquet = tmp_path / "page.html", tmp_path / "plan.md", tmp_path / "keys.parquet"
    dirs = dirs_of(tmp_path, CLEANED, CLEANED, CAME_BACK)
    result = run("audit", *dirs, "--json", "--html", page, "--plan", plan, "--export", parquet)
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert report["partitions"][0]["by_class"] == {"tombstone": 1}
    assert "alice" not in result.stdout + page.read_text() + plan.read_text()
    assert parquet.stat().st_size > 0
    path = tmp_path / "report.json"
    path.write_text(result.stdout)
    again = run("audit", *dirs, "--only", path, "--show-values")
    assert (again.exit_code, '"user"' in again.output) == (1, True)


PARTITIONS_COUNT = 1000


@pytest.mark.spark
def test_a_thousand_partitions_are_one_job_and_a_corrupt_one_is_unknown(spark: SparkSession, tmp_path: Path) -> None:
    dirs = brokers(tmp_path, CLEANED, CLEANED)
    for (directory,) in dirs.values():
        for file in (checkpoints.REPLICATION_OFFSET_CHECKPOINT, checkpoints.LOG_START_OFFSET_CHECKPOINT):
            offset = checkpoints.read_offset_checkpoint(directory / file)[("orders", 0)]
            all_of_them = {("orders", partition): offset for partition in range(PARTITIONS_COUNT)}
            checkpoints.write_offset_checkpoint(directory / file, all_of_them)
        for partition in range(1, PARTITIONS_COUNT):
            shutil.copytree(directory / "orders-0", directory / f"orders-{partition}")
    (dirs[2][0] / "orders-617" / "00000000000000000000.log").write_bytes(b"\xff" * 100)
    jobs = len(spark.sparkContext.statusTracker().getJobIdsForGroup())
    result = run("audit", "--dirs", *(f"{broker}={path}" for broker, (path,) in dirs.items()), "--json")
    assert result.exit_code == 3, result.output
    report = json.loads(result.stdout)
    verdicts = {each["partition"]: each["verdict"] for each in report["partitions"]}
    assert verdicts.pop("orders-617") == "unknown"
    assert set(verdicts.values()) == {"agree"}
    assert len(verdicts) == PARTITIONS_COUNT - 1
    assert len(spark.sparkContext.statusTracker().getJobIdsForGroup()) - jobs == 2  # read, and compare


@pytest.mark.spark
def test_folds_are_made_one_machine_at_a_time_and_compared(spark: SparkSession, tmp_path: Path) -> None:
    paths = []
    for broker, (directory,) in brokers(tmp_path, CLEANED, CLEANED, CAME_BACK).items():
        path = tmp_path / f"b{broker}.fold"
        made = run("audit", "index", directory, "--plan", tmp_path / "plan.json", "-o", path, "--broker", broker)
        assert made.exit_code == 0, made.output
        paths.append(path)
    compared = run("audit", "compare", *paths, "--json")
    assert compared.exit_code == 1
    assert json.loads(compared.stdout)["partitions"][0]["differences"][0]["wrong"] == ["broker 3"]
    assert run("audit", "compare", *paths[:2]).exit_code == 0


def test_a_directory_that_does_not_say_whose_it_is_needs_a_broker(tmp_path: Path) -> None:
    (directory,) = brokers(tmp_path, CLEANED)[1]
    result = run("audit", "index", directory, "--plan", tmp_path / "plan.json", "-o", tmp_path / "x.fold")
    assert "--broker 1" in str(result.exception)
