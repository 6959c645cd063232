"""Shared by the group APIs."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sexton.broker.admin import NO_AUTHORIZED_OPERATIONS
from sexton.coordinators.groups.messages import Client

if TYPE_CHECKING:
    from sexton.broker.network.request import Request
    from sexton.metadata.view import ClusterView


GROUP_OPERATIONS = sum(1 << code for code in (3, 6, 8, 10, 11))
"""Read, delete, describe, and describe and alter configs: without ACLs, all are allowed."""


def client_of(request: Request) -> Client:
    """Formats the host as Java does ("/127.0.0.1"), because tools show it unchanged."""
    host = request.connection.peer.rpartition(":")[0].strip("[]")
    return Client(request.client_id or "", f"/{host}")


def authorized_operations(request: Request) -> int:
    asked = getattr(request.body, "include_authorized_operations", False)
    return GROUP_OPERATIONS if asked else NO_AUTHORIZED_OPERATIONS


def topic_key(topic: Any) -> Mapping[str, Any]:
    """The field by which the request names a topic, id or name. The response names it the same way."""
    return {"topic_id": topic.topic_id} if hasattr(topic, "topic_id") else {"name": topic.name}


def topic_name(view: ClusterView, topic: Any) -> str | None:
    """Returns None if there is no such topic."""
    topic_id: uuid.UUID | None = getattr(topic, "topic_id", None)
    if hasattr(topic, "topic_id"):
        row = None if topic_id is None else view.topic_by_id(topic_id)
    else:
        row = view.topic(topic.name)
    return None if row is None else row.name
