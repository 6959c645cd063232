"""Logs in on a connection that was just made: SaslHandshake names the mechanism, SaslAuthenticate carries its messages
(KIP-152). Until it is done a broker answers nothing else but ApiVersions."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from sexton.client import apis
from sexton.client.apis import Api
from sexton.client.errors import refusal
from sexton.client.security.errors import LoginFailedError
from sexton.client.security.scram import ALGORITHMS, Scram
from sexton.protocol.errors import ErrorCode

PLAIN: Final = "PLAIN"
MECHANISMS: Final = (PLAIN, *ALGORITHMS)

NONCE_BYTES: Final = 24

Call = Callable[[Api, dict[str, Any]], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Login:
    """Who we are. Travels to Spark's tasks, which make connections of their own."""

    mechanism: str
    user: str
    password: str = field(repr=False)

    async def run(self, call: Call, place: str) -> None:
        """Raises LoginFailedError if it is refused."""
        answer = await call(apis.SASL_HANDSHAKE, {"mechanism": self.mechanism})
        if answer.error_code == ErrorCode.unsupported_sasl_mechanism:
            known = ", ".join(answer.mechanisms) or "none"
            what = f"the broker does not let anybody log in by {self.mechanism} here; by {known}"
            raise LoginFailedError(what, place, "Correct sasl.mechanism, or ask for another listener's address")
        if answer.error_code == ErrorCode.illegal_sasl_state:
            what = "the broker wants no login on this port"
            remedy = "Set security.protocol to PLAINTEXT or SSL, or give the port that asks for one"
            raise LoginFailedError(what, place, remedy)
        _check(answer, place)
        try:
            await self._converse(call, place)
        except LoginFailedError as error:
            raise LoginFailedError(error.what, error.place or place, error.remedy) from error

    async def _converse(self, call: Call, place: str) -> None:
        async def say(message: bytes) -> bytes:
            answer = await call(apis.SASL_AUTHENTICATE, {"auth_bytes": message})
            _check(answer, place)
            return bytes(answer.auth_bytes)

        if self.mechanism == PLAIN:
            await say(f"\0{self.user}\0{self.password}".encode())
            return
        scram = Scram(self.mechanism, self.user, self.password, secrets.token_urlsafe(NONCE_BYTES))
        scram.verify(await say(scram.final(await say(scram.first()))))


def _check(answer: Any, place: str) -> None:
    code = ErrorCode(answer.error_code)
    message = getattr(answer, "error_message", None)
    if code == ErrorCode.sasl_authentication_failed:
        what = f"the broker refuses the login: {(message or 'wrong user name or password').rstrip('. ')}"
        raise LoginFailedError(what, place, "Check user name, password and sasl.mechanism")
    if code != ErrorCode.none:
        error = refusal(code, place, message)
        raise LoginFailedError(f"the broker refuses the login: {error.what}", place, error.remedy)
