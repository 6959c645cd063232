"""Bytes nobody should trust, for a while: whatever is read, nothing but a SextonError may come out.

A few seconds by default; ``SEXTON_FUZZ_SECONDS=3600`` for an hour. A failure names its seed; ``SEXTON_FUZZ_SEED`` runs
that one alone.
"""

from __future__ import annotations

import os
import random
import struct
import time
from collections.abc import Callable, Iterator

import crc32c
import numpy as np

from sexton.compaction.survey import survey_segment
from sexton.errors import SextonError
from sexton.records.batch import decode_all, encode
from sexton.records.header import HEADER_BYTES
from sexton.records.kernels.scan import scan_whole
from tests import logs

SECONDS = float(os.environ.get("SEXTON_FUZZ_SECONDS", "8")) / 2

NUMBERS = [0, 1, -1, 2, 7, 48, 49, 61, 127, 128, 255, 2**15 - 1, 2**31 - 1, -(2**31), 2**61, 2**62, 2**63 - 1, -(2**63)]
FIELDS = [
    (0, 8),
    (8, 4),
    (12, 4),
    (16, 1),
    (17, 4),
    (21, 2),
    (23, 4),
    (27, 8),
    (35, 8),
    (43, 8),
    (51, 2),
    (53, 4),
    (57, 4),
]
"""Position and size of a header's fields."""


def seeds(seconds: float) -> Iterator[int]:
    """As many as fit into the time; one, when the environment names it."""
    chosen = os.environ.get("SEXTON_FUZZ_SEED")
    if chosen is not None:
        yield int(chosen)
        return
    until = time.monotonic() + seconds
    seed = random.SystemRandom().randrange(2**48) if "SEXTON_FUZZ_SECONDS" in os.environ else 0
    while time.monotonic() < until:
        yield seed
        seed += 1


def starts_of(content: bytes | bytearray) -> list[int]:
    """Where batches begin, as far as the lengths can be followed."""
    starts, position = [], 0
    while position + HEADER_BYTES <= len(content):
        starts.append(position)
        length = struct.unpack_from(">i", content, position + 8)[0]
        if length < 49:
            break
        position += 12 + length
    return starts


def mutate(rng: random.Random, content: bytes) -> bytes:
    """One to four changes of a kind that bugs, disks and enemies make."""
    changed = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        if not changed:
            return b""
        rng.choice(MUTATIONS)(rng, changed)
    if rng.random() < 0.7:
        make_crcs_right(changed)
    return bytes(changed)


def flip_a_bit(rng: random.Random, content: bytearray) -> None:
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)


def set_a_byte(rng: random.Random, content: bytearray) -> None:
    content[rng.randrange(len(content))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])


def set_a_field(rng: random.Random, content: bytearray) -> None:
    starts = starts_of(content)
    if starts:
        position, size = rng.choice(FIELDS)
        value = rng.choice(NUMBERS) & ((1 << 8 * size) - 1)
        at = rng.choice(starts) + position
        content[at : at + size] = value.to_bytes(size, "big")


def cut_off(rng: random.Random, content: bytearray) -> None:
    del content[rng.randrange(len(content)) :]


def remove_a_span(rng: random.Random, content: bytearray) -> None:
    start = rng.randrange(len(content))
    del content[start : start + rng.randint(1, 80)]


def insert_a_span(rng: random.Random, content: bytearray) -> None:
    at = rng.randrange(len(content))
    content[at:at] = rng.choice([bytes(rng.randint(1, 80)), rng.randbytes(rng.randint(1, 20))])


def repeat_a_span(rng: random.Random, content: bytearray) -> None:
    start, at = rng.randrange(len(content)), rng.randrange(len(content))
    content[at:at] = content[start : start + rng.randint(1, 150)]


def swap_two_batches(rng: random.Random, content: bytearray) -> None:
    starts = starts_of(content)
    if len(starts) > 2:
        first, second, third = sorted(rng.sample(starts, 3))
        content[first:third] = content[second:third] + content[first:second]


def zero_a_page(rng: random.Random, content: bytearray) -> None:
    """As a file system leaves it after a power failure."""
    start = rng.randrange(len(content))
    end = min(len(content), start + 512)
    content[start:end] = bytes(end - start)


def make_crcs_right(content: bytearray) -> None:
    for start in starts_of(content):
        length = struct.unpack_from(">i", content, start + 8)[0]
        end = start + 12 + length
        if length >= 49 and end <= len(content):
            struct.pack_into(">I", content, start + 17, crc32c.crc32c(bytes(content[start + 21 : end])))


MUTATIONS: list[Callable[[random.Random, bytearray], None]] = [
    flip_a_bit,
    flip_a_bit,
    set_a_byte,
    set_a_byte,
    set_a_field,
    set_a_field,
    set_a_field,
    cut_off,
    remove_a_span,
    insert_a_span,
    repeat_a_span,
    swap_two_batches,
    zero_a_page,
]


def read_with(reader: Callable[[bytes], object], content: bytes) -> bool:
    try:
        reader(content)
    except SextonError as error:
        if not error.place:
            raise AssertionError(f"{error} does not say where") from error
        return False
    return True


def array(content: bytes) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.frombuffer(content, dtype=np.uint8)


READERS: dict[str, Callable[[bytes], object]] = {
    "decode_all": lambda content: list(decode_all(content, "log")),
    "scan with CRCs": lambda content: scan_whole(array(content), 0, len(content), "log", check_crc=True),
    "scan without": lambda content: scan_whole(array(content), 0, len(content), "log", check_crc=False),
    "survey_segment": lambda content: survey_segment(array(content), 0, "log"),
}


def test_readers_of_mutated_segments_raise_nothing_but_sexton_errors() -> None:
    read, refused = 0, 0
    for seed in seeds(SECONDS):
        rng = random.Random(seed)
        good = b"".join(map(encode, logs.random_log(rng, rng.choice([1, 3, 10])).batches))
        for _ in range(20):
            content = mutate(rng, good)
            for name, reader in READERS.items():
                try:
                    is_read = read_with(reader, content)
                except BaseException as error:
                    error.add_note(f"{name}, SEXTON_FUZZ_SEED={seed}")
                    raise
                read, refused = read + is_read, refused + (not is_read)
    assert read > refused / 50, "mutations so wild that they prove nothing"
    assert refused > read / 50, "mutations so mild that they prove nothing"


def test_what_both_readers_accept_they_read_alike() -> None:
    for seed in seeds(SECONDS / 2):
        rng = random.Random(seed)
        good = b"".join(map(encode, logs.random_log(rng, 3).batches))
        for _ in range(20):
            content = mutate(rng, good)
            try:
                expected = list(decode_all(content, "log"))
                table = scan_whole(array(content), 0, len(content), "log", check_crc=True)
            except SextonError:
                continue
            for name, column in (
                ("base_offset", "base_offset"),
                ("last_offset", "last_offset"),
                ("record_count", "record_count"),
                ("attributes", "attributes"),
                ("max_timestamp_ms", "max_timestamp"),
                ("producer_id", "producer_id"),
            ):
                found = table[column].tolist()
                assert found == [getattr(batch, name) for batch in expected], f"SEXTON_FUZZ_SEED={seed}"
