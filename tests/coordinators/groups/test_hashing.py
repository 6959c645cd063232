"""Where a group is kept: Java's hash, Kafka's absolute value."""

from __future__ import annotations

import pytest

from sexton.coordinators.hashing import java_hash, partition_for


def test_it_is_javas_string_hash() -> None:
    known = {"": 0, "a": 97, "hello": 99162322, "polygenelubricants": -(2**31)}
    assert {text: java_hash(text) for text in known} == known


def test_characters_beyond_16_bits_count_as_two() -> None:
    assert java_hash("\U0001f600") == 0xD83D * 31 + 0xDE00


def test_the_number_without_a_positive_counterpart_is_zero() -> None:
    assert partition_for("polygenelubricants", 50) == 0
    assert partition_for("hello", 50) == 99162322 % 50


@pytest.mark.parametrize("length", [255, 256, 257, 511, 512, 513, 5_000])
def test_long_names_are_hashed_like_short_ones(length: int) -> None:
    text = "".join(chr(33 + number * 7919 % 50_000) if number % 9 else "\U0001f600" for number in range(length))
    value = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(data[::2], data[1::2], strict=True):
        value = (31 * value + 256 * high + low) % 2**32
    assert java_hash(text) % 2**32 == value
