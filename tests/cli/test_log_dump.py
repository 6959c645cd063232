"""`sexton log dump`: every record once, in order, with filters, broken data and broken pipes."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from sexton.cli import show
from sexton.cli.main import app
from sexton.errors import CorruptLogError, NotALogError
from sexton.records import codecs, names
from sexton.records.batch import Header, Record, make_batch
from tests import logs

EXAMPLE = logs.Log(
    [0, 10],
    [
        [
            logs.data((b"a", b"1"), (b"\xff\x00", None), (None, b"no key"), at=0),
            logs.in_transaction((b"a", b"2"), at=3, pid=7, attributes=0x10 | codecs.Codec.ZSTD),
            logs.commit(4, pid=7),
        ],
        [logs.in_transaction((b"b", b"3"), at=10, pid=8), logs.abort(11, pid=8)],
    ],
)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["log", "dump", *map(str, arguments)])


def objects(*arguments: object) -> list[dict[str, Any]]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def offsets(*arguments: object) -> list[int]:
    return [line["offset"] for line in objects(*arguments)]


@pytest.fixture
def example(tmp_path: Path) -> Path:
    logs.write_partition(EXAMPLE, tmp_path / "orders-0")
    return tmp_path / "orders-0"


def test_json_says_everything_about_a_record(example: Path) -> None:
    line = objects(example)[3]
    assert line == {
        "partition": "orders-0",
        "kind": "data",
        "offset": 3,
        "timestamp_ms": logs.NOW_MS - logs.HOUR_MS + 3,
        "producer_id": 7,
        "producer_epoch": 0,
        "sequence": 0,
        "transactional": True,
        "key": {"utf8": "a"},
        "value": {"utf8": "2"},
        "headers": [],
        "batch": {
            "segment": str(example.resolve() / names.log_file_name(0)),
            "position": line["batch"]["position"],
            "size_bytes": line["batch"]["size_bytes"],
            "base_offset": 3,
            "last_offset": 3,
            "leader_epoch": 0,
            "codec": "zstd",
            "timestamp_type": "CreateTime",
            "delete_horizon_ms": None,
        },
    }


def test_every_record_of_random_logs_comes_once_and_in_order(tmp_path: Path) -> None:
    for seed in range(10):
        log = logs.random_log(random.Random(seed))
        directory = tmp_path / f"orders-{seed}"
        logs.write_partition(log, directory)
        expected = [r.offset if r else b.base_offset for b in log.batches for r in b.records or (None,)]
        assert offsets(directory) == expected


def test_a_line_reads_well_and_carries_no_control_characters(tmp_path: Path) -> None:
    record = Record(0, logs.NOW_MS, b"\x1b[31mred\n", "grün".encode(), (Header("h", b"\xfe"),))
    logs.write_partition(logs.Log([0], [[make_batch([record])]]), tmp_path / "orders-0")
    line = run(tmp_path / "orders-0").stdout
    assert 'key="\\u001b[31mred\\n" value="grün" headers=["h"=0xfe]' in line
    assert line.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--from-offset", 3), [3, 4, 10, 11]),
        (("--to-offset", 3), [0, 1, 2]),
        (("--from-offset", 10, "--to-offset", 11), [10]),
        (("--key", "a"), [0, 3]),
        (("--key", "0xff00"), [1]),
        (("--kind", "tombstone"), [1]),
        (("--kind", "commit", "--kind", "abort"), [4, 11]),
        (("--kind", "data"), [0, 2, 3, 10]),
        (("--kind", "empty"), []),
        (("--limit", 2), [0, 1]),
    ],
)
def test_filters(example: Path, arguments: tuple[object, ...], expected: list[int]) -> None:
    assert offsets(example, *arguments) == expected


def test_reading_starts_at_the_segment_that_holds_the_offset(example: Path) -> None:
    (example / names.log_file_name(0)).write_bytes(b"this segment is not even opened")
    assert offsets(example, "--from-offset", 10) == [10, 11]


def test_a_segment_file_alone_can_be_dumped(example: Path) -> None:
    assert offsets(example / names.log_file_name(10)) == [10, 11]
    result = run(example / names.segment_file_name(10, names.OFFSET_INDEX_SUFFIX))
    assert isinstance(result.exception, NotALogError)


def test_several_directories_are_told_apart(example: Path, tmp_path: Path) -> None:
    logs.write_partition(EXAMPLE, tmp_path / "orders-1")
    lines = run(tmp_path).stdout.splitlines()
    assert [line.split()[0] for line in lines] == [str(tmp_path / "orders-0")] * 7 + [str(tmp_path / "orders-1")] * 7


def test_headers_only_prints_a_line_a_batch(example: Path) -> None:
    lines = objects(example, "--headers-only")
    assert [(line["kind"], line["record_count"]) for line in lines] == [
        ("data", 3),
        ("data", 1),
        ("commit", 1),
        ("data", 1),
        ("abort", 1),
    ]
    assert [line["batch"]["base_offset"] for line in objects(example, "--headers-only", "--kind", "abort")] == [11]
    assert run(example, "--headers-only", "--key", "a").exit_code != 0


def test_a_corrupt_batch_is_named_after_what_came_before_it(example: Path) -> None:
    path = example / names.log_file_name(0)
    content = bytearray(path.read_bytes())
    second = objects(example)[3]["batch"]["position"]
    content[second + 70] ^= 1
    path.write_bytes(content)
    for mode in ((), ("--json",)):
        result = run(example, *mode)
        assert len(result.stdout.splitlines()) == 3
        assert isinstance(result.exception, CorruptLogError)
        assert result.exception.place == f"{path.resolve()} at byte {second}"


def test_a_search_for_a_key_does_not_skip_over_corrupt_batches(example: Path) -> None:
    path = example / names.log_file_name(0)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert isinstance(run(example, "--key", "nobody has it").exception, CorruptLogError)


def test_a_torn_end_is_named_after_what_came_before_it(example: Path) -> None:
    path = example / names.log_file_name(10)
    path.write_bytes(path.read_bytes()[:-3])
    result = run(example, "--from-offset", 10)
    assert len(result.stdout.splitlines()) == 1
    assert isinstance(result.exception, CorruptLogError)
    assert "cut off" in result.exception.what


def test_a_pipe_that_is_closed_early_is_no_error(tmp_path: Path) -> None:
    many = [logs.data(*[(b"k" * 50, b"v" * 50)] * 1000, at=at) for at in range(0, 5000, 1000)]
    logs.write_partition(logs.Log([0], [many]), tmp_path / "orders-0")
    command = [sys.executable, "-m", "sexton.cli.main", "log", "dump", str(tmp_path / "orders-0")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().split()[0] == "0"
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() == 0


def test_errors_are_told_with_place_and_remedy_and_end_with_their_code(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sexton.cli.main", "log", "dump", str(tmp_path / "nowhere")]
    plain = subprocess.run(command, capture_output=True, text=True, check=False)
    assert plain.returncode == NotALogError.exit_code
    assert plain.stderr.startswith(f"error: {tmp_path}/nowhere: there is no such directory\nwhat to do: ")
    assert plain.stdout == ""
    as_json = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    assert as_json.returncode == NotALogError.exit_code
    assert json.loads(as_json.stdout)["error"]["kind"] == "NotALogError"


@pytest.mark.parametrize(
    ("duration_ms", "text"),
    [(0, "0 ms"), (40, "40 ms"), (302_000, "5 min 2 s"), (3_600_000, "1 h"), (273_600_000, "3 d 4 h"), (-5, "-5 ms")],
)
def test_durations_read_as_people_say_them(duration_ms: int, text: str) -> None:
    assert show.duration_text(duration_ms) == text


@pytest.mark.parametrize(("size", "text"), [(0, "0 B"), (1023, "1,023 B"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB")])
def test_sizes_read_as_people_say_them(size: int, text: str) -> None:
    assert show.bytes_text(size) == text
