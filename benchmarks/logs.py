"""Large logs for benchmarks, made at memory speed: realistic batches, any codec, any number of keys."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sexton.jit import kernel
from sexton.records import codecs, names, segment_indexes
from sexton.records.codecs import Codec
from sexton.records.header import HEADER_BYTES, MAGIC, Head, encode
from sexton.records.kernels.primitives import write_varint
from sexton.records.kernels.scan import scan_whole
from sexton.types import NO_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, LeaderEpoch, ProducerEpoch

SEGMENT_BYTES = 1024 * 1024 * 1024  # Kafka's default segment.bytes
BATCH_BYTES = 16 * 1024  # Kafka's default batch.size
KEY_BYTES = 16
POOL_BYTES = 1 << 20
BASE_TIMESTAMP_MS = 1_700_000_000_000


@dataclass(frozen=True, slots=True)
class LogShape:
    """A log of ``record_count`` records of ``record_bytes`` (key and value), keys drawn at random from ``key_count``.

    With ``key_count == record_count`` every key occurs exactly once.
    """

    record_count: int
    record_bytes: int
    key_count: int
    codec: Codec = Codec.NONE
    seed: int = 1


def write_partition(directory: Path, shape: LogShape, first_offset: int = 0) -> int:
    """Closed segments, with indexes, then an empty active one; returns the log end offset."""
    directory.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(shape.seed)
    pool = _text_pool(rng)
    keys = _keys(shape, rng)
    per_batch = max(1, BATCH_BYTES // (shape.record_bytes + 10))
    plain = np.zeros(per_batch * (shape.record_bytes + 64), dtype=np.uint8)
    position, offset, segment_base, segment_size = 0, first_offset, first_offset, 0
    file = open(directory / names.log_file_name(first_offset), "wb", buffering=1 << 22)  # noqa: SIM115
    while position < shape.record_count:
        count = min(per_batch, shape.record_count - position)
        starts = rng.integers(0, POOL_BYTES - shape.record_bytes, count)
        end = _fill(plain, keys[position : position + count], starts, pool, shape.record_bytes - KEY_BYTES)
        batch = _batch(plain[:end], offset, count, shape.codec)
        if segment_size + len(batch) > SEGMENT_BYTES:
            file.close()
            _write_indexes(directory, segment_base)
            segment_base, segment_size = offset, 0
            file = open(directory / names.log_file_name(offset), "wb", buffering=1 << 22)  # noqa: SIM115
        file.write(batch)
        segment_size += len(batch)
        position += count
        offset += count
    file.close()
    _write_indexes(directory, segment_base)
    for suffix in (names.LOG_SUFFIX, names.OFFSET_INDEX_SUFFIX, names.TIME_INDEX_SUFFIX):
        (directory / names.segment_file_name(offset, suffix)).touch()
    return offset


def _keys(shape: LogShape, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    if shape.key_count == shape.record_count:
        return rng.permutation(shape.record_count)
    return rng.integers(0, shape.key_count, shape.record_count)


def _text_pool(rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    """Words of letters with spaces: compresses about as well as JSON without whitespace."""
    words = [bytes(rng.integers(97, 123, int(rng.integers(3, 10)), dtype=np.uint8)) for _ in range(2000)]
    text = b" ".join(words[index] for index in rng.integers(0, len(words), POOL_BYTES // 4))
    return np.frombuffer(text[:POOL_BYTES], dtype=np.uint8)


@kernel
def _fill(
    out: npt.NDArray[np.uint8],
    keys: npt.NDArray[np.int64],
    starts: npt.NDArray[np.int64],
    pool: npt.NDArray[np.uint8],
    value_bytes: int,
) -> int:
    """Records with a 16-digit key and a slice of the pool as their value."""
    position = 0
    scratch = np.zeros(16, dtype=np.uint8)
    for index in range(len(keys)):
        fixed = write_varint(scratch, 0, index)  # timestamp delta and offset delta are both the index
        body = 1 + 2 * fixed + 1 + 16 + write_varint(scratch, 0, value_bytes) + value_bytes + 1
        position = write_varint(out, position, body)
        out[position] = 0
        position = write_varint(out, position + 1, index)
        position = write_varint(out, position, index)
        position = write_varint(out, position, 16)
        number = keys[index]
        for digit in range(15, -1, -1):
            out[position + digit] = 48 + number % 10
            number //= 10
        position = write_varint(out, position + 16, value_bytes)
        out[position : position + value_bytes] = pool[starts[index] : starts[index] + value_bytes]
        position = write_varint(out, position + value_bytes, 0)
    return position


def _batch(plain: npt.NDArray[np.uint8], offset: int, count: int, codec: Codec) -> bytes:
    payload = codecs.compress(codec, memoryview(plain))  # type: ignore[arg-type]
    timestamp = BASE_TIMESTAMP_MS + offset
    head = Head(
        position=0,
        size_bytes=HEADER_BYTES + len(payload),
        base_offset=offset,
        last_offset=offset + count - 1,
        leader_epoch=LeaderEpoch(0),
        magic=MAGIC,
        crc=0,
        attributes=codec,
        base_timestamp_ms=timestamp,
        max_timestamp_ms=timestamp + count - 1,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=ProducerEpoch(NO_EPOCH),
        base_sequence=NO_SEQUENCE,
        record_count=count,
    )
    return encode(head, payload)


def _write_indexes(directory: Path, base_offset: int) -> None:
    data = np.memmap(directory / names.log_file_name(base_offset), dtype=np.uint8, mode="r")
    table = scan_whole(data, 0, len(data), str(directory), check_crc=False, previous_offset=base_offset - 1)
    offset_index, time_index = segment_indexes.build(table, base_offset, 4096)
    (directory / names.segment_file_name(base_offset, names.OFFSET_INDEX_SUFFIX)).write_bytes(offset_index)
    (directory / names.segment_file_name(base_offset, names.TIME_INDEX_SUFFIX)).write_bytes(time_index)
