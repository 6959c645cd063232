"""The records of `__consumer_offsets`: roundtrip, truncation, older versions, and Kafka's own tool as the judge."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path

import pytest

from sexton.coordinators.groups import records as r
from sexton.errors import CorruptLogError
from sexton.harness.jars import VERSIONS
from sexton.harness.kafka_tools import dump_log
from sexton.records import batch as batches
from tests.coordinators.groups.samples import BYTES, RECORDS, SHOWN


def test_every_record_comes_back_as_it_was_written() -> None:
    for record in RECORDS:
        key, value = r.encode(record)
        decoded = r.decode_key(key)
        assert decoded == record[0]
        assert (None if value is None else r.decode_value(record[0], value)) == record[1]


def test_the_bytes_in_the_log_never_change() -> None:
    for record, (key, value) in zip(RECORDS, BYTES, strict=True):
        assert r.encode(record) == (bytes.fromhex(key), None if value is None else bytes.fromhex(value))


def test_an_array_that_claims_more_items_than_there_are_bytes_is_noticed() -> None:
    """And nothing is allocated for them."""
    with pytest.raises(CorruptLogError) as caught:
        r.decode_value(r.TargetKey("g", "m"), b"\0\0" + b"\xff\xff\xff\xff\x07" + bytes(40))
    assert caught.value.place == "__consumer_offsets"
    with pytest.raises(CorruptLogError):
        r.decode_value(r.ClassicGroupKey("g"), struct.pack(">hhihhqi", 3, 0, 1, -1, -1, 5, 2**31 - 1) + bytes(40))


def test_a_truncated_record_is_noticed_at_every_byte() -> None:
    for key, value in RECORDS:
        encoded_key, encoded = r.encode((key, value))
        for end in range(len(encoded_key)):
            with pytest.raises(CorruptLogError):
                r.decode_key(encoded_key[:end])
        # What ends a flexible value is a count of tagged fields, which is not needed to know the rest.
        for end in range(len(encoded or b"") - 1):
            with pytest.raises(CorruptLogError):
                r.decode_value(key, (encoded or b"")[:end])


def test_kinds_of_records_that_are_not_kept_are_skipped() -> None:
    for number in (4, 9, 15, 17, 99):
        assert r.decode_key(struct.pack(">h", number) + b"whatever") is None


def test_offsets_of_all_versions_are_read() -> None:
    key = r.OffsetKey("g", "t", 0)
    numbers = struct.pack(">q", 5), struct.pack(">q", 1_000)
    text = struct.pack(">h", 1) + b"m"
    assert r.decode_value(key, struct.pack(">h", 0) + numbers[0] + text + numbers[1]) == r.OffsetValue(5, "m", 1_000)
    expiring = struct.pack(">h", 1) + numbers[0] + text + numbers[1] + struct.pack(">q", 9)
    assert r.decode_value(key, expiring) == r.OffsetValue(5, "m", 1_000, -1, 9)
    flexible = struct.pack(">h", 4) + numbers[0] + struct.pack(">i", 2) + b"\2m" + numbers[1] + b"\0"
    assert r.decode_value(key, flexible) == r.OffsetValue(5, "m", 1_000, 2)


def test_the_oldest_form_of_a_classic_group_is_read() -> None:
    def text(value: bytes) -> bytes:
        return struct.pack(">h", len(value)) + value

    member = text(b"m") + text(b"app") + text(b"/h") + struct.pack(">i", 10_000) + struct.pack(">i", 0) * 2
    data = struct.pack(">h", 0) + text(b"consumer") + struct.pack(">i", 3) + text(b"range") + text(b"m")
    value = r.decode_value(r.ClassicGroupKey("g"), data + struct.pack(">i", 1) + member)
    assert isinstance(value, r.ClassicGroupValue)
    assert value.members[0].rebalance_timeout_ms == 10_000
    assert value.state_timestamp_ms == -1


def test_tagged_fields_of_later_versions_are_skipped() -> None:
    _, value = r.encode((r.TargetEpochKey("g"), r.TargetEpochValue(3)))
    assert value is not None
    assert r.decode_value(r.TargetEpochKey("g"), value[:-1] + b"\1\7\2xy") == r.TargetEpochValue(3)


def test_a_member_state_of_a_later_version_is_unknown() -> None:
    _, value = r.encode((r.CurrentKey("g", "m"), r.CurrentValue(1, 0, r.MemberState.STABLE, {}, {})))
    assert value is not None
    decoded = r.decode_value(r.CurrentKey("g", "m"), value[:10] + b"\x55" + value[11:])
    assert isinstance(decoded, r.CurrentValue)
    assert decoded.state is r.MemberState.UNKNOWN


@pytest.mark.kafka
@pytest.mark.parametrize("version", VERSIONS)
def test_kafkas_own_tool_reads_every_record(tmp_path: Path, version: str) -> None:
    """Kafka 3.9 does not know regular expressions yet, nor the hash of topics, nor the id of an offset's topic."""
    records = [batches.Record(offset, 1_700_000_000_000, *r.encode(record)) for offset, record in enumerate(RECORDS)]
    segment = tmp_path / "00000000000000000000.log"
    segment.write_bytes(batches.encode(batches.make_batch(records)))
    text = dump_log(segment, "--offsets-decoder", "--print-data-log", version=version)
    lines = [line for line in text.splitlines() if line.startswith("| offset:")]
    assert len(lines) == len(RECORDS), text
    for line, (key, _), shown in zip(lines, RECORDS, SHOWN, strict=True):
        if version == "3.9.2" and isinstance(key, r.RegexKey):
            assert "Unknown record type 16" in line
            continue
        if version == "3.9.2" and shown is not None:
            shown = {name: value for name, value in shown.items() if name not in ("metadataHash", "topicId")}
        found = re.search(r" key: (\{.*?\}\}) payload: (.*)$", line)
        assert found is not None, line
        shown_key = json.loads(found.group(1))
        assert int(shown_key["type"]) == struct.unpack(">h", r.encode_key(key)[:2])[0]
        assert list(shown_key["data"].values()) == [getattr(key, name) for name in key.__slots__]
        payload = found.group(2)
        assert (None if payload == "<DELETE>" else json.loads(payload)["data"]) == shown, line
