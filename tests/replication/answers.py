"""What a leader's session answers, however long it takes."""

from __future__ import annotations

from collections.abc import Awaitable

from sexton.ports.network import Part
from sexton.replication.messages import FetchRequest
from sexton.replication.session import FollowerSession


async def answered(session: FollowerSession, request: FetchRequest) -> list[Part]:
    answer = session.fetch(request)
    return await answer if isinstance(answer, Awaitable) else answer
