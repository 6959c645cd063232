"""Carries out the controller's steps (`sexton.metadata.controller`) if this broker is the controller, or claims that
role."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sexton.broker.lifecycle.handover import ANSWER_SHARE
from sexton.metadata.controller import (
    Action,
    Claim,
    ControllerMemory,
    ControllerSettings,
    Fence,
    UpdatePartitions,
    controller_steps,
)
from sexton.metadata.elections import allows_unclean
from sexton.metadata.leases import LeaseWatch
from sexton.ports.metastore import BrokerRow, LeaseLostError, MetastoreUnavailableError, StaleError

if TYPE_CHECKING:
    from sexton.broker.broker import Broker

logger = logging.getLogger(__name__)

ROUNDS_MAX = 5
"""Maximum number of rounds in one run. Fencing makes elections due, elections may complete reassignments; steps that
are left after this many rounds are taken in the next run."""


class Control:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._watch = LeaseWatch(broker.config.node_id, broker.config.broker_lease_ms)
        self._memory = ControllerMemory()
        self._silent_since_ms: dict[int, int] = {}
        """When a broker process, by its broker epoch, first failed to answer."""

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._broker.config.broker_lease_renew_ms / 2000)
            try:
                await self.look()
            except (MetastoreUnavailableError, StaleError, LeaseLostError) as error:
                logger.debug("cannot check leases and elect leaders: %s", error)

    async def look(self) -> None:
        """One round of the controller: does what the leases and the view ask for now."""
        broker = self._broker
        leases = await broker.metastore.read_leases()
        self._watch.observe(leases, broker.clock.monotonic_ms())
        for _ in range(ROUNDS_MAX):
            config = broker.config
            settings = ControllerSettings(
                lambda topic: allows_unclean(broker.topic_config(topic)),
                config.auto_leader_rebalance_enable,
                config.leader_imbalance_check_interval_seconds * 1000,
            )
            actions, self._memory = controller_steps(
                broker.view,
                self._watch,
                *broker.identity,
                broker.clock.monotonic_ms(),
                settings,
                self._memory,
            )
            if not actions:
                return
            was_refused = False
            silent = await self._silent(actions)
            for action in actions:
                try:
                    if isinstance(action, UpdatePartitions) and action.relied_on in silent:
                        raise StaleError(f"broker {action.relied_on.broker_id} does not answer")
                    await self._carry_out(action)
                except StaleError as error:
                    logger.info("cannot %s: %s", _named(action), error)
                    was_refused = True
            await broker.catch_up()
            await broker.news.tell()
            if was_refused:
                return  # the next run decides again, by the leases of that time

    async def _silent(self, actions: Sequence[Action]) -> list[BrokerRow]:
        """Returns the brokers that an action relies on and that did not answer. A broker that does not answer, but goes
        on renewing its lease, is alive behind a broken link and is not returned. One that does neither is fenced
        soon."""
        asked = {
            action.relied_on.epoch: action.relied_on
            for action in actions
            if isinstance(action, UpdatePartitions) and action.relied_on is not None
        }
        broker, wait_ms = self._broker, int(self._broker.config.broker_lease_ms * ANSWER_SHARE)
        answers = await asyncio.gather(*(broker.news.is_answered_by(row, wait_ms) for row in asked.values()))
        now_ms = broker.clock.monotonic_ms()
        self._silent_since_ms = {
            epoch: self._silent_since_ms.get(epoch, now_ms)
            for epoch, is_answered in zip(asked, answers, strict=True)
            if not is_answered
        }
        return [
            row
            for epoch, row in asked.items()
            if (since_ms := self._silent_since_ms.get(epoch)) is not None
            and not self._watch.has_renewed_since(row, since_ms)
        ]

    async def _carry_out(self, action: Action) -> None:
        metastore = self._broker.metastore
        match action:
            case Claim(expected_term):
                row = await metastore.claim_controller(*self._broker.identity, expected_term)
                logger.info("broker %d is the controller, term %d", row.broker_id, row.term)
            case Fence(lease):
                logger.warning("fencing broker %d: it has not renewed its lease", lease.broker_id)
                await metastore.fence_broker(lease.broker_id, lease.epoch, lease.renewals_count)
            case UpdatePartitions(rows, live, why, _):
                logger.info("%s: %d partitions", why, len(rows))
                await metastore.update_partitions(rows, live)


def _named(action: Action) -> str:
    """For the log: "cannot ..."."""
    match action:
        case Claim(expected_term):
            return f"become the controller after term {expected_term}"
        case Fence(lease):
            return f"fence broker {lease.broker_id}"
        case UpdatePartitions(rows, _, why, _):
            return f"write {len(rows)} partitions ({why})"
