"""What can be wrong with a login, or with the properties that describe it."""

from __future__ import annotations

from typing import ClassVar

from sexton.errors import SextonError


class LoginFailedError(SextonError):
    """The broker does not accept who we say we are, or cannot prove who it is. Trying again changes nothing."""

    exit_code: ClassVar[int] = 77


class BadSecurityError(SextonError):
    """The properties of a client make no sense, or ask for what we do not have."""

    exit_code: ClassVar[int] = 78
