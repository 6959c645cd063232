"""What only a person can do: force a leader where the others are gone, and end a transaction whose end was lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from sexton.client.admin import Admin
from sexton.client.client import Client
from sexton.client.errors import BadAnswerError, ConnectionLostError, NotConnectedError, RefusedError
from sexton.client.transaction_admin import abort_at, find_hanging
from sexton.simulate.trace import Trace
from sexton.types import TopicPartition

NAME = "operator"
CallError = (NotConnectedError, ConnectionLostError, BadAnswerError, RefusedError)
PAUSE_S = 1
ANY_AGE_MS = -(10**12)
"""Clocks have jumped, and nobody writes any more: what no coordinator knows of hangs, however young it seems."""


async def force_leaders(client: Client, places: Sequence[TopicPartition], trace: Trace, seconds: int) -> None:
    """Does not wait for machines that are gone, and tries until each partition has a leader."""
    admin = Admin(client)
    for _ in range(seconds):
        await asyncio.sleep(PAUSE_S)
        try:
            failures = await admin.elect_leaders(places, unclean=True)
        except CallError as error:
            trace.note(NAME, f"could not force an election: {error.what}")
            continue
        forced = [place for place, failure in failures.items() if failure is None]
        if forced:
            trace.note(NAME, f"has forced a leader on {forced}")


async def end_hanging(
    client: Client, places: Callable[[], Sequence[TopicPartition]], trace: Trace, is_over: Callable[[], bool]
) -> None:
    """As `sexton txn find-hanging` and `sexton txn abort` do, again and again: a partition that lost its end may have
    lost the marker of a transaction as well, and its coordinator takes that one for ended."""
    while not is_over():
        await asyncio.sleep(PAUSE_S)
        try:
            for producer in await find_hanging(client, places(), ANY_AGE_MS):
                trace.note(NAME, f"ends the transaction of {producer.producer_id} at {producer.place} by hand")
                await abort_at(client, producer)
        except CallError as error:
            trace.note(NAME, f"could not end what hangs: {error.what}")
