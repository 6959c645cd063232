"""What a leader checks of a batch before it appends it, and what it notes of the producer afterwards.

Functions over the batch's header (`Head`), the topic's `Rules` and the partition's `ProducerStates`: they know no log,
so that every kind of log can call them. A batch is opaque to them except for its header; a marker's outcome is in its
record, and `inside.py` says when a client's batch is unpacked. Declared difference from Kafka: a client may not set the
delete horizon.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from crc32c import crc32c

from sexton.log.batches import read_marker
from sexton.log.epochs import EpochHistory
from sexton.log.producers import EndedTransaction, Marker, PastBatch, ProducerStates, Verification
from sexton.ports.disk import Buffer
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.records import codecs
from sexton.records.header import (
    ATTRIBUTES_POSITION,
    CODEC_MASK,
    CONTROL,
    DELETE_HORIZON,
    FRONT_BYTES,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    OLDEST_LENGTH_MIN,
    TRANSACTIONAL,
    Head,
    attribute_bits,
    has_valid_crc,
    head_at,
    magic_at,
    record_count,
    size_at,
    unpack,
)
from sexton.settings.topic import TopicConfig
from sexton.types import OFFSET_MAX

CODEC_MAX: Final = 4
OWN_BATCH_BYTES_MAX: Final = 1 << 20
"""Batches that a broker writes itself, such as a group's state, may have this size whatever `max.message.bytes` and
`segment.bytes` say: those are for clients, and a coordinator that cannot write cannot work."""
TOO_FAR: Final = "further apart than message.timestamp.before.max.ms or message.timestamp.after.max.ms"

_CODECS: Final = {
    "uncompressed": codecs.Codec.NONE,
    "gzip": codecs.Codec.GZIP,
    "snappy": codecs.Codec.SNAPPY,
    "lz4": codecs.Codec.LZ4,
    "zstd": codecs.Codec.ZSTD,
}


class Rules(NamedTuple):
    """What a topic requires of its batches."""

    place: str
    batch_bytes_max: int
    needs_keys: bool
    codec: int | None
    """Codec of `compression.type`; None to keep the producer's."""
    level: int | None
    before_max_ms: int
    after_max_ms: int
    stamps_time: bool

    @property
    def look_inside(self) -> bool:
        """Whether some batches with valid headers must be unpacked."""
        return self.needs_keys or self.codec is not None

    @staticmethod
    def of(place: str, config: TopicConfig) -> Rules:
        codec = _CODECS.get(config.compression_type)
        levels = {
            codecs.Codec.GZIP: config.compression_gzip_level,
            codecs.Codec.LZ4: config.compression_lz4_level,
            codecs.Codec.ZSTD: config.compression_zstd_level,
        }
        return Rules(
            place=place,
            batch_bytes_max=config.max_message_bytes,
            needs_keys=config.compacts,
            codec=codec,
            level=levels.get(codec) if codec is not None else None,
            before_max_ms=config.message_timestamp_before_max_ms,
            after_max_ms=config.message_timestamp_after_max_ms,
            stamps_time=config.message_timestamp_type == "LogAppendTime",
        )

    def must_unpack(self, records: Buffer) -> bool:
        """Whether this batch must be unpacked, decided by its header. A batch too short for a header is refused
        elsewhere."""
        if len(records) < HEADER_BYTES:
            return False
        return self.needs_keys or (self.codec is not None and attribute_bits(records) & CODEC_MASK != self.codec)

    def is_short_walk(self, records: Buffer, count_max: int) -> bool:
        """Whether keys are all there is to check, and the records are uncompressed and at most `count_max`, whatever
        their size."""
        if len(records) < HEADER_BYTES or attribute_bits(records) & CODEC_MASK or self.codec:
            return False
        return 0 <= record_count(records) <= count_max

    def has_bad_time(self, head: Head, now_ms: int) -> bool:
        """Whether the header's timestamps are out of range, or marked as LogAppendTime, which producers may not set."""
        if head.attributes & LOG_APPEND_TIME:
            return True
        if self.stamps_time:
            return False
        too_old = head.base_timestamp_ms >= 0 and now_ms - head.base_timestamp_ms > self.before_max_ms
        return too_old or head.max_timestamp_ms - now_ms > self.after_max_ms


# ---- the batch ----


def check_frame(records: Buffer, place: str, size_max: int) -> Head:
    """Header of `records`, which must be one batch: complete, of format 2, not too large, and with a valid CRC."""
    size = len(records)
    if size < HEADER_BYTES:
        raise _frame_error(records, place)
    head = unpack(records)
    if head.size_bytes != size or head.magic != MAGIC:
        raise _frame_error(records, place)
    if head.last_offset < head.base_offset or head.record_count < 0:
        raise KafkaError(
            ErrorCode.invalid_record, f"{place}: {head.record_count} records for {_offset_count(head)} offsets"
        )
    if size > size_max:
        raise KafkaError(
            ErrorCode.message_too_large, f"{place}: the batch has {size} bytes, max.message.bytes is {size_max}"
        )
    if crc32c(records[ATTRIBUTES_POSITION:]) != head.crc:
        raise KafkaError(ErrorCode.corrupt_message, f"{place}: the batch's CRC does not match")
    return head


def _frame_error(records: Buffer, place: str) -> KafkaError:
    """Explains why the bytes are not one complete batch of format 2."""
    size = len(records)
    if size >= FRONT_BYTES:
        first, magic = size_at(records), magic_at(records)
        if magic in (0, 1) and first >= LOG_OVERHEAD_BYTES + OLDEST_LENGTH_MIN:
            return KafkaError(
                ErrorCode.unsupported_for_message_format, f"{place}: message format v{magic} is from before Kafka 0.11"
            )
        if magic == MAGIC and HEADER_BYTES <= first < size:
            return KafkaError(ErrorCode.invalid_record, f"{place}: more than one batch in one request")
    return KafkaError(ErrorCode.corrupt_message, f"{place}: {size} bytes that are no whole batch")


def check_client_batch(head: Head, place: str) -> None:
    """Checks that apply to clients' batches but not to those that coordinators write."""
    attributes = head.attributes
    what = ""
    if head.base_offset != 0:
        what = f"the base offset should be 0, not {head.base_offset}"
    elif head.record_count <= 0 or head.record_count != head.last_offset + 1:
        what = f"{head.record_count} records for {_offset_count(head)} offsets"
    elif attributes & (CONTROL | DELETE_HORIZON):
        what = "control batches and delete horizons are not for clients"
    elif attributes & CODEC_MASK > CODEC_MAX:
        what = f"codec {attributes & CODEC_MASK} is unknown"
    elif head.producer_id >= 0 and head.base_sequence < 0:
        what = f"producer {head.producer_id} sent no sequence number"
    if what:
        raise KafkaError(ErrorCode.invalid_record, f"{place}: {what}")


def check_time(head: Head, rules: Rules, now_ms: int) -> None:
    """Raises the error as far as the header tells. `inside.validated` names the records at fault, or finds none."""
    if not rules.has_bad_time(head, now_ms):
        return
    if head.attributes & LOG_APPEND_TIME:
        what = "LogAppendTime is not for producers to set"
    else:
        what = f"records of time {head.base_timestamp_ms} to {head.max_timestamp_ms} at time {now_ms}: {TOO_FAR}"
    raise KafkaError(ErrorCode.invalid_timestamp, f"{rules.place}: {what}")


def _offset_count(head: Head) -> int:
    return head.last_offset - head.base_offset + 1


# ---- what a follower copies ----


def check_copied(
    view: memoryview,
    place: str,
    end_offset: int,
    gaps_below: int,
    epochs: EpochHistory,
    leader_end_offset: int = OFFSET_MAX,
) -> list[Head]:
    """Headers of the leader's batches that a follower may append at `end_offset`. An incomplete one at the end does not
    count."""
    heads: list[Head] = []
    at = 0
    while at + HEADER_BYTES <= len(view):
        head = head_at(view, at, at)
        if isinstance(head, str):
            raise KafkaError(ErrorCode.corrupt_message, f"{place}: {head}")
        if at + head.size_bytes > len(view):
            break
        if head.base_offset < end_offset:
            raise KafkaError(
                ErrorCode.offset_out_of_range,
                f"{place}: a batch for offset {head.base_offset} came where {end_offset} or more was due",
            )
        if head.base_offset > max(end_offset, gaps_below):
            raise KafkaError(
                ErrorCode.offset_out_of_range,
                f"{place}: a batch for offset {head.base_offset} came where {end_offset} was due, and "
                f"nothing above {gaps_below} was ever compacted: records are missing",
            )
        if head.last_offset >= leader_end_offset:
            raise KafkaError(
                ErrorCode.corrupt_message,
                f"{place}: a batch that ends with offset {head.last_offset} came, and the leader's log ends at "
                f"{leader_end_offset}",
            )
        if not has_valid_crc(view[at : at + head.size_bytes], head):
            raise KafkaError(ErrorCode.corrupt_message, f"{place}: the CRC at offset {head.base_offset} does not match")
        if contradiction := epochs.contradiction(head):
            raise KafkaError(ErrorCode.corrupt_message, f"{place}: {contradiction}")
        heads.append(head)
        end_offset = head.last_offset + 1
        at += head.size_bytes
    return heads


# ---- its producer ----


def check_producer(
    head: Head, producers: ProducerStates, from_client: bool, verification: Verification | None
) -> PastBatch | None:
    """Returns the batch that this one repeats, if any. Raises if the batch is out of sequence, its producer fenced, or
    its `verification` void."""
    producer_id, epoch, sequence = head.producer_id, head.producer_epoch, head.base_sequence
    if from_client:
        past = producers.duplicate_of(producer_id, epoch, sequence, head.last_offset - head.base_offset + 1)
        if past is not None:
            return past
    producers.check_data(producer_id, epoch, sequence, bool(head.attributes & TRANSACTIONAL), from_client)
    if verification is not None:
        producers.check_verified(producer_id, epoch, verification)
    return None


def check_marker(batch: memoryview, head: Head, producers: ProducerStates, place: str) -> tuple[Marker, int]:
    """The marker in a control batch, and its timestamp. Raises if it is none, or if its producer or its coordinator is
    fenced."""
    marker = read_marker(head, bytes(batch[HEADER_BYTES:]))
    if marker is None:
        raise KafkaError(ErrorCode.invalid_record, f"{place}: a control batch that ends no transaction")
    producers.check_marker(head.producer_id, head.producer_epoch, marker[0])
    return marker


def note_producer(
    head: Head,
    producers: ProducerStates,
    first_offset: int,
    last_offset: int,
    timestamp_ms: int,
    marker: tuple[Marker, int] | None,
) -> EndedTransaction | None:
    """Records a batch that was appended at these offsets. Returns the transaction that it ended, if any."""
    if marker is not None:
        return producers.note_marker(head.producer_id, head.producer_epoch, first_offset, marker[1], marker[0])
    producers.note_data(head, first_offset, last_offset, timestamp_ms)
    return None
