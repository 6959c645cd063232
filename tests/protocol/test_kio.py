"""Where kio is worked round (decision 27): the smallest case of each, by kio itself and by us.

If kio's half of a test fails, kio has changed: then our half may go.
"""

from __future__ import annotations

import struct
import subprocess
import sys
from typing import Any

import pytest
from kio.schema.describe_transactions.v0.response import DescribeTransactionsResponse
from kio.schema.list_offsets.v1.request import ListOffsetsRequest
from kio.schema.metadata.v9.request import MetadataRequest
from kio.serial import entity_reader
from kio.serial.errors import OutOfBoundValue

from sexton.protocol.messages import MalformedMessageError, decode_request, decode_response

LIST_OFFSETS, METADATA, DESCRIBE_TRANSACTIONS = 2, 3, 65


def by_kio(entity: Any, message: bytes) -> Any:
    return entity_reader(entity)(memoryview(message), 0)[0]


def test_a_count_that_cannot_be_ends_the_process() -> None:
    """Four bytes: a Metadata request of version 1 that claims two billion topics. The limit makes sure that the
    allocation fails, on whatever machine this is."""
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))\n"
        "from kio.schema.metadata.v1.request import MetadataRequest; from kio.serial import entity_reader\n"
        "try: entity_reader(MetadataRequest)(memoryview(bytes.fromhex('7fffffff')), 0)\n"
        "except BaseException: pass\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode < 0, "killed by a signal, past any except"
    assert "memory allocation of" in done.stderr
    with pytest.raises(MalformedMessageError, match="claims 2147483647 items"):
        decode_request(METADATA, 1, memoryview(bytes.fromhex("7fffffff")), 0)


def test_an_unknown_tag_is_an_error() -> None:
    """Tags are there to be ignored by whoever does not know them (KIP-482)."""
    message = bytes([1, 1, 0, 0, 1, 5, 2, 0, 0])  # no topics, three booleans, one tag: number 5, of two bytes
    with pytest.raises(KeyError, match="Unknown tagged field tag: 5"):
        by_kio(MetadataRequest, message)
    assert decode_request(METADATA, 9, memoryview(message), 0) == by_kio(MetadataRequest, bytes([1, 1, 0, 0, 0]))


def test_a_null_array_is_read_where_the_schema_has_none() -> None:
    message = struct.pack(">ii", -1, -1)
    assert by_kio(ListOffsetsRequest, message).topics is None
    with pytest.raises(MalformedMessageError, match="topics must not be null"):
        decode_request(LIST_OFFSETS, 1, memoryview(message), 0)


def test_a_transaction_that_has_not_started_cannot_be_read() -> None:
    """Kafka writes -1 for the start of a transaction that is Empty or Complete."""
    state = b"\0\0" + b"\x02x" + b"\x06Empty" + struct.pack(">iqqh", 1_000, -1, 5, 0) + b"\x01" + b"\0"
    message = struct.pack(">i", 0) + b"\x02" + state + b"\0"
    with pytest.raises(OutOfBoundValue, match="Cannot parse negative timestamp"):
        by_kio(DescribeTransactionsResponse, message)
    header = struct.pack(">i", 7) + b"\0"
    _, body = decode_response(DESCRIBE_TRANSACTIONS, 0, memoryview(header + message))
    assert body.transaction_states[0].transaction_start_time is None


def test_a_view_of_a_buffer_that_can_be_written_is_refused() -> None:
    message = bytearray([1, 1, 0, 0, 0])
    with pytest.raises(ValueError, match="read-only"):
        entity_reader(MetadataRequest)(memoryview(message), 0)
    assert decode_request(METADATA, 9, memoryview(message), 0) == by_kio(MetadataRequest, bytes(message))
