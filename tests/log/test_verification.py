"""A batch that would open a transaction must show a verification that no marker has made void (KIP-890)."""

from __future__ import annotations

from pathlib import Path

import pytest

from sexton.log.producers import Marker, ProducerStates
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.records.batch import ControlType
from sexton.types import ProducerEpoch, ProducerId
from tests.log.helpers import marker, open_log
from tests.producers import head_of, producer_at

P = ProducerId(1000)
COMMIT = Marker(is_abort=False, coordinator_epoch=3)


def states() -> ProducerStates:
    return ProducerStates("t-0", 86_400_000)


def write(producers: ProducerStates, epoch: int, offset: int) -> None:
    head = head_of(producer_at(P, epoch), 0, offset, is_transactional=True)
    producers.note_data(head, offset, offset, timestamp_ms=1)


def is_refused(producers: ProducerStates, epoch: int, verification: object) -> bool:
    try:
        producers.check_verified(P, epoch, verification)  # type: ignore[arg-type]
    except KafkaError as error:
        return error.code is ErrorCode.invalid_txn_state
    return False


def test_a_batch_with_a_verification_opens_the_transaction() -> None:
    producers = states()
    verification = producers.begin_verification(P, ProducerEpoch(0))
    assert not is_refused(producers, 0, verification)
    write(producers, 0, 0)
    assert producers.is_open(P, ProducerEpoch(0))
    assert not producers.is_open(P, ProducerEpoch(1))


def test_a_marker_that_comes_meanwhile_makes_it_void() -> None:
    """Otherwise the late batch would open a transaction that nobody ever ends."""
    producers = states()
    verification = producers.begin_verification(P, ProducerEpoch(0))
    producers.note_marker(P, ProducerEpoch(0), 5, 1, COMMIT)
    producers.void_verifications(P, last_epoch=ProducerEpoch(0))
    assert is_refused(producers, 0, verification)
    assert producers.begin_verification(P, ProducerEpoch(0)) is not verification


async def test_a_marker_that_another_leader_wrote_makes_it_void_too(tmp_path: Path) -> None:
    """The replica led when it asked, followed for a moment, and leads again when the answer comes."""
    log = await open_log(tmp_path)
    verification = log.producers.begin_verification(P, ProducerEpoch(0))
    log.append_as_follower(marker(ControlType.ABORT, pid=P))
    assert is_refused(log.producers, 0, verification)


def test_the_marker_of_the_transaction_before_does_not_void_that_of_the_next() -> None:
    """With transaction version 2 it carries the next one's epoch, whose first batch may be waiting already."""
    producers = states()
    write(producers, 0, 0)
    verification = producers.begin_verification(P, ProducerEpoch(1))
    producers.note_marker(P, ProducerEpoch(1), 1, 1, COMMIT)
    producers.void_verifications(P, last_epoch=ProducerEpoch(0))
    assert not is_refused(producers, 1, verification)
    producers.void_verifications(P, last_epoch=ProducerEpoch(1))
    assert is_refused(producers, 1, verification)


def test_all_who_ask_at_once_hold_the_same() -> None:
    producers = states()
    assert producers.begin_verification(P, ProducerEpoch(0)) is producers.begin_verification(P, ProducerEpoch(0))
    assert producers.begin_verification(P, ProducerEpoch(1)) is not producers.begin_verification(
        ProducerId(P + 1), ProducerEpoch(1)
    )


@pytest.mark.parametrize("other", [0, 2], ids=["a zombie", "a later instance, or one who says so"])
def test_a_batch_of_another_epoch_voids_nothing(other: int) -> None:
    """The coordinator knows which of them is a zombie."""
    producers = states()
    verification = producers.begin_verification(P, ProducerEpoch(1))
    producers.end_verification(P, producers.begin_verification(P, ProducerEpoch(other)))
    producers.begin_verification(P, ProducerEpoch(other))
    assert not is_refused(producers, 1, verification)


def test_what_a_newer_epoch_has_written_makes_the_older_ones_void() -> None:
    producers = states()
    old = producers.begin_verification(P, ProducerEpoch(0))
    producers.begin_verification(P, ProducerEpoch(1))
    write(producers, 1, 0)
    assert is_refused(producers, 0, old)


def test_those_behind_the_first_need_none_once_it_is_open() -> None:
    producers = states()
    verification = producers.begin_verification(P, ProducerEpoch(0))
    write(producers, 0, 0)
    assert not is_refused(producers, 0, verification)
    assert not is_refused(producers, 0, object())


def test_what_the_coordinator_denied_is_void() -> None:
    producers = states()
    verification = producers.begin_verification(P, ProducerEpoch(0))
    producers.end_verification(P, verification)
    assert is_refused(producers, 0, verification)


def test_a_marker_that_raises_the_epoch_is_written_once() -> None:
    producers = states()
    write(producers, 0, 0)
    assert not producers.is_marked(P, ProducerEpoch(1))
    producers.note_marker(P, ProducerEpoch(1), 1, 1, COMMIT)
    assert producers.is_marked(P, ProducerEpoch(1))


def test_a_marker_so_late_that_the_next_transaction_has_begun_does_not_end_it() -> None:
    producers = states()
    write(producers, 0, 0)
    producers.note_marker(P, ProducerEpoch(1), 1, 1, COMMIT)
    write(producers, 1, 2)
    with pytest.raises(KafkaError) as caught:
        producers.is_marked(P, ProducerEpoch(1))
    assert caught.value.code is ErrorCode.invalid_producer_epoch


def test_a_partition_that_has_not_heard_of_the_producer_takes_the_marker() -> None:
    assert not states().is_marked(P, ProducerEpoch(1))
