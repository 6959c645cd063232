"""What a handler receives, and what it may return."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sexton.ports.network import Part

if TYPE_CHECKING:
    from sexton.broker.broker import Broker
    from sexton.broker.network.connection import ClientConnection

Encoded = bytes | list[Part]
"""A whole frame, with size and header, as bytes or in parts."""

Body = dict[str, Any]
"""The fields of a response, or of one of its parts, by name."""

Response = Mapping[str, Any] | Encoded | None
"""What a handler returns. None: this request gets no response (Produce with acks=0)."""

Handler = Callable[["Broker", "Request"], Response | Awaitable[Response]]

PrivateHandler = Callable[["ClientConnection", memoryview], Sequence[Part] | Awaitable[Sequence[Part]]]
"""A handler of messages between our own brokers. It may keep the payload; it returns the body of the response alone."""


class DropConnectionError(Exception):
    """Raised by a handler whose response cannot carry the error: the connection is closed."""


class Request:
    __slots__ = ("api_key", "body", "client_id", "connection", "correlation_id", "on_released", "version")

    def __init__(
        self,
        api_key: int,
        version: int,
        correlation_id: int,
        client_id: str | None,
        body: Any,
        connection: ClientConnection,
    ) -> None:
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.body = body
        self.connection = connection
        self.on_released: Callable[[], None] | None = None

    def release(self) -> None:
        """Called by a handler that has taken what it needs from the body and may wait for long, such as a JoinGroup for
        a rebalance. The body no longer counts against the budget for requests: other requests must not wait for a
        group's rebalance."""
        self.body = None
        if self.on_released is not None:
            self.on_released()

    def __repr__(self) -> str:
        return f"Request({self.api_key} v{self.version} from {self.client_id} at {self.connection.peer})"


def milliseconds(duration: Any) -> int:
    """Converts a duration, which kio reads as timedelta."""
    return duration.days * 86_400_000 + duration.seconds * 1000 + duration.microseconds // 1000  # type: ignore[no-any-return]
