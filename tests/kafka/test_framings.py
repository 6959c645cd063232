"""Compressed data in odd framings: what Kafka reads in a segment, we read, and the other way round."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from sexton.harness.kafka_tools import DUMP_FAULTS, dump_log
from sexton.records.batch import decode_all
from tests.records.framings import ODD
from tests.records.test_batch import GOOD_RECORD, with_body


@pytest.mark.kafka
def test_kafka_reads_every_framing_that_we_read(tmp_path: Path) -> None:
    segment = tmp_path / "00000000000000000000.log"
    batches = [with_body(packed(GOOD_RECORD), codec, last_offset=0) for codec, packed in ODD.values()]
    # The base offset is outside the checksum.
    segment.write_bytes(b"".join(struct.pack(">q", offset) + batch[8:] for offset, batch in enumerate(batches)))
    said = dump_log(segment, "--deep-iteration", "--print-data-log")
    assert not [fault for fault in DUMP_FAULTS if fault in said], said
    assert said.count("key: k payload: v") == len(ODD), said
    read = [record for batch in decode_all(segment.read_bytes(), str(segment)) for record in batch.records]
    assert [(record.offset, record.key, record.value) for record in read] == [(n, b"k", b"v") for n in range(len(ODD))]
