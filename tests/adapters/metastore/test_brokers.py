"""Brokers, their leases, and the controller: the same on every metastore."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace

import pytest

from sexton.adapters.metastore import open_metastore, operations
from sexton.adapters.metastore.session import Session
from sexton.harness.postgres import Postgres
from sexton.ports.metastore import (
    BrokerRow,
    BrokerStatus,
    ControllerRow,
    LeaseLostError,
    Metastore,
    StaleError,
)
from tests.adapters.metastore.conftest import Opener
from tests.adapters.metastore.rows import CLUSTER, broker, broker_in, partitions, register, topic


async def test_the_first_to_open_a_cluster_names_it_and_the_others_learn_the_name(opener: Opener) -> None:
    first, second = opener(), opener()
    assert await first.open_cluster(CLUSTER) == CLUSTER
    assert await second.open_cluster(uuid.UUID(int=2)) == CLUSTER
    assert await first.open_cluster(uuid.UUID(int=3)) == CLUSTER


async def test_a_broker_registers_as_starting_with_no_renewals_and_everything_else_as_it_said(store: Metastore) -> None:
    proposed = replace(broker(1, port=19092, rack="east", lease_ms=4321), start_id="f00")
    row = await store.register_broker(proposed, None)
    assert row == replace(proposed, epoch=row.epoch, renewals_count=0, status=BrokerStatus.STARTING)
    assert await broker_in(store, 1) == row


async def test_every_registration_has_a_higher_epoch_than_all_before_it(store: Metastore) -> None:
    first = await store.register_broker(broker(1), None)
    second = await store.register_broker(broker(2), None)
    again = await store.register_broker(broker(1), first)
    assert first.epoch < second.epoch < again.epoch


async def test_a_registration_that_does_not_know_of_the_one_there_is_stale(store: Metastore) -> None:
    await store.register_broker(broker(1), None)
    with pytest.raises(StaleError):
        await store.register_broker(broker(1), None)


async def test_a_registration_that_replaces_what_was_never_there_is_stale(store: Metastore) -> None:
    with pytest.raises(StaleError):
        await store.register_broker(broker(1), replace(broker(1), epoch=1))


async def test_a_registration_is_stale_if_the_former_one_has_renewed_meanwhile(store: Metastore) -> None:
    former = await register(store, 1)
    await store.renew_lease(1, former.epoch)
    with pytest.raises(StaleError):
        await store.register_broker(broker(1), former)
    renewed = replace(former, renewals_count=1)
    assert (await store.register_broker(broker(1), renewed)).renewals_count == 0


async def test_a_registration_is_stale_if_the_former_one_has_changed_its_status_meanwhile(store: Metastore) -> None:
    former = await register(store, 1)
    await store.set_broker_status(1, former.epoch, BrokerStatus.DRAINING)
    with pytest.raises(StaleError):
        await store.register_broker(broker(1), former)


async def test_a_registration_may_bring_another_address_rack_and_folder(store: Metastore) -> None:
    former = await register(store, 1)
    moved = replace(broker(1), host="other", port=1, rack="r", data_id=uuid.UUID(int=9), lease_ms=1)
    row = await store.register_broker(moved, former)
    assert (row.host, row.port, row.rack, row.data_id, row.lease_ms) == ("other", 1, "r", uuid.UUID(int=9), 1)
    assert await broker_in(store, 1) == row


async def test_one_broker_is_read_without_the_others(store: Metastore) -> None:
    one, other = await register(store, 1), await register(store, 2)
    assert await store.read_broker(1) == one
    await store.fence_broker(2, other.epoch, 0)
    fenced = await store.read_broker(2)
    assert fenced is not None
    assert not fenced.is_live
    assert await store.read_broker(3) is None


async def test_renewals_are_counted_and_are_no_change(store: Metastore) -> None:
    row = await register(store, 1)
    before = await store.read_changes(0)
    for _ in range(3):
        await store.renew_lease(1, row.epoch)
    assert await store.read_leases() == {1: (row.epoch, 3)}
    after = await store.read_changes(before.revision)
    assert (after.revision, list(after.brokers)) == (before.revision, [])
    assert (await broker_in(store, 1)).renewals_count == 3


async def test_a_lease_of_another_epoch_or_an_unknown_broker_cannot_be_renewed(store: Metastore) -> None:
    row = await register(store, 1)
    for broker_id, epoch in [(1, row.epoch + 1), (1, row.epoch - 1), (2, row.epoch)]:
        with pytest.raises(LeaseLostError):
            await store.renew_lease(broker_id, epoch)


async def test_the_former_process_loses_its_lease_when_another_registers(store: Metastore) -> None:
    former = await register(store, 1)
    await store.register_broker(broker(1), former)
    with pytest.raises(LeaseLostError):
        await store.renew_lease(1, former.epoch)
    with pytest.raises(LeaseLostError):
        await store.set_broker_status(1, former.epoch, BrokerStatus.DRAINING)


async def test_a_fenced_broker_has_no_lease_to_renew_or_to_show(store: Metastore) -> None:
    row = await register(store, 1)
    await store.renew_lease(1, row.epoch)
    await store.fence_broker(1, row.epoch, 1)
    assert await store.read_leases() == {}
    assert (await broker_in(store, 1)).status is BrokerStatus.FENCED
    with pytest.raises(LeaseLostError):
        await store.renew_lease(1, row.epoch)


async def test_fencing_is_a_change_that_followers_see(store: Metastore) -> None:
    row = await register(store, 1)
    before = await store.read_changes(0)
    await store.fence_broker(1, row.epoch, 0)
    after = await store.read_changes(before.revision)
    assert [(b.broker_id, b.status) for b in after.brokers] == [(1, BrokerStatus.FENCED)]


async def test_a_broker_that_has_renewed_cannot_be_fenced_on_the_old_count(store: Metastore) -> None:
    row = await register(store, 1)
    await store.renew_lease(1, row.epoch)
    for epoch, count in [(row.epoch, 0), (row.epoch, 2), (row.epoch + 1, 1)]:
        with pytest.raises(StaleError):
            await store.fence_broker(1, epoch, count)
    assert await store.read_leases() == {1: (row.epoch, 1)}


async def test_a_broker_is_fenced_once(store: Metastore) -> None:
    row = await register(store, 1)
    await store.fence_broker(1, row.epoch, 0)
    with pytest.raises(StaleError):
        await store.fence_broker(1, row.epoch, 0)


async def test_a_fenced_broker_comes_back_only_by_registering(store: Metastore) -> None:
    row = await register(store, 1)
    await store.fence_broker(1, row.epoch, 0)
    for status in (BrokerStatus.STARTING, BrokerStatus.ACTIVE, BrokerStatus.FENCED):
        with pytest.raises(LeaseLostError):
            await store.set_broker_status(1, row.epoch, status)
    fenced = await broker_in(store, 1)
    assert (await store.register_broker(broker(1), fenced)).status is BrokerStatus.STARTING


async def test_a_status_moves_forward_and_keeps_the_renewals(store: Metastore) -> None:
    row = await store.register_broker(broker(1), None)
    await store.renew_lease(1, row.epoch)
    for status in (BrokerStatus.ACTIVE, BrokerStatus.DRAINING, BrokerStatus.FENCED):
        assert await store.set_broker_status(1, row.epoch, status) == replace(row, renewals_count=1, status=status)


async def test_a_status_that_would_move_back_is_a_bug_of_the_caller_and_changes_nothing(store: Metastore) -> None:
    row = await register(store, 1, BrokerStatus.DRAINING)
    before = await store.read_changes(0)
    with pytest.raises(ValueError, match="does not become active"):
        await store.set_broker_status(1, row.epoch, BrokerStatus.ACTIVE)
    assert await store.read_changes(0) == before


async def test_a_status_that_is_there_already_is_no_change(store: Metastore) -> None:
    row = await register(store, 1)
    before = await store.read_changes(0)
    assert await store.set_broker_status(1, row.epoch, BrokerStatus.ACTIVE) == row
    assert (await store.read_changes(before.revision)).revision == before.revision


async def test_a_broker_that_is_gone_for_good_is_forgotten_by_everybody(store: Metastore) -> None:
    gone, other = await register(store, 1), await register(store, 2)
    before = await store.read_changes(0)
    with pytest.raises(StaleError):
        await store.remove_broker(1, gone.epoch)  # it lives
    await store.fence_broker(1, gone.epoch, 0)
    with pytest.raises(StaleError):
        await store.remove_broker(1, other.epoch)
    await store.remove_broker(1, gone.epoch)
    changes = await store.read_changes(before.revision)
    assert changes.is_snapshot
    assert [row.broker_id for row in changes.brokers] == [2]
    with pytest.raises(StaleError):
        await store.remove_broker(1, gone.epoch)
    again = await register(store, 1)
    assert again.epoch > gone.epoch


async def test_a_broker_that_is_a_replica_of_anything_is_not_forgotten(store: Metastore) -> None:
    gone = await register(store, 1)
    await store.fence_broker(1, gone.epoch, 0)
    made = topic("t")
    await store.create_topic(made, partitions(made, 1), {})
    with pytest.raises(StaleError, match="replicas"):
        await store.remove_broker(1, gone.epoch)
    await store.delete_topic(made.topic_id)
    await store.remove_broker(1, gone.epoch)


async def test_the_controller_is_claimed_with_growing_terms(store: Metastore) -> None:
    one, two = await register(store, 1), await register(store, 2)
    assert (await store.read_changes(0)).controller is None
    assert await store.claim_controller(1, one.epoch, 0) == ControllerRow(1, one.epoch, 1)
    seen = await store.read_changes(0)
    assert seen.controller == ControllerRow(1, one.epoch, 1)
    assert await store.claim_controller(2, two.epoch, 1) == ControllerRow(2, two.epoch, 2)
    assert (await store.read_changes(seen.revision)).controller == ControllerRow(2, two.epoch, 2)


async def test_a_claim_on_a_term_that_has_passed_is_stale(store: Metastore) -> None:
    one, two = await register(store, 1), await register(store, 2)
    await store.claim_controller(1, one.epoch, 0)
    for term in (0, 2):
        with pytest.raises(StaleError):
            await store.claim_controller(2, two.epoch, term)


async def test_a_fenced_or_replaced_broker_cannot_claim_the_controller(store: Metastore) -> None:
    one, two = await register(store, 1), await register(store, 2)
    await store.fence_broker(1, one.epoch, 0)
    await store.register_broker(broker(2), two)
    for row in (one, two):
        with pytest.raises(LeaseLostError):
            await store.claim_controller(row.broker_id, row.epoch, 0)
    assert (await store.read_changes(0)).controller is None


async def test_producer_ids_are_given_out_once_and_are_no_change(opener: Opener) -> None:
    first, second = opener(), opener()
    await first.open_cluster(CLUSTER)
    before = await first.read_changes(0)
    assert await first.allocate_producer_ids(1000) == 0
    assert await second.allocate_producer_ids(1) == 1000
    assert await first.allocate_producer_ids(2**40) == 1001
    assert await second.allocate_producer_ids(5) == 1001 + 2**40
    assert (await first.read_changes(0)).revision == before.revision


@pytest.mark.parametrize("count", [0, -1])
async def test_no_producer_ids_cannot_be_allocated(store: Metastore, count: int) -> None:
    with pytest.raises(ValueError, match="no number of producer ids"):
        await store.allocate_producer_ids(count)


@pytest.mark.postgres
async def test_a_renewal_between_the_look_and_the_replacement_makes_a_registration_stale(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL's renewals wait for nobody. Two processes would both hold the broker's id: the one that renewed until
    its next renewal, which is refused."""
    url = postgres.new_database()
    store = open_metastore(url)
    await store.open_cluster(CLUSTER)
    former = await register(store, 1)
    look = operations._broker

    async def renew() -> None:
        other = open_metastore(url)
        await other.renew_lease(1, former.epoch)
        await other.close()

    def slowly(session: Session, broker_id: int) -> BrokerRow | None:
        found = look(session, broker_id)
        asyncio.run(renew())
        return found

    monkeypatch.setattr(operations, "_broker", slowly)
    with pytest.raises(StaleError):
        await store.register_broker(broker(1), former)
    monkeypatch.undo()
    assert await broker_in(store, 1) == replace(former, renewals_count=1)
    await store.close()
