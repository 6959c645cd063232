"""What a network must know to encrypt its connections: who is trusted, and who we are.

Certificates and keys are here as PEM text, not as paths: tasks on other machines connect, too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from sexton.errors import SextonError


@dataclass(frozen=True, slots=True)
class TlsSettings:
    trusted_pem: str = ""
    """Certificates of authorities; none: those that the system trusts."""
    own_pem: str = field(default="", repr=False)
    """Our certificate, those that vouch for it, and its private key; none: we show no certificate."""
    key_password: str = field(default="", repr=False)
    checks_host: bool = True
    """Whether the certificate must be for the name or address that we connect to."""


class TlsFailedError(SextonError):
    """The two sides do not trust each other, or one of them does not speak TLS. Trying again changes nothing."""

    exit_code: ClassVar[int] = 77
