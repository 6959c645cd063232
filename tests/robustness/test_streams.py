"""A bounded fuzzer of a real broker. It runs last: it makes the broker complain so often that it falls silent."""

from __future__ import annotations

import os
import random

import pytest

from sexton.broker import api
from sexton.protocol.errors import ErrorCode
from tests.broker.network.fuzzing import hostile_stream
from tests.robustness.conftest import Watched
from tests.robustness.wire import batch

pytestmark = pytest.mark.cluster

STREAMS_COUNT = int(os.environ.get("SEXTON_ROBUSTNESS_STREAMS", "400"))
MEGABYTE = 1 << 20


def test_random_bytes_and_mangled_requests_end_their_connection_at_most(broker: Watched) -> None:
    """A fixed number of streams; SEXTON_ROBUSTNESS_STREAMS asks for more."""
    topic = broker.new_topic()
    with broker.wire() as wire:
        wire.produce(topic, batch(b"before"))
    before_bytes = broker.rss_bytes()
    apis = [(key, version) for key, module in api.modules().items() for version in _versions(module.VERSIONS)]
    for seed in range(STREAMS_COUNT):
        rng = random.Random(seed)
        words = [topic, "group", batch(b"x"), 0]
        with broker.wire() as wire:
            wire.send(rng.randbytes(rng.randint(1, 300)) if seed % 4 == 0 else hostile_stream(rng, apis, words))
    assert broker.serves()
    with broker.wire() as wire:
        assert wire.fetch(topic, 0).error_code == ErrorCode.none
    assert broker.rss_bytes() - before_bytes < 100 * MEGABYTE


def _versions(bounds: tuple[int, int]) -> range:
    return range(bounds[0], bounds[1] + 1)
