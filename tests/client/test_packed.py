"""A batch that was encoded elsewhere arrives as it is, with its producer's sequence, in the order of the calls."""

from __future__ import annotations

import pytest

from sexton.client.packed import PackedBatch
from sexton.records import batch as batches
from sexton.records.batch import Header, Record, make_batch
from sexton.records.codecs import Codec, compress
from sexton.records.header import HEADER_BYTES

RECORDS = [Record(0, 5_000, b"a", b"1", (Header("h", b"x"),)), Record(1, 4_000, b"b", None)]


@pytest.mark.parametrize("codec", list(Codec))
def test_it_decodes_to_the_same_records(codec: Codec) -> None:
    body = batches.encode(make_batch(RECORDS))[HEADER_BYTES:]
    packed = PackedBatch(compress(codec, body) if codec else body, 2, codec, 5_000, 5_000)
    decoded = batches.decode(packed.encoded(7, 1, 30), 0, "")
    assert list(decoded.records) == RECORDS
    assert (decoded.producer_id, decoded.producer_epoch, decoded.base_sequence) == (7, 1, 30)
    assert (decoded.max_timestamp_ms, decoded.codec, decoded.last_offset) == (5_000, codec, 1)
    assert packed.size_bytes == len(packed.encoded(7, 1, 30))
