"""Which connection may speak for a producer that came before transaction version 2."""

from __future__ import annotations

from sexton.coordinators.transactions.connection_binding import (
    ANY_CONNECTION,
    BINDINGS_MAX,
    PURGE_EVERY,
    Admission,
    Bindings,
)

P = 1000
ADMITTED, OLDER, UNPROVEN = Admission.ADMITTED, Admission.OLDER, Admission.UNPROVEN


def test_a_producer_moves_to_newer_connections_and_never_back() -> None:
    bindings = Bindings()
    assert bindings.admit(P, 0, 4) is ADMITTED
    assert bindings.admit(P, 0, 4) is ADMITTED
    assert bindings.admit(P, 0, 7) is ADMITTED
    assert bindings.admit(P, 0, 4) is OLDER
    assert bindings.admit(P, 0, 7) is ADMITTED


def test_a_late_end_is_refused_when_the_client_has_gone_on_over_another_connection() -> None:
    """The story of KAFKA-17754: the first EndTxn is late, the second was answered, the next transaction has begun."""
    bindings = Bindings()
    first, second = 1, 2
    bindings.admit(P, 0, first)  # AddPartitionsToTxn; the EndTxn that follows is held up
    assert bindings.admit(P, 0, second) is ADMITTED  # EndTxn again
    assert bindings.admit(P, 0, second) is ADMITTED  # AddPartitionsToTxn of the next transaction
    assert bindings.admit(P, 0, first) is OLDER  # the late EndTxn


def test_producers_do_not_disturb_each_other() -> None:
    bindings = Bindings()
    bindings.admit(1, 0, 9)
    assert bindings.admit(2, 0, 3) is ADMITTED


def test_a_new_epoch_begins_wherever_it_comes() -> None:
    bindings = Bindings()
    bindings.admit(P, 0, 9)
    assert bindings.admit(P, 1, 3) is ADMITTED
    assert bindings.admit(P, 1, 2) is OLDER


def test_a_former_epoch_is_left_to_others_to_refuse_and_unbinds_nothing() -> None:
    bindings = Bindings()
    bindings.admit(P, 5, 9)
    assert bindings.admit(P, 4, 12) is ADMITTED
    assert bindings.admit(P, 5, 8) is OLDER


def test_a_former_generation_is_late_where_nobody_else_refuses_it() -> None:
    bindings = Bindings(refuses_former=True)
    bindings.admit(P, (6, 0), 9)
    assert bindings.admit(P, (5, 0), 12) is OLDER
    assert bindings.admit(P, (6, 0), 9) is ADMITTED


def test_a_connection_from_before_a_coordinator_took_over_proves_nothing() -> None:
    bindings = Bindings(older_are_unproven_than=10)
    assert bindings.admit(P, 0, 10) is UNPROVEN
    assert bindings.admit(P, 0, 11) is ADMITTED
    assert bindings.admit(P, 0, 10) is OLDER


def test_who_was_initialised_may_go_on_over_a_connection_that_is_older_still() -> None:
    """aiokafka initialises on one connection and sends the rest over another."""
    bindings = Bindings()
    bindings.admit(P, 0, 9)
    bindings.bind(P, 1, ANY_CONNECTION)
    assert bindings.admit(P, 1, 3) is ADMITTED
    bindings.bind(P, 1, ANY_CONNECTION)  # asked for twice
    assert bindings.admit(P, 1, 2) is OLDER


def test_who_was_initialised_on_an_old_connection_may_go_on_over_it() -> None:
    bindings = Bindings(older_are_unproven_than=10)
    bindings.bind(P, 3, 4)
    assert bindings.admit(P, 3, 4) is ADMITTED
    assert bindings.admit(P, 3, 3) is OLDER


def test_bindings_that_no_open_connection_could_break_are_forgotten() -> None:
    bindings = Bindings()
    for number in range(PURGE_EVERY):
        bindings.admit(number, 0, number + 1)
    assert bindings.is_due_for_purge
    bindings.purge(oldest_open=PURGE_EVERY - 1)
    assert len(bindings) == 1
    assert not bindings.is_due_for_purge


def test_their_number_is_bounded() -> None:
    bindings = Bindings()
    for number in range(BINDINGS_MAX + 5):
        bindings.admit(number, 0, 1)
    assert len(bindings) == BINDINGS_MAX
