"""The object format: what is put in comes out, and every way in which it can be damaged."""

from __future__ import annotations

import random
import struct
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from sexton.errors import DamagedObjectError, UnsupportedFormatError
from sexton.records.batch import ControlType, decode_all, encode, make_marker
from sexton.records.header import LOG_APPEND_TIME, TRANSACTIONAL
from sexton.records.objects import (
    MAGIC,
    TRAILER_BYTES,
    Footer,
    Level,
    ObjectEncoder,
    Run,
    WriterKind,
    check_block,
    check_object,
    check_run,
    decode_footer,
    decode_trailer,
    find_run,
    read_batches,
)
from sexton.records.objects.layout import (
    BLOCK_STRUCT,
    HEAD_STRUCT,
    RUN_STRUCT,
    TRAILER_STRUCT,
    pack_footer,
)
from tests.records.objects.samples import (
    BROKER,
    CLUSTER_ID,
    COMPACTOR,
    NOW_MS,
    OTHER_ID,
    SETTLED,
    SMALL,
    TOPIC_ID,
    batch,
    batches,
    cut,
    packed,
)


def resealed(data: bytes, change: Callable[[Footer], Footer], level: Level = Level.L0) -> bytes:
    """The same runs under a footer that was changed and has the right checksum: what only a bug, or malice, writes."""
    trailer = decode_trailer(data, len(data))
    footer = pack_footer(change(check_object(data)))
    return data[: trailer.position] + footer + TRAILER_STRUCT.pack(len(footer), crc32c(footer), MAGIC)


def with_run(number: int, **fields: object) -> Callable[[Footer], Footer]:
    def change(footer: Footer) -> Footer:
        runs = list(footer.runs)
        runs[number] = replace(runs[number], **fields)  # type: ignore[arg-type]
        return replace(footer, runs=tuple(runs))

    return change


# ---- roundtrip and layout ----


def test_an_object_says_who_wrote_what() -> None:
    footer = check_object(SMALL)
    assert (footer.level, footer.cluster_id, footer.writer) == (Level.L0, CLUSTER_ID, BROKER)
    assert [(run.topic_id, run.partition, run.base_offset, run.end_offset) for run in footer.runs] == [
        (TOPIC_ID, 0, 40, 46),
        (TOPIC_ID, 1, 0, 2),
        (OTHER_ID, 7, 9, 13),
    ]
    first = footer.runs[0]
    assert (first.batch_count, first.record_count, first.epoch, first.is_settled) == (3, 6, 5, False)
    assert (first.first_timestamp_ms, first.max_timestamp_ms) == (NOW_MS + 40, NOW_MS + 45)


def test_a_settled_object_keeps_the_gaps_that_compaction_left() -> None:
    footer = check_object(SETTLED)
    assert (footer.level, footer.writer) == (Level.L1, COMPACTOR)
    assert footer.writer.kind is WriterKind.COMPACTOR
    first = footer.runs[0]
    assert (first.base_offset, first.end_offset, first.cleaned_offset, first.epoch) == (0, 26, 26, 2)
    assert first.is_settled
    assert [found.base_offset for found in decode_all(cut(SETTLED, footer, 0))] == [4, 6, 20, 22, 24]


def test_the_layout_is_as_the_page_says() -> None:
    """docs/cloud.md has this table; whoever changes a number makes a new version."""
    assert (HEAD_STRUCT.size, RUN_STRUCT.size, BLOCK_STRUCT.size, TRAILER_BYTES) == (46, 106, 28, 16)
    assert SMALL[:8] == SMALL[-8:] == b"SXOBJ001"
    footer = check_object(SMALL)
    size_bytes, crc = struct.unpack_from(">II", SMALL, len(SMALL) - 16)
    body = SMALL[-16 - size_bytes : -16]
    assert crc == crc32c(body)
    assert body[0] == 0
    assert body[1:17] == CLUSTER_ID.bytes
    assert struct.unpack_from(">B16sqI", body, 17) == (0, uuid.UUID(int=3).bytes, 12, 3)
    run = footer.runs[0]
    assert struct.unpack_from(">16siqqqqqqIqIHqqI", body, 46) == (
        TOPIC_ID.bytes,
        0,
        40,
        46,
        8,
        run.size_bytes,
        NOW_MS + 40,
        NOW_MS + 45,
        3,
        6,
        run.crc,
        0,
        -1,
        5,
        len(run.blocks),
    )
    assert struct.unpack_from(">qqqI", body, 46 + 106) == (40, 0, run.blocks[0].max_timestamp_ms, run.blocks[0].crc)
    page = (Path(__file__).parents[3] / "docs" / "cloud.md").read_text()
    assert all(f"| {size} bytes |" in page for size in (46, 106, 28, 16)), "the page has the sizes"


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False))
def test_whatever_is_put_in_comes_out(rng: random.Random) -> None:
    level = rng.choice(list(Level))
    runs = {}
    for partition in range(rng.randint(1, 5)):
        offset = rng.choice([0, 1, 2**40])
        base, parts = offset, []
        for _ in range(rng.randint(1, 12)):
            if level is Level.L1:
                offset += rng.choice([0, 0, 3])
            count = rng.randint(1, 4)
            parts.append(
                encode(batch(offset, count, rng.randbytes(rng.choice([0, 10, 200])), leader_epoch=rng.randint(0, 9)))
            )
            offset += count
        runs[rng.choice([TOPIC_ID, OTHER_ID]), partition] = (base, parts)
    data = packed(runs, level, rng.choice([1, 200, 10**9]))
    footer = check_object(data)
    assert [((run.topic_id, run.partition), run.base_offset) for run in footer.runs] == [
        (key, base) for key, (base, _) in runs.items()
    ]
    for number, (_, parts) in enumerate(runs.values()):
        assert cut(data, footer, number) == b"".join(parts)


def test_batches_may_be_added_one_by_one_or_together_or_as_any_buffer() -> None:
    parts = batches(0, 30, b"v" * 40)

    def encoded(*pieces: bytes | bytearray | memoryview) -> tuple[Run, bytes]:
        encoder = ObjectEncoder(Level.L0, CLUSTER_ID, BROKER, 500)
        encoder.begin_run(TOPIC_ID, 0, 0)
        for piece in pieces:
            encoder.add(piece)
        return encoder.end_run(), encoder.finish()

    alone = encoded(*parts)
    assert encoded(b"".join(parts)) == alone
    assert encoded(bytearray(b"".join(parts[:7])), b"", memoryview(b"".join(parts[7:]))) == alone
    assert len(alone[0].blocks) > 3


def test_the_first_time_of_a_run_is_a_records_time() -> None:
    """Where Kafka's header has another meaning for it, the newest of the batch is taken."""
    appended = encode(batch(0, attributes=LOG_APPEND_TIME, max_timestamp_ms=NOW_MS + 500))
    run = check_object(packed({(TOPIC_ID, 0): (0, [appended])})).runs[0]
    assert run.first_timestamp_ms == run.max_timestamp_ms == NOW_MS + 500


def test_two_runs_of_one_partition_ascend() -> None:
    encoder = ObjectEncoder(Level.L1, CLUSTER_ID, COMPACTOR)
    for base in (0, 10):
        encoder.begin_run(TOPIC_ID, 0, base)
        encoder.add(encode(batch(base)))
        encoder.end_run()
    with pytest.raises(ValueError, match="a run at 11 follows one that ends at 12"):
        encoder.begin_run(TOPIC_ID, 0, 11)
    data = MAGIC + encode(batch(0)) + encode(batch(10)) + encoder.finish()
    assert [run.base_offset for run in check_object(data).runs] == [0, 10]


# ---- the index ----


def test_a_block_is_about_as_large_as_asked_for_and_begins_with_a_batch() -> None:
    data = packed({(TOPIC_ID, 0): (0, batches(0, 100, b"v" * 100))}, index_interval_bytes=2_000)
    run = check_object(data).runs[0]
    sizes = [run.block_end(n) - block.position for n, block in enumerate(run.blocks)]
    assert sum(sizes) == run.size_bytes
    assert all(2_000 <= size < 2_500 for size in sizes[:-1])
    for number, block in enumerate(run.blocks):
        start = run.position + block.position
        heads = check_block(run, Level.L0, number, data[start : run.position + run.block_end(number)])
        assert heads[0].base_offset == block.offset
        assert max(head.max_timestamp_ms for head in heads) == block.max_timestamp_ms


def test_an_offset_leads_to_its_block() -> None:
    run = check_object(packed({(TOPIC_ID, 0): (0, batches(0, 100, b"v" * 100))}, index_interval_bytes=2_000)).runs[0]
    for offset in range(200):
        number = run.block_of(offset)
        later = run.blocks[number + 1].offset if number + 1 < len(run.blocks) else 200
        assert run.blocks[number].offset <= offset < later


def test_an_offset_that_compaction_has_taken_leads_to_the_block_before_the_next_record() -> None:
    run = check_object(SETTLED).runs[0]
    assert run.block_of(0) == 0
    assert run.blocks[run.block_of(15)].offset <= 20


# ---- what the encoder refuses ----


def open_run(level: Level = Level.L0, base: int = 40) -> ObjectEncoder:
    encoder = ObjectEncoder(level, CLUSTER_ID, BROKER)
    encoder.begin_run(TOPIC_ID, 0, base)
    return encoder


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (encode(batch(39)), "cannot follow offset 39"),
        (encode(batch(41)), "cannot follow offset 39"),
        (encode(batch(40))[:-1], "cut off"),
        (encode(batch(40))[:60], "cut off"),
        (encode(batch(40)) + b"x", "cut off"),
        (encode(batch(40)) * 2, "cannot follow offset 41"),
    ],
)
def test_a_batch_in_the_wrong_place_is_refused_and_nothing_is_added(data: bytes, why: str) -> None:
    encoder = open_run()
    with pytest.raises(ValueError, match=why):
        encoder.add(data)
    assert encoder.size_bytes == len(MAGIC)
    encoder.add(encode(batch(40)))
    assert encoder.end_run().batch_count == 1


def test_l1_takes_only_what_is_settled() -> None:
    transactional = batch(40, attributes=TRANSACTIONAL, producer_id=1, producer_epoch=0, base_sequence=0)
    for unsettled in (transactional, make_marker(40, ControlType.ABORT, 1, 0, NOW_MS)):
        with pytest.raises(ValueError, match="C7"):
            open_run(Level.L1).add(encode(unsettled))
        open_run(Level.L0).add(encode(unsettled))


def test_runs_are_ended_before_the_next_and_are_never_empty() -> None:
    encoder = ObjectEncoder(Level.L0, CLUSTER_ID, BROKER)
    for step in (encoder.finish, encoder.end_run, lambda: encoder.add(b"")):
        with pytest.raises(ValueError, match="run"):
            step()
    encoder.begin_run(TOPIC_ID, 0, 0)
    for step in (encoder.finish, encoder.end_run, lambda: encoder.begin_run(TOPIC_ID, 1, 0)):
        with pytest.raises(ValueError, match="run"):
            step()
    for partition, base in ((-1, 0), (0, -1), (0, 2**62)):
        with pytest.raises(ValueError, match="no run can begin"):
            ObjectEncoder(Level.L0, CLUSTER_ID, BROKER).begin_run(TOPIC_ID, partition, base)


# ---- damage ----


@pytest.mark.parametrize("data", [SMALL, SETTLED], ids=["L0", "L1"])
def test_every_byte_counts(data: bytes) -> None:
    """Each byte of an object, changed in one bit, is noticed: the format has none that nothing covers."""
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 1 << (at % 8)
        with pytest.raises((DamagedObjectError, UnsupportedFormatError)):
            check_object(changed)


@pytest.mark.parametrize("data", [SMALL, SETTLED], ids=["L0", "L1"])
def test_an_object_that_is_cut_off_or_has_more_is_noticed(data: bytes) -> None:
    for size in range(len(data)):
        with pytest.raises(DamagedObjectError):
            check_object(data[:size])
        with pytest.raises(DamagedObjectError):
            check_object(data[size + 1 :])
    for more in (b"\0", b"x" * 16, MAGIC, data):
        with pytest.raises(DamagedObjectError):
            check_object(data + more)


def test_a_later_version_is_said_to_be_one() -> None:
    for changed in (b"SXOBJ002" + SMALL[8:], SMALL[:-8] + b"SXOBJ002"):
        with pytest.raises(UnsupportedFormatError, match="SXOBJ002"):
            check_object(changed)
    with pytest.raises(DamagedObjectError, match="begins with b'PAR1"):
        check_object(b"PAR1PAR1" + SMALL[8:])


def test_a_footer_size_that_cannot_be_is_noticed_before_anything_is_read() -> None:
    for size in (0, 45, len(SMALL), 2**32 - 1):
        tail = TRAILER_STRUCT.pack(size, 0, MAGIC)
        with pytest.raises(DamagedObjectError, match="cannot be in an object"):
            decode_trailer(tail, len(SMALL))


def test_a_footer_is_read_from_the_end_of_the_object_alone() -> None:
    """As a reader does that has a few kilobytes of the end, and the object's size."""
    trailer = decode_trailer(SMALL[-20:], len(SMALL))
    footer = decode_footer(SMALL[trailer.position : trailer.position + trailer.size_bytes], trailer)
    assert footer == check_object(SMALL)
    with pytest.raises(DamagedObjectError, match="were read"):
        decode_footer(SMALL[trailer.position + 1 : trailer.position + trailer.size_bytes], trailer)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (with_run(1, position=8), "overlaps the one before it"),
        (with_run(2, size_bytes=10**6), "outside of the object"),
        (with_run(0, position=-8), "overlaps"),
        (with_run(0, size_bytes=0), "outside of the object"),
        (with_run(0, base_offset=47), "do not ascend"),
        (with_run(0, end_offset=40), "do not ascend"),
        (with_run(0, base_offset=-1), "do not ascend"),
        (with_run(0, end_offset=2**62), "do not ascend"),
        (with_run(0, partition=-1), "partition is -1"),
        (with_run(0, batch_count=0), "batches cannot be"),
        (with_run(0, batch_count=10**6), "batches cannot be"),
        (with_run(0, record_count=7), "records cannot be"),
        (with_run(0, is_settled=True), "settled, in level 0"),
        (with_run(0, cleaned_offset=-2), "cleaned offset"),
        (with_run(0, epoch=-2), "epoch -2"),
        (with_run(0, max_timestamp_ms=0), "different newest times"),
        (with_run(0, end_offset=47), "ends at offset 46, not at 47"),
        (with_run(0, record_count=5), "not as the footer has them"),
        (with_run(0, crc=1), "CRC of the run"),
        (with_run(0, blocks=()), "index does not begin"),
        (with_run(1, topic_id=TOPIC_ID, partition=0), "within those of an earlier run"),
        (lambda footer: replace(footer, runs=footer.runs[:2]), "the runs end at"),
        (lambda footer: replace(footer, runs=footer.runs[1:]), "leaves a gap"),
        (lambda footer: replace(footer, runs=()), "cannot have 0 runs"),
    ],
)
def test_a_footer_that_makes_no_sense_is_noticed_though_its_checksum_is_right(
    change: Callable[[Footer], Footer], why: str
) -> None:
    with pytest.raises(DamagedObjectError, match=why):
        check_object(resealed(SMALL, change))


@pytest.mark.parametrize(
    ("number", "fields", "why"),
    [
        (0, {"position": 1}, "does not begin"),
        (0, {"offset": 39}, "offsets that it does not have"),
        (-1, {"offset": 46}, "offsets that it does not have"),
        (1, {"offset": 40}, "does not ascend"),
        (1, {"position": 10}, "does not ascend"),
        (-1, {"position": 10**6}, "beyond its end"),
        (0, {"crc": 1}, "CRC of its block 0"),
        (1, {"offset": 43}, "does not name a batch"),
    ],
)
def test_an_index_that_makes_no_sense_is_noticed(number: int, fields: dict[str, int], why: str) -> None:
    data = packed({(TOPIC_ID, 0): (40, batches(40, 3))}, index_interval_bytes=1)

    def change(footer: Footer) -> Footer:
        blocks = list(footer.runs[0].blocks)
        blocks[number] = blocks[number]._replace(**fields)
        return with_run(0, blocks=tuple(blocks))(footer)

    with pytest.raises(DamagedObjectError, match=why):
        check_object(resealed(data, change))


def test_flags_levels_and_writers_that_nobody_knows_are_noticed() -> None:
    trailer = decode_trailer(SMALL, len(SMALL))
    for at, value in ((0, 2), (17, 2), (46 + 16 + 4 + 6 * 8 + 4 + 8 + 4 + 1, 2)):
        footer = bytearray(SMALL[trailer.position : -16])
        footer[at] = value
        data = SMALL[: trailer.position] + bytes(footer) + TRAILER_STRUCT.pack(len(footer), crc32c(footer), MAGIC)
        with pytest.raises(DamagedObjectError, match=r"level|kind|flags"):
            check_object(data)


def test_trailing_bytes_in_a_footer_are_noticed() -> None:
    trailer = decode_trailer(SMALL, len(SMALL))
    footer = SMALL[trailer.position : -16] + b"\0"
    data = SMALL[: trailer.position] + footer + TRAILER_STRUCT.pack(len(footer), crc32c(footer), MAGIC)
    with pytest.raises(DamagedObjectError, match="1 bytes follow the last run"):
        check_object(data)


def test_a_changed_offset_is_noticed_in_a_block_though_kafkas_checksum_does_not_cover_it() -> None:
    run = check_object(SETTLED).runs[0]
    end = run.block_end(0)
    block = bytearray(SETTLED[run.position : run.position + end])
    block[7] ^= 1  # the base offset of the first batch
    assert next(decode_all(bytes(block))).base_offset == 5
    with pytest.raises(DamagedObjectError, match="CRC of the block"):
        check_block(run, Level.L1, 0, block)
    with pytest.raises(DamagedObjectError, match="were read"):
        check_block(run, Level.L1, 0, block[:-1])


# ---- what the metastore's extents say ----


def test_a_run_without_its_footer_is_checked_against_its_extent() -> None:
    """L0 as a broker reads it: a batch that is missing, doubled, changed or of other offsets is never served."""
    parts = batches(40, 3)
    data = b"".join(parts)
    assert [head.position for head in read_batches(data, Level.L0, 40, 46)] == [0, len(parts[0]), 2 * len(parts[0])]
    wrong = {
        "missing": parts[0] + parts[2],
        "does not lie in": parts[0] + parts[0] + parts[2],
        "ends at offset 44": parts[0] + parts[1],
        "cut off": data[:-1],
        "CRC of the batch": data[:-1] + b"\xff",
        "no batch": b"",
        "cannot be right|does not lie in": b"\x80" + data[1:],
        "magic byte": data[:16] + b"\x05" + data[17:],
    }
    for why, changed in wrong.items():
        with pytest.raises(DamagedObjectError, match=why):
            read_batches(changed, Level.L0, 40, 46)
    for base, end in ((39, 46), (41, 46), (40, 45), (40, 47)):
        with pytest.raises(DamagedObjectError):
            read_batches(data, Level.L0, base, end)


def test_a_footer_that_names_other_runs_than_the_extents_do_is_noticed() -> None:
    footer = check_object(SMALL)
    run = footer.runs[0]
    assert find_run(footer, (TOPIC_ID, 0), 40, 46, 8) is run
    with pytest.raises(DamagedObjectError, match="names no run"):
        find_run(footer, (OTHER_ID, 0), 40, 46, 8)
    with pytest.raises(DamagedObjectError, match="names no run"):
        find_run(footer, (TOPIC_ID, 0), 41, 46, 8)
    for end, position in ((47, 8), (46, 9)):
        with pytest.raises(DamagedObjectError, match="in the footer"):
            find_run(footer, (TOPIC_ID, 0), 40, end, position)


def test_a_run_of_another_size_is_not_checked_further() -> None:
    footer = check_object(SMALL)
    data = cut(SMALL, footer, 0)
    assert len(check_run(footer.runs[0], Level.L0, data)) == 3
    with pytest.raises(DamagedObjectError, match="were read"):
        check_run(footer.runs[0], Level.L0, data[:-1])


def test_what_is_not_settled_in_l1_is_noticed() -> None:
    unsettled = encode(batch(40, attributes=TRANSACTIONAL, producer_id=1, producer_epoch=0, base_sequence=0))
    with pytest.raises(DamagedObjectError, match="C7"):
        read_batches(unsettled, Level.L1, 40, 42)
    assert read_batches(unsettled, Level.L0, 40, 42)


# ---- fuzz ----


@settings(max_examples=300, deadline=None)
@given(st.randoms(use_true_random=False), st.sampled_from([SMALL, SETTLED]))
def test_nothing_but_an_error_comes_out_of_a_footer_with_any_bytes_changed(rng: random.Random, data: bytes) -> None:
    """With the checksum made right again, so that the decoder itself has to notice."""
    trailer = decode_trailer(data, len(data))
    footer = bytearray(data[trailer.position : -16])
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(footer))
        match rng.randrange(4):
            case 0:
                footer[at] ^= 1 << rng.randrange(8)
            case 1:
                footer[at : at + 8] = rng.choice([b"\xff" * 8, bytes(8), b"\x7f" + b"\xff" * 7, b"\x80" + bytes(7)])
            case 2:
                del footer[at : at + rng.randint(1, 40)]
            case _:
                footer[at:at] = rng.randbytes(rng.randint(1, 40))
        if not footer:
            footer += b"\0"
    changed = data[: trailer.position] + bytes(footer) + TRAILER_STRUCT.pack(len(footer), crc32c(footer), MAGIC)
    try:
        found = check_object(changed)
    except DamagedObjectError:
        return
    # What gets past is what the runs' own bytes do not say: who wrote them, for whom, in which epoch, after which gap.
    for run, before in zip(found.runs, check_object(data).runs, strict=True):
        assert (run.end_offset, run.position, run.blocks) == (before.end_offset, before.position, before.blocks)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400))
def test_nothing_but_an_error_comes_out_of_any_bytes(data: bytes) -> None:
    for candidate in (data, MAGIC + data + MAGIC):
        with pytest.raises((DamagedObjectError, UnsupportedFormatError)):
            check_object(candidate)
