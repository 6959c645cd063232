"""Where the cluster is, and how to get in. Travels to Spark's tasks, which connect by themselves."""

from __future__ import annotations

import random
import secrets
from dataclasses import dataclass

from sexton.adapters.clock import SystemClock
from sexton.adapters.connecting import network_of
from sexton.audit.live.requests import CLIENT_ID
from sexton.client.client import Client
from sexton.client.metadata import Address
from sexton.client.security.properties import OPEN, Security

CONNECT_TIMEOUT_MS = 5_000
"""A broker that is paused accepts connections and says nothing."""


@dataclass(frozen=True, slots=True)
class Connecting:
    bootstrap: tuple[Address, ...]
    security: Security = OPEN
    client_id: str = CLIENT_ID

    def client(self) -> Client:
        """Inside a running event loop, for that loop."""
        return Client(
            network_of(self.security.tls),
            self.bootstrap,
            clock=SystemClock(),
            rng=random.Random(secrets.randbits(128)),
            client_id=self.client_id,
            connect_timeout_ms=CONNECT_TIMEOUT_MS,
            login=self.security.login,
        )
