"""What can go wrong with a replica that is read from its broker."""

from __future__ import annotations

from typing import ClassVar

from sexton.errors import SextonError


class ReplicaUnreadableError(SextonError):
    """A broker did not give what it has, for longer than we wait. Nothing is known of what it holds."""

    exit_code: ClassVar[int] = 75


class NoPermissionError(SextonError):
    """The cluster does not let us read. A person must grant it."""

    exit_code: ClassVar[int] = 77


class NothingMatchesError(SextonError):
    """There is no topic to look at. Usually a mistyped pattern."""

    exit_code: ClassVar[int] = 66


def no_permission(operation: str, topic: str, place: str = "") -> NoPermissionError:
    grant = f"kafka-acls.sh --add --allow-principal User:NAME --operation {operation} --topic {topic}"
    return NoPermissionError(
        f"no permission to {operation} topic {topic}", place, f"Grant it: {grant} (an audit needs Read and Describe)"
    )
