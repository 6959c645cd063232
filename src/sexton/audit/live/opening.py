"""A live source from what a command is told."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from sexton.audit.live.connecting import Connecting
from sexton.audit.live.discovery import Scope
from sexton.audit.live.source import LiveSource
from sexton.client.metadata import Address
from sexton.client.security.files import security_from


def live_source(
    bootstrap: Sequence[Address],
    topic: str = "",
    *,
    everything: bool = False,
    command_config: Path | None = None,
    rate_bytes_per_s: float | None = None,
    tasks_count: int = 1,
) -> LiveSource:
    """`rate_bytes_per_s` is of each broker; None for no limit. Raises BadSecurityError."""
    return LiveSource(
        Connecting(tuple(bootstrap), security_from(command_config)),
        Scope(topic, takes_all=everything),
        tasks_count=tasks_count,
        rate_bytes_per_s=math.inf if rate_bytes_per_s is None else rate_bytes_per_s,
    )
