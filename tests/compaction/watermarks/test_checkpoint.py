"""A replica's watermarks on disk: read back as written, and never believed if there is a doubt."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from sexton.adapters.files import FileDisk
from sexton.compaction.watermarks.checkpoint import WATERMARKS_FILE, Kept, decode, encode
from sexton.compaction.watermarks.replica import NOTHING, UNKNOWN_EPOCH, Pair, ReplicaWatermarks
from sexton.errors import CorruptLogError, SextonError, UnsupportedFormatError
from sexton.types import LeaderEpoch

LOG = uuid.UUID(int=7, version=4)
OTHER = uuid.UUID(int=8, version=4)
KNOWN = ReplicaWatermarks(LOG, 2, Pair(40, 30), Pair(20, 10), 50, 5, epoch=LeaderEpoch(3))


def test_what_was_written_is_read() -> None:
    assert decode(encode(KNOWN), "here") == KNOWN
    assert b"mcco 40\nmxfo 30\nmtro 20\nmxro 10\n" in encode(KNOWN)


def test_a_file_of_an_earlier_build_does_not_say_in_which_epoch() -> None:
    assert decode(_signed(_text().replace("epoch 3\n", "")), "here") == replace(KNOWN, epoch=UNKNOWN_EPOCH)


def test_every_cut_and_every_changed_byte_is_noticed() -> None:
    whole = encode(KNOWN)
    for size in range(len(whole)):
        with pytest.raises(SextonError):
            decode(whole[:size], "here")
    for position in range(len(whole)):
        for bit in (1, 0x20, 0x80):
            changed = bytearray(whole)
            changed[position] ^= bit
            with pytest.raises(SextonError):
                decode(bytes(changed), "here")
    with pytest.raises(CorruptLogError):
        decode(whole + b"\n", "here")


def _signed(text: str) -> bytes:
    from crc32c import crc32c

    return text.encode() + f"crc32c {crc32c(text.encode()):08x}\n".encode()


def _text() -> str:
    return encode(KNOWN).decode().rpartition("crc32c")[0]


@pytest.mark.parametrize(
    ("old", "new"),
    [("mcco 40", "mcco -1"), ("mcco 40", "mcco 9223372036854775808"), ("mcco 40", "mcco x"), ("mcco 40\n", "")],
)
def test_numbers_that_are_no_offsets_are_refused_even_if_signed(old: str, new: str) -> None:
    with pytest.raises(CorruptLogError):
        decode(_signed(_text().replace(old, new)), "here")


def test_a_file_of_a_later_version_is_told_apart_from_damage() -> None:
    with pytest.raises(UnsupportedFormatError, match="version 2"):
        decode(_signed(_text().replace("watermarks 1", "watermarks 2")), "here")


def open_kept(path: Path, end: int = 100, incarnation: uuid.UUID = LOG) -> ReplicaWatermarks:
    return asyncio.run(Kept.open(FileDisk(), str(path), incarnation, 0, end)).value


def test_a_new_log_has_its_file_before_its_first_record(tmp_path: Path) -> None:
    assert open_kept(tmp_path, end=0) == ReplicaWatermarks(LOG)
    assert open_kept(tmp_path, end=100) == ReplicaWatermarks(LOG), "so that a missing one is a lost one"


@pytest.mark.parametrize("harm", ["missing", "damaged", "from the future", "of another log"])
def test_without_a_file_that_can_be_believed_a_replica_knows_nothing_and_the_fence_is_where_its_log_ends(
    tmp_path: Path, harm: str
) -> None:
    file = tmp_path / WATERMARKS_FILE
    if harm == "damaged":
        file.write_bytes(encode(KNOWN)[:-3])
    elif harm == "from the future":
        file.write_bytes(_signed(_text().replace("watermarks 1", "watermarks 2")))
    elif harm == "of another log":
        file.write_bytes(encode(KNOWN))
    found = open_kept(tmp_path, incarnation=OTHER if harm == "of another log" else LOG)
    assert found.compacted == found.removable == NOTHING
    assert found.fence_below == 100
    again = open_kept(tmp_path, end=200, incarnation=found.incarnation)
    assert again == found, "what was decided then still holds"


def test_a_value_counts_only_once_it_is_on_disk(tmp_path: Path) -> None:
    class FailingDisk(FileDisk):
        async def replace_file(self, path: str, content: bytes) -> None:
            raise OSError(28, "full")

    async def go() -> None:
        kept = await Kept.open(FileDisk(), str(tmp_path), LOG, 0, 0)
        assert await kept.keep(lambda one: one.with_compaction(10))
        assert not await kept.keep(lambda one: one.with_received(0, NOTHING))
        failing = Kept(FailingDisk(), str(tmp_path), kept.value)
        with pytest.raises(OSError, match="full"):
            await failing.keep(lambda one: one.with_compaction(20))
        assert failing.value == kept.value

    asyncio.run(go())
    assert open_kept(tmp_path).compacted == Pair(10, 10)


def test_changes_that_overlap_are_made_one_after_the_other(tmp_path: Path) -> None:
    async def go() -> None:
        kept = await Kept.open(FileDisk(), str(tmp_path), LOG, 0, 0)
        changes = [kept.keep(lambda one, at=at: one.with_received(0, Pair(at, 0))) for at in (3, 9, 5)]  # type: ignore[misc]
        changes.append(kept.keep(lambda one: one.with_compaction(4)))
        await asyncio.gather(*changes)
        assert kept.value.removable == Pair(9, 0)
        assert kept.value.compacted == Pair(4, 4)

    asyncio.run(go())
    assert open_kept(tmp_path).removable == Pair(9, 0)
