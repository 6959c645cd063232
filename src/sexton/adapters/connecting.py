"""The network that a client's security asks for."""

from __future__ import annotations

from sexton.adapters.sockets import SocketNetwork
from sexton.adapters.tls import TlsNetwork, make_context
from sexton.ports.network import Network
from sexton.ports.tls import TlsSettings


def network_of(tls: TlsSettings | None) -> Network:
    """One per event loop."""
    return SocketNetwork() if tls is None else TlsNetwork(SocketNetwork(), make_context(tls))
