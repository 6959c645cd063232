"""A run cut out of an object is a log: Kafka's own dump tool, `sexton log dump` and our own reader open it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sexton.cli.main import app
from sexton.harness.kafka_tools import DUMP_FAULTS, dump_log
from sexton.records.batch import ControlType, decode_all, encode, make_marker
from sexton.records.header import TRANSACTIONAL
from sexton.records.objects import Footer, Level, check_object
from tests.records.objects.samples import NOW_MS, OTHER_ID, SETTLED, TOPIC_ID, batch, batches, cut, packed


def busy() -> bytes:
    """Every codec, an idempotent producer, a transaction and its marker; of two partitions."""
    parts = [encode(batch(100 + 3 * codec, 3, b"v" * 200, attributes=codec)) for codec in range(5)]
    named = {"producer_id": 9, "producer_epoch": 2, "leader_epoch": 4}
    parts.append(encode(batch(115, 5, b"v", base_sequence=0, **named)))
    parts.append(encode(batch(120, 2, b"v", base_sequence=5, attributes=TRANSACTIONAL, **named)))
    parts.append(encode(make_marker(122, ControlType.COMMIT, 9, 2, NOW_MS + 122)))
    return packed({(OTHER_ID, 3): (0, batches(0, 4)), (TOPIC_ID, 0): (100, parts)}, index_interval_bytes=500)


def cut_to_files(tmp_path: Path, data: bytes, footer: Footer) -> list[Path]:
    """Each run under the name that a segment at its first offset has."""
    paths = []
    for number, run in enumerate(footer.runs):
        directory = tmp_path / f"topic-{number}"
        directory.mkdir()
        path = directory / f"{run.base_offset:020d}.log"
        path.write_bytes(cut(data, footer, number))
        paths.append(path)
    return paths


@pytest.mark.kafka
@pytest.mark.parametrize("level", Level)
def test_kafkas_dump_tool_reads_a_run_that_was_cut_out(tmp_path: Path, level: Level) -> None:
    data = busy() if level is Level.L0 else SETTLED
    footer = check_object(data)
    for run, path in zip(footer.runs, cut_to_files(tmp_path, data, footer), strict=True):
        text = dump_log(path, "--deep-iteration", "--print-data-log")
        assert not [fault for fault in DUMP_FAULTS if fault in text], text
        found = re.findall(r"^baseOffset: (\d+) lastOffset: (\d+) count: (\d+)", text, re.MULTILINE)
        assert len(found) == run.batch_count
        assert sum(int(count) for _, _, count in found) == run.record_count
        assert int(found[-1][1]) + 1 == run.end_offset
        assert text.count("isvalid: true") == run.batch_count


def test_sexton_log_dump_reads_a_run_that_was_cut_out(tmp_path: Path) -> None:
    data = busy()
    footer = check_object(data)
    for run, path in zip(footer.runs, cut_to_files(tmp_path, data, footer), strict=True):
        result = CliRunner().invoke(app, ["log", "dump", str(path), "--json"])
        assert result.exit_code == 0, result.output
        offsets = [json.loads(line)["offset"] for line in result.stdout.splitlines()]
        expected = [record.offset for one in decode_all(path.read_bytes()) for record in one.records]
        assert offsets == expected
        assert len(offsets) == run.record_count
