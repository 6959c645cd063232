"""Requests that no honest client sends: random bytes, and good requests with something wrong in them."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from typing import Any

from sexton.protocol.encoder import plain
from sexton.protocol.messages import encode_request, request_type
from tests.protocol.random_entities import random_entity

INTERESTING = (
    b"\x00",
    b"\xff",
    b"\x7f",
    b"\x80",
    b"\x00\x00\x00\x00",
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\x01",
)


def hostile_stream(rng: random.Random, apis: Sequence[tuple[int, int]], words: Sequence[Any] = ()) -> bytes:
    """What one connection sends: a few requests, most of them odd. `words` are names, ids and batches that the broker
    knows, so that requests get further than the first check."""
    parts = []
    for _ in range(rng.randint(1, 4)):
        frame = honest_frame(rng, *rng.choice(apis), words)
        parts.append(rng.choice((_same, _flipped, _cut, _stretched, _spliced, _random_body, _noise))(rng, frame))
    stream = b"".join(parts)
    return stream if rng.random() < 0.8 else stream[: rng.randint(0, len(stream))]


def honest_frame(rng: random.Random, api_key: int, version: int, words: Sequence[Any] = ()) -> bytes:
    """Well-formed; its values are anything the types allow."""
    body = _plausible(rng, plain(random_entity(rng, request_type(api_key, version))), words)
    return encode_request(api_key, version, rng.getrandbits(31), rng.choice((None, "", "fuzz")), body)


def _plausible(rng: random.Random, value: Any, words: Sequence[Any]) -> Any:
    """With many values exchanged for ones that mean something: small numbers, and known words of the same type."""
    if isinstance(value, dict):
        return {name: _plausible(rng, inner, words) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plausible(rng, inner, words) for inner in value]
    if rng.random() < 0.4:
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return rng.choice((-2, -1, 0)) if value < 0 else rng.choice((0, 0, 0, 1, 2, 5))  # some types have no sign
    known = [word for word in words if type(word) is type(value)]
    return rng.choice(known) if known else value


def _same(rng: random.Random, frame: bytes) -> bytes:
    return frame


def _flipped(rng: random.Random, frame: bytes) -> bytes:
    """Bytes changed behind the size."""
    changed = bytearray(frame)
    for _ in range(rng.randint(1, 8)):
        changed[rng.randrange(4, len(changed))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.getrandbits(8)))
    return bytes(changed)


def _cut(rng: random.Random, frame: bytes) -> bytes:
    """Shorter, with a size that says so."""
    return _framed(frame[4 : rng.randint(4, len(frame))])


def _stretched(rng: random.Random, frame: bytes) -> bytes:
    return _framed(frame[4:] + rng.randbytes(rng.randint(1, 50)))


def _spliced(rng: random.Random, frame: bytes) -> bytes:
    """Lengths and counts that claim far too much, or nothing."""
    position = rng.randrange(4, len(frame))
    length = rng.choice((0, 1, 4))
    return _framed(frame[4:position] + rng.choice(INTERESTING) + frame[position + length :])


def _random_body(rng: random.Random, frame: bytes) -> bytes:
    return _framed(frame[4:14] + rng.randbytes(rng.randint(0, 100)))


def _noise(rng: random.Random, frame: bytes) -> bytes:
    return rng.randbytes(rng.randint(1, 200))


def _framed(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content
