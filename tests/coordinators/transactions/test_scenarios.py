"""What happens to one transactional id, story by story, under an explicit clock."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sexton.coordinators.transactions.coordinator import TOLD_LATE_MAX, LateEnd
from sexton.coordinators.transactions.messages import ListRequest
from sexton.coordinators.transactions.states import State
from sexton.coordinators.transactions.transaction import EPOCH_MAX, LAST_EPOCH_FOR_CLIENTS
from sexton.protocol.errors import ErrorCode
from sexton.settings.broker import TransactionSettings
from sexton.types import ProducerEpoch
from tests.coordinators.transactions.harness import ID, NEW, OLD, P0, P1, P2, START_MS, TIMEOUT_MS, Harness, refused
from tests.producers import producer_at

FIRST = producer_at(1000, 0)


def test_a_new_id_gets_a_producer_at_epoch_0() -> None:
    h = Harness()
    assert h.init() == FIRST
    assert h.state() is State.EMPTY


def test_each_new_instance_gets_the_next_epoch() -> None:
    h = Harness()
    h.init()
    assert h.init() == (1000, 1)
    assert h.init() == (1000, 2)


@pytest.mark.parametrize(("is_commit", "prepared", "complete"), [
    (True, State.PREPARE_COMMIT, State.COMPLETE_COMMIT),
    (False, State.PREPARE_ABORT, State.COMPLETE_ABORT),
])  # fmt: skip
def test_an_old_clients_transaction_keeps_its_epoch(is_commit: bool, prepared: State, complete: State) -> None:
    h = Harness()
    producer = h.init()
    h.add(producer, P0, P1)
    assert h.state() is State.ONGOING
    assert h.end(producer, is_commit) == producer
    assert h.state() is prepared
    markers = h.deliver()
    assert [(m.producer, m.is_commit, place) for m, place in markers] == [
        (producer, is_commit, P0),
        (producer, is_commit, P1),
    ]
    assert h.state() is complete
    h.add(producer, P2)
    assert h.transaction.partitions == {P2}


def test_a_new_clients_transaction_raises_the_epoch_at_its_end_and_its_markers_carry_the_new_one() -> None:
    h = Harness()
    h.add(h.init(), P0, client_version=NEW)
    assert h.commit(FIRST, NEW) == (1000, 1)
    [(markers, _)] = h.deliver()
    assert markers.producer == (1000, 1)
    with refused(ErrorCode.producer_fenced):
        h.add(FIRST, P0, client_version=NEW)
    h.add(producer_at(1000, 1), P0, client_version=NEW)


def test_no_marker_is_owed_before_the_decision_is_recorded() -> None:
    h = Harness()
    h.add(h.init(), P0)
    assert not h.world.outstanding
    h.commit(FIRST)
    assert h.world.records[-1][1] == h.transaction
    assert h.transaction.state is State.PREPARE_COMMIT


def test_an_end_that_is_repeated_by_an_old_client_is_answered_as_before() -> None:
    h = Harness()
    h.add(h.init(), P0)
    h.commit(FIRST)
    with refused(ErrorCode.concurrent_transactions):
        h.commit(FIRST)
    h.deliver()
    written = len(h.world.records)
    assert h.commit(FIRST) == FIRST
    assert len(h.world.records) == written
    with refused(ErrorCode.unknown_producer_id):
        h.abort(FIRST)


def test_an_end_that_may_be_late_ends_nothing_and_is_told_what_is_done() -> None:
    h = Harness()
    h.add(h.init(), P0)
    with pytest.raises(LateEnd):
        h.end(FIRST, True, may_be_late=True)
    assert h.state() is State.ONGOING
    h.commit(FIRST)
    with refused(ErrorCode.concurrent_transactions):
        h.end(FIRST, True, may_be_late=True)
    h.deliver()
    assert h.end(FIRST, True, may_be_late=True) == FIRST
    h.add(FIRST, P1)
    with pytest.raises(LateEnd):
        h.end(FIRST, True, may_be_late=True)
    assert h.state() is State.ONGOING


def test_an_end_that_is_repeated_by_a_new_client_is_answered_as_before_and_cannot_end_the_next_transaction() -> None:
    h = Harness()
    h.add(h.init(), P0, client_version=NEW)
    after = h.commit(FIRST, NEW)
    with refused(ErrorCode.concurrent_transactions):
        h.commit(FIRST, NEW)
    h.deliver()
    assert h.commit(FIRST, NEW) == after
    h.add(after, P1, client_version=NEW)
    with refused(ErrorCode.producer_fenced):
        h.commit(FIRST, NEW)
    assert h.state() is State.ONGOING


def test_a_new_client_may_abort_what_the_coordinator_has_not_heard_of() -> None:
    """Its Produce may be lost or late; the epoch is raised, so that it stays out."""
    h = Harness()
    assert h.abort(h.init(), NEW) == (1000, 1)
    assert h.state() is State.COMPLETE_ABORT
    assert h.abort(producer_at(1000, 1), NEW) == (1000, 2)
    h.add(producer_at(1000, 2), P0, client_version=NEW)
    h.commit(producer_at(1000, 2), NEW)
    h.deliver()
    assert h.abort(producer_at(1000, 3), NEW) == (1000, 4)


def test_an_old_client_may_abort_what_the_coordinator_has_not_heard_of() -> None:
    """librdkafka's AddPartitionsToTxn may be lost. After a commit it takes a new epoch, and goes on."""
    h = Harness()
    first = h.init()
    assert h.abort(first) == first
    h.add(first, P0)
    h.commit(first)
    with refused(ErrorCode.concurrent_transactions):
        h.abort(first)
    h.deliver()
    with refused(ErrorCode.unknown_producer_id):
        h.abort(first)
    assert h.state() is State.COMPLETE_COMMIT
    second = h.init(expected=first)
    assert second == (first.producer_id, first.epoch + 1)
    h.add(second, P0)
    h.commit(second)


@pytest.mark.parametrize(
    ("client_version", "refusal"), [(OLD, ErrorCode.invalid_txn_state), (NEW, ErrorCode.concurrent_transactions)]
)
def test_nothing_cannot_be_committed(client_version: int, refusal: ErrorCode) -> None:
    h = Harness()
    with refused(refusal):
        h.commit(h.init(), client_version)


def test_what_an_old_client_has_committed_a_new_one_may_not_commit_again_for_ever() -> None:
    """Flink's committer and its writer are two clients with one producer: the first has not heard of version 2 yet.
    Told to come again, as a commit that is ahead of its records is, the writer came for as long as the job lived."""
    h = Harness()
    h.add(h.init(), P0, client_version=NEW)
    h.commit(FIRST, OLD)
    with refused(ErrorCode.concurrent_transactions):
        h.commit(FIRST, NEW)
    h.deliver()
    with refused(ErrorCode.invalid_txn_state):
        h.commit(FIRST, NEW)
    h.fail_over()
    with refused(ErrorCode.invalid_txn_state):
        h.commit(FIRST, NEW)
    second = h.init()
    with refused(ErrorCode.concurrent_transactions):
        h.commit(second, NEW)
    h.add(second, P0, client_version=NEW)
    h.commit(second, NEW)


def test_a_new_instance_aborts_what_the_old_one_had_begun_and_the_old_one_is_a_zombie() -> None:
    h = Harness()
    old = h.init()
    h.add(old, P0)
    assert h.init() == (-1, -1), "not yet: the abort comes first"
    assert h.state() is State.PREPARE_ABORT
    with refused(ErrorCode.concurrent_transactions):
        h.init()
    [(markers, _)] = h.deliver()
    assert (markers.producer, markers.is_commit) == ((1000, 1), False)
    assert h.init() == (1000, 2)
    for client_version in (OLD, NEW):
        with refused(ErrorCode.producer_fenced):
            h.commit(old, client_version)
        with refused(ErrorCode.producer_fenced):
            h.add(old, P0, client_version=client_version)
    with refused(ErrorCode.producer_fenced):
        h.init(old)


def test_a_zombie_that_starts_over_does_not_disturb_the_transaction_of_the_rightful_owner() -> None:
    h = Harness()
    zombie = h.init()
    owner = h.init()
    h.add(owner, P0)
    with refused(ErrorCode.producer_fenced):
        h.init(zombie)
    assert h.state() is State.ONGOING


def test_a_producer_that_starts_over_gets_the_next_epoch_and_is_told_again_if_it_did_not_hear() -> None:
    h = Harness()
    producer = h.init()
    assert h.init(producer) == (1000, 1)
    assert h.init(producer) == (1000, 1), "a retry: it has not heard the answer"
    assert h.init(producer_at(1000, 1)) == (1000, 2)
    with refused(ErrorCode.producer_fenced):
        h.init(producer)


def test_a_producer_that_starts_over_with_its_own_transaction_open_is_no_zombie() -> None:
    h = Harness()
    producer = h.init()
    h.add(producer, P0)
    assert h.init(producer) == (-1, -1)
    h.deliver()
    assert h.init(producer) == (1000, 1)
    h.add(producer_at(1000, 1), P0)


def test_whoever_lost_the_answer_is_known_after_a_failover_too() -> None:
    h = Harness()
    producer = h.init()
    h.init(producer)
    h.fail_over()
    assert h.init(producer) == (1000, 1)


# Time


def test_a_transaction_that_takes_too_long_is_aborted_and_the_epoch_raised() -> None:
    h = Harness()
    h.add(h.init(), P0, P1)
    h.advance(TIMEOUT_MS - 1)
    assert h.state() is State.ONGOING
    h.advance(1)
    assert h.state() is State.PREPARE_ABORT
    assert {(m.producer, m.is_commit) for m, _ in h.deliver()} == {((1000, 1), False)}
    assert h.state() is State.COMPLETE_ABORT


def test_adding_partitions_does_not_prolong_a_transaction() -> None:
    h = Harness()
    h.add(h.init(), P0)
    h.advance(TIMEOUT_MS // 2)
    h.add(FIRST, P1)
    h.advance(TIMEOUT_MS // 2)
    assert h.state() is State.PREPARE_ABORT


def test_the_next_transaction_has_all_of_its_time() -> None:
    h = Harness()
    h.add(h.init(), P0)
    h.advance(TIMEOUT_MS - 1)
    h.commit(FIRST)
    h.deliver()
    h.add(FIRST, P0)
    h.advance(TIMEOUT_MS - 1)
    assert h.state() is State.ONGOING


def test_an_old_client_whose_transaction_timed_out_aborts_and_starts_over() -> None:
    """Java up to 3.9 and librdkafka abort upon UNKNOWN_PRODUCER_ID, and then ask for a new epoch with the old one."""
    h = Harness()
    producer = h.init()
    h.add(producer, P0)
    h.advance(TIMEOUT_MS)
    with refused(ErrorCode.unknown_producer_id):
        h.commit(producer)
    with refused(ErrorCode.concurrent_transactions):
        h.abort(producer)
    h.deliver()
    with refused(ErrorCode.unknown_producer_id):
        h.add(producer, P0)
    h.abort(producer)
    assert h.init(producer) == (1000, 1)
    h.add(producer_at(1000, 1), P0)


def test_an_old_client_that_goes_on_after_the_abort_of_what_timed_out_is_fenced() -> None:
    """kafka-python (3.0) aborts and then begins the next transaction in the old epoch. UNKNOWN_PRODUCER_ID again and
    again would tell it to try for ever."""
    h = Harness()
    producer = h.init()
    h.add(producer, P0)
    h.advance(TIMEOUT_MS)
    h.deliver()
    with refused(ErrorCode.unknown_producer_id):
        h.add(producer, P0)
    h.abort(producer)
    h.fail_over()
    with refused(ErrorCode.producer_fenced):
        h.add(producer, P0)
    with refused(ErrorCode.producer_fenced):
        h.commit(producer)
    h.abort(producer)  # the answer to the first may have been lost
    assert h.init(producer) == (1000, 1)
    with refused(ErrorCode.producer_fenced):
        h.abort(producer)


def test_an_old_client_that_goes_on_without_an_abort_is_fenced_after_it_was_told_a_few_times() -> None:
    """kafka-python (3.0), which had no answer to its first AddPartitionsToTxn: it sends no EndTxn for that."""
    h = Harness()
    producer = h.init()
    h.add(producer, P0)
    h.advance(TIMEOUT_MS)
    h.deliver()
    for _ in range(TOLD_LATE_MAX):
        with refused(ErrorCode.unknown_producer_id):
            h.add(producer, P1)
    for _ in range(2):
        with refused(ErrorCode.producer_fenced):
            h.add(producer, P1)
    assert h.init(producer) == (1000, 1), "it may still start over"
    h.add(producer_at(1000, 1), P0)
    h.advance(TIMEOUT_MS)
    h.deliver()
    with refused(ErrorCode.unknown_producer_id):
        h.add(producer_at(1000, 1), P0)


def test_a_new_client_whose_transaction_timed_out_aborts_and_is_told_its_epoch() -> None:
    h = Harness()
    producer = h.init()
    h.add(producer, P0, client_version=NEW)
    h.advance(TIMEOUT_MS)
    h.deliver()
    with refused(ErrorCode.transaction_abortable):
        h.commit(producer, NEW)
    with refused(ErrorCode.transaction_abortable):
        h.add(producer, P0, client_version=NEW)
    after = h.abort(producer, NEW)
    assert after == (1000, 1)
    h.add(after, P0, client_version=NEW)
    h.commit(after, NEW)


def test_a_timeout_is_remembered_over_a_failover() -> None:
    h = Harness()
    producer = h.init()
    h.add(producer, P0)
    h.advance(TIMEOUT_MS)
    h.fail_over()
    h.deliver()
    with refused(ErrorCode.unknown_producer_id):
        h.commit(producer)
    assert h.init(producer) == (1000, 1)


def test_a_timed_out_producer_is_a_zombie_once_another_instance_has_come() -> None:
    h = Harness()
    producer = h.init()
    h.add(producer, P0)
    h.advance(TIMEOUT_MS)
    h.deliver()
    assert h.init() == (1000, 2)
    with refused(ErrorCode.producer_fenced):
        h.commit(producer)
    with refused(ErrorCode.producer_fenced):
        h.init(producer)


def test_a_new_coordinator_gives_a_transaction_the_time_that_it_has_left() -> None:
    h = Harness()
    h.add(h.init(), P0)
    h.advance(TIMEOUT_MS - 10)
    h.fail_over()
    h.advance(9)
    assert h.state() is State.ONGOING
    h.advance(1)
    assert h.state() is State.PREPARE_ABORT


@pytest.mark.parametrize("jump_ms", [-10 * TIMEOUT_MS, 10 * TIMEOUT_MS])
def test_a_wall_clock_that_differs_shortens_no_transaction_below_nothing_and_prolongs_none_beyond_its_timeout(
    jump_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    h = Harness()
    h.add(h.init(), P0)
    monkeypatch.setattr("tests.coordinators.transactions.harness.START_MS", START_MS + jump_ms)
    h.fail_over()
    h.advance(TIMEOUT_MS)
    assert h.state() is State.PREPARE_ABORT


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_timeout_must_be_positive_and_at_most_the_maximum(timeout_ms: int) -> None:
    h = Harness()
    with refused(ErrorCode.invalid_transaction_timeout):
        h.init(timeout_ms=timeout_ms)
    h.init(timeout_ms=900_000)


def test_an_id_that_nobody_uses_is_forgotten_and_begins_anew() -> None:
    h = Harness(
        TransactionSettings(
            transactional_id_expiration_ms=1_000_000, transaction_remove_expired_transaction_cleanup_interval_ms=1_000
        )
    )
    h.init()
    h.add(h.init(transactional_id="busy"), P0, transactional_id="busy")
    h.advance(999_000)
    assert h.coordinator.get(ID) is not None
    h.advance(2_000)
    assert h.coordinator.get(ID) is None
    assert (ID, None) in h.world.records
    with refused(ErrorCode.invalid_producer_id_mapping):
        h.add(FIRST, P0)
    assert h.init() == (1002, 0), "a new producer id: what is left of the old one can do no harm"


def test_an_open_transaction_is_not_forgotten() -> None:
    h = Harness(
        TransactionSettings(
            transactional_id_expiration_ms=10, transaction_remove_expired_transaction_cleanup_interval_ms=1
        )
    )
    h.add(h.init(timeout_ms=10_000), P0)
    h.advance(5_000)
    assert h.state() is State.ONGOING


# Epochs run out


def exhausted() -> Harness:
    """One more epoch, and there are none left."""
    h = Harness()
    h.init()
    h.world.records.append((ID, replace(h.transaction, epoch=ProducerEpoch(LAST_EPOCH_FOR_CLIENTS - 1))))
    h.fail_over()
    return h


def test_a_producer_without_epochs_left_gets_a_new_id_by_init() -> None:
    h = exhausted()
    assert h.init() == (1000, LAST_EPOCH_FOR_CLIENTS)
    assert h.init() == (1001, 0)


def test_a_retry_by_the_former_name_is_known() -> None:
    h = exhausted()
    last = h.init()
    assert h.init(last) == (1001, 0)
    assert h.init(last) == (1001, 0)
    h.fail_over()
    assert h.init(last) == (1001, 0)


def test_a_new_client_without_epochs_left_gets_a_new_id_by_its_end() -> None:
    h = exhausted()
    last = h.init()
    h.add(last, P0, client_version=NEW)
    assert h.commit(last, NEW) == (1001, 0)
    [(markers, _)] = h.deliver()
    assert markers.producer == (1000, EPOCH_MAX)
    assert h.commit(last, NEW) == (1001, 0), "a retry by the former name"
    h.add(producer_at(1001, 0), P0, client_version=NEW)
    with refused(ErrorCode.invalid_producer_id_mapping):
        h.commit(last, NEW)


def test_a_new_id_may_be_used_as_soon_as_it_was_told() -> None:
    """Its producer goes on while the markers of its last transaction are being written: it is asked to wait."""
    h = exhausted()
    last = h.init()
    h.add(last, P0, client_version=NEW)
    fresh = h.commit(last, NEW)
    for _ in range(2):
        for attempt in (
            lambda: h.add(fresh, P1, client_version=NEW),
            lambda: h.verify(fresh, P1, client_version=NEW),
            lambda: h.commit(fresh, NEW),
            lambda: h.abort(fresh, NEW),
            lambda: h.init(fresh),
        ):
            with refused(ErrorCode.concurrent_transactions):
                attempt()
        h.fail_over()
    with refused(ErrorCode.invalid_producer_id_mapping):
        h.add(producer_at(1002, 0), P1, client_version=NEW)
    h.deliver()
    h.add(fresh, P1, client_version=NEW)
    assert h.commit(fresh, NEW) == (1001, 1)


def test_the_move_to_a_new_id_survives_a_failover_in_its_middle() -> None:
    h = exhausted()
    last = h.init()
    h.add(last, P0, client_version=NEW)
    h.commit(last, NEW)
    h.fail_over()
    h.deliver()
    assert h.commit(last, NEW) == (1001, 0)


@pytest.mark.parametrize("client_version", [OLD, NEW])
def test_a_timeout_in_the_last_epoch_leaves_a_way_back(client_version: int) -> None:
    h = exhausted()
    last = h.init()
    h.add(last, P0, client_version=client_version)
    h.advance(TIMEOUT_MS)
    [(markers, _)] = h.deliver()
    assert markers.producer == (1000, EPOCH_MAX)
    if client_version == NEW:
        assert h.abort(last, NEW) == (1001, 0)
        assert h.abort(last, NEW) == (1001, 0), "a retry by the former name"
    else:
        h.abort(last)
        assert h.init(last) == (1001, 0)
    h.add(producer_at(1001, 0), P0, client_version=client_version)


# Bad input


def test_who_is_not_known_is_told_so() -> None:
    h = Harness()
    with refused(ErrorCode.invalid_producer_id_mapping):
        h.add(FIRST, P0)
    with refused(ErrorCode.invalid_producer_id_mapping):
        h.commit(FIRST)
    with refused(ErrorCode.invalid_producer_id_mapping):
        h.verify(FIRST, P0)
    h.init()
    for client_version in (OLD, NEW):
        with refused(ErrorCode.invalid_producer_id_mapping):
            h.commit(producer_at(-1, 0), client_version)
        with refused(ErrorCode.producer_fenced):
            h.commit(producer_at(1000, -1), client_version)
        with refused(ErrorCode.producer_fenced):
            h.commit(producer_at(1000, 7), client_version)


def test_an_empty_id_is_refused() -> None:
    h = Harness()
    with refused(ErrorCode.invalid_request):
        h.init(transactional_id="")
    with refused(ErrorCode.invalid_request):
        h.add(FIRST, P0, transactional_id="")
    with refused(ErrorCode.invalid_request):
        h.end(FIRST, True, transactional_id="")


def test_a_transaction_may_have_a_thousand_partitions() -> None:
    h = Harness()
    producer = h.init()
    places = [(f"topic-{number % 10}", number // 10) for number in range(1_000)]
    h.add(producer, *places)
    h.fail_over()
    h.commit(producer)
    assert len(h.deliver(999)) == 999
    assert h.state() is State.PREPARE_COMMIT
    h.deliver()
    assert h.state() is State.COMPLETE_COMMIT


def test_a_partition_that_is_in_already_is_not_recorded_again() -> None:
    h = Harness()
    h.add(h.init(), P0)
    written = len(h.world.records)
    h.add(FIRST, P0)
    h.add(FIRST)
    assert len(h.world.records) == written


def test_adding_nothing_begins_nothing() -> None:
    h = Harness()
    h.add(h.init())
    assert h.state() is State.EMPTY


# Verification


def test_only_partitions_of_the_open_transaction_are_verified() -> None:
    h = Harness()
    producer = h.init()
    assert h.verify(producer, P0) == [ErrorCode.transaction_abortable]
    h.add(producer, P0)
    assert h.verify(producer, P0, P1) == [ErrorCode.none, ErrorCode.transaction_abortable]
    h.commit(producer)
    with refused(ErrorCode.concurrent_transactions):
        h.verify(producer, P0)
    h.deliver()
    assert h.verify(producer, P0) == [ErrorCode.transaction_abortable], "a late batch would hang"
    with refused(ErrorCode.producer_fenced):
        h.verify(producer_at(1000, 1), P0)


# Markers


def test_a_marker_that_is_reported_twice_or_late_changes_nothing() -> None:
    h = Harness()
    producer = h.init()
    h.add(producer, P0, P1)
    h.commit(producer)
    [(markers, _)] = h.deliver(1)
    for _ in range(3):
        h.take(h.coordinator.marker_written(ID, markers.producer, P0, h.now))
    assert h.state() is State.PREPARE_COMMIT
    h.deliver()
    written = len(h.world.records)
    h.take(h.coordinator.marker_written(ID, markers.producer, P1, h.now))
    h.take(h.coordinator.marker_written("unknown", markers.producer, P1, h.now))
    h.take(h.coordinator.marker_written(ID, producer_at(1, 1), P1, h.now))
    assert len(h.world.records) == written


def test_after_a_failover_all_markers_are_sent_again() -> None:
    h = Harness()
    producer = h.init()
    h.add(producer, P0, P1)
    h.abort(producer)
    h.deliver(1)
    h.fail_over()
    assert [place for _, place in h.world.outstanding] == [P0, P1]
    h.deliver()
    assert h.state() is State.COMPLETE_ABORT


# Looking


def test_transactions_are_found_by_state_producer_duration_and_name() -> None:
    h = Harness()
    for number in range(3):
        producer = h.init(transactional_id=f"app-{number}")
        if number:
            h.add(producer, P0, transactional_id=f"app-{number}")
        h.advance(100)

    def found(request: ListRequest) -> list[str]:
        return [one.transactional_id for one in h.coordinator.matching(request, h.now)]

    assert found(ListRequest()) == ["app-0", "app-1", "app-2"]
    assert found(ListRequest(states=[State.ONGOING])) == ["app-1", "app-2"]
    assert found(ListRequest(producer_ids=[1002])) == ["app-2"]
    assert found(ListRequest(states=[State.ONGOING], longer_than_ms=150)) == ["app-1"]
    assert found(ListRequest(transactional_id_pattern="app-[02]")) == ["app-0", "app-2"]
    assert found(ListRequest(transactional_id_pattern="pp")) == []
    with refused(ErrorCode.invalid_regular_expression):
        found(ListRequest(transactional_id_pattern="("))
