"""Frames come out whole whatever the chunks were; sizes that cannot be are refused; large frames cost linear time."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sexton.protocol.frames import FrameReader, FrameSizeError


def framed(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


def read_all(reader: FrameReader, chunk: bytes) -> list[bytes]:
    reader.feed(memoryview(chunk))
    frames = []
    while (frame := reader.next()) is not None:
        frames.append(bytes(frame))
    return frames


@given(st.lists(st.binary(max_size=50)), st.data())
def test_frames_are_the_same_however_the_stream_is_cut(contents: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(framed(content) for content in contents)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    reader = FrameReader()
    seen = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        seen += read_all(reader, stream[start:end])
    assert seen == contents
    assert reader.claimed_bytes == 0


def test_frame_that_lies_whole_in_the_chunk_is_not_copied() -> None:
    chunk = bytearray(framed(b"one") + framed(b"two"))
    reader = FrameReader()
    reader.feed(memoryview(chunk))
    first = reader.next()
    assert first is not None
    assert first.obj is chunk
    assert first.readonly


def test_frame_over_many_chunks_is_gathered_without_copying_it_each_time() -> None:
    content = bytes(8 << 20)
    stream = memoryview(framed(content))
    reader = FrameReader()
    for start in range(0, len(stream) - 1, 1 << 12):
        reader.feed(stream[start : min(start + (1 << 12), len(stream) - 1)])
        assert reader.next() is None
        assert reader.claimed_bytes == len(stream)
    reader.feed(stream[-1:])
    frame = reader.next()
    assert frame is not None
    assert frame == content
    assert reader.claimed_bytes == 0


def test_memory_follows_what_arrived_and_not_what_was_claimed() -> None:
    reader = FrameReader(max_bytes=1 << 30)
    tracemalloc.start()
    assert read_all(reader, struct.pack(">i", 1 << 30) + b"tiny") == []
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 1 << 16
    assert reader.claimed_bytes == (1 << 30) + 4


@pytest.mark.parametrize("size", [-1, -(1 << 31), 1001, (1 << 31) - 1])
@pytest.mark.parametrize("cut", [0, 1, 3, 4])
def test_size_that_cannot_be_is_refused(size: int, cut: int) -> None:
    reader = FrameReader(max_bytes=1000)
    stream = struct.pack(">i", size) + b"x"
    with pytest.raises(FrameSizeError, match="where 0 to 1000 are allowed"):
        read_all(reader, stream[:cut]) + read_all(reader, stream[cut:])


def test_empty_frame_is_a_frame() -> None:
    assert read_all(FrameReader(), framed(b"") * 2) == [b"", b""]


def test_rest_can_be_kept_for_later() -> None:
    chunk = bytearray(framed(b"one") + framed(b"two") + framed(b"three") + b"\x00")
    reader = FrameReader()
    reader.feed(memoryview(chunk))
    assert bytes(reader.next() or b"") == b"one"
    reader.keep_rest()
    chunk[:] = bytes(len(chunk))
    assert reader.has_rest
    assert bytes(reader.next() or b"") == b"two"
    reader.keep_rest()
    assert bytes(reader.next() or b"") == b"three"
    assert reader.next() is None
    assert not reader.has_rest
    assert read_all(reader, b"\x00\x00\x01x") == [b"x"]
