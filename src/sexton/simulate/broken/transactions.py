"""Defects that Sexton once had, put back: transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from sexton.broker.transactions import verifier
from sexton.broker.transactions.verifier import GoOn
from sexton.protocol.errors import ErrorCode
from sexton.simulate.broken.switch import Break, Patch
from sexton.simulate.plan import Profile


def _resumed_a_turn_later(waiting: Sequence[GoOn], code: ErrorCode) -> None:
    """In between they are neither waited for nor appended."""
    loop = asyncio.get_running_loop()
    for go_on in waiting:
        loop.call_soon(go_on, code)


TRANSACTIONS: dict[str, Break] = {
    "batch-overtakes-verification": Break(Patch(verifier, "_resume", _resumed_a_turn_later), Profile.TRANSACTIONS),
}
