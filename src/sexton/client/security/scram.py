"""SCRAM (RFC 5802, RFC 7677) as a client: a conversation of four messages, after which each side knows that the other
has the password. Pure: whoever has the connection passes the messages on.

As Kafka does it: no channel binding, and names and passwords are UTF-8 as they are, without SASLprep.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from enum import Enum, auto
from typing import Final

from sexton.client.security.errors import LoginFailedError

ALGORITHMS: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}

ITERATIONS_MIN: Final = 4096
"""RFC 7677's, and Kafka's. Fewer would let a false broker find the password out more cheaply."""
ITERATIONS_MAX: Final = 10_000_000
"""Some seconds of work: more is an attempt to keep us busy."""

_NO_CHANNEL_BINDING: Final = "n,,"


class _State(Enum):
    NEW = auto()
    FIRST_SENT = auto()
    FINAL_SENT = auto()
    DONE = auto()


class Scram:
    """One login: `first`, `final`, `verify`, in this order, once."""

    def __init__(self, mechanism: str, user: str, password: str, nonce: str) -> None:
        """The nonce must be new for every login, unpredictable, printable, and without a comma."""
        self._hash = ALGORITHMS[mechanism]
        self._user = user
        self._password = password.encode()
        self._nonce = nonce
        self._first_bare = ""
        self._server_signature = b""
        self._state = _State.NEW

    @property
    def is_done(self) -> bool:
        """Whether the other side has proved that it knows the password, too."""
        return self._state is _State.DONE

    def first(self) -> bytes:
        self._step(_State.NEW, _State.FIRST_SENT)
        name = self._user.replace("=", "=3D").replace(",", "=2C")
        self._first_bare = f"n={name},r={self._nonce}"
        return (_NO_CHANNEL_BINDING + self._first_bare).encode()

    def final(self, server_first: bytes) -> bytes:
        """Raises LoginFailedError if what the server sent is no answer to `first`."""
        self._step(_State.FIRST_SENT, _State.FINAL_SENT)
        fields = _fields(server_first)
        nonce, salt, iterations = fields.get("r", ""), _base64(fields.get("s", "")), fields.get("i", "")
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise _false("it does not repeat our nonce, with its own behind it")
        if not iterations.isdigit() or not ITERATIONS_MIN <= int(iterations) <= ITERATIONS_MAX:
            raise _false(f"it asks for {iterations or 'no'} iterations, not {ITERATIONS_MIN:,} to {ITERATIONS_MAX:,}")
        if not salt:
            raise _false("it has no salt")
        without_proof = f"c={base64.b64encode(_NO_CHANNEL_BINDING.encode()).decode()},r={nonce}"
        signed = f"{self._first_bare},{server_first.decode()},{without_proof}".encode()
        salted = hashlib.pbkdf2_hmac(self._hash, self._password, salt, int(iterations))
        client_key = self._hmac(salted, b"Client Key")
        stored_key = hashlib.new(self._hash, client_key).digest()
        signature = self._hmac(stored_key, signed)
        proof = bytes(left ^ right for left, right in zip(client_key, signature, strict=True))
        self._server_signature = self._hmac(self._hmac(salted, b"Server Key"), signed)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def verify(self, server_final: bytes) -> None:
        """Raises LoginFailedError if the server refuses us, or does not know the password itself."""
        self._step(_State.FINAL_SENT, _State.DONE)
        fields = _fields(server_final)
        if "e" in fields:
            raise LoginFailedError(f"the broker refuses the login: {fields['e']}", "", "Check user name and password")
        if not hmac.compare_digest(_base64(fields.get("v", "")), self._server_signature):
            raise _false("it does not prove that it knows the password")

    def _step(self, before: _State, after: _State) -> None:
        if self._state is not before:
            raise RuntimeError(f"a SCRAM login is {self._state.name}, not {before.name}")
        self._state = after

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._hash)


def _fields(message: bytes) -> dict[str, str]:
    try:
        parts = message.decode().split(",")
    except UnicodeDecodeError:
        raise _false("it is not UTF-8") from None
    return {part[0]: part[2:] for part in parts if part[1:2] == "="}


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise _false("it is not base64 where it must be") from None


def _false(why: str) -> LoginFailedError:
    return LoginFailedError(
        f"the broker's SCRAM message is not right: {why}", "", "Is this the broker that you mean to talk to?"
    )
