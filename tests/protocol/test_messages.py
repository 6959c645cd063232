"""Our encoder against kio's, for every message that kio knows; headers; bytes that are not what they claim to be."""

from __future__ import annotations

import contextlib
import io
import random
import struct
import uuid
from typing import Any

import pytest
from kio.serial import entity_writer

from sexton.protocol import skimmer as skimmer_module
from sexton.protocol.encoder import encoder, plain
from sexton.protocol.errors import ErrorCode
from sexton.protocol.messages import (
    MalformedMessageError,
    decode_request,
    decode_request_header,
    decode_response,
    encode_private_request,
    encode_request,
    encode_response,
    known_versions,
    request_type,
    response_type,
)
from sexton.protocol.private import FIRST_PRIVATE_API_KEY
from sexton.protocol.unknown_tags import without_unknown_tags
from tests.protocol.random_entities import every_api_and_version, random_entity

PRODUCE, FETCH, API_VERSIONS, METADATA, CREATE_TOPICS, HEARTBEAT = 0, 1, 18, 3, 19, 12


def by_kio(entity: Any) -> bytes:
    out = io.BytesIO()
    entity_writer(type(entity))(out, entity)
    return out.getvalue()


def by_us(entity: Any) -> bytes:
    out = bytearray()
    kind: Any = type(entity)
    encoder(kind)(out, plain(entity))
    return bytes(out)


def test_every_message_is_encoded_as_kio_encodes_it_and_read_back() -> None:
    rng = random.Random(4)
    for api_key, version in every_api_and_version():
        for _ in range(3):
            request = random_entity(rng, request_type(api_key, version))
            assert by_us(request) == by_kio(request)
            frame = memoryview(encode_request(api_key, version, 7, "client", plain(request)))[4:]
            header = decode_request_header(frame)
            assert header[:4] == (api_key, version, 7, "client")
            assert decode_request(api_key, version, frame, header.position) == request
            answer = random_entity(rng, response_type(api_key, version))
            assert by_us(answer) == by_kio(answer)
            frame = memoryview(encode_response(api_key, version, 8, plain(answer)))[4:]
            assert decode_response(api_key, version, frame) == (8, answer)


def test_every_message_can_be_encoded_from_nothing_but_defaults() -> None:
    for api_key, version in every_api_and_version():
        decode_response(api_key, version, memoryview(encode_response(api_key, version, 1, {}))[4:])
        frame = memoryview(encode_request(api_key, version, 1, None, {}))[4:]
        decode_request(api_key, version, frame, decode_request_header(frame).position)


def test_size_in_front_counts_what_follows() -> None:
    frame = encode_response(METADATA, 9, 1, {})
    assert struct.unpack_from(">i", frame) == (len(frame) - 4,)


def test_fields_of_other_versions_are_left_out_and_missing_ones_get_defaults() -> None:
    answer = {"topics": [{"name": "t", "error_code": ErrorCode.topic_already_exists, "topic_config_error_code": 3}]}
    for version in range(2, 8):
        _, body = decode_response(
            CREATE_TOPICS, version, memoryview(encode_response(CREATE_TOPICS, version, 1, answer))[4:]
        )
        (topic,) = body.topics
        assert topic.error_code is ErrorCode.topic_already_exists
        if version >= 5:
            assert topic.num_partitions == -1


def test_answer_to_api_versions_never_has_a_tagged_header() -> None:
    for version in range(5):
        frame = encode_response(API_VERSIONS, version, 0x01020304, {"error_code": ErrorCode.unsupported_version})
        assert frame[4:10] == b"\x01\x02\x03\x04\x00\x23"


def test_unknown_version_still_gives_key_and_correlation_id() -> None:
    header = decode_request_header(memoryview(struct.pack(">hhih", API_VERSIONS, 99, 5, -1) + b"anything"))
    assert header == (API_VERSIONS, 99, 5, None, -1)


def test_unknown_tags_in_the_header_are_skipped() -> None:
    start = struct.pack(">hhih", METADATA, 9, 5, 1) + b"c"
    assert (
        decode_request_header(memoryview(start + b"\x02\x00\x01x\x81\x01\x02yz" + b"body")).position == len(start) + 9
    )


def test_tagged_fields_that_the_schema_does_not_have_are_skipped() -> None:
    """A later client may add one to a version that we know (KIP-482)."""
    values = {"group_id": "group", "generation_id": 1, "member_id": "member", "group_instance_id": "i"}
    frame = encode_request(HEARTBEAT, 4, 1, "client", values)[4:]
    position = decode_request_header(memoryview(frame)).position
    known = decode_request(HEARTBEAT, 4, memoryview(frame), position)
    assert decode_request(HEARTBEAT, 4, memoryview(frame[:-1] + b"\x02\x63\x02xy\x81\x01\x01z"), position) == known
    with pytest.raises(MalformedMessageError):
        decode_request(HEARTBEAT, 4, memoryview(frame[:-1] + b"\x01\x63\x04xy"), position)


def test_known_tagged_fields_beside_unknown_ones_are_read_also_inside_arrays() -> None:
    body = {"topics": [{"topic_id": uuid.UUID(int=5), "partitions": [{"partition": 7}]}], "cluster_id": "c"}
    frame = encode_request(FETCH, 15, 1, None, body)[4:]
    position = decode_request_header(memoryview(frame)).position
    inside = frame.index(struct.pack(">i", 7)) + 4 + 4 + 8 + 4 + 8 + 4  # the tags of the one partition
    assert frame[inside] == 0
    more = frame[:inside] + b"\x01\x63\x01x" + frame[inside + 1 :]
    end = more.rindex(b"\x01\x00\x02\x02c")
    more = more[:end] + b"\x02\x00\x02\x02c\x63\x01y"
    read = decode_request(FETCH, 15, memoryview(more), position)
    assert read == decode_request(FETCH, 15, memoryview(frame), position)
    assert read.cluster_id == "c"


def test_without_unknown_tags_every_message_is_what_it_was() -> None:
    rng = random.Random(5)
    for api_key, version in every_api_and_version():
        for kind in (request_type(api_key, version), response_type(api_key, version)):
            message = by_us(random_entity(rng, kind))
            assert without_unknown_tags(kind, memoryview(message), 0) == message


def test_private_request_has_the_short_header() -> None:
    frame = memoryview(encode_private_request(FIRST_PRIVATE_API_KEY + 1, 2, 3, "b1", b"payload"))[4:]
    header = decode_request_header(frame)
    assert header[:4] == (FIRST_PRIVATE_API_KEY + 1, 2, 3, "b1")
    assert bytes(frame[header.position :]) == b"payload"


def test_truncated_request_is_refused_at_every_byte() -> None:
    values = {"group_id": "group", "generation_id": 1, "member_id": "member", "group_instance_id": "i"}
    frame = memoryview(encode_request(HEARTBEAT, 4, 1, "client", values))[4:]
    for size in range(len(frame) - 1):
        with pytest.raises(MalformedMessageError):
            decode_request(HEARTBEAT, 4, frame[:size], decode_request_header(frame[:size]).position)


def test_null_where_the_schema_allows_none_is_refused() -> None:
    frame = memoryview(encode_request(CREATE_TOPICS, 7, 1, None, {}))[4:]
    position = decode_request_header(frame).position
    broken = bytearray(frame)
    broken[position] = 0
    with pytest.raises(MalformedMessageError, match="topics must not be null"):
        decode_request(CREATE_TOPICS, 7, memoryview(broken), position)


@pytest.mark.parametrize("claim", [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\x7f"])
def test_no_claim_about_a_size_is_believed_before_it_is_checked(claim: bytes) -> None:
    """kio's parser would ask for the memory at once, and the process would be gone."""
    rng = random.Random(5)
    for api_key, version in every_api_and_version():
        request = random_entity(rng, request_type(api_key, version))
        empty: dict[str, Any] = {}
        for values in (empty, plain(request)):
            frame = encode_request(api_key, version, 1, None, values)[4:]
            start = decode_request_header(memoryview(frame)).position
            for position in range(start, min(len(frame), start + 60)):
                for behind in (position, position + 1, position + len(claim)):
                    broken = memoryview(frame[:position] + claim + frame[behind:])
                    with contextlib.suppress(MalformedMessageError):
                        decode_request(api_key, version, broken, start)


def test_array_that_claims_more_items_than_fit_is_refused_by_name() -> None:
    frame = bytearray(encode_request(PRODUCE, 3, 1, None, {"topic_data": [{"name": "t"}]})[4:])
    position = decode_request_header(memoryview(frame)).position + 2 + 2 + 4
    frame[position : position + 4] = struct.pack(">i", 3)
    with pytest.raises(MalformedMessageError, match="topic_data claims 3 items, for which there is no room"):
        decode_request(PRODUCE, 3, memoryview(frame), decode_request_header(memoryview(frame)).position)


def test_walk_over_a_message_ends_at_its_end() -> None:
    rng = random.Random(6)
    for api_key, version in every_api_and_version():
        for kind in (request_type(api_key, version), response_type(api_key, version)):
            content = memoryview(by_us(random_entity(rng, kind)))
            assert skimmer_module.entity_walk(kind)(content, 0) == len(content)


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"\x00" * 9,
        struct.pack(">hhih", METADATA, 9, 5, 100),
        struct.pack(">hhih", METADATA, 9, 5, 2) + b"\xff\xfe\x00",
        struct.pack(">hhih", METADATA, 9, 5, -1),
        struct.pack(">hhih", METADATA, 9, 5, -1) + b"\xff" * 9,
        struct.pack(">hhih", METADATA, 9, 5, -1) + b"\x01\x00\x7f",
    ],
)
def test_header_that_cannot_be_read_is_malformed(garbage: bytes) -> None:
    with pytest.raises(MalformedMessageError):
        decode_request_header(memoryview(garbage))


def test_versions_are_those_of_kio() -> None:
    assert known_versions(0) == (3, 13)
    assert known_versions(1) == (4, 18)
    assert known_versions(4) is None
