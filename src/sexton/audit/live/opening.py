"""A live source from what a command is told. What is wrong with that is known before Spark starts, which takes long."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sexton.audit.live.connecting import Connecting
from sexton.audit.live.discovery import Scope, find_topics
from sexton.audit.live.source import LiveSource
from sexton.client.metadata import Address
from sexton.client.security.files import security_from


@dataclass(frozen=True, slots=True)
class Opening:
    connecting: Connecting
    scope: Scope
    rate_bytes_per_s: float = math.inf
    """From each broker."""

    @classmethod
    def of(
        cls,
        bootstrap: Sequence[Address],
        topic: str = "",
        *,
        everything: bool = False,
        command_config: Path | None = None,
        rate_bytes_per_s: float = math.inf,
    ) -> Opening:
        """Raises BadSecurityError and BadPatternError."""
        scope = Scope(topic, takes_all=everything)
        scope.matcher()
        return cls(Connecting(tuple(bootstrap), security_from(command_config)), scope, rate_bytes_per_s)

    def check(self) -> None:
        """Asks the cluster for its topics. Raises NothingMatchesError, NoPermissionError, or why it does not answer."""

        async def ask() -> None:
            client = self.connecting.client()
            try:
                await find_topics(client, self.scope)
            finally:
                client.close()

        asyncio.run(ask())

    def source(self, *, tasks_count: int, master: str) -> LiveSource:
        return LiveSource(
            self.connecting,
            self.scope,
            tasks_count=tasks_count,
            master=master,
            rate_bytes_per_s=self.rate_bytes_per_s,
        )
