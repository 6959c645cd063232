"""What the group APIs have in common. No API of its own."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sexton.broker.admin import NO_AUTHORIZED_OPERATIONS
from sexton.coordinators.groups.messages import Client

if TYPE_CHECKING:
    from sexton.broker.request import Request
    from sexton.cluster.view import ClusterView

Answer = dict[str, Any]

GROUP_OPERATIONS = sum(1 << code for code in (3, 6, 8, 10, 11))
"""Read, delete, describe, and settings: with no access rules, all are allowed."""


def client_of(request: Request) -> Client:
    """The host as Java writes it, for tools show it as it comes."""
    host = request.connection.peer.rpartition(":")[0].strip("[]")
    return Client(request.client_id or "", f"/{host}")


def authorized_operations(request: Request) -> int:
    asked = getattr(request.body, "include_authorized_operations", False)
    return GROUP_OPERATIONS if asked else NO_AUTHORIZED_OPERATIONS


def topic_key(topic: Any) -> Mapping[str, Any]:
    """How a request names a topic: by id, or by name. Answers name it the same way."""
    return {"topic_id": topic.topic_id} if hasattr(topic, "topic_id") else {"name": topic.name}


def topic_name(view: ClusterView, topic: Any) -> str | None:
    """None if there is no such topic."""
    topic_id: uuid.UUID | None = getattr(topic, "topic_id", None)
    if hasattr(topic, "topic_id"):
        row = None if topic_id is None else view.topic_by_id(topic_id)
    else:
        row = view.topic(topic.name)
    return None if row is None else row.name
