"""Transactions on one broker: its coordinator, the markers that it owes to other brokers, the verifications that it
requests from them, and which connection may speak for a producer."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from sexton.broker.lifecycle.peers import Peers
from sexton.broker.network.request import DropConnectionError
from sexton.broker.transactions.coordinator_log import CoordinatorLog
from sexton.broker.transactions.markers import MarkerSender
from sexton.broker.transactions.verifier import Verifier
from sexton.coordinators.transactions.connection_binding import ANY_CONNECTION, Admission, Bindings
from sexton.coordinators.transactions.service import TransactionService
from sexton.metadata.topics import TRANSACTIONS_TOPIC
from sexton.ports.metastore import MetastoreUnavailableError

if TYPE_CHECKING:
    from sexton.broker.broker import Broker
    from sexton.broker.network.connection import ClientConnection
    from sexton.replication.local_replica import LocalReplica

READY_WAIT_MS = 3_000
READY_POLL_S = 0.02
RECONNECT = {
    Admission.UNPROVEN: "older than this broker's role in the transaction. Open it again",
    Admission.OLDER: "its producer has used a newer connection since. Open it again",
}


class Transactions:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.peers = Peers(broker)
        self.markers = MarkerSender(broker, self.peers)
        self.verifier = Verifier(broker, self.peers)
        self.service = TransactionService(
            broker, broker.config, next_producer_id=broker.producer_ids.next, send_markers=self.markers.send
        )
        self._coordinated: dict[int, Bindings] = {}
        """Bindings by partition of `__transaction_state`."""
        self._produced = Bindings()
        self._offsets = Bindings()
        self._marked = Bindings(refuses_former=True)
        self._led_since: dict[tuple[str, int], int] = {}

    def reconfigure(self) -> None:
        self.service.reconfigure(self._broker.config)

    async def close(self) -> None:
        await self.service.close()
        await self.markers.close()
        await self.verifier.close()
        self.peers.close()

    def role_changed(self, replica: LocalReplica) -> None:
        newest = self._broker.dispatch.accepted_count
        key = replica.topic, replica.partition
        if replica.is_leader:
            self._led_since[key] = newest
        else:
            self._led_since.pop(key, None)
        if replica.topic != TRANSACTIONS_TOPIC:
            return
        if replica.is_leader:
            self._coordinated[replica.partition] = Bindings(older_are_unproven_than=newest)
            self.service.load(replica.partition, replica.leader_epoch, CoordinatorLog(replica))
        else:
            self._coordinated.pop(replica.partition, None)
            self.service.unload(replica.partition)

    async def until_ready(self, transactional_id: str) -> None:
        """Waits a moment if this broker is about to become the coordinator: the broker that sent the client here may
        have seen a new topic or a new leader sooner, and librdkafka's init_transactions() fails at the first error."""
        if self.service.is_ready(transactional_id):
            return
        with suppress(MetastoreUnavailableError):
            await self._broker.catch_up()
        deadline_ms = self._broker.clock.monotonic_ms() + READY_WAIT_MS
        while not self.service.is_ready(transactional_id) and self._is_leader_for(transactional_id):
            if self._broker.clock.monotonic_ms() > deadline_ms:
                return
            await asyncio.sleep(READY_POLL_S)

    def _is_leader_for(self, transactional_id: str) -> bool:
        if self._broker.partitions_count(TRANSACTIONS_TOPIC) == 0:
            return False
        row = self._broker.view.partition(TRANSACTIONS_TOPIC, self.service.partition_of(transactional_id))
        return row is not None and row.leader == self._broker.config.node_id

    # Clients before transaction version 2 (coordinators/transactions/connection_binding.py says why)

    def initialised(self, transactional_id: str, producer_id: int, epoch: int) -> None:
        bindings = self._coordinated.get(self.service.partition_of(transactional_id))
        if bindings is not None:
            self._tidy(bindings)
            # The epoch is new, so no late request has it, whichever connection comes next: aiokafka initialises on one
            # and continues on another, which may be the older of the two.
            bindings.bind(producer_id, epoch, ANY_CONNECTION)

    def check_coordinated(
        self, transactional_id: str, producer_id: int, epoch: int, connection: ClientConnection
    ) -> None:
        """Used by AddPartitionsToTxn and AddOffsetsToTxn."""
        admission = self._admission(transactional_id, producer_id, epoch, connection)
        if admission is not Admission.ADMITTED:
            raise DropConnectionError(RECONNECT[admission])

    def may_be_late(
        self, transactional_id: str, producer_id: int, epoch: int, connection: ClientConnection
    ) -> DropConnectionError | None:
        """Used by EndTxn. Returns the error to raise if there is a transaction to end; None if the request may end
        it."""
        admission = self._admission(transactional_id, producer_id, epoch, connection)
        return None if admission is Admission.ADMITTED else DropConnectionError(RECONNECT[admission])

    def _admission(
        self, transactional_id: str, producer_id: int, epoch: int, connection: ClientConnection
    ) -> Admission:
        bindings = self._coordinated.get(self.service.partition_of(transactional_id))
        if bindings is None:
            return Admission.ADMITTED  # not the coordinator
        self._tidy(bindings)
        return bindings.admit(producer_id, epoch, connection.number)

    def check_produced(self, producer_id: int, epoch: int, connection: ClientConnection) -> None:
        self._check(self._produced, producer_id, epoch, connection)

    def check_offsets(self, producer_id: int, epoch: int, connection: ClientConnection) -> None:
        self._check(self._offsets, producer_id, epoch, connection)

    def is_late_marker(
        self, place: tuple[str, int], producer_id: int, epoch: int, coordinator_epoch: int, connection: ClientConnection
    ) -> bool:
        """Whether a marker of another broker is late. Brokers send over one connection at a time, and over a new one
        after each failure."""
        self._tidy(self._marked)
        generation = coordinator_epoch, epoch
        if connection.number <= self._led_since.get(place, 0):
            return True
        return self._marked.admit(producer_id, generation, connection.number) is not Admission.ADMITTED

    def _check(self, bindings: Bindings, producer_id: int, epoch: int, connection: ClientConnection) -> None:
        self._tidy(bindings)
        admission = bindings.admit(producer_id, epoch, connection.number)
        if admission is not Admission.ADMITTED:
            raise DropConnectionError(RECONNECT[admission])

    def _tidy(self, bindings: Bindings) -> None:
        if bindings.is_due_for_purge:
            oldest = next(iter(self._broker.dispatch.connections), None)
            bindings.purge(0 if oldest is None else oldest.number)
